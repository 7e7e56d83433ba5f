package tomlfile

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
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
// text afterwards and words the diagnostic better.
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

// peek returns the next byte, 0 at the end. The text holds no NUL byte.
func (s *scanner) peek() byte {
	if s.pos >= len(s.src) {
		return 0
	}
	return s.src[s.pos]
}

func (s *scanner) accept(text string) bool {
	if !strings.HasPrefix(s.src[s.pos:], text) {
		return false
	}
	s.pos += len(text)
	return true
}

func (s *scanner) atEnd() error {
	if s.pos < len(s.src) {
		return errSyntax
	}
	return nil
}

// space skips blanks and tabs.
func (s *scanner) space() {
	for s.peek() == ' ' || s.peek() == '\t' {
		s.pos++
	}
}

// blank skips blanks, tabs and line ends.
func (s *scanner) blank() {
	for {
		switch s.peek() {
		case '\n':
			s.line++
		case ' ', '\t', '\r':
		default:
			return
		}
		s.pos++
	}
}

func (s *scanner) blankOrComment() {
	for s.blank(); s.peek() == '#'; s.blank() {
		s.comment()
	}
}

// comment reads from a # to the end of the line, which it leaves.
func (s *scanner) comment() string {
	rest, _, _ := strings.Cut(s.src[s.pos:], "\n")
	s.pos += len(rest)
	return rest
}

// endOfLine reads what may follow a header or a pair.
func (s *scanner) endOfLine() error {
	s.space()
	if s.peek() == '#' {
		s.comment()
	}
	if s.pos < len(s.src) && !s.accept("\n") && !s.accept("\r\n") {
		return errSyntax
	}
	s.line++
	return nil
}

// bare reads a number, boolean or date: everything up to what ends a value.
func (s *scanner) bare() error {
	n := strings.IndexAny(s.src[s.pos:], ",]}#\r\n")
	if n < 0 {
		n = len(s.src) - s.pos
	}
	if strings.TrimSpace(s.src[s.pos:s.pos+n]) == "" {
		return errSyntax
	}
	s.pos += n
	return nil
}

// skipString passes a string of any of the four kinds.
func (s *scanner) skipString() error {
	quote := s.src[s.pos : s.pos+1]
	if s.accept(strings.Repeat(quote, 3)) {
		return s.skipMultiline(quote[0])
	}
	_, err := s.quoted()
	return err
}

// quoted reads a string of one line and returns what is between its quotes.
func (s *scanner) quoted() (string, error) {
	quote := s.src[s.pos]
	for i := s.pos + 1; i < len(s.src); i++ {
		switch c := s.src[i]; {
		case c == '\n':
			return "", errSyntax
		case c == '\\' && quote == '"':
			i++
			if i < len(s.src) && s.src[i] == '\n' {
				return "", errSyntax
			}
		case c == quote:
			text := s.src[s.pos+1 : i]
			s.pos = i + 1
			return text, nil
		}
	}
	return "", errSyntax
}

// skipMultiline passes the rest of a string whose three opening quotes have been
// read. One or two quotes may stand directly before the three that close it.
func (s *scanner) skipMultiline(quote byte) error {
	for i := s.pos; i < len(s.src); i++ {
		switch c := s.src[i]; {
		case c == '\n':
			s.line++
		case c == '\\' && quote == '"':
			i++
			if i < len(s.src) && s.src[i] == '\n' {
				s.line++
			}
		case c == quote:
			run := quotes(s.src[i:], quote)
			if run >= 3 {
				s.pos = i + run
				return nil
			}
			i += run - 1
		}
	}
	return errSyntax
}

// quotes counts the quotes at the start of text, up to five: two of the string
// and three that close it.
func quotes(text string, quote byte) int {
	n := 0
	for n < len(text) && n < 5 && text[n] == quote {
		n++
	}
	return n
}

// keyPart reads one part of a dotted key.
func (s *scanner) keyPart() (string, error) {
	switch s.peek() {
	case '"':
		text, err := s.quoted()
		if err != nil {
			return "", err
		}
		return unescape(text)
	case '\'':
		return s.quoted()
	}
	start := s.pos
	for isBare(s.peek()) {
		s.pos++
	}
	if s.pos == start {
		return "", errSyntax
	}
	return s.src[start:s.pos], nil
}

func isBare(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '_' || c == '-'
}

// unescape resolves the escapes of a basic string.
func unescape(text string) (string, error) {
	var b strings.Builder
	for {
		before, after, found := strings.Cut(text, `\`)
		b.WriteString(before)
		if !found {
			return b.String(), nil
		}
		if after == "" {
			return "", errSyntax
		}
		r, size, ok := escape(after)
		if !ok {
			return "", errSyntax
		}
		b.WriteRune(r)
		text = after[size:]
	}
}

// escape reads what follows a backslash and returns the character it stands for
// and its length.
func escape(text string) (r rune, size int, ok bool) {
	if i := strings.IndexByte(`btnfre"\`, text[0]); i >= 0 {
		return rune("\b\t\n\f\r\x1b\"\\"[i]), 1, true
	}
	digits := map[byte]int{'x': 2, 'u': 4, 'U': 8}[text[0]]
	if digits == 0 || len(text) < 1+digits {
		return 0, 0, false
	}
	code, err := strconv.ParseUint(text[1:1+digits], 16, 32)
	if err != nil || code > utf8.MaxRune {
		return 0, 0, false
	}
	return rune(code), 1 + digits, true
}
