package inspect

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/trace"
)

// readEvent is an event as Perfetto reads it; times are in microseconds.
type readEvent struct {
	Kind     string         `json:"ph"`
	Pid      int            `json:"pid"`
	Tid      int            `json:"tid"`
	Name     string         `json:"name"`
	Category string         `json:"cat"`
	At       float64        `json:"ts"`
	Lasts    float64        `json:"dur"`
	ID       int            `json:"id"`
	Binding  string         `json:"bp"`
	Args     map[string]any `json:"args"`
}

func eventsOf(t *testing.T, line *Timeline, opt PerfettoOptions) []readEvent {
	t.Helper()
	var b bytes.Buffer
	require.NoError(t, line.Perfetto(&b, opt))
	var file struct {
		Unit   string      `json:"displayTimeUnit"`
		Events []readEvent `json:"traceEvents"`
	}
	dec := json.NewDecoder(&b)
	dec.DisallowUnknownFields()
	require.NoError(t, dec.Decode(&file))
	nested(t, file.Events)
	return file.Events
}

// nested checks that on each track a span lies within another one or beside it: Perfetto drops what does not.
func nested(t *testing.T, events []readEvent) {
	t.Helper()
	tracks := map[[2]int][]readEvent{}
	for _, e := range events {
		if e.Kind == "X" {
			tracks[[2]int{e.Pid, e.Tid}] = append(tracks[[2]int{e.Pid, e.Tid}], e)
		}
	}
	for track, spans := range tracks {
		slices.SortStableFunc(spans, func(a, b readEvent) int { return cmp.Or(cmp.Compare(a.At, b.At), cmp.Compare(b.Lasts, a.Lasts)) })
		var open []readEvent
		for _, s := range spans {
			for len(open) > 0 && open[len(open)-1].At+open[len(open)-1].Lasts <= s.At+1e-9 {
				open = open[:len(open)-1]
			}
			if len(open) > 0 && s.At+s.Lasts > open[len(open)-1].At+open[len(open)-1].Lasts+1e-4 {
				t.Errorf("track %v: %+v ends after %+v, which it begins in", track, s, open[len(open)-1])
			}
			open = append(open, s)
		}
	}
}

func lineOf(e readEvent) string {
	args := ""
	if len(e.Args) > 0 {
		text, _ := json.Marshal(e.Args) // of numbers and texts
		args = " " + string(text)
	}
	switch e.Kind {
	case "X":
		return fmt.Sprintf("%d/%d %v+%v %s%s", e.Pid, e.Tid, e.At, e.Lasts, e.Name, args)
	case "s", "f":
		return fmt.Sprintf("%d/%d %v %s %s %d%s", e.Pid, e.Tid, e.At, e.Kind, e.Name, e.ID, e.Binding)
	}
	return fmt.Sprintf("%d/%d %v %s%s", e.Pid, e.Tid, e.At, e.Name, args)
}

func TestPerfetto(t *testing.T) {
	second := hashed(record(50, 12, 7, 3), 1, 2, 3)
	second.ITLTokens, second.OutputTokens = []uint32{4}, 5
	line := mustTimeline(t, recorded(hashed(record(10, 8, 10, 20), 1, 2), record(15, 4, 16, 0), second))
	var got []string
	for _, e := range eventsOf(t, line, PerfettoOptions{}) {
		if e.Name != "thread_sort_index" {
			got = append(got, lineOf(e))
		}
	}
	want := strings.Split(strings.TrimSpace(`
1/0 0 process_name {"name":"requests of t.jsonl"}
2/0 0 process_name {"name":"engine"}
1/1 0 thread_name {"name":"slot 1"}
1/2 0 thread_name {"name":"slot 2"}
1/1 0+30000 request 0 {"cached_tokens":0,"finish_reason":"stop","output_tokens":2,"prompt_tokens":8,"ttft_ms":10}
1/1 0+10000 prefill
1/1 0+10000 prefill chunk {"tokens":8}
1/1 10000+20000 decode
1/1 10000+20000 output {"tokens":1}
1/2 5000+16000 request 1 {"cached_tokens":0,"finish_reason":"stop","output_tokens":2,"prompt_tokens":4,"ttft_ms":16}
1/2 5000+5000 queued
1/2 10000+11000 prefill
1/2 10000+11000 prefill chunk {"tokens":4}
1/1 40000+10000 request 2 {"cached_tokens":0,"finish_reason":"stop","output_tokens":5,"prompt_tokens":12,"ttft_ms":7}
1/1 40000+7000 prefill
1/1 40000+7000 prefill chunk {"tokens":12}
1/1 47000+3000 decode
1/1 47000+3000 output {"tokens":4}
1/1 29999.999 s next turn 2
1/1 40000 f next turn 2e
2/0 0 running {"requests":1}
2/0 0 waiting {"requests":0}
2/0 5000 running {"requests":1}
2/0 5000 waiting {"requests":1}
2/0 10000 running {"requests":2}
2/0 10000 waiting {"requests":0}
2/0 21000 running {"requests":1}
2/0 21000 waiting {"requests":0}
2/0 30000 running {"requests":0}
2/0 30000 waiting {"requests":0}
2/0 40000 running {"requests":1}
2/0 40000 waiting {"requests":0}
2/0 50000 running {"requests":0}
2/0 50000 waiting {"requests":0}
2/1 0 thread_name {"name":"steps (inferred from the times of outputs)"}
2/1 0+10000 prefill {"decode_tokens":0,"prompt_tokens":8}
2/0 0 batch {"tokens":8}
2/1 10000+11000 prefill and decode {"decode_tokens":1,"prompt_tokens":4}
2/0 10000 batch {"tokens":5}
2/1 21000+9000 decode {"decode_tokens":1,"prompt_tokens":0}
2/0 21000 batch {"tokens":1}
2/0 30000 batch {"tokens":0}
2/1 40000+7000 prefill {"decode_tokens":0,"prompt_tokens":12}
2/0 40000 batch {"tokens":12}
2/1 47000+3000 decode {"decode_tokens":4,"prompt_tokens":0}
2/0 47000 batch {"tokens":4}
2/0 50000 batch {"tokens":0}`), "\n")
	require.NoDiff(t, gocmp.Diff(want, got), "(-want +got)")
}

