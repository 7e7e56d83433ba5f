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
	found := t.Root.Errors()
	if len(found) == 0 && t.broken {
		return []SyntaxError{{Line: 1, Column: 1, What: "the parser could not read all of it and does not say where"}}
	}
	return found
}

// Errors returns the places within a node that could not be read. A nil node has none.
func (n *Node) Errors() []SyntaxError {
	if n == nil {
		return nil
	}
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
	// What is missing and is no node counts too, unless an ERROR node covers it.
	around := broken
	for i := range n.tree.unseen {
		at := &n.tree.unseen[i]
		for len(around) > 0 && around[0].End < at.Start {
			around = around[1:]
		}
		isCovered := len(around) > 0 && around[0].Start <= at.Start
		if at.Start >= n.Start && at.Start <= n.End && !isCovered {
			broken = append(broken, at)
		}
	}
	slices.SortStableFunc(broken, func(a, b *Node) int { return a.Start - b.Start })
	var found []SyntaxError
	columns := columnCounter{source: n.tree.Source}
	for _, at := range broken {
		what := strconv.Quote(at.Kind) + " is missing"
		if at.Broken {
			what = "cannot read " + excerpt(at.Text())
		} else if name := names[at.Kind]; name != "" {
			what = name + " is missing"
		}
		found = append(found, SyntaxError{Line: at.Line, Column: columns.at(at.Start), What: what})
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

// A columnCounter finds the columns of places, which must come in their order, and reads the source once for all.
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
