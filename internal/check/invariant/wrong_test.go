package invariant

import (
	"encoding/binary"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/vllm-vcr/conformance/internal/check"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/internal/wire/pack"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/trace"
)

// leaf is a value in a message that has no others in it.
type leaf struct {
	path       string // indexes as []
	begin, end int
	annotation string // of None
}

// leaves lists the values of a message, by the names of the line.
func leaves(codec *protocol.Codec, kind protocol.MessageKind, frame []byte) (all []leaf) {
	codec.Read(new(protocol.View), kind, frame).Walk(func(v protocol.Value) bool {
		if v.Kind() == pack.Array || v.Kind() == pack.Map {
			return true
		}
		l := leaf{path: index.ReplaceAllString(v.Path(), "[]"), begin: v.Offset(), end: v.Offset() + len(v.Bytes())}
		if f := v.Declared(); f != nil && v.Kind() == pack.Nil {
			l.annotation = f.Type
		}
		all = append(all, l)
		return true
	})
	return all
}

var index = regexp.MustCompile(`\[\d+\]`)

// wrongs are other values of the same kind, by what is wrong with them; of None those of its declared type.
func wrongs(raw []byte, annotation string) map[string][]byte {
	cur := pack.NewCursor(raw)
	wrong := map[string][]byte{}
	switch cur.Kind() {
	case pack.Nil:
		switch given, _, _ := strings.Cut(annotation, " | "); {
		case given == "int":
			wrong["given"] = pack.AppendInt(nil, 5)
		case given == "float":
			wrong["given"] = pack.AppendFloat64(nil, 1.5)
		case given == "str":
			wrong["given"] = pack.AppendString(nil, "x")
		case given == "list[str]", given == "set[str]":
			wrong["given"] = pack.AppendString(pack.AppendArrayHeader(nil, 1), "x")
		case strings.HasPrefix(given, "dict[str, "):
			wrong["given"] = pack.AppendString(pack.AppendString(pack.AppendMapHeader(nil, 1), "x"), "y")
		}
	case pack.Int:
		v, _ := cur.Int()
		for name, other := range map[string]int64{"one more": v + 1, "one less": v - 1, "negative": -7, "zero": 0, "huge": 1 << 40} {
			if other != v {
				wrong[name] = pack.AppendInt(nil, other)
			}
		}
	case pack.Float:
		v, _ := cur.Float()
		for name, other := range map[string]float64{"drift": v*1.001 + 1e-7, "a hair": v + 1e-5, "negative": -1.5, "zero": 0, "huge": 1e30} {
			if other != v {
				wrong[name] = pack.AppendFloat64(nil, other)
			}
		}
	case pack.String:
		wrong["another"] = pack.AppendString(nil, "another")
	case pack.Bool:
		v, _ := cur.Bool()
		wrong["other"] = pack.AppendBool(nil, !v)
	case pack.Ext:
		code, data, _ := cur.Ext()
		for name, change := range map[string]func([]byte){
			"first element 0":        func(b []byte) { clear(b[:4]) },
			"first element negative": func(b []byte) { binary.LittleEndian.PutUint32(b, uint32(0xffff_fffe)) },
			"first element 1.5":      func(b []byte) { binary.LittleEndian.PutUint32(b, math.Float32bits(1.5)) },
			"last bits drift":        func(b []byte) { b[len(b)-4] ^= 0x40 },
			"ends swapped":           func(b []byte) { swap(b[:4], b[len(b)-4:]) },
		} {
			other := slices.Clone(data)
			if len(other) >= 4 {
				change(other)
			}
			if !slices.Equal(other, data) {
				wrong[name] = pack.AppendExt(nil, code, other)
			}
		}
	}
	return wrong
}

func swap(a, b []byte) {
	for i := range a {
		a[i], b[i] = b[i], a[i]
	}
}

// streams is what a frontend would make of a session, which the replay suite compares with the recording.
func streams(s session) string {
	var text strings.Builder
	tokens := map[string][]string{}
	var o protocol.Outputs
	for _, m := range s.messages {
		if m.Note != "" || m.Channel != "output" || m.Direction != trace.EngineToFrontend {
			continue
		}
		if err := s.codec.DecodeOutputs(m.Frames[0], &o); err != nil {
			return err.Error()
		}
		for _, out := range o.Outputs {
			tokens[string(out.ID)] = append(tokens[string(out.ID)], fmt.Sprint(out.Tokens, out.Finish))
		}
	}
	fmt.Fprint(&text, tokens)
	return text.String()
}

