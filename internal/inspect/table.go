package inspect

import (
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"github.com/vllm-vcr/conformance/internal/base/safetext"
)

// table is what a person reads as columns, in text and in Markdown. Its cells may hold text of others.
type table struct {
	title string
	head  []string
	rows  [][]string
	// left is how many of the first columns are words; the others are numbers, aligned to the right.
	left int
}

func (t *table) add(cells ...string) { t.rows = append(t.rows, cells) }

// text writes the table in columns. No line has spaces at its end.
func (t *table) text(w io.Writer) {
	widths := make([]int, len(t.head))
	all := append([][]string{t.head}, t.rows...)
	for i, row := range all {
		cells := make([]string, len(row))
		for c, cell := range row {
			cells[c] = safetext.Line(cell)
			widths[c] = max(widths[c], utf8.RuneCountInString(cells[c]))
		}
		all[i] = cells
	}
	if t.title != "" {
		fmt.Fprintf(w, "%s\n\n", t.title)
	}
	for _, row := range all {
		var line strings.Builder
		for c, cell := range row {
			if c > 0 {
				line.WriteString("  ")
			}
			pad := strings.Repeat(" ", widths[c]-utf8.RuneCountInString(cell))
			if c < t.left {
				line.WriteString(cell + pad)
			} else {
				line.WriteString(pad + cell)
			}
		}
		fmt.Fprintln(w, safetext.Line(strings.TrimRight(line.String(), " ")))
	}
}

func (t *table) markdown(w io.Writer) {
	if t.title != "" {
		fmt.Fprintf(w, "%s\n\n", safetext.Markdown(t.title))
	}
	row := func(cells []string) {
		for _, cell := range cells {
			fmt.Fprintf(w, "| %s ", safetext.Markdown(cell))
		}
		fmt.Fprintln(w, "|")
	}
	row(t.head)
	for c := range t.head {
		fmt.Fprint(w, map[bool]string{true: "|---", false: "|---:"}[c < t.left])
	}
	fmt.Fprintln(w, "|")
	for _, cells := range t.rows {
		row(cells)
	}
}

// msText is a time in ms with the digits that matter.
func msText(ms float64) string {
	switch {
	case ms > -10 && ms < 10:
		return fmt.Sprintf("%.2f", ms)
	case ms > -1000 && ms < 1000:
		return fmt.Sprintf("%.1f", ms)
	}
	return fmt.Sprintf("%.0f", ms)
}

// quantilesText is the p50, p90 and p99 of a distribution in one cell, "-" if it has no value.
func quantilesText(d Distribution) string {
	if d.Count == 0 {
		return "-"
	}
	return msText(d.P50) + " / " + msText(d.P90) + " / " + msText(d.P99)
}
