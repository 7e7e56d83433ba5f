package drift

import (
	"errors"
	"fmt"
	"slices"

	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/internal/upstream/pypi"
	"github.com/vllm-vcr/conformance/manifest"
)

// Newest returns the newest of releases that are in ascending order: one that was not yanked, and no candidate unless
// these are wanted.
func Newest(releases []pypi.Release, candidates bool) (pypi.Release, error) {
	for _, r := range slices.Backward(releases) {
		if !r.Yanked && r.IsRelease() && (candidates || !r.IsCandidate()) {
			return r, nil
		}
	}
	return pypi.Release{}, fmt.Errorf("none of %d releases is stable and not yanked", len(releases))
}

// NewestBuild returns the newest of releases and builds that are in ascending order: one that was not yanked, and the
// default one rather than a variant for other hardware.
func NewestBuild(releases []pypi.Release) (pypi.Release, error) {
	newest := pypi.Release{}
	for _, r := range slices.Backward(releases) {
		switch {
		case r.Yanked:
		case r.Variant() == "":
			return r, nil
		case newest.Version == "":
			newest = r
		}
	}
	if newest.Version == "" {
		return newest, fmt.Errorf("all of %d builds were yanked", len(releases))
	}
	return newest, nil
}

// LineFor returns the line that a release is judged as, and whether it is its own. Without a line of its own that has
// streams to replay, it is the newest line before it, or the oldest if there is none before.
func LineFor(
	matrix *compat.Matrix, goldens *manifest.Manifest, version compat.Version,
) (line compat.Line, own bool, err error) {
	replays := func(l compat.Line) bool {
		return slices.ContainsFunc(goldens.ForLine(l.Name), func(g manifest.Golden) bool { return g.Role == manifest.Fidelity })
	}
	if l, ok := matrix.Lookup(version.Tag()); ok && replays(l) {
		return l, true, nil
	}
	var best compat.Version
	found := false
	for _, l := range matrix.Lines {
		v, err := compat.ParseVersion(l.Tag)
		if err == nil && !l.IsTracker() && replays(l) && (!found || v.Nearer(best, version)) {
			line, best, found = l, v, true
		}
	}
	if !found {
		return line, false, errors.New("no line of " + matrix.File + " has a golden to replay")
	}
	return line, false, nil
}
