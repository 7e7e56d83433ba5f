package frontendsuite

import (
	"slices"
	"strings"
	"testing"

	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/internal/wire/pack"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/internal/wire/zmq"
)

// What a frontend says and nobody looks at is counted, and told.
func TestNothingIsUnheard(t *testing.T) {
	codec, err := protocol.CodecFor(protocol.Newest())
	require.NoError(t, err)
	for _, test := range []struct {
		name    string
		say     zmq.Relayed
		dropped bool
	}{
		{"a message", zmq.Relayed{Wire: []byte{0, 1, protocol.TypeAbort}}, false},
		{"a part of one", zmq.Relayed{Wire: []byte{0, 1, protocol.TypeAbort}, Size: 1 << 30, Elided: 1<<30 - 1}, true},
		{"nothing of one", zmq.Relayed{Size: 1 << 30, Elided: 1 << 30}, true},
		{"no frames", zmq.Relayed{Wire: []byte{0, 200, 1}, Size: 1}, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			l := newLedger(codec)
			hearing{l, 0}.Message(test.say)
			if text := l.overflow(); (text != "") != test.dropped || (l.mark() == 0) != test.dropped || test.dropped && !strings.Contains(text, "1 message to the engine not looked at") {
				t.Errorf("%d messages kept, %q", l.mark(), text)
			}
		})
	}
}

// Two requests do not have the same id, and none has an empty one.
func TestIdentity(t *testing.T) {
	var f check.Outcome
	k, ids := &frontendCase{Outcome: &f, whole: t.Context()}, map[string]int{}
	for i, id := range []string{"a", "b", "a", ""} {
		k.identity("an id", &heard{number: i + 1, request: &protocol.Request{ID: id, ArrivalTime: year2020}}, ids)
	}
	require.Equal(t, len(f.Failures), 2, "failures")
	require.True(t, strings.Contains(f.Failures[0].Message, `its id "a" is empty, or that of message 1`), "%s", f.Failures[0].Message)
}

// Whatever a request is, looking for what it carries comes to an end.
func FuzzCarried(f *testing.F) {
	codec, err := protocol.CodecFor(protocol.Newest())
	require.NoError(f, err)
	paths := []string{"prompt_token_ids", "sampling_params.temperature", "sampling_params.logit_bias", "priority", "cache_salt", "no_such_field"}
	sound := codec.AppendRequest(nil, &protocol.Request{ID: "a", PromptTokenIDs: []uint32{1, 2}, HasSampling: true})
	f.Add(sound)
	f.Add(sound[:len(sound)-1])
	f.Add(append([]byte{0x92, 0xa0}, slices.Repeat([]byte{0x91}, 1<<20)...)) // arrays in arrays
	f.Add([]byte{0xdd, 0xff, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, payload []byte) {
		for _, path := range paths {
			value, ok := carried(codec.Profile(), payload, path)
			require.True(t, !ok || pack.Validate(payload) == nil, "%s of %x is %v, which is no message", path, payload, value)
			require.True(t, !ok || path != "no_such_field", "%x has a field of that name: %v", payload, value)
		}
	})
}
