package player

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// A prompt for which there will never be room is answered at once, and those behind it are served.
func TestPromptsThatNeverFit(t *testing.T) {
	for _, tt := range []struct {
		name   string
		opt    Options
		prompt int
		want   string
	}{
		{"as long as the context", Options{Limits: Limits{MaxModelLen: 40}}, 40, "a: the prompt has 40 tokens, and max_model_len = 40 leaves no room for an answer"},
		{"longer than the KV cache", Options{KVCache: KVCacheOptions{BlockSize: 10, NumGPUBlocks: 4}}, 31, "a: the prompt has 31 tokens, the KV cache has room for 30"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := ran(t, tt.opt, ask("a", count(0, tt.prompt), 2), ask("b", count(0, 5), 2))
			if got := r.answer("a"); got.finish != protocol.FinishError {
				t.Errorf("finished by %v, want an error", got.finish)
			}
			equal(t, "refused", []string{tt.want}, r.refused)
			if got := r.answer("b"); got.finish != protocol.FinishLength || len(got.chunks) != 2 {
				t.Errorf("the other finished by %v after %d outputs", got.finish, len(got.chunks))
			}
		})
	}
}

// What fits to the last token is served.
func TestPromptsThatJustFit(t *testing.T) {
	for _, tt := range []struct {
		name   string
		opt    Options
		prompt int
	}{
		{"one less than the context", Options{Limits: Limits{MaxModelLen: 40}}, 39},
		{"the whole KV cache", Options{KVCache: KVCacheOptions{BlockSize: 10, NumGPUBlocks: 4}}, 30},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := ran(t, tt.opt, ask("a", count(0, tt.prompt), 1))
			if got := r.answer("a"); got.finish != protocol.FinishLength || len(got.tokens()) != 1 {
				t.Errorf("finished by %v after %d tokens, want the one token that there is room for: %q", got.finish, len(got.tokens()), r.refused)
			}
		})
	}
}

// A request that grows out of the KV cache would be computed anew for ever: it ends.
func TestAnswerThatFillsTheKVCache(t *testing.T) {
	r := ran(t, Options{KVCache: KVCacheOptions{BlockSize: 10, NumGPUBlocks: 4}}, ask("a", count(0, 25), 20))
	if got := r.answer("a"); got.finish != protocol.FinishError || len(slices.Concat(got.chunks...)) != 6 {
		t.Errorf("finished by %v after %d tokens, want an error after 6", got.finish, len(slices.Concat(got.chunks...)))
	}
	if len(r.refused) != 1 || !strings.Contains(r.refused[0], "its 31 tokens fill the KV cache") {
		t.Errorf("refused %q", r.refused)
	}
	if r.held() != 0 || r.busy() {
		t.Errorf("left behind: %d blocks", r.held())
	}
}

// Who is pushed out of the batch goes on where it was, and its next output tells of it.
func TestPreemption(t *testing.T) {
	alone := newRig(t, Options{}, 1)
	alone.submit(ask("a", count(0, 10), 12), ask("b", count(0, 10), 12))
	alone.runAll()

	r := newRig(t, Options{KVCache: KVCacheOptions{BlockSize: 5, NumGPUBlocks: 8}}, 1) // 7 blocks: room for 35 tokens, of 44
	r.submit(ask("a", count(0, 10), 12), ask("b", count(0, 10), 12))
	r.runAll()
	for _, id := range []string{"a", "b"} {
		if diff := cmp.Diff(alone.answer(id).chunks, r.answer(id).chunks); diff != "" {
			t.Errorf("%s says something else when it is preempted (-want +got):\n%s", id, diff)
		}
	}
	want := []int{protocol.EventQueued, protocol.EventScheduled, protocol.EventPreempted, protocol.EventScheduled}
	equal(t, "events", want, r.eventsOf("b"))
}

// eventsOf are the types of the events that a request was told.
func (r *rig) eventsOf(id string) []int {
	r.t.Helper()
	var events []int
	for _, e := range r.envelopes {
		for _, out := range e.Outputs.Outputs {
			if string(out.ID) == id && out.Events != nil {
				for _, event := range decoded(r.t, out.Events).([]any) {
					events = append(events, int(event.(map[string]any)["type"].(int64)))
				}
			}
		}
	}
	return events
}
