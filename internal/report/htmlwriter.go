package report

import (
	"bufio"
	"html"
	"net/url"
	"strings"

	"github.com/vllm-vcr/conformance/conformance"
)

// The page is a tree of elements that write themselves. There is no template: one
// calls methods by name, for which the linker keeps every exported method of the
// binary.

// piece is what an element is made of: its attributes, and what stands inside it.
type piece interface{ isPiece() }

// content is what can stand inside an element.
type content interface {
	piece
	write(w *bufio.Writer)
}

// text is shown as it came: no character of it is markup.
type text string

// markup is written as it is. It is a literal or an embedded file, never text
// that is converted; so are the names of elements and attributes.
type markup string

// contents are written one after the other.
type contents []content

// later is made only when it is written, so that a large page is not in memory as
// a whole.
type later func(w *bufio.Writer)

// element is a tag with its attributes and all that stands inside it.
type element struct {
	tag    markup
	void   bool // it has no inside, and no end tag
	pieces []piece
}

// attribute is left out without a name; bare it has no value.
type attribute struct {
	name  markup
	value string
	bare  bool
}

func (text) isPiece()      {}
func (markup) isPiece()    {}
func (contents) isPiece()  {}
func (later) isPiece()     {}
func (element) isPiece()   {}
func (attribute) isPiece() {}

// nl ends a line of the page's source.
const nl = markup("\n")

func (t text) write(w *bufio.Writer) { w.WriteString(escapeHTML(string(t))) }

func (m markup) write(w *bufio.Writer) { w.WriteString(string(m)) }

func (all contents) write(w *bufio.Writer) {
	for _, c := range all {
		c.write(w)
	}
}

func (l later) write(w *bufio.Writer) { l(w) }

func (e element) write(w *bufio.Writer) {
	put(w, "<", e.tag)
	for _, p := range e.pieces {
		if a, ok := p.(attribute); ok {
			a.writeTo(w)
		}
	}
	put(w, ">")
	for _, p := range e.pieces {
		if c, ok := p.(content); ok {
			c.write(w)
		}
	}
	if !e.void {
		put(w, "</", e.tag, ">")
	}
}

// writeTo is not named write: an attribute is no content.
func (a attribute) writeTo(w *bufio.Writer) {
	if a.name == "" {
		return
	}
	put(w, " ", a.name)
	if !a.bare {
		put(w, `="`)
		text(a.value).write(w)
		put(w, `"`)
	}
}

// put writes markup. The writer keeps its first error.
func put(w *bufio.Writer, all ...markup) {
	for _, m := range all {
		w.WriteString(string(m))
	}
}

// escapeHTML is a text between tags or in a quoted value. HTML has no NUL.
func escapeHTML(s string) string {
	return html.EscapeString(strings.ReplaceAll(s, "\x00", "\uFFFD"))
}

// el is an element of its attributes and all that stands inside it.
func el(tag markup, pieces ...piece) element { return element{tag: tag, pieces: pieces} }

// void is an element that nothing can stand inside.
func void(tag markup, attributes ...piece) element {
	return element{tag: tag, void: true, pieces: attributes}
}

// lines are contents that each end a line of the page's source.
func lines(all ...content) contents {
	ended := make(contents, 0, 2*len(all))
	for _, c := range all {
		ended = append(ended, c, nl)
	}
	return ended
}

// each is what the function makes of every item.
func each[T any, C content](items []T, of func(T) C) later {
	return func(w *bufio.Writer) {
		for _, item := range items {
			of(item).write(w)
		}
	}
}

// when is all of it, or nothing.
func when(shown bool, all ...content) contents {
	if !shown {
		return nil
	}
	return all
}

func attr(name markup, value string) attribute { return attribute{name: name, value: value} }

// bareAttr is an attribute that has no value.
func bareAttr(name markup) attribute { return attribute{name: name, bare: true} }

func attrWhen(set bool, a attribute) attribute {
	if !set {
		return attribute{}
	}
	return a
}

func class(names string) attribute { return attr("class", names) }

// toFinding refers to the documentation of a code. Nothing else leads out of the
// page.
func toFinding(code conformance.Code, title string) attribute {
	return attr("href", HelpURL(code, title))
}

// toAnchor refers to the element of the page that has the id.
func toAnchor(id string) attribute { return attr("href", "#"+url.PathEscape(id)) }