// unknowable are the wrong values that nobody can tell from right ones without the engine's weights, clock or scheduler, with
// the reason.
var unknowable = map[string]string{
	"EngineCoreOutputs.timestamp: a hair":                                        anyTime,
	"EngineCoreOutputs.outputs[].events[].timestamp: a hair":                     anyTime,
	"EngineCoreOutputs.outputs[].num_nans_in_logits: one more":                   "an engine that looks for them (VLLM_COMPUTE_NANS_IN_LOGITS) finds what it finds",
	"EngineCoreOutputs.scheduler_stats.num_waiting_reqs: one more":               inFlight,
	"EngineCoreOutputs.scheduler_stats.num_skipped_waiting_reqs: one more":       inFlight,
	"EngineCoreOutputs.scheduler_stats.num_skipped_waiting_reqs: one less":       inFlight,
	"EngineCoreOutputs.scheduler_stats.num_skipped_waiting_reqs: zero":           inFlight,
	"EngineCoreOutputs.scheduler_stats.spec_decoding_stats.num_drafts: one more": "of several requests in a step any number may have had a draft",
	"EngineCoreOutputs.scheduler_stats.ec_connector_stats of None: given":        "an engine with a connector for encoders sends them, and says nowhere that it has one",

	"EngineCoreReadyResponse.world_size: one more":                                                       "prefill_context_parallel_size is on no wire",
	"EngineCoreReadyResponse.max_num_seqs: one more":                                                     aFlag,
	"EngineCoreReadyResponse.max_num_seqs: one less":                                                     aFlag,
	"EngineCoreReadyResponse.max_num_batched_tokens: one more":                                           aFlag,
	"EngineCoreReadyResponse.max_num_batched_tokens: one less":                                           aFlag,
	"EngineCoreReadyResponse.block_size: one less":                                                       "a model with several kinds of layers has such a KV cache",
	"EngineCoreReadyResponse.mamba_block_size of None: given":                                            aFlag,
	"EngineCoreReadyResponse.weight_transfer_backend of None: given":                                     aFlag,
	"EngineCoreReadyResponse.enable_sleep_mode: other":                                                   aFlag,
	"EngineCoreReadyResponse.instance_id: another":                                                       "it is any text",
	"EngineCoreReadyResponse.coord_store_port: one more":                                                 "any port may be open",
	"EngineCoreOutputs.outputs[].new_logprobs.logprobs.data: last bits drift":                            likely,
	"EngineCoreOutputs.outputs[].new_logprobs.logprob_token_ids.data: last bits drift":                   likely,
	"EngineCoreOutputs.outputs[].new_prompt_logprobs_tensors.selected_token_ranks.data: last bits drift": unlikely,
	"EngineCoreOutputs.outputs[].new_prompt_logprobs_tensors.selected_token_ranks.data: ends swapped":    unlikely,
}

const (
	anyTime  = "when a step is made is the engine's matter, as long as it comes after what is before it and before what is behind it"
	aFlag    = "an engine may be started so"
	likely   = "how likely the least of the tokens is, and which it is, is the model's matter"
	unlikely = "a token that is not among the most likely ones may have any rank below the vocabulary, which no message has"
	inFlight = "a request is on its way: the engine may or may not have taken it in when it counted"
)

// sample is a value in a session, the first of its place that is not 0 if there is one.
type sample struct {
	message int
	leaf    leaf
	telling bool
}

// kindOf is what a message of an engine is of, as far as its values are judged.
func kindOf(m trace.Message) (kind protocol.MessageKind, judged bool) {
	switch {
	case m.Note != "" || m.Direction != trace.EngineToFrontend || len(m.Frames) == 0:
		return kind, false
	case m.Channel == "input":
		return protocol.KindReady, true
	}
	return protocol.KindOutputs, m.Channel == "output"
}

// samples has one value of each place of the messages of a session.
func samples(s session) map[string]sample {
	found := map[string]sample{}
	for i, m := range s.messages {
		kind, judged := kindOf(m)
		if !judged {
			continue
		}
		for _, l := range leaves(s.codec, kind, m.Frames[0]) {
			cur := pack.NewCursor(m.Frames[0][l.begin:l.end])
			if cur.Kind() == pack.Nil && l.annotation == "" {
				continue
			}
			place := l.path
			if cur.Kind() == pack.Nil {
				place += " of None"
			}
			v, err := cur.Float()
			telling := err != nil || v != 0
			if known, ok := found[place]; !ok || telling && !known.telling {
				found[place] = sample{i, l, telling}
			}
		}
	}
	return found
}

// TestWrongValues: of every value that a released engine sends, another one of the same kind is found, unless there is a
// reason why nobody could know. What is compared is what a replay has to go by, without a real engine's messages beside it: the
// invariants, the token streams of the recording, and the layout of the line.
func TestWrongValues(t *testing.T) {
	caught, all := 0, 0
	missed := map[string]bool{}
	for _, s := range sessions(t) {
		if !strings.Contains(s.name, "v0.33.0/cpu/tiny/wire-") && !strings.Contains(s.name, "captures/0.27.1-ngram") {
			continue
		}
		recorded := streams(s)
		for path, at := range samples(s) {
			m := s.messages[at.message]
			for name, value := range wrongs(m.Frames[0][at.leaf.begin:at.leaf.end], at.leaf.annotation) {
				frames := slices.Clone(m.Frames)
				frames[0] = slices.Concat(m.Frames[0][:at.leaf.begin], value, m.Frames[0][at.leaf.end:])
				other := session{s.name, s.codec, slices.Clone(s.messages)}
				other.messages[at.message].Frames = frames
				all++
				layout := check.OutputsLayout
				if m.Channel == "input" {
					layout = func(c *protocol.Codec, frames [][]byte) []protocol.Mismatch { return c.CheckReady(frames[0]) }
				}
				if len(judge(other)) > 0 || streams(other) != recorded || len(layout(s.codec, frames)) > 0 {
					caught++
					continue
				}
				wrong := path + ": " + name
				if missed[wrong] = true; unknowable[wrong] == "" {
					t.Errorf("%s: message %d: %s: %s is not found in place of %s, and no reason is given", s.name, at.message, wrong,
						check.Describe(value), check.Describe(m.Frames[0][at.leaf.begin:at.leaf.end]))
				}
			}
		}
	}
	for wrong := range unknowable {
		require.True(t, missed[wrong], "%s: it is found, or is not in any session: strike the reason", wrong)
	}
	t.Logf("%d of %d wrong values are found", caught, all)
	require.True(t, caught*108 >= 96*all, "%d of %d wrong values are found, want 96 of 108 or more", caught, all)
}
