package player

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp/cmpopts"
)

func TestTheFirstOutputTellsOfQueueAndPrompt(t *testing.T) {
	tr := cassette(t, take{prompt: count(0, 11), output: []uint32{1, 2, 3}, cached: 4}, take{prompt: count(0, 3), output: []uint32{1, 2}, cached: 9})
	r := newRig(t, Options{Trace: tr, KVCache: KVCacheOptions{BlockSize: blockSize}, Limits: Limits{MaxNumSeqs: 1}}, 1)
	r.submit(ask("replay-0", count(0, 11), 9))
	r.clock.advance(1e9)
	r.step()
	r.submit(ask("replay-1", count(0, 3), 9))
	r.clock.advance(1e9)
	r.runAll()

	queued := func(q, s float64) any {
		return []any{map[string]any{"type": int64(1), "timestamp": q}, map[string]any{"type": int64(2), "timestamp": s}}
	}
	prefill := func(prompt, computed, cached, created int64) any {
		return map[string]any{
			"num_prompt_tokens": prompt, "num_computed_tokens": computed, "num_cached_tokens": cached,
			"num_local_cached_tokens": cached, "num_external_cached_tokens": int64(0), "num_cache_creation_tokens": created,
		}
	}
	type first struct{ Events, Prefill any }
	zero := start.Seconds()
	want := []first{
		{queued(zero, zero+1), prefill(11, 7, 4, 4)},
		{},
		{},
		// The whole prompt was cached, so the last token was computed again.
		{queued(zero+1, zero+2), prefill(3, 1, 2, 0)},
		{},
	}
	var got []first
	for _, e := range r.envelopes {
		out := e.Outputs.Outputs[0]
		f := first{}
		if out.Events != nil {
			f.Events = decoded(t, out.Events)
		}
		if out.Prefill != nil {
			f.Prefill = decoded(t, out.Prefill)
		}
		got = append(got, f)
	}
	equal(t, "first and later outputs", want, got)
}

func TestAnEngineWithoutPrefixCacheCreatesNone(t *testing.T) {
	for _, tt := range []struct {
		name, config string
		want         int64 // cache creation
		queries      int64
	}{
		{"not said", "", 8, 8},
		{"on", "enable_prefix_caching=true,max_num_seqs=8", 8, 8},
		{"off", "max_num_seqs=8,enable_prefix_caching=false", 0, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tr := cassette(t, take{prompt: count(0, 8), output: []uint32{1}})
			tr.Meta.EngineConfig = &tt.config
			r := ran(t, Options{Trace: tr, KVCache: KVCacheOptions{BlockSize: blockSize}}, ask("replay-0", count(0, 8), 9))
			prefill := decoded(t, r.envelopes[0].Outputs.Outputs[0].Prefill).(map[string]any)
			if got := prefill["num_cache_creation_tokens"]; got != tt.want {
				t.Errorf("num_cache_creation_tokens %v, want %d", got, tt.want)
			}
			cache := r.envelopes[0].stats(t)["prefix_cache_stats"].(map[string]any)
			if got := cache["queries"]; got != tt.queries {
				t.Errorf("prefix cache queries %v, want %d", got, tt.queries)
			}
		})
	}
}

// Without a prefix cache the same prompt is computed twice.
func TestNoPrefixCaching(t *testing.T) {
	for _, off := range []bool{false, true} {
		r := ran(t, Options{KVCache: KVCacheOptions{BlockSize: blockSize, NoPrefixCaching: off}}, ask("a", count(0, 9), 1))
		r.submit(ask("b", count(0, 9), 1))
		r.runAll()
		want := map[bool]int64{false: 8, true: 0}[off]
		if got := r.prefillOf("b")["num_cached_tokens"]; got != want {
			t.Errorf("without cache: %v; %v tokens are cached, want %d", off, got, want)
		}
	}
}

// stats returns the envelope's scheduler statistics, nil when it has none.
func (e *envelope) stats(t *testing.T) map[string]any {
	t.Helper()
	if e.SchedulerStats == nil {
		return nil
	}
	return decoded(t, e.SchedulerStats).(map[string]any)
}

// gauges are the statistics that a test looks at.
type gauges struct {
	Running, Waiting        int64
	Usage                   float64
	Requests, Queries, Hits int64
}

func (r *rig) gauges(t *testing.T) []gauges {
	t.Helper()
	var all []gauges
	for _, e := range r.envelopes {
		s := e.stats(t)
		if s == nil {
			continue
		}
		cache := s["prefix_cache_stats"].(map[string]any)
		all = append(all, gauges{
			s["num_running_reqs"].(int64), s["num_waiting_reqs"].(int64), s["kv_cache_usage"].(float64),
			cache["requests"].(int64), cache["queries"].(int64), cache["hits"].(int64),
		})
	}
	return all
}

