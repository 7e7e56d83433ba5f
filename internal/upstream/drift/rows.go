package drift

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/internal/base/lazyregexp"
)

// A Kind says why a release is looked at.
type Kind string

// Kinds.
const (
	Known     Kind = "known"     // the release of a line of the matrix
	Patch     Kind = "patch"     // a newer release of a line of the matrix
	Added     Kind = "added"     // of a line that is newer than the matrix
	Candidate Kind = "candidate" // newer than all releases
	Nightly   Kind = "nightly"   // a build of the main branch
)

// A Row is a release that is checked every night: a row of a job matrix.
type Row struct {
	Line    string `json:"line"`    // or the name of a tracker: there is one row of each
	Version string `json:"version"` // "0.33.1"; "" of the tracker nightly
	Kind    Kind   `json:"kind"`
	Check   string `json:"check"` // argument of drift check
}

// Rows returns what is checked: of each line of the compat matrix, and of each newer one, the newest release that
// was not yanked; the newest candidate if no release is newer; and the nightly build, if it is wanted. The newest come
// first. A line that nothing is published of is checked as the release in the matrix, so that this is found out. A line
// goes back to an older release only from one that was yanked: a list may lack what is newer.
func Rows(matrix *compat.Matrix, published []compat.Release, nightly bool) ([]Row, error) {
	later := func(a, b compat.Version) compat.Version {
		if b.Compare(a) > 0 {
			return b
		}
		return a
	}
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
	chosen := map[compat.Version]Row{}
	choose := func(line string, kind Kind, v compat.Version) {
		chosen[v] = Row{Line: line, Version: v.String(), Kind: kind, Check: v.String()}
	}
	var top compat.Version // of the matrix
	for _, l := range matrix.Lines {
		if l.IsTracker() {
			continue
		}
		current, err := compat.ParseVersion(l.Tag)
		if err != nil {
			return nil, fmt.Errorf("line %s: %w", l.Name, err)
		}
		top = later(top, current)
		if v, ok := best[l.Name]; ok && (v.Compare(current) > 0 || yanked[current]) {
			choose(l.Name, Patch, v)
		} else {
			choose(l.Name, Known, current)
		}
	}
	if len(chosen) == 0 {
		return nil, errors.New("the matrix has no stable line")
	}
	for line, v := range best {
		if compat.CompareLines(line, top.Line()) > 0 {
			choose(line, Added, v)
		}
	}
	if candidate.Compare(newest) > 0 {
		choose(compat.RC, Candidate, candidate)
	}
	rows := []Row{}
	if nightly {
		rows = append(rows, Row{Line: compat.Nightly, Kind: Nightly, Check: "--nightly"})
	}
	for _, v := range slices.SortedFunc(maps.Keys(chosen), func(a, b compat.Version) int { return b.Compare(a) }) {
		rows = append(rows, chosen[v])
	}
	return rows, nil
}

// rowLine is what a line of a row is called: it is part of a path and of the key of an issue.
var rowLine = lazyregexp.New(`^([0-9]+\.[0-9]+|[a-z]+)$`)

// ParseRows reads rows that [Rows] made, as JSON.
func ParseRows(text string) ([]Row, error) {
	var rows []Row
	if err := json.Unmarshal([]byte(text), &rows); err != nil {
		return nil, fmt.Errorf("want the output of drift releases: %w", err)
	}
	if len(rows) == 0 {
		return nil, errors.New("no release is listed: want the output of drift releases")
	}
	for i, r := range rows {
		if !rowLine().MatchString(r.Line) {
			return nil, fmt.Errorf("line %q in row %d: want a line such as 0.33, or nightly", r.Line, i)
		}
		if slices.ContainsFunc(rows[:i], func(other Row) bool { return other.Line == r.Line }) {
			return nil, fmt.Errorf("line %s is given twice", r.Line)
		}
	}
	return rows, nil
}

// ToAdopt returns those of the rows that the compat matrix does not have yet, the oldest first.
func ToAdopt(rows []Row) []Row {
	all := []Row{}
	for _, r := range slices.Backward(rows) {
		if r.Kind == Patch || r.Kind == Added {
			all = append(all, r)
		}
	}
	return all
}
