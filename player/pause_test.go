package player

import (
	"slices"
	"strings"
	"testing"

	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// A pause is told by what is said until it ends and after that. Of the requests
// of each case, running has said one of its three tokens, waiting waits for room
// and new arrives in the pause.
func TestPause(t *testing.T) {
	for _, tt := range []struct {
		name         string
		method, mode string
		result       string   // of the pause, before resume
		refused      bool     // new is refused
		during       []string // "id finish" in order, while paused
		after        []string // after resume
	}{
		{
			name: "abort", method: "pause_scheduler", mode: "abort", result: "nil",
			during: []string{"running abort", "waiting abort"}, after: []string{"new length"},
		},
		{
			name: "wait", method: "pause_scheduler", mode: "wait", result: "nil",
			during: []string{"running unfinished", "running length"}, after: []string{"waiting length", "new length"},
		},
		{
			name: "keep", method: "pause_scheduler", mode: "keep", result: "nil",
			after: []string{"running unfinished", "running length", "waiting length", "new length"},
		},
		{
			name: "generation, abort", method: "pause_generation", mode: "abort", result: "nil", refused: true,
			during: []string{"running abort", "waiting abort", "new error"},
		},
		{
			name: "generation, wait", method: "pause_generation", mode: "wait", result: "nil", refused: true,
			during: []string{"new error", "running unfinished", "running length"}, after: []string{"waiting length"},
		},
		{
			name: "generation, keep", method: "pause_generation", mode: "keep", result: "nil",
			after: []string{"running unfinished", "running length", "waiting length", "new length"},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, Options{Limits: Limits{MaxNumSeqs: 1}}, 1)
			r.submit(ask("running", count(0, 4), 3), ask("waiting", count(0, 4), 1))
			r.step()
			r.envelopes = nil
			id := r.call(0, tt.method, tt.mode, true)
			if got := r.do("is_scheduler_paused"); got != "true" {
				t.Errorf("is_scheduler_paused: %s", got)
			}
			if got := r.do("is_sleeping"); got != "true" {
				t.Errorf("is_sleeping: %s, want true at any level of sleep and of pause", got)
			}
			r.submit(ask("new", count(0, 4), 1))
			r.runAll()
			if got := r.result(id); got != tt.result {
				t.Errorf("%s: %s, want %s", tt.method, got, tt.result)
			}
			equal(t, "outputs while paused", tt.during, r.endings())
			if tt.refused {
				if got, want := r.answer("new").err, "!engine_paused: Generation is paused. Please retry after it resumes."; got != want {
					t.Errorf("new was refused by %q, want %q", got, want)
				}
			}
			if len(r.refused) != 0 {
				t.Errorf("OnRefused was told %q: a pause is no fault of the recording", r.refused)
			}
			r.envelopes = nil
			r.do("resume_scheduler")
			r.runAll()
			equal(t, "outputs after resume", tt.after, r.endings())
			if got := r.do("is_scheduler_paused"); got != "false" {
				t.Errorf("is_scheduler_paused: %s", got)
			}
		})
	}
}

// endings lists the outputs as "id finish".
func (r *rig) endings() []string {
	var all []string
	for _, e := range r.envelopes {
		for _, out := range e.Outputs.Outputs {
			all = append(all, string(out.ID)+" "+out.Finish.String())
		}
	}
	return all
}

func TestAPauseThatWaitsIsAnsweredWhenNothingRuns(t *testing.T) {
	for _, tt := range []struct {
		name  string
		while func(*rig) // after the pause, before anything else
		steps int        // until the answer
	}{
		{"the request ends", func(*rig) {}, 2},
		{"the request is aborted", func(r *rig) { r.abort([]string{"a"}) }, 1},
		{"a kept pause replaces it", func(r *rig) { r.do("pause_scheduler", "keep") }, 1},
		{"resumed meanwhile", func(r *rig) { r.do("resume_scheduler") }, 2},
		{"a second one is waiting too", func(r *rig) { r.call(0, "pause_scheduler", "wait") }, 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, Options{}, 1)
			r.submit(ask("a", count(0, 4), 3))
			r.step()
			id := r.call(0, "pause_scheduler", "wait")
			tt.while(r)
			steps := 0
			for ; r.result(id) == pending && steps < 5; steps++ {
				r.step()
				r.answerDrained()
			}
			if got := r.result(id); got != "nil" || steps != tt.steps {
				t.Errorf("%s after %d steps, want nil after %d", got, steps, tt.steps)
			}
		})
	}
}

