package wirediff

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"github.com/vllm-vcr/conformance/internal/base/jsonout"
	"github.com/vllm-vcr/conformance/internal/base/safetext"
)

const (
	textWidth = 110 // where lines of text are broken, in characters
	maxValue  = 400 // how much is shown of a value, in characters; the JSON has all of it
)

// titles are the headings of the levels.
var titles = map[Level]string{Breaking: "Breaking", Compatible: "Compatible", Informational: "Informational"}

// Text writes a comparison for a terminal: what breaks first, then the rest, each with the side that fails, why, where to read
// it, and what this project needs. The last line is the headline.
func Text(w io.Writer, d *Diff) error {
	var b bytes.Buffer
	for _, level := range levels {
		changes := d.At(level)
		if len(changes) > 0 {
			fmt.Fprintf(&b, "%s (%d)\n\n", titles[level], len(changes))
		}
		for _, c := range changes {
			c.write(&b)
		}
	}
	if len(d.NIXL) > 0 {
		fmt.Fprintf(&b, "Between prefill and decode: NIXL (%d, %d breaking)\n\n", len(d.NIXL), countBreaking(d.NIXL))
		for _, c := range d.NIXL {
			c.write(&b)
		}
	}
	if len(d.Gaps) > 0 {
		fmt.Fprintf(&b, "Not read (%d)\n\n", len(d.Gaps))
		for _, g := range d.Gaps {
			wrap(&b, "  ", g.String())
		}
		b.WriteByte('\n')
	}
	if d.Codec != "" {
		wrap(&b, "", "this build does not support "+d.To.Version+": "+d.Codec)
	}
	b.WriteString(d.Headline() + "\n")
	_, err := w.Write(b.Bytes())
	return err
}

// write writes a change with the side that fails, why, where to read it, and what this project needs.
func (c *Change) write(b *bytes.Buffer) {
	head := c.Subject + "  " + c.What()
	if len(c.Breaks) > 0 {
		head += "  [breaks " + JoinParties(c.Breaks) + "]"
	}
	wrap(b, "  ", head)
	wrap(b, "      ", c.Reason)
	if c.Caution != "" {
		wrap(b, "      ", "but "+c.Caution)
	}
	if c.Readers[ReaderMsgspec] != c.Readers[ReaderStrict] {
		wrap(b, "      ", c.readers())
	}
	for _, need := range c.Needs.Wanted() {
		wrap(b, "      ", need)
	}
	if c.Where.Module != "" {
		wrap(b, "      ", c.Where.String())
	}
	b.WriteByte('\n')
}

func countBreaking(changes []Change) (n int) {
	for _, c := range changes {
		if c.Level == Breaking {
			n++
		}
	}
	return n
}

// readers lists which readers of the older side fail, "" unless strict decoders differ from msgspec.
func (c *Change) readers() string {
	if c.Readers[ReaderMsgspec] == c.Readers[ReaderStrict] {
		return ""
	}
	var fail, read []string
	for _, r := range []Reader{ReaderRust, ReaderMsgspec, ReaderStrict, ReaderRecorder} {
		switch fails, is := c.Readers[r]; {
		case fails:
			fail = append(fail, string(r))
		case is:
			read = append(read, string(r))
		}
	}
	return "fails: " + strings.Join(fail, ", ") + "; reads on: " + strings.Join(read, ", ")
}

// wrap writes a text in lines, of which those after the first are indented more. No line is a command for a CI service.
func wrap(b *bytes.Buffer, indent, text string) {
	line := indent
	for i, word := range strings.Fields(safetext.Line(text)) {
		switch {
		case i == 0:
			line += word
		case utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > textWidth:
			b.WriteString(safetext.Line(line) + "\n")
			line = indent + "  " + word
		default:
			line += " " + word
		}
	}
	b.WriteString(safetext.Line(line) + "\n")
}

// Headline returns the comparison in a line: the two releases and how many changes there are.
func (d *Diff) Headline() string {
	var broken []string
	for _, p := range Parties {
		if n := CountBreaking(d.Changes, p); n > 0 {
			broken = append(broken, fmt.Sprintf("%s %d", p, n))
		}
	}
	breaks := ""
	if len(broken) > 0 {
		breaks = " (" + strings.Join(broken, ", ") + ")"
	}
	counts := fmt.Sprintf("%d breaking%s, %d compatible, %d informational",
		len(d.At(Breaking)), breaks, len(d.At(Compatible)), len(d.At(Informational)))
	switch {
	case len(d.Gaps) > 0:
		counts += fmt.Sprintf("; %s could not be read", safetext.Count(len(d.Gaps), "part"))
	case len(d.Changes) == 0:
		counts = "nothing changed on the wire"
	}
	return safetext.Line(fmt.Sprintf("vLLM %s → %s: %s", d.From.Version, d.To.Version, counts))
}