func TestSchedulerStatistics(t *testing.T) {
	tr := cassette(t,
		take{prompt: count(0, 8), output: []uint32{1, 2, 3}, cached: 4}, // 2 blocks, and a third for what it says
		take{prompt: count(0, 3), output: []uint32{1, 2}},               // 1 block, then 2
		take{prompt: count(0, 12), output: []uint32{1}, cached: 12},     // waits for one of them
	)
	// 11 blocks, of which one is the null block.
	r := ran(t, Options{Trace: tr, KVCache: KVCacheOptions{BlockSize: blockSize, NumGPUBlocks: 11}, Limits: Limits{MaxNumSeqs: 2}}, ask("replay-0", count(0, 8), 9), ask("replay-1", count(0, 3), 9), ask("replay-2", count(0, 12), 9))
	want := []gauges{
		{Running: 2, Waiting: 1, Usage: 0.3, Requests: 2, Queries: 11, Hits: 4},
		{Running: 1, Waiting: 1, Usage: 0.3},
		{Running: 0, Waiting: 0, Usage: 0, Requests: 1, Queries: 12, Hits: 11},
	}
	equal(t, "statistics by step", want, r.gauges(t), cmpopts.EquateApprox(0, 1e-9))
}

func TestStatisticsForgetAbortedRequests(t *testing.T) {
	r := newRig(t, Options{KVCache: KVCacheOptions{BlockSize: blockSize, NumGPUBlocks: 11}, Limits: Limits{MaxNumSeqs: 1}}, 1)
	r.submit(ask("a", count(0, 4), 3), ask("b", count(0, 4), 3), ask("c", count(0, 4), 3))
	r.step()
	r.abort([]string{"b"})
	r.step()
	want := []gauges{{Running: 1, Waiting: 2, Usage: 0.1, Requests: 1, Queries: 4}, {Running: 1, Waiting: 1, Usage: 0.2}}
	equal(t, "statistics by step", want, r.gauges(t), cmpopts.EquateApprox(0, 1e-9))
}

func TestStatisticsGoToOneClient(t *testing.T) {
	r := newRig(t, Options{}, 3)
	r.submit(ask("a", count(0, 4), 2, toClient(2)), ask("b", count(0, 5), 1, toClient(1)), ask("c", count(0, 6), 2, toClient(2)))
	r.runAll()
	type sent struct {
		Client int
		IDs    string
		Stats  bool
	}
	var got []sent
	for i, ids := range r.said() {
		got = append(got, sent{r.envelopes[i].client, strings.Join(ids, " "), r.envelopes[i].SchedulerStats != nil})
	}
	want := []sent{{1, "b", true}, {2, "a c", false}, {2, "a c", true}}
	equal(t, "envelopes", want, got)
}

// Of three guesses for each step two are right. What was counted in one step is not
// counted again in the next, and a step without guesses says nothing of them.
func TestGuessesAreCounted(t *testing.T) {
	r := ran(t, Options{Decoding: Decoding{SpeculativeTokens: 3, Acceptance: rates(t, 1, 1, 0)}}, ask("a", count(0, 4), 8))
	each := map[string]any{
		"num_spec_tokens": int64(3), "num_drafts": int64(1), "num_draft_tokens": int64(3), "num_accepted_tokens": int64(2),
		"num_accepted_tokens_per_pos": []any{int64(1), int64(1), int64(0)}, "num_draft_tokens_per_pos": []any{int64(1), int64(1), int64(1)},
	}
	var got []any
	for _, e := range r.envelopes {
		got = append(got, e.stats(t)["spec_decoding_stats"])
	}
	equal(t, "spec_decoding_stats by step", []any{nil, each, each, nil}, got)

	// What a stop cuts off was accepted all the same.
	r = newRig(t, Options{Decoding: Decoding{SpeculativeTokens: 3, Acceptance: rates(t, 1, 1, 0)}, Vocab: 1}, 1)
	stopped := ask("a", count(0, 4), 8)
	stopped.Sampling.StopTokenIDs, stopped.Sampling.MinTokens = []uint32{0}, 3
	r.submit(stopped)
	r.runAll()
	equal(t, "tokens of each output", []int{1, 2}, sizes(r.answer("a").chunks))
	equal(t, "spec_decoding_stats of the last step", each, r.envelopes[1].stats(t)["spec_decoding_stats"])
}
