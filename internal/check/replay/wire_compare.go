package replay

import (
	"bytes"
	"fmt"
	"regexp"
	"strconv"

	"github.com/vllm-vcr/conformance/internal/base/plural"

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
	found    []*wireFinding
	byPlace  map[string]*wireFinding
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
		name: name, codec: codec, now: clock.seconds, byPlace: map[string]*wireFinding{}, Masked: map[string]int{},
	}
}

// Message compares a message with its counterpart. root is the name of the struct
// that its first frame is.
func (c *wireComparison) Message(root string, want *WireMessage, requests []*wireRequest, got [][]byte) {
	c.compared++
	if len(got) != len(want.Frames) {
		c.fail(want, nil, CodeWireFrames, "frames", plural.Count(len(want.Frames), "frame"), plural.Count(len(got), "frame"))
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

// payload compares the first frames.
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
		if !allowed {
			c.fail(want, requestAt(d.Path, requests), code, d.Path, expected, d.Got)
		}
	}
}

// buffer compares auxiliary frames.
func (c *wireComparison) buffer(want *WireMessage, i int, got []byte) {
	path := fmt.Sprintf("frames[%d]", i)
	switch {
	case len(got) != len(want.Frames[i]):
		c.fail(want, nil, CodeWireFrames, path, plural.Count(len(want.Frames[i]), "byte"), plural.Count(len(got), "byte"))
	case !bytes.Equal(got, want.Frames[i]):
		if expected, allowed := c.allowed(path, "its bytes", want.Frames[i], got); !allowed {
			c.fail(want, nil, CodeWireValue, path, expected, "others")
		}
	}
}

// allowed tells whether two values may differ at a path, else what is expected there.
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

// extCode is the type code of an ext value.
func extCode(cur pack.Cursor) int8 {
	code, _, _ := cur.Ext()
	return code
}

// outputIndex is the position of an output in the path of a difference.
var outputIndex = regexp.MustCompile(`^EngineCoreOutputs\.outputs\[(\d+)\]`)

// requestAt is the request that the real engine answers at a path, nil for none.
func requestAt(path string, requests []*wireRequest) *wireRequest {
	m := outputIndex.FindStringSubmatch(path)
	if m == nil {
		return nil
	}
	if i, err := strconv.Atoi(m[1]); err == nil && i < len(requests) {
		return requests[i]
	}
	return nil
}

// fail notes a difference from a message of the golden.
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
	c.collect(wirePlace(path), f)
}

// unsaid reports a message that has no counterpart.
func (c *wireComparison) unsaid(want *WireSaid) {
	var r *wireRequest
	if len(want.Requests) > 0 {
		r = want.Requests[0]
	}
	c.fail(&want.WireMessage, r, CodeWireUnsaid, "EngineCoreOutputs", string(want.class), "no such message")
}

// Stray reports a message that the real engine did not send, beside one that it did.
func (c *wireComparison) Stray(beside *WireSaid, m wireHeard) {
	got := string(m.Class)
	if len(m.frames) > 0 {
		got += ": " + pack.Format(m.frames[0])
	}
	c.collect(string(m.Class), check.Failed(CodeWireStray, "%s: line %d: beside it a message that the real engine did not send: %s", c.name, beside.Line, got).
		Within(beside.number, "EngineCoreOutputs").Compared("no message", got))
}

// collect adds a failure, or counts it as one more of its place.
func (c *wireComparison) collect(place string, f check.Failure) {
	key := string(f.Code) + " " + place
	if known := c.byPlace[key]; known != nil {
		known.more++
		return
	}
	c.byPlace[key] = &wireFinding{Failure: f}
	c.found = append(c.found, c.byPlace[key])
}

// Report hands over what was found.
func (c *wireComparison) Report(f *check.Outcome) {
	f.Asserted += c.compared
	for i, found := range c.found {
		if i == MaxWireFailures {
			f.AddNote(fmt.Sprintf("%d more kinds of differences are not listed", len(c.found)-i))
			return
		}
		if found.more > 0 {
			found.Message += fmt.Sprintf(" (and %d more like it)", found.more)
		}
		f.Fail(found.Failure)
	}
}
