package replay

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/check/invariant"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// LayoutCheck is what was found wrong with the layout of an engine's messages: every
// kind of it once, for an engine that writes one wrong writes all so.
type LayoutCheck struct {
	Codec *protocol.Codec
	Kinds []*layoutKind
	spare []string // paths of keys that the line does not know
}

// layoutKind is one way of being wrong: at a place, indexes aside.
type layoutKind struct {
	place    string
	first    check.Failure
	messages int // that are wrong so
	last     int // the number of the last one
}

// MaxLayoutKinds bounds what is kept of an engine of another protocol.
const MaxLayoutKinds = maxStrays

// Outputs checks the frames of the message with this number. request says what the
// failures are about, by the id that an output names.
func (l *LayoutCheck) Outputs(number int, frames [][]byte, request func(id string) int) {
	for _, m := range check.OutputsLayout(l.Codec, frames) {
		if m.Unknown { // frontends skip such keys, so an engine may write them; but a misspelt one looks the same
			if at := check.Place(m.Path); len(l.spare) < MaxLayoutKinds && !slices.Contains(l.spare, at) {
				l.spare = append(l.spare, at)
			}
			continue
		}
		wrong := check.LayoutProblem(fmt.Sprintf("message %d", number), m).Within(number, m.Path)
		l.Add(m, ofOutput(wrong, frames, request))
	}
}

func (l *LayoutCheck) Add(m protocol.Mismatch, wrong check.Failure) {
	place := check.LayoutPlace(m)
	i := slices.IndexFunc(l.Kinds, func(k *layoutKind) bool { return k.place == place })
	switch {
	case i < 0 && len(l.Kinds) < MaxLayoutKinds:
		l.Kinds = append(l.Kinds, &layoutKind{place, wrong, 1, wrong.Frame})
	case i >= 0 && l.Kinds[i].last != wrong.Frame:
		l.Kinds[i].messages++
		l.Kinds[i].last = wrong.Frame
	}
}

// Report adds what was found.
func (l *LayoutCheck) Report(f *check.Outcome) {
	for _, k := range l.Kinds {
		if k.messages > 1 {
			k.first.Message += fmt.Sprintf(" (the first of %d messages)", k.messages)
		}
		f.Fail(k.first)
	}
	if len(l.spare) > 0 {
		f.AddNote(fmt.Sprintf("keys that line %s does not know, and frontends skip: %s", l.Codec.Line(), strings.Join(l.spare, ", ")))
	}
}

// requestOf is the replay index of a request, -1 if there is none of the id.
func (s *Replaying) requestOf(id string) int {
	if st := s.byID[id]; st != nil {
		return st.Index
	}
	return -1
}

// reportLayout reports what the messages showed.
func (s *Replaying) reportLayout(f *check.Outcome) {
	if s.Layout != nil {
		s.Layout.Report(f)
	}
}

// addImpossible adds invariants that did not hold.
func (s *Replaying) addImpossible(f *check.Outcome, found []check.Failure) {
	for _, wrong := range found {
		invariant.Add(f, wrong)
	}
}

// CheckRegistration checks what the engine registered with. What the finding has of a
// place is not said again.
func (s *Replaying) CheckRegistration(f *check.Outcome) {
	s.addImpossible(f, s.ready)
	if s.Layout == nil {
		return
	}
	for _, m := range s.Layout.Codec.CheckReady(s.Engine.RawReady) {
		if !m.Unknown && !slices.ContainsFunc(f.Failures, func(f check.Failure) bool { return f.Path == m.Path }) {
			f.Fail(check.LayoutProblem("the ready response of the engine under test", m).Within(-1, m.Path))
		}
	}
}

// ofOutput says which request a failure is about, if its path leads into an output of the message of these frames.
func ofOutput(wrong check.Failure, frames [][]byte, request func(id string) int) check.Failure {
	if at := outputOf(wrong.Path); at >= 0 {
		wrong = wrong.Of(request(OutputID(frames[0], at)))
	}
	return wrong
}

// outputOf is which of the outputs a path leads to, -1 for none.
func outputOf(path string) int {
	if m := outputIndex().FindStringSubmatch(path); m != nil {
		if at, err := strconv.Atoi(m[1]); err == nil {
			return at
		}
	}
	return -1
}

// OutputID reads the request id of an output, empty if it has none that reads.
func OutputID(payload []byte, at int) string {
	return protocol.ViewOf(payload).At(1).At(at).At(0).Text()
}
