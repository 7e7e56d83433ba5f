package report

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/base/lazyregexp"
	"github.com/vllm-vcr/conformance/internal/base/safetext"
	"github.com/vllm-vcr/conformance/internal/check"
)

// TextOptions shape the text.
type TextOptions struct {
	// Colour marks verdicts with ANSI colours, for a terminal.
	Colour bool
}

// Text writes the worst failure, a table with a row per golden, the levels, what failed and how to run it
// alone, what failed as expected, and one verdict line.
func Text(w io.Writer, d *Document, opt TextOptions) error {
	var b bytes.Buffer
	p := painter(opt.Colour)
	if line := Headline(d); line != "" {
		fmt.Fprintf(&b, "%s\n\n", p.paint(d.Verdict, safetext.Line(line)))
	}
	for i, t := range tables(d.begun(), (*Case).group) {
		if i > 0 {
			b.WriteByte('\n')
		}
		textTable(&b, p, t)
	}
	if rows := levelTable(d); len(rows[0]) > 1 {
		g := grid{rows: rows, paint: p.cell}
		b.WriteByte('\n')
		g.write(&b)
	}
	for i := 0; i < len(d.Causes); {
		n := 1
		for i+n < len(d.Causes) && d.Causes[i].alike(&d.Causes[i+n]) {
			n++
		}
		p.cause(&b, d.Causes[i:i+n])
		i += n
	}
	p.expected(&b, d)
	p.problems(&b, d)
	coverageText(&b, d)
	fmt.Fprintf(&b, "\n%s\n", p.paint(d.Verdict, safetext.Line(Verdict(d))))
	_, err := w.Write(b.Bytes())
	return err
}

// begun is the document for the tables of a run that was interrupted: without the goldens of which no case ran.
func (d *Document) begun() *Document {
	ran := map[string]bool{} // a case other than one that waits for one that did not run
	key := func(c *Case) string { return c.Line + "/" + c.group() }
	var interrupted bool
	for i := range d.Cases {
		c := &d.Cases[i]
		if !c.notRun() && c.Verdict != conformance.Skip {
			ran[key(c)] = true
		}
		interrupted = interrupted || c.notRun()
	}
	if !interrupted {
		return d
	}
	cases := slices.DeleteFunc(slices.Clone(d.Cases), func(c Case) bool { return c.notRun() || !ran[key(&c)] })
	return &Document{Cases: cases}
}

// notRun reports whether the end of the run came before the case.
func (c *Case) notRun() bool {
	return len(c.Failures) == 1 && notRun(c.Failures[0])
}

func notRun(f conformance.Failure) bool {
	return f.Code == check.CodeNotRun && strings.HasPrefix(f.Message, "not run: ")
}

func textTable(b *bytes.Buffer, p painter, t *table) {
	if t.Suite != conformance.SuiteReplay && len(t.Columns) > widest {
		tallTable(b, p, t)
		return
	}
	g := grid{paint: p.cell}
	head := []string{"VLLM", "GATE", "GOLDEN"}
	for _, c := range t.Columns {
		head = append(head, strings.ToUpper(string(c)))
	}
	g.add(append(head, "TOKENS", "NOTE")...)
	for _, row := range t.Rows {
		gate := "-"
		if row.Gating {
			gate = "yes"
		}
		cells := []string{safetext.Line(row.Line), gate, cmp.Or(safetext.Line(row.Group), "-")}
		for _, c := range t.Columns {
			cells = append(cells, cellOf(row.Cells[c]))
		}
		g.add(append(cells, fmt.Sprint(row.Tokens), safetext.Line(strings.Join(row.Notes, "; ")))...)
	}
	g.write(b)
}

