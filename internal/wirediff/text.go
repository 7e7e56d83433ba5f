package wirediff

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// textWidth is where lines of text are broken, in characters.
const textWidth = 110

// titles are those of the levels in a text.
var titles = map[Level]string{Breaking: "Breaking", Compatible: "Compatible", Informational: "Informational"}

// Text writes a comparison for a terminal: what breaks first, then the rest, each
// with who fails, why, where to read it, and what this project needs. The last
// line is the headline.
func Text(w io.Writer, d *Diff) error {
	var b bytes.Buffer
	for _, level := range levels {
		changes := d.At(level)
		if len(changes) == 0 {
			continue
		}
		fmt.Fprintf(&b, "%s (%d)\n\n", titles[level], len(changes))
		for _, c := range changes {
			textChange(&b, c)
		}
	}
	textGaps(&b, d.Gaps)
	if d.Codec != "" {
		wrap(&b, "", "this build cannot speak "+d.To.Version+": "+d.Codec)
	}
	b.WriteString(d.Headline() + "\n")
	_, err := w.Write(b.Bytes())
	return err
}

func textChange(b *bytes.Buffer, c Change) {
	head := c.Subject + "  " + c.What()
	if len(c.Breaks) > 0 {
		head += "  [breaks " + joined(c.Breaks) + "]"
	}
	wrap(b, "  ", head)
	wrap(b, "      ", c.Reason)
	if c.Caution != "" {
		wrap(b, "      ", "but "+c.Caution)
	}
	for _, need := range c.Needs.wanted() {
		wrap(b, "      ", need)
	}
	if place := c.Where.place(); place != "" {
		wrap(b, "      ", place)
	}
	b.WriteByte('\n')
}

func textGaps(b *bytes.Buffer, gaps []Gap) {
	if len(gaps) == 0 {
		return
	}
	fmt.Fprintf(b, "Not read (%d)\n\n", len(gaps))
	for _, g := range gaps {
		wrap(b, "  ", g.String())
	}
	b.WriteByte('\n')
}

// String is a gap in a line: where, what and why.
func (g Gap) String() string {
	text := g.What + ": " + g.Why
	if place := (Where{Release: g.Release, Place: g.Place}).place(); place != "" {
		return place + ": " + text
	}
	return g.Release + ": " + text
}

// wrap writes a text in lines, of which those after the first are indented more.
func wrap(b *bytes.Buffer, indent, text string) {
	line := indent
	for i, word := range strings.Fields(clean(text)) {
		switch {
		case i == 0:
			line += word
		case utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > textWidth:
			b.WriteString(line + "\n")
			line = indent + "  " + word
		default:
			line += " " + word
		}
	}
	b.WriteString(line + "\n")
}
