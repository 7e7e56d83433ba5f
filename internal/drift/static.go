package drift

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/internal/protocol"
	"github.com/vllm-vcr/conformance/internal/upstream"
	"github.com/vllm-vcr/conformance/internal/wirediff"
)

// An Extraction is what the sources of a release say of its wire.
type Extraction struct {
	Profile *protocol.Profile // as far as it could be read
	// Gaps are what could not. Whoever compares the profile must say so.
	Gaps       []upstream.Gap
	Downloaded int64 // bytes
}

// Extract reads the Python sources in the wheel. It runs no code of them.
func (s Source) Extract(ctx context.Context) (x Extraction, err error) {
	ctx, cancel := upstream.Limited(ctx)
	defer cancel()
	wheel, err := s.Open(ctx)
	if err != nil {
		return x, err
	}
	defer wheel.Close()
	x.Profile, x.Gaps, err = upstream.Read(ctx, upstream.Wheel{Wheel: wheel})
	x.Downloaded = wheel.Downloaded()
	return x, err
}

// Static compares what the sources of a release declare with the profile of a line.
type Static struct {
	// Line is the one to compare with.
	Line compat.Line
	// Extract reads the sources.
	Extract func(context.Context) (Extraction, error)
}

// Run is the layer static, and what was read for it.
func (s Static) Run(ctx context.Context) (Layer, Extraction) {
	known, err := profileOf(s.Line)
	if err != nil {
		return Unjudged(StaticLayer, err), Extraction{}
	}
	got, err := s.Extract(ctx)
	if err == nil && got.Profile == nil {
		err = errors.New("its sources say nothing of the wire")
	}
	if err != nil {
		layer := Unjudged(StaticLayer, err)
		layer.Downloaded = got.Downloaded
		return layer, got
	}
	layer := compare(known, got)
	layer.Compared = fmt.Sprintf("what the sources of %s declare with the profile of line %s (%s)", got.Profile.Version, s.Line.Name, known.Version)
	return layer, got
}

// profileOf is the profile of a line. A candidate has that of the release it leads to.
func profileOf(l compat.Line) (*protocol.Profile, error) {
	if l.Name == compat.RC {
		return protocol.LoadProfile(l.Tag)
	}
	return protocol.LoadProfile(l.Name)
}

// compare is what a profile comes to beside that of a line. A change that breaks somebody weighs more than what could
// not be read, and that more than all else.
func compare(known *protocol.Profile, got Extraction) Layer {
	diff := wirediff.Compare(known, got.Profile)
	diff.Gaps = append(diff.Gaps, Gaps(got.Profile, got.Gaps)...)
	l := Layer{Name: StaticLayer, Verdict: None, Diff: diff, Downloaded: got.Downloaded}
	breaking := diff.At(wirediff.Breaking)
	said := counted(len(diff.Changes), "change")
	if len(diff.Changes) > 0 {
		said += fmt.Sprintf(", %d breaking", len(breaking))
	}
	parts := []string{said}
	if len(breaking) > 0 {
		parts = append(parts, "first "+breaking[0].Subject)
	}
	if len(diff.Gaps) > 0 {
		parts = append(parts, fmt.Sprintf("%s could not be read, first %s", counted(len(diff.Gaps), "part"), diff.Gaps[0]))
	}
	switch {
	case len(got.Profile.Structs) == 0: // not one that has none any more
		l.Verdict, l.Vacuous, parts = Unknown, true, []string{"its sources declare no struct"}
	case len(breaking) > 0:
		l.Verdict = Found
	case len(diff.Gaps) > 0:
		l.Verdict = Unknown
	}
	l.Reason = firstLine(strings.Join(parts, "; "))
	return l
}

// Gaps are what could not be read of a release's sources, for a comparison with the profile that was read of them.
func Gaps(p *protocol.Profile, found []upstream.Gap) []wirediff.Gap {
	var gaps []wirediff.Gap
	for _, g := range found {
		place := protocol.Place{Module: g.Module, At: g.Line}
		gaps = append(gaps, wirediff.Gap{Release: p.Version, Place: place, What: g.What, Why: g.Why})
	}
	return gaps
}

// counted is "1 change", "2 changes".
func counted(n int, word string) string {
	if n == 1 {
		return "1 " + word
	}
	return fmt.Sprintf("%d %ss", n, word)
}