// tallTable has a row for each assertion, and a column for each line. Its notes
// are why something was skipped: what the others note is too much for a row.
func tallTable(b *bytes.Buffer, p painter, t *table) {
	g := grid{paint: p.cell}
	head := []string{strings.ToUpper(string(t.Suite))}
	for _, row := range t.Rows {
		head = append(head, safetext.Line(row.Line))
	}
	g.add(append(head, "NOTE")...)
	for _, a := range t.Columns {
		cells := []string{safetext.Line(string(a))}
		var notes []string
		for _, row := range t.Rows {
			cells = append(cells, cellOf(row.Cells[a]))
			for _, c := range row.Cases {
				if c.Assertion == a && c.Verdict == conformance.Skip && !slices.Contains(notes, c.Note) {
					notes = append(notes, c.Note)
				}
			}
		}
		g.add(append(cells, safetext.Line(strings.Join(notes, "; ")))...)
	}
	g.write(b)
}

// maxAlike is how many causes a block shows; the JSON has all.
const maxAlike = 12

// cause writes a block about what is not as it should be: a cause, and others of the same code and cases.
func (p painter) cause(b *bytes.Buffer, alike []Cause) {
	cause := &alike[0]
	c := cause.first
	if notRun(cause.Failure) && len(cause.Cases) > 1 {
		fmt.Fprintf(b, "\n%s\n", p.paint(c.Verdict, fmt.Sprintf("ERROR %d cases%s: %s", len(cause.Cases), gate(cause.Gating), says(cause.Failure))))
		return
	}
	fmt.Fprintf(b, "\n%s\n", p.paint(c.Verdict, strings.ToUpper(string(c.Verdict))+" "+cause.title()))
	for i := range alike {
		if i == maxAlike {
			fmt.Fprintf(b, "  … and %d more; --report-json FILE lists them all\n", len(alike)-i)
			break
		}
		writeFailure(b, alike[i].Failure, "  ")
	}
	explain := ""
	if cause.Code != "" {
		explain = "vllm-vcr conform --explain " + string(cause.Code)
	}
	for _, place := range []struct{ name, at string }{
		{"seen", cause.Where()},
		{"also in", cause.also()},
		{"consequence", cause.Basis()},
		{"explain", explain},
		{"golden", c.Location},
		{"registered", c.Entry},
		{"repeat", c.Repeat},
	} {
		if place.at != "" {
			fmt.Fprintf(b, "  %s: %s\n", place.name, safetext.Line(place.at))
		}
	}
}

// expected writes a line about each case that failed as it may.
func (p painter) expected(b *bytes.Buffer, d *Document) {
	for i, c := range expectedCases(d) {
		if i == 0 {
			b.WriteByte('\n')
		}
		fmt.Fprintf(b, "%s: %s\n", p.paint(c.Verdict, string(c.Verdict)+" "+safetext.Line(c.Name)), c.Expected.says())
	}
}

func (p painter) problems(b *bytes.Buffer, d *Document) {
	if len(d.Problems) > 0 {
		b.WriteByte('\n')
	}
	for _, f := range d.Problems {
		fmt.Fprintf(b, "%s %s\n", p.paint(conformance.Error, "PROBLEM"), says(f))
	}
}

// painter colours text, when it is true.
type painter bool

// paint colours a text by what it says of a verdict.
func (p painter) paint(v conformance.Verdict, text string) string {
	if !p {
		return text
	}
	colour := "32" // green
	switch {
	case v.Red():
		colour = "31"
	case v == conformance.XFail || v == conformance.Flaky:
		colour = "33"
	case v == conformance.Skip:
		colour = "2"
	}
	return "\x1b[" + colour + "m" + text + "\x1b[0m"
}

// redCell is a cell that counts what is not as it should be, see cellOf.
var redCell = lazyregexp.New(`^\d+ (of \d+ (failed|passed unexpectedly)|errors? of \d+)`)

// cell colours the verdict of a cell, and the heading.
func (p painter) cell(row, _ int, text string) string {
	if !p {
		return text
	}
	if row == 0 {
		return "\x1b[1m" + text + "\x1b[0m"
	}
	if redCell().MatchString(text) {
		return p.paint(conformance.Fail, text)
	}
	word, _, _ := strings.Cut(text, " ")
	for _, v := range conformance.Verdicts() {
		if strings.EqualFold(word, string(v)) {
			return p.paint(v, text)
		}
	}
	return text
}

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
