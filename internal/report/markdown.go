package report

import (
	"cmp"
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
	m.section(markdownLevels(d))
	m.list(fmt.Sprintf("### Causes (%d)\n\n", len(d.Causes)), "cause", len(d.Causes), func(i int) string { return d.Causes[i].markdown(d) })
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

// markdownLevels has a row for each line and a column for each level.
func markdownLevels(d *Document) string {
	rows := levelTable(d)
	if len(rows[0]) == 1 {
		return ""
	}
	var b strings.Builder
	for i, row := range rows {
		for at := range row {
			row[at] = escape(strings.ToLower(row[at]))
			if i > 0 && at > 0 && strings.HasPrefix(row[at], "fail") {
				row[at] = mark(conformance.Fail) + strings.ToUpper(strings.TrimPrefix(row[at], "fail"))
			}
		}
		if markdownRow(&b, row...); i == 0 {
			markdownRow(&b, slices.Repeat([]string{"---"}, len(row))...)
		}
	}
	return b.String() + "\n"
}

// markdown is a cause, folded.
func (c *Cause) markdown(d *Document) string {
	var b strings.Builder
	first := string(c.first.Verdict)
	if c.Code != "" {
		first = fmt.Sprintf(`<a href="%s">%s</a>`, html.EscapeString(HelpURL(c.Code, d.Findings[c.Code])), c.Code)
	}
	what := cmp.Or(string(c.Consequence), d.Findings[c.Code])
	fmt.Fprintf(&b, "<details><summary>%s %s %s <code>%s</code>%s</summary>\n\n", mark(c.first.Verdict), escape(what), first, escape(c.Cases[0]), gate(c.Gating))
	fence(&b, "text", c.text())
	for _, part := range []struct{ name, text string }{
		{"seen", c.Where()}, {"also in", c.also()}, {"consequence", c.Basis()}, {"golden", c.first.Location}, {"registered", c.first.Entry},
	} {
		if part.text != "" {
			fmt.Fprintf(&b, "%s: %s<br>\n", part.name, code(safetext.Line(part.text)))
		}
	}
	if c.first.Repeat != "" {
		b.WriteString("\n")
		fence(&b, "sh", safetext.Line(c.first.Repeat)+"\n")
	}
	b.WriteString("</details>\n")
	return b.String()
}

// text is the first failure, with its two values below each other.
func (c *Cause) text() string {
	var b strings.Builder
	writeFailure(&b, c.Failure, "")
	if c.Path != "" {
		fmt.Fprintf(&b, "  at        %s\n", safetext.Line(c.Path))
	}
	if c.Expected != c.Actual {
		fmt.Fprintf(&b, "  expected  %s\n  actual    %s\n", safetext.Line(c.Expected), safetext.Line(c.Actual))
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
