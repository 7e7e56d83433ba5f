package invariant

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/vllm-vcr/conformance/internal/check"

	"github.com/vllm-vcr/conformance/internal/wire/pack"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/trace"
)

// leaf is a value in a message that has no others in it.
type leaf struct {
	path       string // indexes as []
	begin, end int
}

// leaves lists the values of a message, by the names of the line.
func leaves(codec *protocol.Codec, frame []byte) (all []leaf) {
	cur := pack.NewCursor(frame)
	var walk func(path string)
	walk = func(path string) {
		begin := cur.Offset()
		switch cur.Kind() {
		case pack.Array:
			n, _ := cur.ArrayLen()
			for i := range n {
				part := "[]"
				if name := codec.FieldName(path, i); name != "" {
					part = "." + name
				}
				walk(path + part)
			}
		case pack.Map:
			n, _ := cur.MapLen()
			for range n {
				key, _ := cur.StrString()
				walk(path + "." + key)
			}
		default:
			_ = cur.Skip()
			all = append(all, leaf{path, begin, cur.Offset()})
		}
	}
	walk("EngineCoreOutputs")
	return all
}

// wrongs are other values of the same kind, by what is wrong with them.
func wrongs(raw []byte) map[string][]byte {
	cur := pack.NewCursor(raw)
	wrong := map[string][]byte{}
	switch cur.Kind() {
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
}

const (
	anyTime  = "when a step is made is the engine's matter, as long as it comes after what is before it and before what is behind it"
	inFlight = "a request is on its way: the engine may or may not have taken it in when it counted"
)

// sample is a value in a session, the first of its place that is not 0 if there is one.
type sample struct {
	message int
	leaf    leaf
	telling bool
}

// samples has one value of each place of the messages of a session.
func samples(s session) map[string]sample {
	found := map[string]sample{}
	for i, m := range s.messages {
		if m.Note != "" || m.Channel != "output" {
			continue
		}
		for _, l := range leaves(s.codec, m.Frames[0]) {
			cur := pack.NewCursor(m.Frames[0][l.begin:l.end])
			if cur.Kind() == pack.Nil {
				continue
			}
			v, err := cur.Float()
			telling := err != nil || v != 0
			if known, ok := found[l.path]; !ok || telling && !known.telling {
				found[l.path] = sample{i, l, telling}
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
			for name, value := range wrongs(m.Frames[0][at.leaf.begin:at.leaf.end]) {
				frames := slices.Clone(m.Frames)
				frames[0] = slices.Concat(m.Frames[0][:at.leaf.begin], value, m.Frames[0][at.leaf.end:])
				other := session{s.name, s.codec, slices.Clone(s.messages)}
				other.messages[at.message].Frames = frames
				all++
				if len(judge(other)) > 0 || streams(other) != recorded || len(check.OutputsLayout(s.codec, frames)) > 0 {
					caught++
					continue
				}
				wrong := path + ": " + name
				if missed[wrong] = true; unknowable[wrong] == "" {
					t.Errorf("%s: message %d: %s is not found in place of %s, and no reason is given", s.name, at.message,
						check.Describe(value), check.Describe(m.Frames[0][at.leaf.begin:at.leaf.end]))
				}
			}
		}
	}
	for wrong := range unknowable {
		if !missed[wrong] {
			t.Errorf("%s: it is found, or is not in any session: strike the reason", wrong)
		}
	}
	t.Logf("%d of %d wrong values are found", caught, all)
	if caught*108 < 75*all {
		t.Errorf("%d of %d wrong values are found, want 75 of 108 or more", caught, all)
	}
}
