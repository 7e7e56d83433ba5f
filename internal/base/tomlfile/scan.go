package tomlfile

import (
	"errors"
	"fmt"
	"strings"
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

// Comment is a comment that has a line for itself, outside of any value.
type Comment struct {
	Line int    // 1-based
	Text string // without the leading #, trimmed
}

// errSyntax stops the scanner. It carries no message: the decoder reads the same
// text afterwards and words the complaint better.
var errSyntax = errors.New("not valid TOML")

// limitError stops the scanner where a bound of the package is exceeded.
type limitError struct {
	line    int
	message string
}

func (e *limitError) Error() string { return fmt.Sprintf("line %d: %s", e.line, e.message) }

// scanner finds the places of a TOML 1.1 document. It is lenient about values,
// which the decoder judges, and exact about where strings, comments, arrays and
// tables begin and end, because only that decides what is a key. On every text
// that the decoder accepts, both find the same keys; a fuzz test holds them to it.
type scanner struct {
	src      string
	pos      int
	line     int
	root     *node
	comments []Comment
}

// scan reads all of src, which holds no NUL byte. The error is nil, errSyntax or a
// *limitError; the scanner then keeps what it found before, and the line it
// reached.
func scan(src string) (*scanner, error) {
	s := &scanner{src: src, line: 1, root: &node{line: 1}}
	return s, s.document()
}

// document reads to the end of the text. Key is the number of bytes of the keys
// that lead to the current table.
func (s *scanner) document() error {
	table, key := s.root, 0
	for {
		s.blank()
		var err error
		switch s.peek() {
		case 0:
			return s.atEnd()
		case '#':
			line := s.line
			s.comments = append(s.comments, Comment{line, strings.TrimSpace(strings.TrimLeft(s.comment(), "#"))})
			continue
		case '[':
			table, key, err = s.header()
		default:
			err = s.pair(table, key, 0)
		}
		if err == nil {
			err = s.endOfLine()
		}
		if err != nil {
			return err
		}
	}
}

// header reads "[a.b]" or "[[a.b]]" and returns the table it opens.
func (s *scanner) header() (*node, int, error) {
	line, brackets := s.line, 1
	if strings.HasPrefix(s.src[s.pos:], "[[") {
		brackets = 2
	}
	s.pos += brackets
	parts, size, err := s.keyPath(0)
	if err != nil {
		return nil, 0, err
	}
	if !s.accept("]]"[:brackets]) {
		return nil, 0, errSyntax
	}
	table := s.descend(s.root, parts, line)
	if brackets == 2 {
		element := &node{line: line}
		table.elems = append(table.elems, element)
		return element, size, nil
	}
	// A parent that [a.b] implied gets its true place when [a] follows.
	table.line = line
	return table, size, nil
}

// descend walks from n along the parts of a key. Under an array of tables the
// last element is meant, as TOML defines.
func (s *scanner) descend(n *node, parts []string, line int) *node {
	for i, part := range parts {
		if i > 0 && len(n.elems) > 0 {
			n = n.elems[len(n.elems)-1]
		}
		n = n.child(part, line)
	}
	return n
}

// pair reads "key = value" into table.
func (s *scanner) pair(table *node, key, depth int) error {
	line := s.line
	parts, key, err := s.keyPath(key)
	if err != nil {
		return err
	}
	if !s.accept("=") {
		return errSyntax
	}
	s.space()
	return s.value(s.descend(table, parts, line), key, depth)
}

// value reads one value into n. Key is the length of the key that leads to it.
func (s *scanner) value(n *node, key, depth int) error {
	if depth >= maxDepth {
		return &limitError{s.line, fmt.Sprintf("values are nested more than %d deep", maxDepth)}
	}
	switch s.peek() {
	case '"', '\'':
		return s.skipString()
	case '[':
		s.pos++
		return s.array(n, key, depth+1)
	case '{':
		s.pos++
		return s.inlineTable(n, key, depth+1)
	}
	return s.bare()
}

func (s *scanner) array(n *node, key, depth int) error {
	for {
		s.blankOrComment()
		if s.accept("]") {
			return nil
		}
		element := &node{line: s.line}
		n.elems = append(n.elems, element)
		if err := s.value(element, key, depth); err != nil {
			return err
		}
		s.blankOrComment()
		if !s.accept(",") && s.peek() != ']' {
			return errSyntax
		}
	}
}

func (s *scanner) inlineTable(n *node, key, depth int) error {
	for {
		s.blankOrComment()
		if s.accept("}") {
			return nil
		}
		if err := s.pair(n, key, depth); err != nil {
			return err
		}
		s.blankOrComment()
		if !s.accept(",") && s.peek() != '}' {
			return errSyntax
		}
	}
}

// keyPath reads a dotted key that hangs below size bytes of parents, and returns
// its parts and the size with them.
func (s *scanner) keyPath(size int) ([]string, int, error) {
	var parts []string
	for {
		s.space()
		part, err := s.keyPart()
		if err != nil {
			return nil, 0, err
		}
		if size += len(part) + 1; size > maxKey {
			return nil, 0, &limitError{s.line, fmt.Sprintf("a key and its parents have more than %d bytes", maxKey)}
		}
		parts = append(parts, part)
		s.space()
		if !s.accept(".") {
			return parts, size, nil
		}
	}
}
