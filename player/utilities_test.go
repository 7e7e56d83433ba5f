package player

import (
	"testing"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
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
	require.Equal(t, r.envelopes[0].client, 1, "client was answered")
	r.utility(protocol.UtilityCall{ClientIndex: 1, CallID: 8, Method: "is_sleeping"}, 0)
	require.Equal(t, r.envelopes[1].client, 1, "answered client: the one that the call names")
	r.utility(protocol.UtilityCall{ClientIndex: 9, CallID: 7, Method: "is_sleeping"}, 1)
	require.Equal(t, r.envelopes[2].client, 1, "answered client: the one by whose socket it asked for client 9")
}
