package compat

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Change is what is to become of a line. What is nil stays as it is; a patch that is
// empty is removed.
type Change struct {
	Line                string // its name
	Tag, Rev            *string
	PatchRepo, PatchRev *string
	Validated           *bool
	Default             bool // it becomes the default, in the place of another
	Add                 bool // it is made when there is none of the name
	Remove              bool // it goes, and nothing else of the change may be given
}

// isEmpty reports whether the change is none.
func (c Change) isEmpty() bool {
	return c.Tag == nil && c.Rev == nil && c.PatchRepo == nil && c.PatchRev == nil && c.Validated == nil &&
		!c.Default && !c.Add
}

// Set returns the lines of the matrix after a change, for [Rewrite], which checks
// them. A line whose tag or revision moves is not validated any more, unless the
// change says that it is: its goldens were captured from another engine.
func (m *Matrix) Set(c Change) ([]Line, error) {
	lines := slices.Clone(m.Lines)
	at := slices.IndexFunc(lines, func(l Line) bool { return l.Name == c.Line })
	switch {
	case c.Line == "":
		return nil, errors.New("the change names no line")
	case c.Remove && !c.isEmpty():
		return nil, fmt.Errorf("line %s cannot be removed and changed at once", c.Line)
	case c.Remove && at < 0:
		return lines, nil
	case c.Remove:
		return slices.Delete(lines, at, at+1), nil
	case c.isEmpty():
		return nil, fmt.Errorf("the change of line %s is empty", c.Line)
	case at < 0 && !c.Add:
		return nil, m.noLine(c.Line)
	case at < 0:
		l, err := c.newLine()
		if err != nil {
			return nil, err
		}
		at = place(lines, l)
		lines = slices.Insert(lines, at, l)
	}
	c.apply(&lines[at])
	if c.Default {
		makeDefault(lines, c.Line)
	}
	return lines, nil
}

func (m *Matrix) names() []string {
	var names []string
	for _, l := range m.Lines {
		names = append(names, l.Name)
	}
	return names
}

// newLine is the line that a change makes, as far as its place depends on it.
func (c Change) newLine() (Line, error) {
	l := Line{Name: c.Line}
	if l.Name == Nightly && c.Tag == nil {
		l.Tag = Nightly
	} else if c.Tag == nil {
		return l, fmt.Errorf("line %s is new, so it needs a tag", c.Line)
	}
	if c.Rev == nil {
		return l, fmt.Errorf("line %s is new, so it needs the commit that its tag was built from", c.Line)
	}
	return l, nil
}

func (c Change) apply(l *Line) {
	before := *l
	assign(&l.Tag, c.Tag)
	assign(&l.ProtocolRev, c.Rev)
	assign(&l.PatchRepo, c.PatchRepo)
	assign(&l.PatchRev, c.PatchRev)
	if l.Tag != before.Tag || !sameCommit(l.ProtocolRev, before.ProtocolRev) {
		l.FidelityValidated = false
	}
	assign(&l.FidelityValidated, c.Validated)
}

func assign[T any](to, value *T) {
	if value != nil {
		*to = *value
	}
}

// sameCommit reports whether two revisions are of one commit: either may be
// abbreviated.
func sameCommit(a, b string) bool {
	return strings.HasPrefix(a, b) && b != "" || strings.HasPrefix(b, a) && a != ""
}

// place is where a new line goes: nightly first, a candidate before all stable lines,
// a stable line before the first that is older.
func place(lines []Line, l Line) int {
	if l.Name == Nightly {
		return 0
	}
	at := slices.IndexFunc(lines, func(other Line) bool {
		return !other.IsTracker() && (l.Name == RC || CompareLines(other.Name, l.Name) < 0)
	})
	if at < 0 {
		return len(lines)
	}
	return at
}

// CompareLines orders the names of stable lines, the older first. A name that is
// none comes before all.
func CompareLines(a, b string) int {
	v, _ := parseVersion(a + ".0")
	w, _ := parseVersion(b + ".0")
	return v.Compare(w)
}

// makeDefault moves the default to a line.
func makeDefault(lines []Line, name string) {
	for i := range lines {
		lines[i].Default = lines[i].Name == name
	}
}
