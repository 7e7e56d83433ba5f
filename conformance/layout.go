package conformance

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/wire/pack"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// CodeLayout is of a message that is not exactly what the line's profile declares.
const CodeLayout Code = "F016"

// OwnTimed is what a [Subject] may be besides: one that has a time of its own, as
// every engine has that is started by a command or awaited at an address. The
// assertion wire cannot judge it, so the replay suite checks everything that it says
// by the line's profile. That is less than to compare it with the real engine's words,
// and finds what a lenient frontend would not mind.
type OwnTimed interface {
	// OwnTime tells whether it has.
	OwnTime() bool
}

// OwnTime is true: a process takes its time from nobody.
func (*commandSubject) OwnTime() bool { return true }

// hasOwnTime tells whether the engine of the session has a time of its own.
func (s *session) hasOwnTime() bool {
	if s.owner().remote {
		return true
	}
	timed, ok := s.subject.(OwnTimed)
	return ok && timed.OwnTime()
}

// layoutCheck is what was found wrong with the layout of an engine's messages: every
// kind of it once, for an engine that writes one wrong writes all so.
type layoutCheck struct {
	codec *protocol.Codec
	kinds []*layoutKind
	spare []string // paths of keys that the line does not know
}

// layoutKind is one way of being wrong: at a place, indexes aside.
type layoutKind struct {
	place    string
	first    Failure
	messages int // that are wrong so
	last     int // the number of the last one
}

// maxLayoutKinds bounds what is kept of an engine of another protocol.
const maxLayoutKinds = maxStrays

// outputs checks the frames of the message with this number. request tells what the
// failures are about, by the id that an output names.
func (l *layoutCheck) outputs(number int, frames [][]byte, request func(id string) int) {
	for _, m := range outputsLayout(l.codec, frames) {
		if m.Unknown {
			l.passOver(m)
			continue
		}
		wrong := layoutProblem(fmt.Sprintf("message %d", number), m).Within(number, m.Path)
		if at := outputOf(m.Path); at >= 0 {
			wrong = wrong.Of(request(outputID(frames[0], at)))
		}
		l.add(m, wrong)
	}
}

// passOver notes a key that the line does not know. Frontends skip such keys, so an
// engine may write them; but a misspelt one looks the same.
func (l *layoutCheck) passOver(m protocol.Mismatch) {
	if at := indexes.ReplaceAllString(m.Path, "[]"); len(l.spare) < maxLayoutKinds && !slices.Contains(l.spare, at) {
		l.spare = append(l.spare, at)
	}
}

func layoutProblem(what string, m protocol.Mismatch) Failure {
	return check.Failed(CodeLayout, "%s: %v", what, m).Compared(m.Expected, m.Actual)
}

// indexes are those of a path.
var indexes = regexp.MustCompile(`\[\d+\]`)

func (l *layoutCheck) add(m protocol.Mismatch, wrong Failure) {
	place := layoutPlace(m)
	i := slices.IndexFunc(l.kinds, func(k *layoutKind) bool { return k.place == place })
	switch {
	case i < 0 && len(l.kinds) < maxLayoutKinds:
		l.kinds = append(l.kinds, &layoutKind{place, wrong, 1, wrong.Frame})
	case i >= 0 && l.kinds[i].last != wrong.Frame:
		l.kinds[i].messages++
		l.kinds[i].last = wrong.Frame
	}
}

// layoutPlace is the same for what is wrong in the same way.
func layoutPlace(m protocol.Mismatch) string {
	return indexes.ReplaceAllString(m.Path, "[]") + " " + m.Expected
}

// report adds what was found.
func (l *layoutCheck) report(f *check.Outcome) {
	for _, k := range l.kinds {
		if k.messages > 1 {
			k.first.Message += fmt.Sprintf(" (the first of %d messages)", k.messages)
		}
		f.Fail(k.first)
	}
	if len(l.spare) > 0 {
		f.AddNote(fmt.Sprintf("keys that line %s does not know, and frontends skip: %s", l.codec.Line(), strings.Join(l.spare, ", ")))
	}
}

// checkLayout checks the message of the subject that came last, whether it decodes
// or not.
func (s *session) checkLayout() {
	if s.layout == nil {
		return
	}
	s.layout.outputs(s.frames, s.front.Last(0), func(id string) int {
		if st := s.byID[id]; st != nil {
			return st.index
		}
		return -1
	})
}

// checkLayout checks the message that came last, whether it decodes or not.
func (l *live) checkLayout() {
	for _, m := range outputsLayout(l.codec, l.s.front.Last(0)) {
		if m.Unknown {
			continue
		}
		l.fail(layoutPlace(m), layoutProblem(fmt.Sprintf("message %d", l.messages), m).Within(l.messages, m.Path))
	}
}

// reportLayout tells what the messages showed.
func (s *session) reportLayout(f *check.Outcome) {
	if s.layout != nil {
		s.layout.report(f)
	}
}

// checkRegistration checks what the engine registered with. What the finding has of a
// place is not said again.
func (s *session) checkRegistration(f *check.Outcome) {
	if s.layout == nil {
		return
	}
	for _, m := range s.layout.codec.CheckReady(s.engine.RawReady) {
		if !m.Unknown && !slices.ContainsFunc(f.Failures, func(f Failure) bool { return f.Path == m.Path }) {
			f.Fail(layoutProblem("the ready response of the engine under test", m).Within(-1, m.Path))
		}
	}
}

// outputsLayout lists where a message from an output socket is not exactly what the
// line's profile declares: fields, types, and frames that nothing refers to. The order
// of keys in a map is the engine's own: no frontend minds it.
func outputsLayout(codec *protocol.Codec, frames [][]byte) []protocol.Mismatch {
	payload, aux := frames[0], frames[1:]
	found := codec.CheckOutputs(payload, aux...)
	if len(found) > 0 {
		return found
	}
	// Tensors refer to frames by number: the last one is of use if the message is
	// wrong without it.
	for n := len(aux); n > 0 && len(codec.CheckOutputs(payload, aux[:n-1]...)) == 0; n-- {
		found = append(found, protocol.Mismatch{
			Path: fmt.Sprintf("frames[%d]", n), Expected: "a frame that the message refers to",
			Actual: fmt.Sprintf("one of %d bytes that nothing refers to", len(aux[n-1])),
		})
	}
	return found
}

// outputOf is which of the outputs a path leads to, -1 for none.
func outputOf(path string) int {
	m := outputIndex.FindStringSubmatch(path)
	if m == nil {
		return -1
	}
	at, err := strconv.Atoi(m[1])
	if err != nil {
		return -1
	}
	return at
}

// outputID reads the request id of an output, empty if it has none that reads.
func outputID(payload []byte, at int) string {
	cur := pack.NewCursor(payload)
	if n, err := cur.ArrayLen(); err != nil || n < 2 || cur.Skip() != nil {
		return ""
	}
	n, err := cur.ArrayLen()
	for ; err == nil && at > 0 && at < n; at, n = at-1, n-1 {
		err = cur.Skip()
	}
	if err != nil || n < 1 {
		return ""
	}
	if _, err = cur.ArrayLen(); err != nil {
		return ""
	}
	id, _ := cur.StrString() // empty on error
	return id
}
