package canary

import (
	"errors"
	"fmt"
	"slices"

	"github.com/vllm-vcr/conformance/compat"
)

// A Kind says why a release is looked at.
type Kind string

// Kinds.
const (
	Known     Kind = "known"     // a line of the window stands for it
	Patch     Kind = "patch"     // a newer release of a line of the window
	Added     Kind = "added"     // of a line that is newer than the window
	Candidate Kind = "candidate" // newer than all releases
	Nightly   Kind = "nightly"   // a build of the main branch
)

// A Release is one that is looked at: a row of a job matrix.
type Release struct {
	Line    string `json:"line"`    // or the name of a tracker: there is one row of each
	Version string `json:"version"` // "0.33.1"; "" of the tracker nightly
	Kind    Kind   `json:"kind"`
	Check   string `json:"check"` // argument of drift check
}

// Releases returns what is to be looked at: of each line of the window, and of each newer one, the newest release that
// was not yanked; the newest candidate if no release is newer; and the nightly build, if it is wanted. The newest come
// first. A line that nothing is published of is looked at as the release it stands for, so that this is found out.
func Releases(window *compat.Matrix, published []compat.Release, nightly bool) ([]Release, error) {
	best, yanked := map[string]compat.Version{}, map[compat.Version]bool{}
	var newest, candidate compat.Version
	for _, r := range published {
		switch v := r.Version; {
		case r.Yanked:
			yanked[v] = true
		case v.IsCandidate():
			candidate = later(candidate, v)
		default:
			best[v.Line()] = later(best[v.Line()], v)
			newest = later(newest, v)
		}
	}
	if len(best) == 0 {
		return nil, fmt.Errorf("none of %d releases is stable and not yanked", len(published))
	}
	rows, err := ofLines(window, best, yanked)
	if err != nil {
		return nil, err
	}
	if candidate.Compare(newest) > 0 {
		rows = slices.Insert(rows, 0, ofVersion(compat.RC, Candidate, candidate))
	}
	if nightly {
		rows = slices.Insert(rows, 0, Release{Line: compat.Nightly, Kind: Nightly, Check: "--nightly"})
	}
	return rows, nil
}

// ofLines are the rows of the lines of the window and of newer ones, given the best release of every line. A line goes
// back to an older release only from one that was yanked: a list may lack what is newer.
func ofLines(window *compat.Matrix, best map[string]compat.Version, yanked map[compat.Version]bool) ([]Release, error) {
	chosen := map[compat.Version]Release{}
	var top compat.Version // of the window
	for _, l := range window.Lines {
		if l.IsTracker() {
			continue
		}
		current, err := compat.ParseVersion(l.Tag)
		if err != nil {
			return nil, fmt.Errorf("line %s: %w", l.Name, err)
		}
		top = later(top, current)
		version, kind := current, Known
		if v, ok := best[l.Name]; ok && (v.Compare(current) > 0 || yanked[current]) {
			version, kind = v, Patch
		}
		chosen[version] = ofVersion(l.Name, kind, version)
	}
	if len(chosen) == 0 {
		return nil, errors.New("the window has no stable line")
	}
	for line, v := range best {
		if (compat.Version{Major: v.Major, Minor: v.Minor}).Compare(compat.Version{Major: top.Major, Minor: top.Minor}) > 0 {
			chosen[v] = ofVersion(line, Added, v)
		}
	}
	return newestFirst(chosen), nil
}

func newestFirst(chosen map[compat.Version]Release) []Release {
	var versions []compat.Version
	for v := range chosen {
		versions = append(versions, v)
	}
	slices.SortFunc(versions, func(a, b compat.Version) int { return b.Compare(a) })
	rows := make([]Release, len(versions))
	for i, v := range versions {
		rows[i] = chosen[v]
	}
	return rows
}

func ofVersion(line string, kind Kind, v compat.Version) Release {
	return Release{Line: line, Version: v.String(), Kind: kind, Check: v.String()}
}

// ToAdopt are those of the rows that the window does not have yet, the oldest first.
func ToAdopt(rows []Release) []Release {
	all := []Release{}
	for _, r := range slices.Backward(rows) {
		if r.Kind == Patch || r.Kind == Added {
			all = append(all, r)
		}
	}
	return all
}

func later(a, b compat.Version) compat.Version {
	if b.Compare(a) > 0 {
		return b
	}
	return a
}
