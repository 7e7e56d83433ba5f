package selftest

import (
	"bytes"
	"fmt"
	"slices"

	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/wire/pack"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/trace"
)

// scene is what faults are played in: a golden of a line, and one of its streams.
type scene struct {
	cases   []conformance.Case
	stored  stored
	trace   *trace.Trace
	codec   *protocol.Codec
	profile *protocol.Profile
	target  target
	framed  session // without cases if the line has no golden of role wire
	heard   session // the same session as a golden of role frames
	donor   *scene  // of another line, nil when there is none
	// expected are the verdicts without a fault.
	expected map[string]conformance.Verdict
	// broken says what is red without one, "" when nothing is.
	broken string
	// any is set in a session of recorded frames, which knows nothing of the target:
	// there faults hit the first output that will do.
	any bool
}

// during is the scene as it is in a session of recorded frames, or another.
func (s *scene) during(framed bool) *scene {
	session := *s
	session.any = framed
	return &session
}

// target is the stream that faults hit.
type target struct {
	index    int // replay index
	previous int // replay index of the stream before it
	tokens   []uint32
	chunks   []int
	next     []uint32 // the tokens of the stream after it
	finish   trace.FinishReason
}

// id is the request id by which the runner asks for a stream.
func id(index int) string { return fmt.Sprintf("replay-%d", index) }

// middle is the position of a token that is neither the first nor the last.
func (t *target) middle() int { return len(t.tokens) / 2 }

// last is the position of the last token.
func (t *target) last() int { return len(t.tokens) - 1 }

// chunkAt is the chunk that has a position, and where it begins.
func (t *target) chunkAt(position int) (chunk, begin int) {
	for chunk, size := range t.chunks {
		if position < begin+size {
			return chunk, begin
		}
		begin += size
	}
	return len(t.chunks), begin
}

// splittable is the first chunk, not the last, of several tokens; -1 if there is
// none.
func (t *target) splittable() int {
	for i, size := range t.chunks[:max(len(t.chunks)-1, 0)] {
		if size > 1 {
			return i
		}
	}
	return -1
}

// field is the position of a field of a struct that goes over the wire as an array.
func (s *scene) field(structure, name string) int { return s.profile.Structs[structure].Index(name) }

// spoken is one output of the target on its way.
type spoken struct {
	scene  *scene
	root   *node // the message
	at     int   // which of its outputs it is
	first  int   // the position of its first token
	tokens *node
	chunk  int // the number of its chunk, counted as the outputs with tokens
	aux    [][]byte

	// What goes out: the message as it was edited, or raw instead of it, or nothing
	// when held; with what comes before and behind.
	before, after [][][]byte
	raw           [][]byte
	held          bool
	end           error
}

// node is the output itself.
func (o *spoken) node() *node { return o.root.items[1].items[o.at] }

// finish is its finish_reason, nil when the array ends before that.
func (o *spoken) finish() *node {
	if at := o.scene.field("EngineCoreOutput", "finish_reason"); at < len(o.node().items) {
		return o.node().items[at]
	}
	return nil
}

// terminal reports whether it ends the stream.
func (o *spoken) terminal() bool { return o.finish() != nil && !o.finish().isNil() }

// covers reports whether it has the token of that position.
func (o *spoken) covers(position int) bool {
	return o.first <= position && position < o.first+len(o.tokens.items)
}

// alone is a message like the one it is in, with an output of its own.
func (o *spoken) alone(out *node) [][]byte {
	items := slices.Clone(o.root.items)
	items[1] = array(out)
	return [][]byte{array(items...).bytes()}
}

// copy is an output like it, with other tokens.
func (o *spoken) copy(tokens ...uint32) *node {
	items := slices.Clone(o.node().items)
	items[1] = numbers(tokens)
	return array(items...)
}

// hit has every output of the target edited, in their order.
func (s *scene) hit(edit func(*spoken)) tamper {
	said, chunk := 0, 0
	return func(m message) ([]message, error) {
		root, at := s.find(m)
		if at < 0 {
			return faithful(m)
		}
		o := &spoken{scene: s, root: root, at: at, first: said, chunk: chunk, tokens: root.items[1].items[at].items[1], aux: m.frames[1:]}
		if n := len(o.tokens.items); n > 0 {
			said, chunk = said+n, chunk+1
		}
		edit(o)
		return o.out(), o.end
	}
}

// find finds the target's output in a message.
func (s *scene) find(m message) (root *node, at int) {
	// Most messages are not of the target, and are not worth reading.
	if name := text(id(s.target.index)).leaf; m.to != output || !s.any && !bytes.Contains(m.frames[0], name) {
		return nil, -1
	}
	root, err := parse(m.frames[0])
	if err != nil || len(root.items) < 2 {
		return nil, -1
	}
	return root, slices.IndexFunc(root.items[1].items, func(out *node) bool {
		return len(out.items) > 1 && out.items[1].kind == pack.Array && (s.any || out.items[0].isText(id(s.target.index)))
	})
}

// out is what goes out.
func (o *spoken) out() []message {
	frames := append([][]byte{o.root.bytes()}, o.aux...)
	if o.raw != nil {
		frames = o.raw
	}
	var messages []message
	for _, extra := range o.before {
		messages = append(messages, message{output, extra})
	}
	if !o.held {
		messages = append(messages, message{output, frames})
	}
	for _, extra := range o.after {
		messages = append(messages, message{output, extra})
	}
	return messages
}
