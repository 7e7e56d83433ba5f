package compat

import (
	"fmt"
	"slices"
	"strings"
)

// Difference is what becomes of one line. From has no name when the line is new, and
// To none when it goes.
type Difference struct{ From, To Line }

// Diff lists the differences between two windows: the lines of the second in their
// order, then those that only the first has.
func Diff(before, after []Line) []Difference {
	var all []Difference
	for _, to := range after {
		if from := byName(before, to.Name); !sameEntry(from, to) {
			all = append(all, Difference{from, to})
		}
	}
	for _, from := range before {
		if byName(after, from.Name).Name == "" {
			all = append(all, Difference{From: from})
		}
	}
	return all
}

// byName returns the line of that name, or the zero Line.
func byName(lines []Line, name string) Line {
	if i := slices.IndexFunc(lines, func(l Line) bool { return l.Name == name }); i >= 0 {
		return lines[i]
	}
	return Line{}
}

// Line is the name of the line.
func (d Difference) Line() string {
	if d.To.Name != "" {
		return d.To.Name
	}
	return d.From.Name
}

// Added reports whether the line is new.
func (d Difference) Added() bool { return d.From.Name == "" }

// Removed reports whether the line goes.
func (d Difference) Removed() bool { return d.To.Name == "" }

// Moved reports whether the line has another release than before.
func (d Difference) Moved() bool { return !d.Added() && !d.Removed() && d.From.Tag != d.To.Tag }

// String says it on one line, such as
// "0.33: tag v0.33.0 -> v0.33.1, fidelity_validated true -> false".
func (d Difference) String() string {
	switch {
	case d.Removed():
		return fmt.Sprintf("%s: removed, it stood for %s", d.Line(), d.From.Tag)
	case d.Added():
		s := fmt.Sprintf("%s: added with tag %s, protocol_rev %s", d.Line(), d.To.Tag, d.To.ProtocolRev)
		if d.To.PatchRepo != "" {
			s += fmt.Sprintf(", patch_repo %s, patch_rev %s", d.To.PatchRepo, d.To.PatchRev)
		}
		if d.To.FidelityValidated {
			s += ", validated"
		}
		if d.To.Default {
			s += ", the default"
		}
		return s
	}
	return d.Line() + ": " + strings.Join(d.values(), ", ")
}

// values lists the values that differ.
func (d Difference) values() []string {
	var all []string
	for _, v := range []struct {
		key      string
		from, to any
	}{
		{"tag", d.From.Tag, d.To.Tag},
		{"protocol_rev", d.From.ProtocolRev, d.To.ProtocolRev},
		{"patch_repo", d.From.PatchRepo, d.To.PatchRepo},
		{"patch_rev", d.From.PatchRev, d.To.PatchRev},
		{"fidelity_validated", d.From.FidelityValidated, d.To.FidelityValidated},
		{"default", d.From.Default, d.To.Default},
	} {
		if v.from != v.to {
			all = append(all, fmt.Sprintf("%s %s -> %s", v.key, orNone(v.from), orNone(v.to)))
		}
	}
	return all
}

func orNone(value any) string {
	if value == "" {
		return "(none)"
	}
	return fmt.Sprint(value)
}