const someSteps = `{"ts_ms":10,"scheduler":{"num_running_reqs":1,"num_waiting_reqs":0,"kv_cache_usage":0.25,"prefix_cache_stats":{"requests":1,"queries":8,"hits":0}}}
{"ts_ms":20,"scheduler":{"num_running_reqs":2,"num_waiting_reqs":1,"kv_cache_usage":0.5,"prefix_cache_stats":{"requests":1,"queries":8,"hits":6},"spec_decoding_stats":{"num_spec_tokens":2,"num_drafts":1,"num_draft_tokens":2,"num_accepted_tokens":1,"num_accepted_tokens_per_pos":[1,0]}}}
{"ts_ms":30,"scheduler":{"num_running_reqs":0,"num_waiting_reqs":0,"kv_cache_usage":0,"prefix_cache_stats":{"requests":0,"queries":0,"hits":0}}}
{"ts_ms":50,"scheduler":{"num_running_reqs":1,"num_waiting_reqs":0,"kv_cache_usage":0.1,"iteration_details":{"num_ctx_tokens":70,"num_generation_tokens":2}}}
`

// With step statistics, the steps and counters are theirs. No step lasts while the engine has no request.
func TestPerfettoOfSteps(t *testing.T) {
	line := mustTimeline(t, recorded(record(0, 8, 10, 20), record(40, 8, 10)))
	var got []string
	steps := trace.NewStepReader(strings.NewReader(someSteps), "s.jsonl", false, trace.Options{})
	for _, e := range eventsOf(t, line, PerfettoOptions{Steps: steps, PerRequest: true}) {
		if e.Pid == pidEngine && e.Kind != "M" && e.Name != "running" && e.Name != "waiting" {
			got = append(got, lineOf(e))
		}
	}
	want := []string{
		`2/0 10000 prefix cache hits {"%":0}`,
		`2/0 10000 batch {"tokens":9}`,
		`2/0 10000 KV cache usage {"%":25}`,
		`2/0 20000 prefix cache hits {"%":75}`,
		`2/1 10000+10000 prefill and decode {"cached_tokens":6,"prompt_tokens":2,"running":2,"waiting":1}`,
		`2/0 20000 accepted drafts {"%":50}`,
		`2/0 20000 batch {"tokens":6}`,
		`2/0 20000 KV cache usage {"%":50}`,
		`2/1 20000+10000 decode {"cached_tokens":0,"prompt_tokens":0,"running":0,"waiting":0}`,
		`2/0 30000 batch {"tokens":0}`,
		`2/0 30000 KV cache usage {"%":0}`,
		`2/0 50000 batch {"tokens":72}`, // as the engine reports
		`2/0 50000 KV cache usage {"%":10}`,
	}
	require.NoDiff(t, gocmp.Diff(want, got), "(-want +got)")
}

// Whatever the times of a trace are, spans lie within each other, and no time is negative.
func TestPerfettoOfNegativeTimes(t *testing.T) {
	line := mustTimeline(t, recorded(record(-10, 4, 10, 50, -70, 3), record(0, 4, -20, 5), record(10, 4, 5, -30), record(20, 4, -5, 15), record(20, 0, 0)))
	for _, e := range eventsOf(t, line, PerfettoOptions{}) {
		require.True(t, e.At >= 0 && e.Lasts >= 0, "%+v is before the beginning", e)
	}
}

func TestSummarizeSteps(t *testing.T) {
	got, err := SummarizeSteps(trace.NewStepReader(strings.NewReader(someSteps), "s.jsonl", false, trace.Options{}))
	require.NoError(t, err)
	want := &StepSummary{
		Steps: 4, Interval: Distribution{2, 10, 10, 10, 10}, Running: Counts{4, 1, 0, 1, 2, 2}, Waiting: Counts{1, 0.25, 0, 0, 1, 1},
		KVUsageMean: 0.2125, KVUsageMax: 0.5, PrefixQueries: 16, PrefixHits: 6, Drafts: 1, DraftTokens: 2, AcceptedTokens: 1, AcceptedByPosition: []float64{1, 0},
	}
	require.NoDiff(t, gocmp.Diff(want, got), "(-want +got)")
}
