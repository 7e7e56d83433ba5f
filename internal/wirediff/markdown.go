package wirediff

import (
	"fmt"
	"html"
	"io"
	"strings"
)

// MarkdownLimit is the length of what fits into an issue, in bytes, with some room
// for what others write there.
const MarkdownLimit = 60_000

// markdownReserve is kept free for the counts of what was left out, in bytes.
const markdownReserve = 300

// Markdown writes a comparison for a summary or an issue: a table for each level,
// what breaks first. What would make it longer than the limit, in bytes, is
// counted instead, from the end.
func Markdown(w io.Writer, d *Diff, limit int) error {
	m := &markdown{limit: limit - markdownReserve}
	m.write("**" + plain(d.Headline()) + "**\n\n")
	if d.Codec != "" {
		m.write("This build cannot speak " + plain(d.To.Version) + " yet: " + plain(d.Codec) + "\n\n")
	}
	var rows []string
	for _, g := range d.Gaps {
		rows = append(rows, "- "+plain(g.String())+"\n")
	}
	m.section(fmt.Sprintf("### Not read (%d)\n\n", len(rows)), rows, "part not read")
	for _, level := range levels {
		m.level(level, d.At(level))
	}
	if len(m.left) > 0 {
		m.b.WriteString("Left out, as there is no room: " + strings.Join(m.left, ", ") + ".\n")
	}
	_, err := io.WriteString(w, m.b.String())
	return err
}

type markdown struct {
	b     strings.Builder
	limit int
	left  []string
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
		m.left = append(m.left, plural(n, noun))
	}
}

func (m *markdown) level(level Level, changes []Change) {
	head := fmt.Sprintf("### %s (%d)\n\n", titles[level], len(changes))
	breaking := level == Breaking
	if breaking {
		head += "| what | breaks | why |\n|---|---|---|\n"
	} else {
		head += "| what | why |\n|---|---|\n"
	}
	rows := make([]string, len(changes))
	for i, c := range changes {
		cells := []string{markdownWhat(c)}
		if breaking {
			cells = append(cells, joined(c.Breaks))
		}
		rows[i] = "| " + strings.Join(append(cells, markdownWhy(c)), " | ") + " |\n"
	}
	m.section(head, rows, string(level)+" change")
}

func markdownWhat(c Change) string {
	subject := "<code>" + plain(c.Subject) + "</code>"
	if c.Where.URL != "" {
		subject = `<a href="` + markup.Replace(html.EscapeString(c.Where.URL)) + `">` + subject + "</a>"
	}
	return subject + " " + plain(c.What())
}

func markdownWhy(c Change) string {
	parts := []string{plain(c.Reason)}
	if c.Caution != "" {
		parts = append(parts, "But "+plain(c.Caution))
	}
	for _, need := range c.Needs.wanted() {
		parts = append(parts, plain(need))
	}
	return strings.Join(parts, "<br>")
}
