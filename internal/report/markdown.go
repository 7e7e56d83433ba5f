package report

import (
	"fmt"
	"html"
	"io"
	"slices"
	"strings"

	"github.com/vllm-vcr/conformance/internal/base/safetext"

	"github.com/vllm-vcr/conformance/conformance"
)

// MarkdownLimit is how long the summary may be, in bytes. GitHub refuses one of
// more than 1 MiB, and all steps of a job share that.
const MarkdownLimit = 900 << 10

// markdownFailures is how many failures of a case the summary shows.
const markdownFailures = 3

// Markdown writes a summary for a job's page: the verdict, a table, what failed
// with how to run it alone, what failed as expected. What would make it longer
// than the limit, in bytes, is counted instead, from the end. Nothing is written
// within less than a KiB.
func Markdown(w io.Writer, d *Document, limit int) error {
	if limit < 2*reserve {
		return nil
	}
	m := &summary{limit: limit}
	m.headline(d)
	for _, t := range tables(d, func(c *Case) string { return "" }) {
		m.section(markdownTable(t))
	}
	m.list("### Problems of the run\n\n", "problem", len(d.Problems), func(i int) string {
		return "- ❌ " + code(says(d.Problems[i])) + "\n"
	})
	red := redCases(d)
	failed, also := together(red)
	m.list(fmt.Sprintf("### Failing cases (%d)\n\n", len(red)), "case", len(failed), func(i int) string {
		return failed[i].markdown(d, also[failed[i]])
	})
	expected := expectedCases(d)
	m.list("### Known\n\n", "case", len(expected), func(i int) string {
		c := expected[i]
		return "- " + mark(c.Verdict) + " " + code(c.Name) + " " + escape(c.Expected.says()) + "\n"
	})
	m.list("### Coverage of the wire\n\n", "line", len(d.Coverage), func(i int) string {
		return "- " + escape(d.Coverage[i].Line+": "+covered(d.Coverage[i])) + "\n"
	})
	m.section(about(d))
	_, err := io.WriteString(w, m.b.String())
	return err
}

// redCases are the cases to look at, those that gate first.
func redCases(d *Document) []*Case {
	var gating, others []*Case
	for i := range d.Cases {
		switch c := &d.Cases[i]; {
		case c.Verdict.Red() && c.Gating:
			gating = append(gating, c)
		case c.Verdict.Red():
			others = append(others, c)
		}
	}
	return append(gating, others...)
}

// expectedCases are those that failed as they may.
func expectedCases(d *Document) []*Case {
	var cases []*Case
	for i := range d.Cases {
		if c := &d.Cases[i]; c.Expected != nil && (c.Verdict == conformance.XFail || c.Verdict == conformance.Flaky) {
			cases = append(cases, c)
		}
	}
	return cases
}

// summary is Markdown that stays below a limit.
type summary struct {
	b     strings.Builder
	limit int
}

// reserve is what is kept free for saying how much was left out.
const reserve = 512

// section adds a part that is left out as a whole when it does not fit.
func (s *summary) section(text string) bool {
	if s.b.Len()+len(text)+reserve > s.limit {
		return false
	}
	s.b.WriteString(text)
	return true
}

// list adds a heading and as many items as fit, and counts the others.
func (s *summary) list(heading, noun string, n int, item func(i int) string) {
	if n == 0 {
		return
	}
	fits, i := s.section("\n"+heading), 0
	for fits && i < n {
		if fits = s.section(item(i)); fits {
			i++
		}
	}
	if !fits {
		fmt.Fprintf(&s.b, "\n… and %s more: see the JSON report.\n", safetext.Count(n-i, noun))
		s.limit = 0 // what follows would look like all that there is
	}
}

func (s *summary) headline(d *Document) {
	title := "vLLM engine-core conformance"
	fmt.Fprintf(&s.b, "## %s %s\n\n**%s**\n\n", mark(d.Verdict), title, escape(safetext.Line(Verdict(d))))
}

// mark is a sign for a verdict.
func mark(v conformance.Verdict) string {
	switch {
	case v.Red():
		return "❌"
	case v == conformance.Pass:
		return "✅"
	case v == conformance.Skip:
		return "➖"
	}
	return "⚠️"
}

// markdownTable has a row per line, or per assertion where these are many.
func markdownTable(t *table) string {
	var b strings.Builder
	if t.Suite == conformance.SuiteReplay || len(t.Columns) <= widest {
		head := []string{"vLLM", "gates"}
		for _, a := range t.Columns {
			head = append(head, escape(string(a)))
		}
		markdownRow(&b, append(head, "tokens")...)
		markdownRow(&b, slices.Repeat([]string{"---"}, len(head)+1)...)
		for _, row := range t.Rows {
			cells := []string{escape(row.Line), map[bool]string{true: "yes", false: "no"}[row.Gating]}
			for _, a := range t.Columns {
				cells = append(cells, markdownCounts(row.Cells[a]))
			}
			markdownRow(&b, append(cells, fmt.Sprint(row.Tokens))...)
		}
		return b.String() + "\n"
	}
	head := []string{escape(string(t.Suite))}
	for _, row := range t.Rows {
		head = append(head, escape(row.Line))
	}
	markdownRow(&b, head...)
	markdownRow(&b, slices.Repeat([]string{"---"}, len(head))...)
	for _, a := range t.Columns {
		cells := []string{escape(string(a))}
		for _, row := range t.Rows {
			cells = append(cells, markdownCounts(row.Cells[a]))
		}
		markdownRow(&b, cells...)
	}
	return b.String() + "\n"
}

