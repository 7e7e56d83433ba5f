package report

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"github.com/vllm-vcr/conformance/internal/check/coverage"
)

// covered says in a line what is covered of a vLLM line: "wire covered: 93 of 323 fields, 8 of 26 utilities, …".
func covered(c Coverage) string {
	how := fmt.Sprintf("%d unreachable, %d with several values", c.Fields.Unreachable, c.Fields.Varied)
	if c.Details != nil {
		how += fmt.Sprintf(", %d compared, %d proven by a fault", c.Fields.Compared, c.Fields.Proven)
	}
	parts := []string{
		fmt.Sprintf("%d of %d fields (%s)", c.Fields.Seen, c.Fields.Declared, how),
		shareText(c.Utilities, "utilities"), shareText(c.Members, "enumeration members"), shareText(c.Messages, "kinds of message"),
	}
	return "wire covered: " + strings.Join(parts, ", ")
}

func shareText(s coverage.Share, of string) string {
	text := fmt.Sprintf("%d of %d %s", s.Seen, s.Declared, of)
	if s.Unreachable > 0 {
		text += fmt.Sprintf(" (%d unreachable)", s.Unreachable)
	}
	return text
}

// coverageText writes one line of text for each vLLM line, and the details that were requested.
func coverageText(b *bytes.Buffer, d *Document) {
	for i, c := range d.Coverage {
		if i == 0 {
			b.WriteByte('\n')
		}
		fmt.Fprintf(b, "%s: %s\n", c.Line, covered(c))
	}
	for _, c := range d.Coverage {
		if c.Details != nil {
			coverageDetails(b, c)
		}
	}
}

// coverageDetails writes the counts by direction, and the gaps by feature.
func coverageDetails(b *bytes.Buffer, c Coverage) {
	fmt.Fprintf(b, "\nCOVERAGE OF %s\n", c.Line)
	var g grid
	g.add("DIRECTION", "FIELDS", "UNREACHABLE", "SEEN", "SEVERAL VALUES", "COMPARED", "PROVEN BY A FAULT")
	for _, w := range append(c.Directions, coverage.Way{Direction: "all", Counts: c.Fields}) {
		g.add(string(w.Direction), fmt.Sprint(w.Declared), fmt.Sprint(w.Unreachable), fmt.Sprint(w.Seen), fmt.Sprint(w.Varied), fmt.Sprint(w.Compared), fmt.Sprint(w.Proven))
	}
	g.write(b)
	fmt.Fprintf(b, "frontends: %s; model runners: %s\n", orNone(c.Frontends), orNone(c.Runners))
	if c.Fields.Said > 0 {
		fmt.Fprintf(b, "engine under test: it set %d fields, %d of them were judged; only parsed: %s\n", c.Fields.Said, c.Fields.Judged, orNone(c.Details.OnlyParsed()))
	}
	if c.Fields.Sent+c.Fields.Faced > 0 {
		notSent, notFaced := c.Details.NotSent(), c.Details.NotFaced()
		fmt.Fprintf(b, "frontend under test: it set %d fields, and was sent %d that an engine sets\n", c.Fields.Sent, c.Fields.Faced)
		fmt.Fprintf(b, "set in goldens and not by it (%d): %s\n", len(notSent), orNone(notSent))
		fmt.Fprintf(b, "sent in goldens and not to it (%d): %s\n", len(notFaced), orNone(notFaced))
	}
	for _, gap := range c.Details.Gaps() {
		fmt.Fprintf(b, "not seen of %s (%d of %d): %s\n", gap.Feature, len(gap.Unseen), gap.Reachable, strings.Join(gap.Unseen, ", "))
	}
	for _, u := range unreachables(c.Details) {
		fmt.Fprintf(b, "unreachable, %s: %s\n", u.reason, strings.Join(u.names, ", "))
	}
}

func orNone(names []string) string {
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}

// outOfReach is what no golden can show, for one reason.
type outOfReach struct {
	reason string
	names  []string
}

// unreachables are the reasons in the order in which they come first.
func unreachables(d *coverage.Details) (all []outOfReach) {
	add := func(name, reason string) {
		if reason == "" {
			return
		}
		at := slices.IndexFunc(all, func(u outOfReach) bool { return u.reason == reason })
		if at < 0 {
			at = len(all)
			all = append(all, outOfReach{reason: reason})
		}
		all[at].names = append(all[at].names, name)
	}
	for _, f := range d.Fields {
		add(f.Name, f.Unreachable)
	}
	for _, items := range [][]coverage.ItemState{d.Utilities, d.Members, d.Messages} {
		for _, i := range items {
			add(i.Name, i.Unreachable)
		}
	}
	return all
}

// coverageRow is the state of a field, method, member or message.
type coverageRow struct{ Feature, Name, State string }

// coverageRows returns the state of everything of a line, by feature.
func coverageRows(c Coverage) (rows []coverageRow) {
	for _, feature := range coverage.Features() {
		for _, f := range c.Details.Fields {
			if f.Feature == feature {
				rows = append(rows, coverageRow{feature, f.Name, fieldText(f)})
			}
		}
		for _, items := range [][]coverage.ItemState{c.Details.Utilities, c.Details.Members, c.Details.Messages} {
			for _, i := range items {
				if i.Feature == feature {
					rows = append(rows, coverageRow{feature, i.Name, fieldText(coverage.FieldState{Seen: i.Seen, Unreachable: i.Unreachable})})
				}
			}
		}
	}
	return rows
}

// fieldText says in words how far a field is covered.
func fieldText(f coverage.FieldState) string {
	if !f.Seen && !f.Said && !f.Sent && !f.Faced {
		if f.Unreachable != "" {
			return "unreachable, " + f.Unreachable
		}
		return "not seen"
	}
	var words []string
	for _, part := range []struct {
		is   bool
		word string
	}{{f.Seen, "seen"}, {f.Varied, "several values"}, {f.Compared, "compared"}, {f.Proven, "proven by a fault"}, {f.Said, "set by the engine under test"}, {f.Judged, "judged"}, {f.Sent, "set by the frontend under test"}, {f.Faced, "sent to the frontend under test"}} {
		if part.is {
			words = append(words, part.word)
		}
	}
	return strings.Join(words, ", ")
}