// patterns are what happened, of each kind; %b and %a are replaced by before and after, %p by the position.
var patterns = map[Kind]string{
	StructAdded: "new struct: %a", StructRemoved: "struct removed: %b", StructMoved: "declared elsewhere: %b → %a",
	StructEncoding: "encoding: %b → %a", StructOmitDefaults: "omits defaults: %b → %a", StructTag: "tag: %b → %a",
	FieldAdded: "added%p: %a", FieldRemoved: "removed%p: %b", FieldMoved: "moved: %b → %a", FieldRenamed: "renamed%p: %b → %a",
	FieldType: "type%p: %b → %a", FieldDefault: "default%p: %b → %a", FieldRequired: "need%p: %b → %a",
	EnumAdded: "new enum: %a", EnumRemoved: "enum removed: %b", MemberAdded: "new member: %a", MemberRemoved: "member removed: %b",
	MemberRenamed: "member renamed: %b → %a", MemberValue: "value: %b → %a", ConstantAdded: "new constant: %a",
	ConstantRemoved: "constant removed: %b", ConstantValue: "value: %b → %a", UtilityAdded: "new method called: %a",
	UtilityRemoved: "method no longer called: %b", UtilityArguments: "arguments: %b → %a", UtilityResult: "result: %b → %a",
	UtilityCalls: "called with: %b → %a", MessageAdded: "new message: %a", MessageRemoved: "message removed: %b",
	MessageEncoding: "encoding: %b → %a", KeyAdded: "new%p: %a", KeyRemoved: "removed%p: %b", KeyOptional: "written%p: %b → %a",
	MetricAdded: "new metric: %a", MetricRemoved: "metric removed: %b", MetricRenamed: "metric renamed: %b → %a",
	MetricKind: "kind: %b → %a", MetricLabels: "labels: %b → %a", MetricBuckets: "buckets: %b → %a",
}

// What returns what happened to the subject: "added at 9: dict[str, Any] | None = None".
func (c Change) What() string {
	shown := func(value string) string { return safetext.Clip(cmp.Or(value, "none"), maxValue) }
	position := ""
	if c.Position != nil {
		position = fmt.Sprintf(" at %d", *c.Position)
	}
	return strings.NewReplacer("%b", shown(c.Before), "%a", shown(c.After), "%p", position).Replace(patterns[c.Kind])
}

// String returns where to read a place, as FILE:LINE of RELEASE, or the release alone.
func (w Where) String() string {
	switch {
	case w.Module == "":
		return w.Release
	case w.At > 0:
		return fmt.Sprintf("%s:%d of %s", w.Module, w.At, w.Release)
	}
	return w.Module + " of " + w.Release
}

// String returns the gap in a line: where, what and why.
func (g Gap) String() string {
	return Where{Release: g.Release, Place: g.Place}.String() + ": " + g.What + ": " + g.Why
}

// Wanted returns the needs that are any, a sentence each.
func (n Needs) Wanted() []string {
	var lines []string
	for _, p := range []struct{ program, what string }{{"player", n.Player}, {"recorder", n.Recorder}} {
		if p.what != "" && !strings.HasPrefix(p.what, "nothing: ") {
			lines = append(lines, "our "+p.program+": "+p.what)
		}
	}
	return lines
}

// Schema is the version of the document that [JSON] writes. A key may be added to it; whatever else changes makes it
// another.
const Schema = "vllm-vcr/wire-diff/1"

// JSON writes a comparison whole.
func JSON(w io.Writer, d *Diff) error {
	var doc struct {
		Schema  string  `json:"schema"`
		Verdict Verdict `json:"verdict"`
		Counts  struct {
			Breaking      int           `json:"breaking"`
			Compatible    int           `json:"compatible"`
			Informational int           `json:"informational"`
			Breaks        map[Party]int `json:"breaks"`
		} `json:"counts"`
		*Diff
	}
	doc.Schema, doc.Verdict, doc.Diff = Schema, d.Verdict(), d
	doc.Counts.Breaking, doc.Counts.Compatible = len(d.At(Breaking)), len(d.At(Compatible))
	doc.Counts.Informational = len(d.At(Informational))
	doc.Counts.Breaks = map[Party]int{}
	for _, p := range Parties {
		doc.Counts.Breaks[p] = CountBreaking(d.Changes, p)
	}
	return jsonout.Write(w, doc)
}
