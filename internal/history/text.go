package history

import (
	"fmt"
	"html"
	"io"
	"slices"
	"strings"
	"unicode"

	"github.com/vllm-vcr/conformance/internal/wirediff"
)

// Schema is the version of the document that [JSON] writes. A key may be added to it; whatever else changes makes it
// another.
const Schema = "vllm-vcr/wire-history/1"

// JSON writes a history whole. What a terminal or a CI may act on is escaped, as in [wirediff.JSON].
func JSON(w io.Writer, h *History) error {
	return wirediff.WriteJSON(w, struct {
		Schema string `json:"schema"`
		*History
	}{Schema, h})
}

// Markdown writes a history for people who read it where HTML is not shown: the table of changes, then what each release
// changed, the newest first.
func Markdown(w io.Writer, h *History) error {
	var b strings.Builder
	fmt.Fprintf(&b, "# The vLLM wire, %s to %s\n\n", cellText(h.Releases[0].Name), cellText(h.Releases[len(h.Releases)-1].Name))
	fmt.Fprintf(&b, "%s somebody fails, %s other bytes and nobody fails, %s the same bytes.\n\n",
		signs[wirediff.Breaking], signs[wirediff.Compatible], signs[wirediff.Informational])
	h.markdownTable(&b)
	for i, step := range slices.Backward(h.Steps) {
		fmt.Fprintf(&b, "\n## %s\n\n", cellText(h.Releases[i+1].Name))
		if err := wirediff.Markdown(&b, step.diff, wirediff.MarkdownLimit); err != nil {
			return err
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func (h *History) markdownTable(b *strings.Builder) {
	b.WriteString("| |")
	for _, r := range h.Releases[1:] {
		b.WriteString(" " + cellText(r.Name) + " |")
	}
	b.WriteString("\n|---|" + strings.Repeat("---|", len(h.Steps)) + "\n")
	for _, r := range h.matrix().rows {
		b.WriteString("| " + cellText(r.name) + " |")
		for _, changes := range r.cells {
			if len(changes) > 0 {
				fmt.Fprintf(b, " %s %d", signs[changes[0].Level], len(changes))
			}
			b.WriteString(" |")
		}
		b.WriteString("\n")
	}
}

var markup = strings.NewReplacer(
	"|", "&#124;", "`", "&#96;", "*", "&#42;", "_", "&#95;", "[", "&#91;", "]", "&#93;", "\\", "&#92;", "~", "&#126;", "@", "&#64;",
	"::", ": :", "##", "# #",
)

// cellText is a name as Markdown shows it.
func cellText(name string) string {
	return markup.Replace(html.EscapeString(oneLine(name)))
}

// oneLine makes a text that comes from the sources of a release one line.
func oneLine(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, text)
}
