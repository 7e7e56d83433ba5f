package drift

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/internal/base/safetext"
	"github.com/vllm-vcr/conformance/internal/upstream/extract"
	"github.com/vllm-vcr/conformance/internal/upstream/wirediff"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// compareSources is the layer static, which compares what the sources of a release declare with the profile of a line, and what read
// returned for it.
func compareSources(ctx context.Context, line compat.Line, read func(context.Context) (extract.Result, error)) (Layer, extract.Result) {
	name := line.Name
	if name == compat.RC { // a candidate has the profile of the release it leads to
		name = line.Tag
	}
	known, err := protocol.LoadProfile(name)
	if err != nil {
		return Unjudged(StaticLayer, err), extract.Result{}
	}
	got, err := read(ctx)
	if err == nil && got.Profile == nil {
		err = errors.New("its sources say nothing of the wire")
	}
	if err != nil {
		layer := Unjudged(StaticLayer, err)
		layer.Downloaded = got.Downloaded
		return layer, got
	}
	layer := compare(known, got)
	layer.Compared = fmt.Sprintf("what the sources of %s declare with the profile of line %s (%s)", got.Profile.Version, line.Name, known.Version)
	return layer, got
}

// compare compares a profile with that of a line. A breaking change weighs more than what could not be read, and that
// more than all other changes.
func compare(known *protocol.Profile, got extract.Result) Layer {
	diff := wirediff.Compare(known, got.Profile)
	diff.Gaps = append(diff.Gaps, Gaps(got.Profile, got.Gaps)...)
	l := Layer{Name: StaticLayer, Verdict: None, Diff: diff, Downloaded: got.Downloaded}
	breaking := diff.At(wirediff.Breaking)
	text := safetext.Count(len(diff.Changes), "change")
	if len(diff.Changes) > 0 {
		text += fmt.Sprintf(", %d breaking", len(breaking))
	}
	parts := []string{text}
	if len(breaking) > 0 {
		parts = append(parts, "first "+breaking[0].Subject)
	}
	if len(diff.Gaps) > 0 {
		parts = append(parts, fmt.Sprintf("%s could not be read, first %s", safetext.Count(len(diff.Gaps), "part"), diff.Gaps[0]))
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

// Gaps returns what could not be read of a release's sources, for a comparison with the profile that was read of them.
func Gaps(p *protocol.Profile, found []extract.Gap) []wirediff.Gap {
	var gaps []wirediff.Gap
	for _, g := range found {
		gaps = append(gaps, wirediff.Gap{Release: p.Version, Place: g.Place, What: g.What, Why: g.Why})
	}
	return gaps
}

// Fingerprint identifies a wire by 16 hexadecimal digits: it is the same for profiles that declare the same wire,
// whichever release they were read from and wherever that declares it. It is "" for no profile.
func Fingerprint(p *protocol.Profile) string {
	if p == nil {
		return ""
	}
	bare := &protocol.Profile{
		Messages: maps.Clone(p.Messages), Enums: maps.Clone(p.Enums), Constants: maps.Clone(p.Constants),
		Utilities: maps.Clone(p.Utilities), Structs: maps.Clone(p.Structs),
	}
	for name, m := range bare.Messages {
		m.Place, m.Keys = protocol.Place{}, edited(m.Keys, func(k *protocol.Key) { k.At = 0 })
		bare.Messages[name] = m
	}
	for name, e := range bare.Enums {
		e.Place, e.Members = protocol.Place{}, edited(e.Members, func(m *protocol.Member) { m.At = 0 })
		bare.Enums[name] = e
	}
	for name, c := range bare.Constants {
		c.Place = protocol.Place{}
		bare.Constants[name] = c
	}
	for name, u := range bare.Utilities {
		u.Place = protocol.Place{}
		bare.Utilities[name] = u
	}
	for name, s := range bare.Structs {
		s.Place, s.Fields = protocol.Place{}, edited(s.Fields, func(f *protocol.Field) { f.At, f.Module = 0, "" })
		bare.Structs[name] = s
	}
	sum := sha256.New()
	if err := protocol.WriteProfile(sum, bare); err != nil {
		return "" // a digest takes whatever is written to it
	}
	return hex.EncodeToString(sum.Sum(nil)[:8])
}

// edited returns a copy of items that were changed.
func edited[T any](items []T, change func(*T)) []T {
	items = slices.Clone(items)
	for i := range items {
		change(&items[i])
	}
	return items
}
