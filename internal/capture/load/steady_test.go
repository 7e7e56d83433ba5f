package load

import (
	"fmt"
	"net/http"
	"slices"
	"testing"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// The workloads of one length ask for as many requests, at a time and in all, and for as many tokens as their shape says.
func TestSteadyWorkloads(t *testing.T) {
	tests := []struct {
		name     string
		workload Workload
		shape    Shape
		requests int
		most     int // at once
		prompt   string
	}{
		{name: "concurrency", workload: Concurrency, shape: Shape{Concurrency: 3, Requests: 10, PromptTokens: 5, OutputTokens: 4}, requests: 10, most: 3, prompt: `"prompt":[`},
		{name: "as text", workload: Concurrency, shape: Shape{Requests: 10, PromptTokens: 5, OutputTokens: 4, Text: true}, requests: 10, most: 8, prompt: `"prompt":"`},
		{name: "stairs", workload: Stairs, shape: Shape{Stairs: []int{2, 1, 3}, Requests: 4, PromptTokens: 5, OutputTokens: 4}, requests: 12, most: 3, prompt: `"prompt":[`},
		{name: "bursts", workload: Bursts, shape: Shape{Bursts: 3, Requests: 4, Every: 1, PromptTokens: 5, OutputTokens: 4}, requests: 12, most: 12, prompt: `"prompt":[`},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			server := newServer(t)
			server.exact = true
			cfg := config(server.URL, test.workload, 7)
			cfg.Shape = test.shape
			report, err := Run(t.Context(), cfg)
			require.True(t, err == nil && report.Completed == test.requests && report.Tokens == 4*test.requests, "got %+v, %v; want %d requests of 4 tokens each", report, err, test.requests)
			asked := server.questions()
			if got := count(asked, `"ignore_eos":true,"max_tokens":4,"model":"tiny",`+test.prompt); got != test.requests {
				t.Errorf("%d requests say so, want %d; the first is %s", got, test.requests, asked[0])
			}
			require.Equal(t, len(slices.Compact(asked)), test.requests, "different prompts")
			require.True(t, server.atOnce.most <= test.most, "%d at once, want %d at most", server.atOnce.most, test.most)
		})
	}
}

// A step of the stairs begins when the one before it has ended.
func TestStairsGoUpOneByOne(t *testing.T) {
	server := newServer(t)
	server.exact = true
	cfg := config(server.URL, Stairs, 7)
	cfg.Shape = Shape{Stairs: []int{1, 6, 2}, Requests: 6}
	if _, err := Run(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		step := server.ids[6*i : 6*i+6]
		if first, last := fmt.Sprintf("load-%06d", 6*i), fmt.Sprintf("load-%06d", 6*i+5); slices.Min(step) != first || slices.Max(step) != last {
			t.Errorf("requests %d to %d are %q, want %s to %s", 6*i, 6*i+5, step, first, last)
		}
	}
	if !slices.IsSorted(server.ids[:6]) {
		t.Errorf("one at a time, they came as %q", server.ids[:6])
	}
}

// A server that counts otherwise than was asked for fails the load.
func TestLengthsAreHeld(t *testing.T) {
	tests := []struct {
		name, usage, want string
	}{
		{"short answer", `{"completion_tokens":3,"prompt_tokens":5}`, "concurrency: request 0: 3 tokens in an answer that was to have 4: is the model's context too short?"},
		{"longer prompt", `{"completion_tokens":4,"prompt_tokens":6}`, "concurrency: request 0: the server counted 6 tokens of a prompt that has 5"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			server := serve(t, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", "text/event-stream")
				fmt.Fprint(w, opening, ending, "data: {\"choices\":[],\"usage\":", test.usage, "}\n\n", done)
			})
			cfg := config(server, Concurrency, 7)
			cfg.Shape = Shape{Concurrency: 1, PromptTokens: 5, OutputTokens: 4}
			report, err := Run(t.Context(), cfg)
			require.True(t, err != nil && err.Error() == test.want && report.Failed == 1, "got %v, %+v; want %s", err, report, test.want)
		})
	}
}
