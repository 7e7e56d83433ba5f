package report

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/vllm-vcr/conformance/internal/base/safetext"

	"github.com/vllm-vcr/conformance/conformance"
)

// Difference is what is different between two documents. Its cases are in the
// order of the newer document; gone ones in that of the older.
type Difference struct {
	Failing []Change `json:"newly_failing"`      // red now, and not before: it passed, was skipped, or was not there
	Gone    []Change `json:"no_longer_asserted"` // compared something before, and is not there or skipped now
	Other   []Change `json:"failing_otherwise"`  // red before and now, with other codes
	Fixed   []Change `json:"fixed"`              // red before, and not now
	Added   []Change `json:"added"`              // not there before, and not red
	Digests []Change `json:"other_goldens"`      // the golden has other bytes or other token streams

	still int // red before and now, with the same codes
}

// Change is one case of a difference, or one golden.
type Change struct {
	Name   string `json:"name"`
	Gating bool   `json:"gating"`
	// Old is what was and New what is: a verdict with its codes, or a digest.
	Old string `json:"old"`
	New string `json:"new"`
}

// Worse reports whether something fails that did not, or is no longer asserted.
func (d *Difference) Worse() bool { return len(d.Failing)+len(d.Gone) > 0 }

// Compare says what is different in after, compared with before.
func Compare(before, after *Document) *Difference {
	d := &Difference{Failing: []Change{}, Gone: []Change{}, Other: []Change{}, Fixed: []Change{}, Added: []Change{}, Digests: []Change{}}
	known, now := byName(before), byName(after)
	for i := range after.Cases {
		c := &after.Cases[i]
		d.add(known[c.Name], c)
	}
	for i := range before.Cases {
		if c := &before.Cases[i]; now[c.Name] == nil && c.Asserted > 0 {
			d.Gone = append(d.Gone, Change{c.Name, c.Gating, c.state(), "not there"})
		}
	}
	return d
}

func byName(d *Document) map[string]*Case {
	cases := map[string]*Case{}
	for i := range d.Cases {
		cases[d.Cases[i].Name] = &d.Cases[i]
	}
	return cases
}

// add compares a case with what it was, which is nil when it was not there.
func (d *Difference) add(old, c *Case) {
	change := Change{c.Name, c.Gating, "not there", c.state()}
	if old == nil {
		if c.Verdict.Red() {
			d.Failing = append(d.Failing, change)
		} else {
			d.Added = append(d.Added, change)
		}
		return
	}
	change.Old = old.state()
	was, is := old.Verdict.Red(), c.Verdict.Red()
	switch {
	case is && !was:
		d.Failing = append(d.Failing, change)
	case c.Verdict == conformance.Skip && old.Asserted > 0:
		d.Gone = append(d.Gone, change)
	case was && !is:
		d.Fixed = append(d.Fixed, change)
	case is && change.Old != change.New:
		d.Other = append(d.Other, change)
	case is:
		d.still++
	}
	d.compareDigests(old, c)
}

// compareDigests notes another golden, once for all its cases.
func (d *Difference) compareDigests(old, c *Case) {
	name := c.Line + "/" + c.group()
	if n := len(d.Digests); n > 0 && d.Digests[n-1].Name == name {
		return
	}
	for _, digest := range []struct{ what, old, new string }{
		{"tokens", old.TokensSHA256, c.TokensSHA256}, {"bytes", old.SHA256, c.SHA256},
	} {
		if digest.old != digest.new {
			d.Digests = append(d.Digests, Change{name, c.Gating, digest.what + " " + short(digest.old), digest.what + " " + short(digest.new)})
			return
		}
	}
}

// short is enough of a digest to distinguish it from another.
func short(digest string) string {
	if digest == "" {
		return "not pinned"
	}
	return digest[:min(len(digest), 12)]
}

// state is the verdict of a case and why: "fail F001 F004".
func (c *Case) state() string {
	state := string(c.Verdict)
	if !c.Verdict.Red() {
		return state
	}
	codes := c.codes()
	slices.Sort(codes)
	for _, code := range codes {
		state += " " + string(code)
	}
	return state
}

// part is one kind of change, with its heading.
type part struct {
	heading string
	changes []Change
}

func (d *Difference) parts() []part {
	return []part{
		{"newly failing", d.Failing},
		{"no longer asserted", d.Gone},
		{"failing otherwise", d.Other},
		{"fixed", d.Fixed},
		{"new", d.Added},
		{"other golden", d.Digests},
	}
}

// Verdict is the difference in a line.
func (d *Difference) Verdict() string {
	var counts []string
	for _, p := range d.parts() {
		if n := len(p.changes); n > 0 {
			counts = append(counts, fmt.Sprintf("%d %s", n, p.heading))
		}
	}
	if d.still > 0 {
		counts = append(counts, fmt.Sprintf("%d still failing", d.still))
	}
	switch {
	case d.Worse():
		return "WORSE: " + strings.Join(counts, ", ")
	case len(counts) == 0:
		return "SAME: no case has another outcome"
	}
	return "NOT WORSE: " + strings.Join(counts, ", ")
}

// Text writes every change in a line, and a verdict.
func (d *Difference) Text(w io.Writer) error {
	var b strings.Builder
	for _, p := range d.parts() {
		for i, c := range p.changes {
			if i == 0 {
				fmt.Fprintf(&b, "%s:\n", p.heading)
			}
			fmt.Fprintf(&b, "  %s: %s\n", safetext.Line(c.Name+gate(c.Gating)), safetext.Line(c.Old+" -> "+c.New))
		}
	}
	fmt.Fprintf(&b, "%s\n", d.Verdict())
	_, err := io.WriteString(w, b.String())
	return err
}

// Markdown writes the same for a job's page, no longer than limit bytes.
func (d *Difference) Markdown(w io.Writer, limit int) error {
	m := &summary{limit: limit}
	sign := mark(conformance.Pass)
	if d.Worse() {
		sign = mark(conformance.Fail)
	}
	fmt.Fprintf(&m.b, "## %s Conformance compared\n\n**%s**\n", sign, d.Verdict())
	for _, p := range d.parts() {
		heading := "### " + strings.ToUpper(p.heading[:1]) + p.heading[1:] + "\n\n| case | before | now |\n| --- | --- | --- |\n"
		m.list(heading, "case", len(p.changes), func(i int) string {
			c := p.changes[i]
			return fmt.Sprintf("| %s%s | %s | %s |\n", code(c.Name), gate(c.Gating), escape(c.Old), escape(c.New))
		})
	}
	_, err := io.WriteString(w, m.b.String())
	return err
}
