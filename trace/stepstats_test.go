package trace

import (
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// stepLine has the fields of a recent line, most of which stay opaque.
const stepLine = `{"ts_ms":12.5,"scheduler":{"num_running_reqs":3,"num_waiting_reqs":1,"num_skipped_waiting_reqs":2,"step_counter":9,` +
	`"current_wave":0,"kv_cache_usage":0.25,"prefix_cache_stats":{"reset":true,"requests":2,"queries":64,"hits":32,"preempted_requests":1,` +
	`"preempted_queries":5,"preempted_hits":4,"hits_by_source":{}},"connector_prefix_cache_stats":null,"kv_cache_eviction_events":[],` +
	`"spec_decoding_stats":{"num_spec_tokens":2,"num_drafts":3,"num_draft_tokens":6,"num_accepted_tokens":4,"num_accepted_tokens_per_pos":[3,1]},` +
	`"kv_connector_stats":null,"cudagraph_stats":null,"perf_stats":null,"waiting_lora_adapters":{"a":1}}}`

func readSteps(text string) ([]StepStats, error) {
	r := NewStepReader(strings.NewReader(text), "s.jsonl", false, Options{})
	var steps []StepStats
	for {
		var s StepStats
		if err := r.Next(&s); err == io.EOF {
			return steps, nil
		} else if err != nil {
			return steps, err
		}
		steps = append(steps, s)
	}
}

func TestStepStats(t *testing.T) {
	steps, err := readSteps("\n" + stepLine + "\n" + `{"ts_ms":1,"scheduler":{"spec_decoding_stats":null}}`)
	require.NoError(t, err)
	raw := strings.TrimSuffix(strings.TrimPrefix(stepLine, `{"ts_ms":12.5,"scheduler":`), "}")
	want := []StepStats{
		{
			TsMs: 12.5,
			Scheduler: SchedulerStats{
				Running: 3, Waiting: 1, Skipped: 2, StepCounter: 9, KVCacheUsage: 0.25,
				PrefixCache: protocol.CacheStats{
					Reset: true, Requests: 2, Queries: 64, Hits: 32,
					PreemptedRequests: 1, PreemptedQueries: 5, PreemptedHits: 4,
				},
				Spec: &protocol.SpecDecodingStats{
					SpecTokens: 2, Drafts: 3, DraftTokens: 6, AcceptedTokens: 4, AcceptedPerPos: []int{3, 1},
				},
			},
			Raw: jsonRaw(raw), Line: 2,
		},
		{TsMs: 1, Raw: jsonRaw(`{"spec_decoding_stats":null}`), Line: 3},
	}
	require.NoDiff(t, cmp.Diff(want, steps), "(-want +got)")
}

func TestStepStatsRefuses(t *testing.T) {
	for _, tt := range []struct{ name, line, reject string }{
		{"meta line", `{"meta":{}}`, "ts_ms: missing"},
		{"no scheduler", `{"ts_ms":1}`, "scheduler: missing"},
		{"scheduler null", `{"ts_ms":1,"scheduler":null}`, "scheduler: want an object"},
		{"ts_ms null", `{"ts_ms":null,"scheduler":{}}`, "ts_ms"},
		{"ts_ms twice", `{"ts_ms":1,"ts_ms":1,"scheduler":{}}`, "ts_ms: the key occurs twice"},
		{"scheduler twice", `{"ts_ms":1,"scheduler":{},"scheduler":{}}`, "scheduler: the key occurs twice"},
		{"counter a string", `{"ts_ms":1,"scheduler":{"num_running_reqs":"1"}}`, "scheduler.num_running_reqs"},
		{"counter twice", `{"ts_ms":1,"scheduler":{"step_counter":1,"step_counter":1}}`, "scheduler.step_counter: the key occurs twice"},
		{"usage a string", `{"ts_ms":1,"scheduler":{"kv_cache_usage":"1"}}`, "scheduler.kv_cache_usage"},
		{"nested field", `{"ts_ms":1,"scheduler":{"prefix_cache_stats":{"hits":-1}}}`, "scheduler.prefix_cache_stats.hits"},
		{"reset a number", `{"ts_ms":1,"scheduler":{"prefix_cache_stats":{"reset":1}}}`, "reset: want true or false"},
		{"positions", `{"ts_ms":1,"scheduler":{"spec_decoding_stats":{"num_accepted_tokens_per_pos":[0.5]}}}`, "num_accepted_tokens_per_pos"},
		{"unknown field broken", `{"ts_ms":1,"scheduler":{"new":[}}`, "scheduler.new"},
		{"deep", `{"ts_ms":1,"scheduler":{"new":` + strings.Repeat("[", 1<<20), "nest deeper"},
		{"two values", `{"ts_ms":1,"scheduler":{}} {}`, "one JSON object a line"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			steps, err := readSteps(stepLine + "\n\n" + tt.line + "\n")
			if err == nil {
				t.Fatalf("accepted: %+v", steps)
			}
			wantError(t, err, "s.jsonl: line 3", tt.reject)
		})
	}
}