func TestAResumedEngineStaysResumed(t *testing.T) {
	r := newRig(t, Options{}, 1)
	r.submit(ask("a", count(0, 4), 3))
	r.step()
	r.call(0, "pause_scheduler", "wait")
	r.do("resume_scheduler")
	r.runAll()
	r.submit(ask("b", count(0, 4), 1))
	r.runAll()
	if got := r.answer("b").finish; got != protocol.FinishLength {
		t.Errorf("b finished by %v", got)
	}
}

func TestABadPauseChangesNothing(t *testing.T) {
	for _, method := range []string{"pause_scheduler", "pause_generation"} {
		r := newRig(t, Options{}, 1)
		r.do(method, "soon")
		if got := r.do("sleep", 1, "soon"); !strings.HasPrefix(got, "failed: ") {
			t.Errorf("sleep: %s", got)
		}
		if got := r.do("is_sleeping"); got != "false" {
			t.Errorf("%s: is_sleeping: %s", method, got)
		}
		r.submit(ask("a", count(0, 4), 1))
		r.runAll()
		if got := r.answer("a"); got.finish != protocol.FinishLength {
			t.Errorf("%s: a request afterwards finished by %v: %s", method, got.finish, got.err)
		}
	}
}

func TestSleepAndWakeUp(t *testing.T) {
	for _, tt := range []struct {
		name  string
		level int
		tags  []any    // of each wake_up; nil wakes up all
		want  []string // its answer
		awake bool     // afterwards
	}{
		{"all at once", 1, []any{nil}, []string{"true"}, true},
		{"deep", 2, []any{nil}, []string{"true"}, true},
		{"one after the other", 1, []any{[]string{"weights"}, []string{"kv_cache"}}, []string{"false", "true"}, true},
		{"both named", 2, []any{[]string{"kv_cache", "weights"}}, []string{"true"}, true},
		{"weights only", 1, []any{[]string{"weights"}}, []string{"false"}, false},
		{"a name nobody knows", 1, []any{[]string{"weights", "soul"}}, []string{"false"}, false},
		{"no names", 1, []any{[]string{}}, []string{"false"}, false},
		{"level 0", 0, []any{[]string{"scheduling"}}, []string{"true"}, true},
		{"scheduling alone frees no memory", 1, []any{[]string{"scheduling"}}, []string{"false"}, false},
		{"awake already", 0, []any{nil, nil}, []string{"true", "true"}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, Options{}, 1)
			if got := r.do("sleep", tt.level, "abort"); got != "nil" {
				t.Errorf("sleep: %s", got)
			}
			r.submit(ask("a", count(0, 4), 1))
			r.runAll()
			if got := r.endings(); got != nil {
				t.Errorf("asleep it said %q", got)
			}
			var got []string
			for _, tags := range tt.tags {
				got = append(got, r.do("wake_up", tags))
			}
			equal(t, "wake_up", tt.want, got)
			r.runAll()
			if said := r.endings(); slices.Equal(said, []string{"a length"}) != tt.awake {
				t.Errorf("afterwards it said %q, awake is %v", said, tt.awake)
			}
			if got, want := r.do("is_sleeping") == "true", !tt.awake; got != want {
				t.Errorf("is_sleeping: %v, want %v", got, want)
			}
		})
	}
}

