package wirediff

import (
	"fmt"
	"io"
	"strings"

	"github.com/vllm-vcr/conformance/internal/base/safetext"
)

// MarkdownLimit is the length of what fits into an issue, in bytes, with some room for what others write there.
const MarkdownLimit = 60_000

// markdownReserve is kept free for the counts of what was left out, in bytes.
const markdownReserve = 300

// Markdown writes a comparison for a summary or an issue: a table for each level, what breaks first. What would make it
// longer than the limit, in bytes, is counted instead, from the end.
func Markdown(w io.Writer, d *Diff, limit int) error {
	m := &markdown{limit: limit - markdownReserve}
	m.write("**" + inMarkdown(d.Headline()) + "**\n\n")
	if d.Codec != "" {
		m.write("This build does not support " + inMarkdown(d.To.Version) + " yet: " + inMarkdown(d.Codec) + "\n\n")
	}
	var rows []string
	for _, g := range d.Gaps {
		rows = append(rows, "- "+inMarkdown(g.String())+"\n")
	}
	m.section(fmt.Sprintf("### Not read (%d)\n\n", len(rows)), rows, "part not read")
	for _, level := range levels {
		m.level(level, d.At(level))
	}
	rows = nil
	for _, c := range d.NIXL {
		breaks := ""
		if len(c.Breaks) > 0 {
			breaks = " (breaks " + JoinParties(c.Breaks) + ")"
		}
		rows = append(rows, "- **"+inMarkdown(c.Subject)+"** "+inMarkdown(c.What())+breaks+": "+inMarkdown(c.Reason)+"\n")
	}
	m.section(fmt.Sprintf("### Between prefill and decode: NIXL (%d)\n\n", len(rows)), rows, "NIXL change")
	if len(m.left) > 0 {
		m.b.WriteString("Left out because the text would be too long: " + strings.Join(m.left, ", ") + ".\n")
	}
	_, err := io.WriteString(w, m.b.String())
	return err
}

// inMarkdown returns a text that Markdown shows as it is.
func inMarkdown(text string) string { return safetext.Markdown(safetext.Clip(text, maxValue)) }

type markdown struct {
	b     strings.Builder
	limit int
	left  []string // what was left out
}

// write takes a text in if there is room.
func (m *markdown) write(text string) bool {
	if m.b.Len()+len(text) > m.limit {
		return false
	}
	m.b.WriteString(text)
	return true
}

// section writes as many rows as there is room for, and counts the others.
func (m *markdown) section(head string, rows []string, noun string) {
	if len(rows) == 0 {
		return
	}
	written := 0
	if len(m.left) == 0 && m.b.Len()+len(head)+len(rows[0]) <= m.limit {
		m.write(head)
		for written < len(rows) && m.write(rows[written]) {
			written++
		}
		m.b.WriteString("\n")
	}
	if n := len(rows) - written; n > 0 {
		m.left = append(m.left, safetext.Count(n, noun))
	}
}

func (m *markdown) level(level Level, changes []Change) {
	head := fmt.Sprintf("### %s (%d)\n\n| what | why |\n|---|---|\n", titles[level], len(changes))
	if level == Breaking {
		head = fmt.Sprintf("### %s (%d)\n\n| what | breaks | why |\n|---|---|---|\n", titles[level], len(changes))
	}
	rows := make([]string, len(changes))
	for i, c := range changes {
		subject := "<code>" + inMarkdown(c.Subject) + "</code>"
		if c.Where.URL != "" {
			subject = `<a href="` + safetext.Markdown(c.Where.URL) + `">` + subject + "</a>"
		}
		why := []string{inMarkdown(c.Reason)}
		if c.Caution != "" {
			why = append(why, "But "+inMarkdown(c.Caution))
		}
		if readers := c.readers(); readers != "" {
			why = append(why, readers)
		}
		for _, need := range c.Needs.Wanted() {
			why = append(why, inMarkdown(need))
		}
		cells := []string{subject + " " + inMarkdown(c.What()), strings.Join(why, "<br>")}
		if level == Breaking {
			cells = []string{cells[0], JoinParties(c.Breaks), cells[1]}
		}
		rows[i] = "| " + strings.Join(cells, " | ") + " |\n"
	}
	m.section(head, rows, string(level)+" change")
}