func TestStepRoundTrip(t *testing.T) {
	for _, name := range []string{"s.jsonl", "s.jsonl.gz"} {
		path := filepath.Join(t.TempDir(), name)
		steps, err := readSteps(stepLine + "\n" + stepLine)
		require.NoError(t, err)
		f, err := os.Create(path)
		require.NoError(t, err)
		w := NewStepWriter(f, IsGzip(path))
		require.NoError(t, errors.Join(w.Write(&steps[0]), w.Write(&steps[1])))
		cut, err := OpenSteps(path, Options{})
		require.NoError(t, err)
		checkSteps(t, cut, steps)
		if cut.Truncated() != IsGzip(path) || len(cut.Warnings()) > 0 != IsGzip(path) {
			t.Errorf("%s: before Close: truncated %v, warnings %q", name, cut.Truncated(), cut.Warnings())
		}
		require.NoError(t, errors.Join(w.Close(), f.Close(), cut.Close()))
		whole, err := OpenSteps(path, Options{Strict: true})
		require.NoError(t, err)
		var got StepStats
		if err := whole.Next(&got); err != nil || string(got.Raw) != string(steps[0].Raw) {
			t.Errorf("%s: %v; opaque fields changed:\n%s\n%s", name, err, steps[0].Raw, got.Raw)
		}
		if err := whole.Next(&got); err != nil || whole.Next(&got) != io.EOF || whole.Close() != nil {
			t.Errorf("%s: want two lines and the end, got %v", name, err)
		}
	}
}

// checkSteps reads r to its end into one StepStats.
func checkSteps(t *testing.T, r *StepReader, want []StepStats) {
	t.Helper()
	var s StepStats
	for i := range want {
		require.NoError(t, r.Next(&s))
		if diff := cmp.Diff(want[i].Scheduler, s.Scheduler); diff != "" || s.TsMs != want[i].TsMs {
			t.Errorf("step %d (-want +got):\n%s", i, diff)
		}
	}
	if err := r.Next(&s); err != io.EOF {
		t.Errorf("at the end: %v", err)
	}
}

func TestStepWriterRefuses(t *testing.T) {
	w := NewStepWriter(&quota{}, false)
	wantError(t, w.Write(&StepStats{TsMs: math.NaN()}), "step 1 not written: ts_ms")
	wantError(t, w.Write(&StepStats{}), "scheduler: want an object")
	wantError(t, w.Write(&StepStats{Raw: jsonRaw(`[]`)}), "scheduler: want an object")
	wantError(t, w.Write(&StepStats{Raw: jsonRaw(`{} {}`)}), "scheduler: want the end")
	err := w.Write(&StepStats{Raw: jsonRaw(`{}`)})
	var we *WriteError
	require.True(t, errors.As(err, &we) && errors.Is(err, syscall.ENOSPC) && w.Close() == err, "full disk: %v", err)
}
