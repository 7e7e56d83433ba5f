package pyast

import (
	"bytes"
	"fmt"
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

// Errors returns all places that could not be read, in their order. None in what another already covers.
func (t *Tree) Errors() []SyntaxError { return t.ErrorsIn(t.Root) }

// ErrorsIn returns the places within a node that could not be read.
func (t *Tree) ErrorsIn(n *Node) []SyntaxError {
	var found []SyntaxError
	columns := columnCounter{source: t.Source}
	end := -1 // of the last ERROR node
	for at := range n.All() {
		what := ""
		switch {
		case at.Start < end:
		case at.Broken:
			what = "cannot read " + excerpt(t.Text(at))
			end = at.End
		case at.Missing:
			what = strconv.Quote(at.Kind) + " is missing"
		}
		if what != "" {
			found = append(found, SyntaxError{Line: at.Line, Column: columns.at(at.Start), What: what})
		}
	}
	return found
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