func TestReleasedKVCacheComesBackByWakeUp(t *testing.T) {
	r := newRig(t, Options{}, 1)
	for _, step := range []struct {
		method string
		args   []any
		want   string
	}{
		{"pause_generation", []any{"keep", true}, "nil"},
		{"release_kv_cache_memory", nil, "nil"},
		{"release_kv_cache_memory", nil, "failed: Call to release_kv_cache_memory method failed: release_kv_cache_memory() requires all executor memory to be resident"},
		{"wake_up", []any{[]string{"kv_cache"}}, "true"},
		{"is_sleeping", nil, "false"},
	} {
		if got := r.do(step.method, step.args...); got != step.want {
			t.Errorf("%s: %s, want %s", step.method, got, step.want)
		}
	}
}

// A pause empties the caches, unless it is told not to, and what it freezes is computed
// again. It fails while blocks are kept for another engine.
func TestPauseEmptiesTheCache(t *testing.T) {
	const keeps = "failed: Call to %s method failed: requests hold blocks that they pull, or keep, for another engine: the KV cache is not emptied"
	for _, tt := range []struct {
		name, method string
		args         []any
		kept         bool // blocks are, for another engine
		want         string
		found        int64 // tokens of the frozen request's prompt, afterwards
		preempted    bool
	}{
		{"keep", "pause_scheduler", []any{"keep", true}, false, "nil", 0, true},
		{"keep, by default", "pause_scheduler", []any{"keep"}, false, "nil", 0, true},
		{"keep the cache, too", "pause_scheduler", []any{"keep", false}, false, "nil", 16, false},
		{"abort", "pause_scheduler", []any{"abort", true}, false, "nil", 0, false},
		{"abort, but keep the cache", "pause_scheduler", []any{"abort", false}, false, "nil", 16, false},
		{"sleep", "sleep", []any{1, "keep"}, false, "nil", 0, true},
		{"sleep lightly", "sleep", []any{0, "keep"}, false, "nil", 16, false},
		{"another engine has not pulled yet", "pause_scheduler", []any{"abort", true}, true, keeps, 16, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, Options{Transfer: &Transfer{}, Limits: Limits{MaxNumSeqs: 1}}, 1)
			if tt.kept {
				r.submit(ask("kept", count(50, 4), 1, computing))
				r.run()
			}
			r.submit(ask("a", count(0, 20), 3))
			r.step()
			want := tt.want
			if tt.kept {
				want = strings.ReplaceAll(want, "%s", tt.method)
			}
			if got := r.do(tt.method, tt.args...); got != want {
				t.Errorf("%s, want %s", got, want)
			}
			r.do("wake_up", nil)
			r.do("resume_scheduler")
			preempted := false
			for _, q := range r.byID {
				preempted = q.Preemptions > 0
			}
			if preempted != tt.preempted {
				t.Errorf("preempted: %v, want %v", preempted, tt.preempted)
			}
			if tt.preempted {
				r.abort([]string{"a"})
			}
			r.submit(ask("b", count(0, 20), 1))
			r.runAll()
			if got := r.prefillOf("b")["num_cached_tokens"]; got != tt.found {
				t.Errorf("%v tokens of the prompt are found, want %d", got, tt.found)
			}
		})
	}
}

// A reset of the connector's cache is told by the next statistics, where there is one.
func TestResetOfTheConnector(t *testing.T) {
	for _, tt := range []struct {
		name string
		opt  Options
		args []any
		want any
	}{
		{"asked for", Options{Transfer: &Transfer{}}, []any{false, true}, true},
		{"not asked for", Options{Transfer: &Transfer{}}, []any{false, false}, false},
		{"without a connector", Options{}, []any{false, true}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, tt.opt, 1)
			if got := r.do("reset_prefix_cache", tt.args...); got != "true" {
				t.Error(got)
			}
			r.envelopes = nil
			r.submit(ask("a", count(0, 4), 1))
			r.runAll()
			c, _ := r.envelopes[0].stats(t)["connector_prefix_cache_stats"].(map[string]any)
			if c["reset"] != tt.want {
				t.Errorf("reset %v, want %v", c["reset"], tt.want)
			}
		})
	}
}
