package player

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/protocol"
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
			r := newRig(t, Options{MaxNumSeqs: 1}, 1)
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
			if diff := cmp.Diff(tt.during, r.endings()); diff != "" {
				t.Errorf("outputs while paused (-want +got):\n%s", diff)
			}
			if tt.refused {
				if got, want := r.answer("new").err, "!engine_paused: the engine is paused"; got != want {
					t.Errorf("new was refused by %q, want %q", got, want)
				}
			}
			if len(r.refused) != 0 {
				t.Errorf("OnRefused was told %q: a pause is no fault of the recording", r.refused)
			}
			r.envelopes = nil
			r.do("resume_scheduler")
			r.runAll()
			if diff := cmp.Diff(tt.after, r.endings()); diff != "" {
				t.Errorf("outputs after resume (-want +got):\n%s", diff)
			}
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
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("wake_up (-want +got):\n%s", diff)
			}
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
