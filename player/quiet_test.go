package player

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// tell is what a test looks at of a step without outputs.
type tell struct {
	client           int
	Running, Waiting int64
	Blocks           int // of KV cache in use
	Queries          int64
}

func (r *rig) tells() []tell {
	r.t.Helper()
	var all []tell
	for _, e := range r.quiet {
		s := decoded(r.t, e.SchedulerStats).(map[string]any)
		cache := s["prefix_cache_stats"].(map[string]any)
		all = append(all, tell{
			client: e.client, Running: s["num_running_reqs"].(int64), Waiting: s["num_waiting_reqs"].(int64),
			Blocks:  int(s["kv_cache_usage"].(float64)*float64(r.ready.NumGPUBlocks-1) + 0.5),
			Queries: cache["queries"].(int64),
		})
	}
	return all
}

func TestTheEndOfTheLastRequestIsTold(t *testing.T) {
	steps := func(n int) func(*rig) {
		return func(r *rig) {
			for range n {
				r.step()
			}
		}
	}
	abort := func(ids ...string) func(*rig) { return func(r *rig) { r.abort(ids) } }
	for _, tt := range []struct {
		name string
		do   []func(*rig)
		want int
	}{
		{"nothing was ever asked", []func(*rig){steps(3)}, 0},
		{"while one goes on", []func(*rig){addSome(1, 5), steps(4)}, 0},
		{"after the last output", []func(*rig){addSome(1, 2), steps(9)}, 1},
		{"one ends beside another", []func(*rig){addSome(1, 2), steps(2), abort("x")}, 0},
		{"after an abort", []func(*rig){addSome(5), steps(1), abort("r0"), steps(9)}, 1},
		{"of two, once both are gone", []func(*rig){addSome(5, 5), steps(1), abort("r0"), steps(2), abort("r1"), steps(9)}, 1},
		{"not when the next comes before", []func(*rig){addSome(2), steps(2), addSome(5), steps(2)}, 0},
		{"of a request that never ran", []func(*rig){addSome(2), abort("r0"), steps(2)}, 1},
		{"not of an id that nobody has", []func(*rig){abort("r0"), steps(2)}, 0},
		{"twice for two in turn", []func(*rig){addSome(1), steps(3), addSome(1), steps(3)}, 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, Options{}, 2)
			for _, do := range tt.do {
				do(r)
			}
			var want []tell
			for range tt.want {
				want = append(want, tell{})
			}
			equal(t, "steps without outputs", want, r.tells(), cmp.AllowUnexported(tell{}))
		})
	}
}

// addSome adds a request for each limit, r0 and so on.
func addSome(limits ...int) func(*rig) {
	return func(r *rig) {
		for i, limit := range limits {
			r.submit(ask("r"+pack1(uint32(i)), count(0, 4), limit, toClient(1)))
		}
	}
}

func TestAPromptLongerThanAStepIsCutUp(t *testing.T) {
	r := newRig(t, Options{Limits: Limits{MaxNumBatchedTokens: 100}, KVCache: KVCacheOptions{BlockSize: 10, NumGPUBlocks: 101}}, 1)
	r.submit(ask("short", count(0, 30), 9), ask("long", count(0, 250), 3), ask("late", count(0, 10), 3))
	r.step() // 30 + 70
	r.step() // 1 + 99
	if diff := cmp.Diff([][]string{{"short"}, {"short"}}, r.said()); diff != "" {
		t.Fatalf("steps (-want +got):\n%s", diff)
	}
	r.abort([]string{"short"})
	r.step() // 81 + 10: the rest of the prompt, and what came after it
	equal(t, "third step", []string{"long", "late"}, r.said()[2])
	if len(r.quiet) != 0 {
		t.Errorf("%d steps without outputs", len(r.quiet))
	}

	r = ran(t, Options{Limits: Limits{MaxNumBatchedTokens: 100}, KVCache: KVCacheOptions{BlockSize: 10, NumGPUBlocks: 101}}, ask("long", count(0, 250), 1), ask("late", count(0, 10), 1))
	equal(t, "steps", [][]string{{"long", "late"}}, r.said())
	want := []tell{
		{Running: 1, Waiting: 1, Blocks: 10, Queries: 250},
		{Running: 1, Waiting: 1, Blocks: 20},
		{}, // nothing left to do
	}
	equal(t, "steps without outputs", want, r.tells(), cmp.AllowUnexported(tell{}))
}

