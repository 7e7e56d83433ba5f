package report

import (
	"bytes"
	"strings"
	"unicode/utf8"
)

// grid is a table of text whose columns are aligned.
type grid struct {
	rows [][]string
	// paint colours a cell; its first row is the heading.
	paint func(row, column int, text string) string
}

func (g *grid) add(cells ...string) { g.rows = append(g.rows, cells) }

// write aligns the columns by the width of what is seen, and pads none at the end
// of a row: editors and diffs trip over that.
func (g *grid) write(b *bytes.Buffer) {
	var widths []int
	for _, cells := range g.rows {
		for i, text := range cells {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], utf8.RuneCountInString(text))
		}
	}
	for at, cells := range g.rows {
		last := len(cells) - 1
		for last > 0 && cells[last] == "" {
			last--
		}
		for i, text := range cells[:last+1] {
			shown := text
			if g.paint != nil {
				shown = g.paint(at, i, text)
			}
			b.WriteString(shown)
			if i < last {
				b.WriteString(strings.Repeat(" ", widths[i]-utf8.RuneCountInString(text)+2))
			}
		}
		b.WriteByte('\n')
	}
}
