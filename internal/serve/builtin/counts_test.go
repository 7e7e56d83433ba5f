package builtin

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/serve/enginepb"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/player"
)

// seen is what clients have seen.
type seen struct {
	mu                 sync.Mutex
	prompt, completion int
	finished           map[string]int // by reason
}

// add counts answers to one prompt.
func (s *seen) add(prompt, completion int, reasons ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.prompt += prompt * len(reasons)
	s.completion += completion
	for _, reason := range reasons {
		s.finished[reason]++
	}
}

var (
	usageOf   = regexp.MustCompile(`"usage":\{"prompt_tokens":(\d+),"total_tokens":\d+,"completion_tokens":(\d+)`)
	reasonsOf = regexp.MustCompile(`"finish_reason":"(\w+)"`)
)

// addHTTP counts a whole answer, or a stream that has its usage at its end.
func (s *seen) addHTTP(text string) error {
	var reasons []string
	for _, m := range reasonsOf.FindAllStringSubmatch(text, -1) {
		reasons = append(reasons, m[1])
	}
	all := usageOf.FindAllStringSubmatch(text, -1)
	if len(all) == 0 || len(reasons) == 0 {
		return fmt.Errorf("no usage or no finish reason: %s", text)
	}
	prompt, _ := strconv.Atoi(all[len(all)-1][1])
	completion, _ := strconv.Atoi(all[len(all)-1][2])
	s.add(prompt, completion, reasons...)
	return nil
}

// TestCountsOfManyRequests compares the counters with what the clients of many requests have seen, to the last token:
// streams and whole answers, stop strings, errors, clients that leave in the middle, and requests that others abort.
// With VLLM_VCR_SLOW=1 there are 100,000 of them.
func TestCountsOfManyRequests(t *testing.T) {
	const clients, before = 16, 3 // tokens before an abort
	requests := 2000
	if os.Getenv("VLLM_VCR_SLOW") != "" {
		requests = 100_000
	}
	url, s, source := serving(t, func(o *player.Options) {
		for _, id := range []string{"stall*", "cmpl-stall*"} {
			o.Faults = append(o.Faults, player.Fault{Kind: player.FaultStall, After: before, HasAfter: true, Probability: 1, Requests: id})
		}
	})
	source.set("One, two, three and four.")
	c := enginepb.NewVllmEngineClient(dialed(t, s))
	total := seen{finished: map[string]int{}}
	post := func(ctx context.Context, id, body string) (*http.Response, error) {
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/v1/completions", strings.NewReader(body))
		if err != nil {
			return nil, err
		}
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("X-Request-Id", id)
		return http.DefaultClient.Do(r)
	}
	whole := func(i int, body string) error {
		answer, err := post(t.Context(), fmt.Sprintf("r%d", i), body)
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		text, err := io.ReadAll(answer.Body)
		if err != nil || answer.StatusCode == http.StatusBadRequest {
			return err
		}
		return total.addHTTP(string(text))
	}
	kinds := []func(i int) error{
		func(i int) error { return whole(i, fmt.Sprintf(`{"prompt":"a b c","n":2,"max_tokens":%d}`, 1+i%9)) },
		func(i int) error {
			return whole(i, fmt.Sprintf(`{"prompt":"a b","max_tokens":%d,"stream":true,"stream_options":{"include_usage":true}}`, 1+i%9))
		},
		func(i int) error {
			return whole(i, `{"prompt":"a","max_tokens":20,"stop":["three"],"stream":true,"stream_options":{"include_usage":true}}`)
		},
		func(i int) error { return whole(i, `{"prompt":"a","max_tokens":20,"stop":["three"]}`) },
		func(i int) error { return whole(i, `{"prompt":"a","temperature":7}`) },
		func(i int) error { // leaves
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			answer, err := post(ctx, fmt.Sprintf("stall%d", i), `{"prompt":"a b c","stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true}}`)
			if err != nil {
				return err
			}
			defer answer.Body.Close()
			for lines := bufio.NewScanner(answer.Body); lines.Scan(); {
				if m := usageOf.FindStringSubmatch(lines.Text()); m != nil && m[2] == strconv.Itoa(before) {
					prompt, _ := strconv.Atoi(m[1])
					total.add(prompt, before, "abort")
					return nil
				}
			}
			return fmt.Errorf("the stream ended before token %d", before)
		},
		func(i int) error { // is aborted
			id := fmt.Sprintf("stall%d", i)
			q := &enginepb.SamplingParams{}
			if i%2 == 0 {
				q.Stop = []string{"none"}
			}
			request := ofText("a b", true, q)
			request.RequestId = id
			stream, err := c.Generate(t.Context(), request)
			if err != nil {
				return err
			}
			for tokens := 0; ; {
				m, err := stream.Recv()
				if err != nil {
					return err
				}
				if end := m.GetComplete(); end != nil {
					total.add(int(end.PromptTokens), tokens, end.FinishReason)
					return nil
				}
				if tokens += len(m.GetChunk().TokenIds); tokens == before && len(m.GetChunk().TokenIds) > 0 {
					if _, err := c.Abort(t.Context(), &enginepb.AbortRequest{RequestIds: []string{id}}); err != nil {
						return err
					}
				}
			}
		},
	}
	var all sync.WaitGroup
	for client := range clients {
		all.Go(func() {
			for i := client; i < requests; i += clients {
				if err := kinds[(i/clients+client)%len(kinds)](i); err != nil {
					t.Errorf("request %d: %v", i, err)
					return
				}
			}
		})
	}
	all.Wait()
	await(t, s, "vllm:num_requests_running", "0")
	ended := 0
	for _, n := range total.finished {
		ended += n
	}
	await(t, s, "vllm:e2e_request_latency_seconds_count", strconv.Itoa(ended)) // the last of those who left
	want := map[string]int{
		"vllm:prompt_tokens_total": total.prompt, "vllm:generation_tokens_total": total.completion,
		"vllm:request_prompt_tokens_sum": total.prompt, "vllm:request_generation_tokens_sum": total.completion,
		"vllm:request_generation_tokens_count": ended, "vllm:time_to_first_token_seconds_count": ended,
	}
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if got := value(s, name); got != strconv.Itoa(want[name]) {
			t.Errorf("%s is %s, and the clients saw %d", name, got, want[name])
		}
	}
	finished := map[string]int{}
	for _, m := range regexp.MustCompile(`vllm:request_success_total\{[^}]*finished_reason="(\w+)"\} (\d+)`).FindAllStringSubmatch(string(s.metrics.render()), -1) {
		if n, err := strconv.Atoi(m[2]); err == nil && n > 0 {
			finished[m[1]] = n
		}
	}
	require.NoDiff(t, cmp.Diff(total.finished, finished), "finished, as clients saw it (-) and as it was counted (+)")
	require.True(t, len(finished) == 3 && finished["abort"] >= requests/4, "finished: %v", finished)
	t.Logf("%d requests, %d answers: %v, %d prompt tokens, %d tokens", requests, ended, finished, total.prompt, total.completion)
}
