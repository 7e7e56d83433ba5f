package pyast

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// A SyntaxError is a place that could not be read.
type SyntaxError struct {
	Line, Column int    // from 1; the column in characters
	What         string // one printable line: `cannot read "x ="`
}

// Error returns "line 3, column 5: …".
func (e SyntaxError) Error() string {
	return fmt.Sprintf("line %d, column %d: %s", e.Line, e.Column, e.What)
}

// Errors returns all places that could not be read, in their order. None is within another.
func (t *Tree) Errors() []SyntaxError {
	found := t.ErrorsIn(t.Root)
	if len(found) == 0 && t.broken {
		return []SyntaxError{{Line: 1, Column: 1, What: "the parser could not read all of it and does not say where"}}
	}
	return found
}

// ErrorsIn returns the places within a node that could not be read.
func (t *Tree) ErrorsIn(n *Node) []SyntaxError {
	var broken []*Node
	end := -1 // of the last ERROR node
	for at := range n.All() {
		if at.Start >= end && (at.Broken || at.Missing) {
			broken = append(broken, at)
		}
		if at.Broken {
			end = max(end, at.End)
		}
	}
	broken = append(broken, t.unseenIn(n, broken)...)
	slices.SortStableFunc(broken, func(a, b *Node) int { return a.Start - b.Start })
	var found []SyntaxError
	columns := columnCounter{source: t.Source}
	for _, at := range broken {
		found = append(found, SyntaxError{Line: at.Line, Column: columns.at(at.Start), What: t.what(at)})
	}
	return found
}

// unseenIn returns what is missing within a node and is no node, but for what an ERROR node covers.
func (t *Tree) unseenIn(n *Node, broken []*Node) []*Node {
	if n == nil {
		return nil
	}
	var found []*Node
	for i := range t.unseen {
		at := &t.unseen[i]
		for len(broken) > 0 && broken[0].End < at.Start {
			broken = broken[1:]
		}
		covered := len(broken) > 0 && broken[0].Start <= at.Start
		if at.Start >= n.Start && at.Start <= n.End && !covered {
			found = append(found, at)
		}
	}
	return found
}

// names are those of tokens that are not written as they are called.
var names = map[string]string{
	"_newline":   "a line end",
	"_indent":    "an indented block",
	"_dedent":    "the end of a block",
	"string_end": "the end of a string",
}

func (t *Tree) what(n *Node) string {
	switch name := names[n.Kind]; {
	case n.Broken:
		return "cannot read " + excerpt(t.Text(n))
	case name != "":
		return name + " is missing"
	}
	return strconv.Quote(n.Kind) + " is missing"
}

// A columnCounter tells the columns of places that it is asked in their order, and reads the source once for all.
type columnCounter struct {
	source       []byte
	last, column int // column: characters from the start of the line to last
}

func (c *columnCounter) at(offset int) int {
	between := c.source[c.last:offset]
	if i := bytes.LastIndexAny(between, "\r\n"); i >= 0 {
		between, c.column = between[i+1:], 0
	}
	c.column += utf8.RuneCount(between)
	c.last = offset
	return c.column + 1
}

// excerpt quotes the first line of a text, and no more than 60 characters of it.
func excerpt(text string) string {
	const most = 60
	first, _, cut := strings.Cut(strings.TrimSpace(text), "\n")
	first = strings.TrimRight(first, "\r")
	if runes := []rune(first); len(runes) > most {
		first, cut = string(runes[:most]), true
	}
	if cut {
		return strconv.Quote(first) + " …"
	}
	return strconv.Quote(first)
}
