package tomlfile

import (
	"errors"
	"fmt"
	"strings"

	"github.com/pelletier/go-toml/v2/unstable"
)

const (
	maxBytes = 1 << 20 // size of a file
	maxKey   = 256     // bytes of a key with all its parents
	maxDepth = 32      // arrays and inline tables within each other
)

// node is the place of one table, array or value. The nodes of a document form
// the same tree as its values.
type node struct {
	line  int
	keys  map[string]*node // of a table
	elems []*node          // of an array, or of an array of tables
}

// child returns the node below key, making one at the given line when the key is
// new.
func (n *node) child(key string, line int) *node {
	if c, ok := n.keys[key]; ok {
		return c
	}
	if n.keys == nil {
		n.keys = make(map[string]*node)
	}
	c := &node{line: line}
	n.keys[key] = c
	return c
}

// descend walks from n along the parts of a key. Under an array of tables the
// last element is meant, as TOML defines.
func (n *node) descend(parts []string, line int) *node {
	for i, part := range parts {
		if i > 0 && len(n.elems) > 0 {
			n = n.elems[len(n.elems)-1]
		}
		n = n.child(part, line)
	}
	return n
}

// Comment is a comment that has a line for itself, outside of any value.
type Comment struct {
	Line int    // 1-based
	Text string // without the leading #, trimmed
}

// limitError is about the place where a text exceeds a bound of the package.
type limitError struct {
	line    int
	message string
}

func (e *limitError) Error() string { return fmt.Sprintf("line %d: %s", e.line, e.message) }

// item is a comment, header or pair of a text, with the place of its bytes.
// Between items there are only blank lines.
type item struct {
	kind unstable.Kind // Comment, Table, ArrayTable or KeyValue
	// key is that of a header, or of a pair below its table.
	key     []string
	comment string // without the leading #, trimmed
	// from and to enclose the item's lines with their line ends.
	from, to int
	// first and last are those lines, 1-based.
	first, last int
	// valueFrom and valueTo enclose a pair's value.
	valueFrom, valueTo int
}

func (it item) isHeader() bool { return it.kind == unstable.Table || it.kind == unstable.ArrayTable }

// layout has the places of a text.
type layout struct {
	root  *node
	items []item

	src    string
	parser unstable.Parser
	table  *node // that the pairs belong to
	size   int   // bytes of the keys that lead to it
	at     int   // an offset, of which the line is known
	line   int
}

// layoutOf reads all of src. An error is a *limitError or a *syntaxError.
func layoutOf(src string) (*layout, error) {
	l := &layout{root: &node{line: 1}, src: src, line: 1}
	l.table = l.root
	l.parser.KeepComments = true
	l.parser.Reset([]byte(src))
	for l.parser.NextExpression() {
		if err := l.expression(l.parser.Expression()); err != nil {
			return nil, err
		}
	}
	var err *unstable.ParserError
	switch {
	case l.parser.Error() == nil:
		return l, nil
	case !errors.As(l.parser.Error(), &err) || len(err.Highlight) == 0:
		return nil, &syntaxError{len(src), l.parser.Error()}
	}
	return nil, &syntaxError{int(l.parser.Range(err.Highlight).Offset), err}
}

// syntaxError is about text that is not TOML.
type syntaxError struct {
	offset int
	error
}

// lineAt returns the 1-based line of an offset. Offsets mostly grow.
func (l *layout) lineAt(offset uint32) int {
	to := int(offset)
	if to < l.at {
		l.at, l.line = 0, 1
	}
	l.line += strings.Count(l.src[l.at:to], "\n")
	l.at = to
	return l.line
}

// comments returns the comments that have a line for themselves.
func (l *layout) comments() (all []Comment) {
	for _, it := range l.items {
		if it.kind == unstable.Comment {
			all = append(all, Comment{it.first, it.comment})
		}
	}
	return all
}

// expression reads a comment, a header or a pair.
func (l *layout) expression(e *unstable.Node) error {
	it := item{kind: e.Kind}
	var from, to uint32 // of what is certain to be on the first and the last line
	switch e.Kind {
	case unstable.Comment:
		from, to = e.Raw.Offset, e.Raw.Offset
		it.comment = strings.TrimSpace(strings.TrimLeft(string(e.Data), "#"))
	case unstable.KeyValue:
		from, to = e.Raw.Offset, e.Raw.Offset+e.Raw.Length
		key, size, _, keyTo, err := l.key(e, l.size)
		if err != nil {
			return err
		}
		it.key, it.valueTo = key, int(to)
		it.valueFrom = int(keyTo) + strings.IndexByte(l.src[keyTo:], '=') + 1
		it.valueFrom += len(l.src[it.valueFrom:]) - len(strings.TrimLeft(l.src[it.valueFrom:], " \t"))
		if err := l.value(l.table.descend(key, l.lineAt(from)), e.Value(), size, 0); err != nil {
			return err
		}
	default:
		var err error
		if it.key, l.size, from, to, err = l.key(e, 0); err != nil {
			return err
		}
		l.openTable(it.key, l.lineAt(from), e.Kind == unstable.ArrayTable)
	}
	it.first, it.from = l.lineAt(from), strings.LastIndexByte(l.src[:from], '\n')+1
	it.last, it.to = l.lineAt(to), len(l.src)
	if end := strings.IndexByte(l.src[to:], '\n'); end >= 0 {
		it.to = int(to) + end + 1
	}
	l.items = append(l.items, it)
	return nil
}

// openTable makes the table of a header the one that pairs belong to.
func (l *layout) openTable(key []string, line int, isArray bool) {
	table := l.root.descend(key, line)
	if isArray {
		element := &node{line: line}
		table.elems = append(table.elems, element)
		table = element
	} else {
		table.line = line // a parent that [a.b] implied gets its true place when [a] follows
	}
	l.table = table
}

// key returns the key of a header or pair that is below parents of size bytes, the size with it, and the offsets where the key
// begins and ends.
func (l *layout) key(e *unstable.Node, size int) (parts []string, sum int, from, to uint32, err error) {
	for it := e.Key(); it.Next(); {
		part := it.Node()
		if len(parts) == 0 {
			from = part.Raw.Offset
		}
		to = part.Raw.Offset + part.Raw.Length
		if size += len(part.Data) + 1; size > maxKey {
			return nil, 0, 0, 0, &limitError{l.lineAt(to), fmt.Sprintf("a key and its parents have more than %d bytes", maxKey)}
		}
		parts = append(parts, string(part.Data))
	}
	return parts, size, from, to, nil
}

// value reads what is within a value into n. Size is that of the key that leads to it.
func (l *layout) value(n *node, value *unstable.Node, size, depth int) error {
	if depth >= maxDepth {
		return &limitError{n.line, fmt.Sprintf("values are nested more than %d deep", maxDepth)}
	}
	if value.Kind != unstable.Array && value.Kind != unstable.InlineTable {
		return nil
	}
	for it := value.Children(); it.Next(); {
		part := it.Node()
		line := n.line
		if part.Raw.Length > 0 { // an array has no place of its own
			line = l.lineAt(part.Raw.Offset)
		}
		switch {
		case part.Kind == unstable.Comment:
		case value.Kind == unstable.Array:
			element := &node{line: line}
			n.elems = append(n.elems, element)
			if err := l.value(element, part, size, depth+1); err != nil {
				return err
			}
		default:
			key, below, _, _, err := l.key(part, size)
			if err != nil {
				return err
			}
			if err := l.value(n.descend(key, line), part.Value(), below, depth+1); err != nil {
				return err
			}
		}
	}
	return nil
}
