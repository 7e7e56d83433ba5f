package replay

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/vllm-vcr/conformance/internal/base/lazyregexp"
	"github.com/vllm-vcr/conformance/internal/base/safetext"
	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/wire/pack"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// wireComparison compares messages of the engine under test with those of the real
// one, and collects what differs. What repeats, as a wrong field does in every
// message, is one failure that counts the others.
type wireComparison struct {
	name     string
	codec    *protocol.Codec
	now      func() float64 // seconds, by the engine's clock
	stamped  float64        // the time of the last message
	compared int
	found    repeated
	Masked   map[string]int // by path of the mask: how often it applied
}

// wireFinding is a failure, and how many were like it.
type wireFinding struct {
	check.Failure
	more int
}

// MaxWireFailures bounds how many failures of different kinds are listed.
const MaxWireFailures = 20

func NewWireComparison(name string, codec *protocol.Codec, clock *StepClock) *wireComparison {
	return &wireComparison{
		name: name, codec: codec, now: clock.seconds, Masked: map[string]int{},
	}
}

// Message compares a message with its counterpart. root is the name of the struct
// that its first frame is.
func (c *wireComparison) Message(root string, want *WireMessage, requests []*wireRequest, got [][]byte) {
	c.compared++
	if len(got) != len(want.Frames) {
		c.fail(want, nil, CodeWireFrames, "frames", safetext.Count(len(want.Frames), "frame"), safetext.Count(len(got), "frame"))
	}
	if len(got) == 0 {
		return
	}
	c.payload(root, want, requests, got[0])
	c.tables(want, requests, got)
	for i := 1; i < min(len(got), len(want.Frames)); i++ {
		c.buffer(want, i, got[i])
	}
}

func (c *wireComparison) payload(root string, want *WireMessage, requests []*wireRequest, got []byte) {
	if err := pack.Validate(got); err != nil {
		c.fail(want, nil, CodeWireSyntax, root, "a message", err.Error())
		return
	}
	differences, err := pack.Diff(root, want.Frames[0], got, pack.DiffOptions{Names: c.codec.FieldName, MapOrder: true})
	if err != nil {
		c.fail(want, nil, CodeWireSyntax, root, "a message", err.Error())
		return
	}
	for _, d := range differences {
		code, w, g := kindOfDifference(d, want.Frames[0], got)
		expected, allowed := d.Want, false
		if code == CodeWireValue {
			expected, allowed = c.allowed(d.Path, d.Want, w, g)
		}
		// By that key our own player is known in lines whose engines have none.
		allowed = allowed || code == CodeWireExtra && d.Path == "EngineCoreReadyResponse.instance_id" && protocol.IsPlayer(got)
		if !allowed {
			c.fail(want, requestAt(d.Path, requests), code, d.Path, expected, d.Got)
		}
	}
}

func (c *wireComparison) buffer(want *WireMessage, i int, got []byte) {
	path := fmt.Sprintf("frames[%d]", i)
	switch {
	case len(got) != len(want.Frames[i]):
		c.fail(want, nil, CodeWireFrames, path, safetext.Count(len(want.Frames[i]), "byte"), safetext.Count(len(got), "byte"))
	case !bytes.Equal(got, want.Frames[i]):
		if expected, allowed := c.allowed(path, "its bytes", want.Frames[i], got); !allowed {
			c.fail(want, nil, CodeWireValue, path, expected, "others")
		}
	}
}

// allowed reports whether two values may differ at a path, else what is expected there.
func (c *wireComparison) allowed(path, value string, want, got []byte) (expected string, yes bool) {
	m := maskOf(path)
	switch {
	case m == nil:
		return value, false
	case m.accepts != nil && !m.accepts(c, want, got):
		return m.wanted, false
	}
	c.Masked[m.Path]++
	return "", true
}

// kindOfDifference says what a difference is one of, and returns the values.
func kindOfDifference(d pack.Difference, want, got []byte) (code check.Code, w, g []byte) {
	switch {
	case d.WantOffset < 0:
		return CodeWireExtra, nil, nil
	case d.GotOffset < 0:
		return CodeWireMissing, nil, nil
	}
	wc, gc := pack.NewCursor(want[d.WantOffset:]), pack.NewCursor(got[d.GotOffset:])
	switch kind := wc.Kind(); {
	case kind != gc.Kind():
		return CodeWireKind, nil, nil
	case kind == pack.Array:
		return CodeWireLength, nil, nil
	case kind == pack.Map:
		return CodeWireOrder, nil, nil
	case kind == pack.Ext && extCode(wc) != extCode(gc):
		return CodeWireKind, nil, nil
	}
	w, _ = wc.Raw() // both messages are well formed
	g, _ = gc.Raw()
	return CodeWireValue, w, g
}

