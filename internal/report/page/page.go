package page

import (
	"bufio"
	_ "embed"
	"html"
	"io"
	"net/url"
	"strings"
)

// Piece is what an element is made of: its attributes, and what stands inside it.
type Piece interface{ isPiece() }

// Content is what can stand inside an element.
type Content interface {
	Piece
	write(w *bufio.Writer)
}

// Text is shown as it came: no character of it is markup.
type Text string

// Markup is written as it is. It is a literal or an embedded file, never text that is converted; so are the names of
// elements and attributes.
type Markup string

// Contents are written one after the other.
type Contents []Content

// Later is made only when it is written, so that a large page is not in memory as a whole.
type Later func(w *bufio.Writer)

// Element is a tag with its attributes and all that stands inside it.
type Element struct {
	tag    Markup
	void   bool // it has no inside, and no end tag
	pieces []Piece
}

// Attribute is left out without a name; bare it has no value.
type Attribute struct {
	name  Markup
	value string
	bare  bool
}

func (Text) isPiece()      {}
func (Markup) isPiece()    {}
func (Contents) isPiece()  {}
func (Later) isPiece()     {}
func (Element) isPiece()   {}
func (Attribute) isPiece() {}

const (
	// NL ends a line of the page's source.
	NL = Markup("\n")
	// Doctype begins a page.
	Doctype = Markup("<!DOCTYPE html>")
	// Meta stands in the head of a page, and lets it load nothing.
	Meta = Markup(`<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:">
`)
)

// Style is what every page looks like: colours, light and dark, tables and what unfolds.
//
//go:embed base.css
var Style Markup

// Write writes a page.
func Write(w io.Writer, c Content) error {
	b := bufio.NewWriter(w)
	c.write(b)
	return b.Flush()
}

func (t Text) write(w *bufio.Writer) { w.WriteString(Escape(string(t))) }

func (m Markup) write(w *bufio.Writer) { w.WriteString(string(m)) }

func (all Contents) write(w *bufio.Writer) {
	for _, c := range all {
		c.write(w)
	}
}

func (l Later) write(w *bufio.Writer) { l(w) }

func (e Element) write(w *bufio.Writer) {
	put(w, "<", e.tag)
	for _, p := range e.pieces {
		if a, ok := p.(Attribute); ok {
			a.writeTo(w)
		}
	}
	put(w, ">")
	for _, p := range e.pieces {
		if c, ok := p.(Content); ok {
			c.write(w)
		}
	}
	if !e.void {
		put(w, "</", e.tag, ">")
	}
}

// writeTo is not named write: an attribute is no content.
func (a Attribute) writeTo(w *bufio.Writer) {
	if a.name == "" {
		return
	}
	put(w, " ", a.name)
	if !a.bare {
		put(w, `="`)
		Text(a.value).write(w)
		put(w, `"`)
	}
}

// put writes markup. The writer keeps its first error.
func put(w *bufio.Writer, all ...Markup) {
	for _, m := range all {
		w.WriteString(string(m))
	}
}

// Escape is a text between tags or in a quoted value. HTML has no NUL.
func Escape(s string) string {
	return html.EscapeString(strings.ReplaceAll(s, "\x00", "\uFFFD"))
}

// El is an element of its attributes and all that stands inside it.
func El(tag Markup, pieces ...Piece) Element { return Element{tag: tag, pieces: pieces} }

// Void is an element that nothing can stand inside.
func Void(tag Markup, attributes ...Piece) Element {
	return Element{tag: tag, void: true, pieces: attributes}
}

// Lines are contents that each end a line of the page's source.
func Lines(all ...Content) Contents {
	ended := make(Contents, 0, 2*len(all))
	for _, c := range all {
		ended = append(ended, c, NL)
	}
	return ended
}

// Each is what the function makes of every item.
func Each[T any, C Content](items []T, of func(T) C) Later {
	return func(w *bufio.Writer) {
		for _, item := range items {
			of(item).write(w)
		}
	}
}

// When is all of it, or nothing.
func When(shown bool, all ...Content) Contents {
	if !shown {
		return nil
	}
	return all
}

// Attr is an attribute with a value.
func Attr(name Markup, value string) Attribute { return Attribute{name: name, value: value} }

// Bare is an attribute that has no value.
func Bare(name Markup) Attribute { return Attribute{name: name, bare: true} }

// AttrWhen is an attribute, or none.
func AttrWhen(set bool, a Attribute) Attribute {
	if !set {
		return Attribute{}
	}
	return a
}

// Class is the attribute of that name.
func Class(names string) Attribute { return Attr("class", names) }

// ToAnchor refers to the element of the page that has the id.
func ToAnchor(id string) Attribute { return Attr("href", "#"+url.PathEscape(id)) }

// To refers to another page, by https alone.
func To(address string) Attribute {
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "https" || u.Host == "" {
		return Attribute{}
	}
	return Attr("href", u.String())
}
