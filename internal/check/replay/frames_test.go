package replay

import (
	"encoding/binary"
	"strings"
	"testing"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/internal/wire/pack"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/trace"
)

// published is a message of KV events with this number, of an engine of line 0.33.
func published(number uint64, event []byte) trace.Message {
	batch := pack.AppendFloat64(pack.AppendArrayHeader(nil, 3), 1.5)
	batch = append(pack.AppendArrayHeader(batch, 1), event...)
	return trace.Message{
		Channel: "kv_events", Direction: trace.EngineToFrontend,
		Frames: [][]byte{[]byte("kv"), binary.BigEndian.AppendUint64(nil, number), pack.AppendInt(batch, 0)},
	}
}

// cleared is the event that all blocks are gone, under a tag.
func cleared(key, tag string) []byte {
	return pack.AppendString(pack.AppendString(pack.AppendMapHeader(nil, 1), key), tag)
}

func TestJudgeFramesOfLinksBesides(t *testing.T) {
	codec, err := protocol.CodecFor("0.33")
	require.NoError(t, err)
	answer := func(id uint64) trace.Message {
		message, err := codec.UtilityResult(0, protocol.UtilityCall{CallID: id, Method: "is_sleeping"}, true, 1)
		require.NoError(t, err)
		return trace.Message{Channel: "output", Direction: trace.EngineToFrontend, Frames: message}
	}
	said := func(channel, direction string, frames ...string) trace.Message {
		m := trace.Message{Channel: channel, Direction: direction}
		for _, f := range frames {
			m.Frames = append(m.Frames, []byte(f))
		}
		return m
	}
	for _, test := range []struct {
		name     string
		messages []trace.Message
		want     string // what the first failure says; "" for none but that nothing was asked
	}{
		{name: "events in order", messages: []trace.Message{published(0, cleared("type", "AllBlocksCleared")), published(1, cleared("type", "AllBlocksCleared"))}},
		{
			name: "events with a gap", messages: []trace.Message{published(0, cleared("type", "AllBlocksCleared")), published(2, cleared("type", "AllBlocksCleared"))},
			want: "KV events.seq: expected 1, found 2",
		},
		{name: "events without a number", messages: []trace.Message{said("kv_events", "e2f", "kv", "x")}, want: "a number of 8 bytes"},
		{name: "an event of another tag", messages: []trace.Message{published(0, cleared("type", "AllBlocksGone"))}, want: "KVEventBatch.events[0].type"},
		{name: "an event without a tag", messages: []trace.Message{published(0, cleared("kind", "AllBlocksCleared"))}, want: "KVEventBatch.events[0]"},
		{name: "a coordinator", messages: []trace.Message{
			said("coordinator_input", "e2f", "\x01"), said("coordinator_input", "f2e", "READY"), said("coordinator_input", "f2e", "\x02", "\x92\x00\xc0"),
		}},
		{name: "a wave of three values", messages: []trace.Message{said("coordinator_input", "f2e", "\x02", "\x93\x00\xc0\xc0")}, want: "START_DP_WAVE: expected [wave, engine_index]"},
		{name: "a word that no coordinator says", messages: []trace.Message{said("coordinator_input", "f2e", "STEADY")}, want: "expected READY, or 02"},
		{name: "HELLO without local", messages: []trace.Message{said("handshake", "e2f", "\x82\xa6status\xa5HELLO\xa8headless\xc3")}, want: "Status.local: expected a key of HELLO, found missing"},
		{name: "HELLO with a number for a flag", messages: []trace.Message{said("handshake", "e2f", "\x83\xa6status\xa5HELLO\xa5local\x01\xa8headless\xc3")}, want: "Status.local: expected bool, found 1"},
		{name: "an answer to no call", messages: []trace.Message{answer(7)}, want: "the id of a call that is not answered, found 7"},
		{name: "an answer to no call, with a large id", messages: []trace.Message{answer(1<<63 + 7)}, want: "call that is not answered, found 9223372036854775815"},
		{name: "a notice", messages: []trace.Message{answer(1<<64 - 2)}},
		{name: "no frames", messages: []trace.Message{said("output", "e2f")}, want: "expected a frame, found none"},
	} {
		t.Run(test.name, func(t *testing.T) {
			f := JudgeFrames("f.jsonl", codec, test.messages)
			if f.Asserted != len(test.messages) {
				t.Errorf("%d messages were judged, want %d", f.Asserted, len(test.messages))
			}
			last := f.Failures[len(f.Failures)-1]
			if last.Code != CodeFramesNothing {
				t.Errorf("nothing was asked, and the last failure is %s", last.Message)
			}
			got := ""
			if len(f.Failures) > 1 {
				got = f.Failures[0].Message
			}
			if (got == "") != (test.want == "") || !strings.Contains(got, test.want) {
				t.Errorf("the first failure is %q, want %q in it", got, test.want)
			}
		})
	}
}

// The tables of prompts are made up as those of outputs are, also where they are small enough to lie in the message.
func TestMasksOfTables(t *testing.T) {
	for path, masked := range map[string]bool{
		"EngineCoreOutputs.outputs[3].new_logprobs.logprobs[2]":                            true,
		"EngineCoreOutputs.outputs[0].new_prompt_logprobs_tensors.logprob_token_ids[2]":    true,
		"EngineCoreOutputs.outputs[0].new_prompt_logprobs_tensors.logprobs[2]":             true,
		"EngineCoreOutputs.outputs[0].new_prompt_logprobs_tensors.selected_token_ranks[2]": true,
		"EngineCoreOutputs.outputs[0].new_prompt_logprobs_tensors.logprobs[1]":             false,
		"EngineCoreOutputs.outputs[0].new_prompt_logprobs_tensors.logprobs[2][0]":          false,
		"EngineCoreOutputs.outputs[0].new_prompt_logprobs_tensors":                         false,
		"EngineCoreOutputs.outputs[0].new_prompt_logprobs_tensors.cu_num_generated_tokens": false,
		"EngineCoreOutputs.outputs[0].pooling_output[2]":                                   false,
	} {
		if got := maskOf(path) != nil; got != masked {
			t.Errorf("%s: masked is %v, want %v", path, got, masked)
		}
	}
}