func extCode(cur pack.Cursor) int8 {
	code, _, _ := cur.Ext()
	return code
}

// outputIndex is the position of an output in the path of a difference.
var outputIndex = lazyregexp.New(`^EngineCoreOutputs\.outputs\[(\d+)\]`)

// requestAt is the request that the real engine answers at a path, nil for none.
func requestAt(path string, requests []*wireRequest) *wireRequest {
	if i := outputOf(path); i >= 0 && i < len(requests) {
		return requests[i]
	}
	return nil
}

func (c *wireComparison) fail(want *WireMessage, r *wireRequest, code check.Code, path, expected, actual string) {
	about := ""
	if r != nil {
		about = fmt.Sprintf("request %d: ", r.index)
	}
	f := check.Failed(code, "%s: line %d: %s%s: expected %s, got %s", c.name, want.Line, about, path, expected, actual).
		Within(want.number, path).Compared(expected, actual)
	if r != nil {
		f = f.Of(r.index)
	}
	c.collect(check.Place(path), f)
}

// Stray reports a message that the real engine did not send, beside one that it did.
func (c *wireComparison) Stray(beside *WireSaid, m wireHeard) {
	got := string(m.Class)
	if len(m.frames) > 0 {
		got += ": " + pack.Format(m.frames[0])
	}
	c.collect(string(m.Class), check.Failed(CodeWireStray, "%s: line %d: the engine also sent a message that the real engine did not send: %s", c.name, beside.Line, got).
		Within(beside.number, "EngineCoreOutputs").Compared("no message", got))
}

// collect adds a failure, or counts it as one more of its place.
func (c *wireComparison) collect(place string, f check.Failure) {
	c.found.add(string(f.Code)+" "+place, f)
}

// Report hands over what was found.
func (c *wireComparison) Report(f *check.Outcome) {
	f.Asserted += c.compared
	c.found.report(f)
}

// What is wrong with a message of the engine, compared with the real engine's.
const (
	CodeWireValue   check.Code = "W001" // a value differs
	CodeWireKind    check.Code = "W002" // a value is of another kind
	CodeWireLength  check.Code = "W003" // an array has another number of elements
	CodeWireMissing check.Code = "W004" // a key is missing
	CodeWireExtra   check.Code = "W005" // a key that the real engine does not send
	CodeWireOrder   check.Code = "W006" // the keys of a map come in another order
	CodeWireFrames  check.Code = "W007" // the message has other auxiliary frames
	CodeWireSyntax  check.Code = "W008" // the message is not msgpack
	CodeWireUnsaid  check.Code = "W009" // a message of the real engine has no counterpart
	CodeWireStray   check.Code = "W010" // a message that the real engine did not send
)

// wireMask is a place where the engine under test may say something else than the
// real one did, of the same kind all the same.
type wireMask struct {
	// Path has [] for any element, and * for any part of a tensor table.
	Path   string
	Reason string
	// wanted says in words what the value must be all the same, and accepts decides:
	// over two msgpack values of the same kind, or two auxiliary frames of the same
	// size. nil accepts any.
	wanted  string
	accepts func(c *wireComparison, want, got []byte) bool
}

// WireMasks are all such places. One that no golden needs fails a test. The data of
// a tensor is the third of its parts, or an auxiliary frame; which ids each row of a
// table begins with is compared apart, see wireComparison.tables.
var WireMasks = []wireMask{
	{"EngineCoreReadyResponse.instance_id", "every engine that starts draws another", "a name", isName},
	{"EngineCoreOutputs.timestamp", "a time", "a time from that of the message before up to now", isTimeOfMessage},
	{"EngineCoreOutputs.outputs[].events[].timestamp", "a time", "a time up to now", isTime},
	{"EngineCoreOutputs.outputs[].new_logprobs.*[2]", noModel, "as many bytes", sameSize},
	{"EngineCoreOutputs.outputs[].new_prompt_logprobs_tensors.*[2]", noModel, "as many bytes", sameSize},
	{"frames[]", noModel, "", nil},
}

// noModel is why log-probabilities are made up.
const noModel = "a trace has no log-probabilities, and the player has no model to compute them"

func (m wireMask) covers(path string) bool {
	head, tail, starred := strings.Cut(m.Path, "*")
	if !starred {
		return matches(m.Path, path)
	}
	part, rest, _ := strings.Cut(path[min(len(path), strings.LastIndexByte(path, '.')+1):], "[")
	return rest != "" && matches(head+part+tail, path)
}