func markdownRow(b *strings.Builder, cells ...string) {
	b.WriteString("| " + strings.Join(cells, " | ") + " |\n")
}

// markdownCounts is a cell: a sign and how many.
func markdownCounts(c Counts) string {
	total, worst := totalOf(c), worstOf(c)
	switch {
	case total == 0:
		return ""
	case c[worst] == total:
		return fmt.Sprintf("%s %d", mark(worst), total)
	}
	return fmt.Sprintf("%s %d/%d", mark(worst), c[worst], total)
}

// markdownCounts is what is wrong with a case, folded.
func (c *Case) markdown(d *Document, also []string) string {
	var b strings.Builder
	first := string(c.Verdict)
	if codes := c.codes(); len(codes) > 0 {
		first = fmt.Sprintf(`<a href="%s">%s</a>`, html.EscapeString(HelpURL(codes[0], d.Findings[codes[0]])), codes[0])
	}
	fmt.Fprintf(&b, "<details><summary>%s <code>%s</code>%s %s</summary>\n\n", mark(c.Verdict), escape(c.Name), gate(c.Gating), first)
	fence(&b, "text", c.failureText())
	for _, part := range []struct{ name, text string }{
		{"also in", strings.Join(also, ", ")}, {"golden", c.Location}, {"registered", c.Entry},
	} {
		if part.text != "" {
			fmt.Fprintf(&b, "%s: %s<br>\n", part.name, code(safetext.Line(part.text)))
		}
	}
	if c.Repeat != "" {
		b.WriteString("\n")
		fence(&b, "sh", safetext.Line(c.Repeat)+"\n")
	}
	b.WriteString("</details>\n")
	return b.String()
}

// failureText is the first failures of a case, the two values of the first below
// each other.
func (c *Case) failureText() string {
	var b strings.Builder
	if stale := c.stale(); stale != "" {
		fmt.Fprintln(&b, stale)
	}
	for i, f := range c.Failures {
		if i == markdownFailures {
			fmt.Fprintf(&b, "… and %d more\n", len(c.Failures)-i)
			break
		}
		writeFailure(&b, f, "")
		if i == 0 && f.Path != "" {
			fmt.Fprintf(&b, "  at        %s\n", safetext.Line(f.Path))
		}
		if i == 0 && f.Expected != f.Actual {
			fmt.Fprintf(&b, "  expected  %s\n  actual    %s\n", safetext.Line(f.Expected), safetext.Line(f.Actual))
		}
	}
	return b.String()
}

// about is what made the document.
func about(d *Document) string {
	var b strings.Builder
	for _, r := range d.Runs {
		b.WriteString("\n<sub>" + escape(safetext.Line(r.describe())) + "</sub>\n")
	}
	return b.String()
}

// describe says in a line what made a run, and of what.
func (r Run) describe() string {
	parts := []string{strings.TrimSpace(r.Tool.Name + " " + r.Tool.Version)}
	if r.Tool.Commit != "" {
		parts = append(parts, "commit "+r.Tool.Commit)
	}
	if r.OS != "" {
		parts = append(parts, r.OS+"/"+r.Arch)
	}
	if r.Subject.Kind != "" {
		parts = append(parts, strings.TrimSpace(r.Subject.Kind+" "+r.Subject.Command))
	}
	if !r.Started.IsZero() {
		parts = append(parts, r.Started.UTC().Format("2006-01-02 15:04:05 UTC"))
	}
	return strings.Join(parts, ", ")
}

// escape makes a text one that Markdown shows as it is.
func escape(text string) string {
	text = html.EscapeString(safetext.Line(text))
	return strings.NewReplacer(
		"|", "&#124;", "`", "&#96;", "*", "&#42;", "_", "&#95;", "[", "&#91;", "]", "&#93;", "\\", "&#92;", "~", "&#126;", "@", "&#64;",
	).Replace(text)
}

// code shows a text as it is, in a fixed width.
func code(text string) string { return "<code>" + escape(text) + "</code>" }

// fence shows lines as they are, between more backticks than they hold.
func fence(b *strings.Builder, language, text string) {
	mark := "```"
	for strings.Contains(text, mark) {
		mark += "`"
	}
	fmt.Fprintf(b, "%s%s\n%s%s\n\n", mark, language, text, mark)
}
