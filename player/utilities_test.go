package player

import (
	"testing"

	"github.com/vllm-vcr/conformance/internal/wire/pack"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// arg packs an argument of a utility call.
func arg(v any) []byte {
	switch v := v.(type) {
	case bool:
		return pack.AppendBool(nil, v)
	case int:
		return pack.AppendInt(nil, int64(v))
	case string:
		return pack.AppendString(nil, v)
	case []string:
		b := pack.AppendArrayHeader(nil, len(v))
		for _, s := range v {
			b = pack.AppendString(b, s)
		}
		return b
	case []byte:
		return v
	}
	return pack.AppendNil(nil)
}

// lora packs what every line has of a LoRARequest.
func lora(name string, id int) []byte {
	b := pack.AppendString(pack.AppendArrayHeader(nil, 3), name)
	return pack.AppendString(pack.AppendInt(b, int64(id)), "/adapters/"+name)
}

// call makes a utility call and returns its number.
func (r *rig) call(client int, method string, args ...any) uint64 {
	r.calls++
	call := protocol.UtilityCall{ClientIndex: client, CallID: 1<<63 + uint64(r.calls), Method: method}
	for _, a := range args {
		call.Args = append(call.Args, arg(a))
	}
	r.utility(call, client)
	return call.CallID
}

// pending is the result of a call that has not been answered.
const pending = "(no answer)"

// result returns the answer to a call: its value as text, or "failed: reason".
func (r *rig) result(id uint64) string {
	r.t.Helper()
	answer := pending
	for _, e := range r.envelopes {
		u := e.Utility
		if u == nil || u.CallID != id {
			continue
		}
		if answer != pending {
			r.t.Errorf("call %d got a second answer", id)
		}
		if len(e.Outputs.Outputs) != 0 || e.SchedulerStats != nil || len(e.FinishedRequests) != 0 || e.WeightVersion != "" {
			r.t.Error("the envelope of a utility answer holds more than that")
		}
		if answer = pack.Format(u.Result); u.Failed {
			answer = "failed: " + u.Failure
		}
	}
	return answer
}

// do makes a call and returns its answer.
func (r *rig) do(method string, args ...any) string {
	r.t.Helper()
	return r.result(r.call(0, method, args...))
}

func TestEveryUtilityOfEveryLine(t *testing.T) {
	since := func(first, before, from string) func(string) string {
		return func(line string) string {
			if line < first {
				return before
			}
			return from
		}
	}
	always := func(want string) func(string) string { return func(string) string { return want } }
	absent := func(method string) string {
		return "failed: Call to " + method + " method failed: 'EngineCoreProc' object has no attribute '" + method + "'"
	}
	cannot := func(method string) string {
		return "failed: Call to " + method + " method failed: the player cannot do this: it has no weights, workers or peers"
	}
	for _, tt := range []struct {
		method string
		args   []any
		want   func(line string) string
	}{
		{"get_supported_tasks", nil, always(`["generate"]`)},
		{"reset_mm_cache", nil, always("nil")},
		{"reset_prefix_cache", []any{false, false}, always("true")},
		{"reset_encoder_cache", nil, always("nil")},
		{"is_sleeping", nil, always("false")},
		{"is_scheduler_paused", nil, always("false")},
		{"sleep", []any{1, "abort"}, always("nil")},
		{"sleep", nil, always("nil")},
		{"wake_up", []any{nil}, since("0.31", "nil", "true")},
		{"wake_up", nil, since("0.31", "nil", "true")},
		{"pause_scheduler", []any{"abort", true}, always("nil")},
		{"pause_scheduler", []any{"wait", true}, always("nil")},
		{"pause_scheduler", []any{"keep", false}, always("nil")},
		{"pause_scheduler", nil, always("nil")},
		{"pause_generation", []any{"abort", true}, since("0.33", absent("pause_generation"), "nil")},
		{"resume_scheduler", nil, always("nil")},
		{"profile", []any{true, nil}, always("nil")},
		{"profile", []any{false, nil}, always("nil")},
		{"add_lora", []any{lora("a", 1)}, always("true")},
		{"remove_lora", []any{1}, always("false")},
		{"pin_lora", []any{1}, always("failed: Call to pin_lora method failed: Pinning failed. LoRA 1 is not registered.")},
		{"list_loras", nil, always("[]")},
		{"collective_rpc", []any{"check_health", nil, []string{}, pack.AppendMapHeader(nil, 0)}, always("[nil]")},
		{"get_weight_version", nil, since("0.27", absent("get_weight_version"), `"default"`)},
		{"set_weight_version", []any{"v2"}, since("0.27", absent("set_weight_version"), "nil")},
		{"compute_weight_checksums", nil, since("0.32", absent("compute_weight_checksums"), "[{}]")},
		{"execute_dummy_batch", nil, always("nil")},
		{"release_kv_cache_memory", nil, since("0.31", absent("release_kv_cache_memory"),
			"failed: Call to release_kv_cache_memory method failed: release_kv_cache_memory() requires a completed pause first")},
		{"save_sharded_state", []any{"/tmp/x"}, always(cannot("save_sharded_state"))},
		{"reinitialize_distributed", []any{nil}, always("failed: Call to reinitialize_distributed method failed: reconfig_request: expected ReconfigureDistributedRequest, found nil (byte 0)")},
		{"commit_prepared_elastic_ep", nil, since("0.27", absent("commit_prepared_elastic_ep"), cannot("commit_prepared_elastic_ep"))},
		{"handle_fault_tolerance", []any{nil}, since("0.27", absent("handle_fault_tolerance"),
			"failed: Call to handle_fault_tolerance method failed: ft_request: expected FaultToleranceRequest, found nil (byte 0)")},
		{"no_such_method", nil, always(absent("no_such_method"))},
		{"", nil, always(absent(""))},

		{"sleep", []any{"deep"}, always("failed: Call to sleep method failed: " + kindWanted("int", "str"))},
		{"sleep", []any{1, "gently"}, always(`failed: Call to sleep method failed: mode "gently": want abort, wait or keep`)},
		{"pause_scheduler", []any{"soon"}, always(`failed: Call to pause_scheduler method failed: mode "soon": want abort, wait or keep`)},
		{"pause_scheduler", []any{7}, always("failed: Call to pause_scheduler method failed: mode 7: want abort, wait or keep")},
		{"wake_up", []any{"weights"}, always("failed: Call to wake_up method failed: " + kindWanted("array", "str"))},
		{"remove_lora", nil, always("failed: Call to remove_lora method failed: EngineCoreProc.remove_lora() missing 1 required positional argument: 'lora_id'")},
		{"remove_lora", []any{"a"}, always("failed: Call to remove_lora method failed: " + kindWanted("int", "str"))},
		{"pin_lora", []any{nil}, always("failed: Call to pin_lora method failed: " + kindWanted("int", "nil"))},
		{"add_lora", nil, always("failed: Call to add_lora method failed: EngineCoreProc.add_lora() missing 1 required positional argument: 'lora_request'")},
		{"add_lora", []any{"a"}, always("failed: Call to add_lora method failed: lora_request: expected LoRARequest, found \"a\" (byte 0)")},
		{"set_weight_version", []any{3}, since("0.27", absent("set_weight_version"), "failed: Call to set_weight_version method failed: "+kindWanted("str", "int"))},
		{"set_weight_version", []any{"\xff"}, since("0.27", absent("set_weight_version"), `failed: Call to set_weight_version method failed: argument 0: "\xff": not UTF-8`)},
		{"set_weight_version", nil, since("0.27", absent("set_weight_version"), "failed: Call to set_weight_version method failed: EngineCoreProc.set_weight_version() missing 1 required positional argument: 'weight_version'")},
	} {
		for _, line := range protocol.Lines() {
			t.Run(tt.method+" at "+line, func(t *testing.T) {
				r := newRig(t, Options{VLLMVersion: line, LoRA: LoRAOptions{MaxLoRAs: 4}}, 1)
				if got, want := r.do(tt.method, tt.args...), tt.want(line); got != want {
					t.Errorf("%s, want %s", got, want)
				}
			})
		}
	}
}

// kindWanted is how a first value of the wrong kind is refused.
func kindWanted(want, got string) string {
	return "argument 0: msgpack: byte 0: expected " + want + ", found " + got
}

func TestEveryUtilityThatALineKnowsIsTried(t *testing.T) {
	for _, line := range protocol.Lines() {
		c, err := protocol.CodecFor(line)
		must(t, err)
		for method := range c.Profile().Utilities {
			r := newRig(t, Options{VLLMVersion: line}, 1)
			if got := r.do(method); got == pending {
				t.Errorf("%s at %s is not answered: its caller waits for ever", method, line)
			}
		}
	}
}

func TestUtilityAnswersGoToTheCaller(t *testing.T) {
	r := newRig(t, Options{}, 2)
	r.call(1, "is_sleeping")
	if got := r.envelopes[0].client; got != 1 {
		t.Errorf("client %d was answered, want 1", got)
	}
	r.utility(protocol.UtilityCall{ClientIndex: 1, CallID: 8, Method: "is_sleeping"}, 0)
	if got := r.envelopes[1].client; got != 1 {
		t.Errorf("client %d was answered, want 1, which the call names", got)
	}
	r.utility(protocol.UtilityCall{ClientIndex: 9, CallID: 7, Method: "is_sleeping"}, 1)
	if got := r.envelopes[2].client; got != 1 {
		t.Errorf("client %d was answered, want 1, by whose socket it asked for client 9", got)
	}
}