// matches reports whether a path is the pattern with a number in each [] of it.
func matches(pattern, path string) bool {
	rest := path
	for i, part := range strings.Split(pattern, "[]") {
		if i > 0 {
			index := check.Indexes().FindStringIndex(rest)
			if index == nil || index[0] != 0 {
				return false
			}
			rest = rest[index[1]:]
		}
		var ok bool
		if rest, ok = strings.CutPrefix(rest, part); !ok {
			return false
		}
	}
	return rest == ""
}

// maskOf returns the mask of a place, nil for none.
func maskOf(path string) *wireMask {
	if i := slices.IndexFunc(WireMasks, func(m wireMask) bool { return m.covers(path) }); i >= 0 {
		return &WireMasks[i]
	}
	return nil
}

// isName accepts any text but none.
func isName(_ *wireComparison, _, got []byte) bool {
	cur := pack.NewCursor(got)
	text, err := cur.StrString()
	return err == nil && text != ""
}

// isTime accepts a time that has been, by the clock that the engine is given: 0 is
// for none.
func isTime(c *wireComparison, _, got []byte) bool {
	t := timeOf(got)
	return t > 0 && t <= c.now()
}

// isTimeOfMessage accepts besides no time before that of the message before.
func isTimeOfMessage(c *wireComparison, want, got []byte) bool {
	t := timeOf(got)
	if t < c.stamped || !isTime(c, want, got) {
		return false
	}
	c.stamped = t
	return true
}

// timeOf reads seconds, 0 from what is not a number.
func timeOf(raw []byte) float64 {
	cur := pack.NewCursor(raw)
	t, _ := cur.Float()
	return t
}

// sameSize accepts the data of another tensor of the same size.
func sameSize(_ *wireComparison, want, got []byte) bool {
	return len(tensorData(want)) == len(tensorData(got))
}

// tensorData returns the data of a tensor that lies in the message, nil for any
// other value.
func tensorData(raw []byte) []byte {
	cur := pack.NewCursor(raw)
	_, data, err := cur.Ext()
	if err != nil {
		return nil
	}
	return data
}

// tables compares what is known of the tables of log-probabilities, wherever their
// data lie: each row begins with the token that was sampled, or is in the prompt.
// What does not decode, or has another shape, has been found.
func (c *wireComparison) tables(want *WireMessage, requests []*wireRequest, got [][]byte) {
	if len(want.Frames) != len(got) || len(requests) == 0 || !slices.ContainsFunc(requests, func(r *wireRequest) bool { return r.tables }) {
		return
	}
	var w, g protocol.Outputs
	if c.codec.DecodeOutputs(want.Frames[0], &w) != nil || c.codec.DecodeOutputs(got[0], &g) != nil || len(w.Outputs) != len(g.Outputs) {
		return
	}
	for i := range w.Outputs {
		for _, t := range []struct {
			field     string
			want, got []byte
		}{
			{"new_logprobs", w.Outputs[i].Logprobs, g.Outputs[i].Logprobs},
			{"new_prompt_logprobs_tensors", w.Outputs[i].PromptLogprobs, g.Outputs[i].PromptLogprobs},
		} {
			path := fmt.Sprintf("EngineCoreOutputs.outputs[%d].%s.logprob_token_ids[2]", i, t.field)
			expected, actual := FirstIDs(t.want, want.Frames[1:]), FirstIDs(t.got, got[1:])
			if expected == nil || len(expected) != len(actual) || slices.Equal(expected, actual) {
				continue
			}
			row := check.FirstDifference(expected, actual)
			c.fail(want, requestAt(path, requests), CodeWireValue, path,
				fmt.Sprintf("id %d at the beginning of row %d", expected[row], row), fmt.Sprint(actual[row]))
		}
	}
}

// FirstIDs are the first of each row of a table, nil of what is none.
func FirstIDs(raw []byte, aux [][]byte) []int64 {
	if raw == nil {
		return nil
	}
	cur := pack.NewCursor(raw)
	if n, err := cur.ArrayLen(); err != nil || n == 0 {
		return nil
	}
	ids, err := protocol.ReadTensor(&cur, aux)
	if err != nil || len(ids.Shape) != 2 || ids.Shape[1] == 0 {
		return nil
	}
	var first []int64
	for row := range slices.Chunk(ids.Integers(), ids.Shape[1]) {
		first = append(first, row[0])
	}
	return first
}

// seconds is the time, which nobody has asked for by that.
func (c *StepClock) seconds() float64 { return time.Duration(c.now.Load()).Seconds() }