// While others wait, a long prompt leaves them a part of each step.
func TestALongPromptLeavesRoom(t *testing.T) {
	for _, tt := range []struct {
		name      string
		threshold int
		want      [][]string
	}{
		{"not asked for", 0, [][]string{{"long"}, {"long", "short"}}},
		{"cut", 40, [][]string{{"short"}, {"long"}, {"long"}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := ran(t, Options{Limits: Limits{MaxNumBatchedTokens: 100, LongPrefillTokenThreshold: tt.threshold}}, ask("long", count(0, 100), 2), ask("short", count(200, 10), 1))
			equal(t, "steps", tt.want, r.said())
		})
	}
}

// What is cached is not computed, so a long prompt may fit into one step.
func TestACachedPromptFitsAStep(t *testing.T) {
	long := count(0, 250)
	tr := cassette(t, take{prompt: long, output: []uint32{1}, cached: 160})
	r := newRig(t, Options{Trace: tr, Limits: Limits{MaxNumBatchedTokens: 100}, KVCache: KVCacheOptions{BlockSize: 10, NumGPUBlocks: 101}}, 1)
	r.submit(ask("replay-0", long, 1))
	r.step()
	if len(r.quiet) != 0 || len(r.said()) != 1 {
		t.Errorf("%d steps without outputs, %d with, want 0 and 1", len(r.quiet), len(r.said()))
	}
}

func TestBlocksOfThePrefixCacheAreHeldOnce(t *testing.T) {
	prompt := count(0, 35)
	other := append(count(0, 20), count(100, 15)...)
	found := func(prompt []uint32, cached int) take {
		return take{prompt: prompt, output: []uint32{1, 2, 3, 4, 5, 6}, cached: cached}
	}
	salted := func(q *protocol.Request) { q.CacheSalt = "pepper" }
	adapted := func(q *protocol.Request) { q.LoRA = &protocol.LoRA{Name: "a", ID: 7, Path: "p"} }
	for _, tt := range []struct {
		name   string
		takes  []take
		change []change // of the second request
		want   int
	}{
		{"one", []take{found(prompt, 0)}, nil, 4},
		{"one that found some", []take{found(prompt, 30)}, nil, 4},
		{"two that found the same", []take{found(prompt, 30), found(prompt, 30)}, nil, 5},
		{"one that found what another computed", []take{found(prompt, 0), found(prompt, 30)}, nil, 5},
		{"one that found less", []take{found(prompt, 0), found(prompt, 20)}, nil, 6},
		{"two that computed the same at once", []take{found(prompt, 0), found(prompt, 0)}, nil, 8},
		{"two that begin alike", []take{found(prompt, 20), found(other, 20)}, nil, 6},
		{"two of different salts", []take{found(prompt, 30), found(prompt, 30)}, []change{salted}, 8},
		{"two of different adapters", []take{found(prompt, 30), found(prompt, 30)}, []change{adapted}, 8},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, Options{Trace: cassette(t, tt.takes...), KVCache: KVCacheOptions{BlockSize: 10}}, 1)
			var ids []string
			for i, one := range tt.takes {
				ids = append(ids, "replay-"+pack1(uint32(i)))
				var change []change
				if i == 1 {
					change = tt.change
				}
				r.submit(ask(ids[i], one.prompt, 9, change...))
			}
			r.step()
			if r.held() != tt.want {
				t.Errorf("%d blocks held, want %d", r.held(), tt.want)
			}
			r.abort(ids)
			if r.held() != 0 {
				t.Errorf("left behind: %d blocks", r.held())
			}
		})
	}
}

func TestAPromptWithLogprobsIsNotLookedUp(t *testing.T) {
	r := newRig(t, Options{}, 1)
	r.submit(ask("a", count(0, 40), 1, func(q *protocol.Request) { q.Sampling.PromptLogprobs = 1 }))
	r.step()
	cache := decoded(t, r.envelopes[0].SchedulerStats).(map[string]any)["prefix_cache_stats"].(map[string]any)
	if cache["requests"] != int64(0) || cache["queries"] != int64(0) {
		t.Errorf("prefix_cache_stats %v, want none of the request", cache)
	}
}

// A recording may say that a step has no tokens, or fewer. Nobody would ever be
// answered by that.
func TestAStepHasTokens(t *testing.T) {
	for _, n := range []int{0, -5} {
		r := ran(t, Options{Limits: Limits{MaxNumBatchedTokens: n}}, ask("a", count(0, 40), 2))
		if got := len(r.answer("a").at); got != 2 {
			t.Errorf("max_num_batched_tokens = %d: %d outputs, want 2", n, got)
		}
	}
}
