package history

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/vllm-vcr/conformance/internal/base/jsonout"
	"github.com/vllm-vcr/conformance/internal/base/safetext"
	"github.com/vllm-vcr/conformance/internal/upstream/wirediff"
)

// Schema is the version of the document that [JSON] writes. A key may be added to it; whatever else changes makes it
// another.
const Schema = "vllm-vcr/wire-history/1"

// JSON writes a history whole.
func JSON(w io.Writer, h *History) error {
	return jsonout.Write(w, struct {
		Schema string `json:"schema"`
		*History
	}{Schema, h})
}

// Markdown writes a history for people who read it where HTML is not shown: the table of changes, then what each release
// changed, the newest first.
func Markdown(w io.Writer, h *History) error {
	var b strings.Builder
	first, last := h.Releases[0].Name, h.Releases[len(h.Releases)-1].Name
	fmt.Fprintf(&b, "# The vLLM wire, %s to %s\n\n", safetext.Markdown(first), safetext.Markdown(last))
	fmt.Fprintf(&b, "%s breaks a program, %s changes bytes and breaks nothing, %s same bytes.\n\n",
		signs[wirediff.Breaking], signs[wirediff.Compatible], signs[wirediff.Informational])
	h.markdownTable(&b)
	for i, step := range slices.Backward(h.Steps) {
		fmt.Fprintf(&b, "\n## %s\n\n", safetext.Markdown(h.Releases[i+1].Name))
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
		b.WriteString(" " + safetext.Markdown(r.Name) + " |")
	}
	b.WriteString("\n|---|" + strings.Repeat("---|", len(h.Steps)) + "\n")
	for _, r := range h.matrix().rows {
		b.WriteString("| " + safetext.Markdown(r.name) + " |")
		for _, changes := range r.cells {
			if len(changes) > 0 {
				fmt.Fprintf(b, " %s %d", signs[changes[0].Level], len(changes))
			}
			b.WriteString(" |")
		}
		b.WriteString("\n")
	}
}
