package report

import (
	"bytes"
	"fmt"
	"strings"

	"github.com/vllm-vcr/conformance/internal/check/coverage"
)

// covered says in a line what is covered of a vLLM line: "wire covered: 93 of 323 fields, 8 of 26 utilities, …".
func covered(c Coverage) string {
	parts := []string{
		fmt.Sprintf("%d of %d fields (%d with several values)", c.Fields.Seen, c.Fields.Declared, c.Fields.Varied),
		shareText(c.Utilities, "utilities"), shareText(c.Members, "enumeration members"), shareText(c.Messages, "kinds of message"),
	}
	return "wire covered: " + strings.Join(parts, ", ")
}

func shareText(s coverage.Share, of string) string {
	return fmt.Sprintf("%d of %d %s", s.Seen, s.Declared, of)
}

// coverageText writes a line for each line, and what was asked for besides.
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
	g.add("DIRECTION", "FIELDS", "SEEN", "SEVERAL VALUES")
	for _, w := range append(c.Directions, coverage.Way{Direction: "all", Counts: c.Fields}) {
		g.add(string(w.Direction), fmt.Sprint(w.Declared), fmt.Sprint(w.Seen), fmt.Sprint(w.Varied))
	}
	g.write(b)
	fmt.Fprintf(b, "frontends: %s; model runners: %s\n", orNone(c.Frontends), orNone(c.Runners))
	for _, gap := range c.Details.Gaps() {
		fmt.Fprintf(b, "not seen of %s (%d of %d): %s\n", gap.Feature, len(gap.Unseen), gap.Declared, strings.Join(gap.Unseen, ", "))
	}
}

func orNone(names []string) string {
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}
