package trace

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// maxDepth bounds the nesting of values that are skipped, so that a hostile
// line cannot exhaust the stack. Other readers of the format stop there too.
const maxDepth = 128

// cursor walks the bytes of one JSON text in a single pass. Its methods skip
// leading white space, consume one element and leave i behind it.
type cursor struct {
	b []byte
	i int
}

// fail is a fault at the cursor.
func (c *cursor) fail(format string, args ...any) error {
	return &Error{Column: c.i + 1, Reason: fmt.Sprintf(format, args...)}
}

// here describes the byte at the cursor for an error message.
func (c *cursor) here() string {
	if c.i >= len(c.b) {
		return "the end of the line"
	}
	if c.b[c.i] < utf8.RuneSelf {
		return strconv.QuoteRune(rune(c.b[c.i]))
	}
	return fmt.Sprintf("byte 0x%02x", c.b[c.i])
}

func (c *cursor) space() {
	for c.i < len(c.b) {
		switch c.b[c.i] {
		case ' ', '\t', '\r', '\n':
			c.i++
		default:
			return
		}
	}
}

// accept consumes ch if it comes next. Recorders write no white space, so it is
// looked for only when ch is not there.
func (c *cursor) accept(ch byte) bool {
	if c.i < len(c.b) && c.b[c.i] == ch {
		c.i++
		return true
	}
	return c.acceptAfterSpace(ch)
}

func (c *cursor) acceptAfterSpace(ch byte) bool {
	c.space()
	if c.i < len(c.b) && c.b[c.i] == ch {
		c.i++
		return true
	}
	return false
}

// expect consumes ch, or fails naming what was wanted.
func (c *cursor) expect(ch byte, want string) error {
	if c.accept(ch) {
		return nil
	}
	return c.fail("want %s, got %s", want, c.here())
}

// null consumes the literal null if it comes next.
func (c *cursor) null() bool {
	c.space()
	return c.literal("null")
}

func (c *cursor) literal(word string) bool {
	if !bytes.HasPrefix(c.b[c.i:], []byte(word)) {
		return false
	}
	c.i += len(word)
	return true
}

// end fails unless only white space is left.
func (c *cursor) end() error {
	c.space()
	if c.i < len(c.b) {
		return c.fail("want the end of the line after the object, got %s; one JSON object a line", c.here())
	}
	return nil
}

// object walks an object; member must consume the value of its key. The key
// is only valid during the call.
func (c *cursor) object(member func(key []byte) error) error {
	if err := c.expect('{', "an object"); err != nil {
		return err
	}
	if c.accept('}') {
		return nil
	}
	for {
		key, err := c.key()
		if err != nil {
			return err
		}
		if err := member(key); err != nil {
			return err
		}
		if !c.accept(',') {
			return c.expect('}', "',' or '}'")
		}
	}
}

// array walks an array; element must consume one value.
func (c *cursor) array(element func() error) error {
	if err := c.expect('[', "an array"); err != nil {
		return err
	}
	if c.accept(']') {
		return nil
	}
	for {
		if err := element(); err != nil {
			return err
		}
		if !c.accept(',') {
			return c.expect(']', "',' or ']'")
		}
	}
}

// key consumes a member's name and its colon.
func (c *cursor) key() ([]byte, error) {
	raw, escaped, err := c.raw("a key")
	if err != nil {
		return nil, err
	}
	if escaped {
		if raw, err = c.unquote(raw); err != nil {
			return nil, err
		}
	}
	return raw, c.expect(':', "':' after the key")
}

// str consumes a string.
func (c *cursor) str() (string, error) {
	raw, escaped, err := c.raw("a string")
	if err != nil {
		return "", err
	}
	if escaped {
		raw, err = c.unquote(raw)
	}
	return string(raw), err
}

// raw consumes a string and returns the bytes between its quotes, checked but
// not unescaped.
func (c *cursor) raw(want string) (raw []byte, escaped bool, err error) {
	if err := c.expect('"', want); err != nil {
		return nil, false, err
	}
	start, ascii := c.i, true
	for ; c.i < len(c.b); c.i++ {
		switch ch := c.b[c.i]; {
		case ch == '"':
			raw = c.b[start:c.i]
			if !ascii && !utf8.Valid(raw) {
				return nil, false, c.fail("the string ending here is not valid UTF-8")
			}
			c.i++
			return raw, escaped, nil
		case ch == '\\':
			n := escapeLen(c.b[c.i:])
			if n == 0 {
				return nil, false, c.fail("invalid escape in a string")
			}
			escaped = true
			c.i += n - 1
		case ch < ' ':
			return nil, false, c.fail("control character 0x%02x in a string; write it as an escape", ch)
		case ch >= utf8.RuneSelf:
			ascii = false
		}
	}
	return nil, false, c.fail("the line ends inside a string")
}

// escapeLen returns the length of the escape that b starts with, 0 without one.
func escapeLen(b []byte) int {
	if len(b) < 2 {
		return 0
	}
	switch b[1] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return 2
	case 'u':
		if _, err := hex.DecodeString(string(b[2:min(6, len(b))])); err == nil && len(b) >= 6 {
			return 6
		}
	}
	return 0
}

// unquote resolves the escapes of a string already checked by raw. A lone
// surrogate has no UTF-8 form and would not survive being written back, so it
// is refused.
func (c *cursor) unquote(raw []byte) ([]byte, error) {
	var text string
	if err := json.Unmarshal(slices.Concat([]byte{'"'}, raw, []byte{'"'}), &text); err != nil {
		return nil, c.fail("the string ending here is not a string: %v", err)
	}
	const replaced = "\ufffd" // by package json
	written := bytes.Count(raw, []byte(replaced)) + bytes.Count(bytes.ToLower(raw), []byte(`\ufffd`))
	if strings.Count(text, replaced) > written {
		return nil, c.fail("the string ending here has half a surrogate pair")
	}
	return []byte(text), nil
}

// value consumes any value and returns its bytes.
func (c *cursor) value(depth int) ([]byte, error) {
	c.space()
	start := c.i
	if err := c.skip(depth); err != nil {
		return nil, err
	}
	return c.b[start:c.i], nil
}

// skip consumes any value, checking only that it is JSON. depth counts the
// containers around it.
func (c *cursor) skip(depth int) error {
	if depth > maxDepth {
		return c.fail("values nest deeper than %d", maxDepth)
	}
	c.space()
	if c.i >= len(c.b) {
		return c.fail("want a value, got %s", c.here())
	}
	switch c.b[c.i] {
	case '{':
		return c.object(func([]byte) error { return c.skip(depth + 1) })
	case '[':
		return c.array(func() error { return c.skip(depth + 1) })
	case '"':
		_, _, err := c.raw("a string")
		return err
	}
	if c.literal("null") || c.literal("true") || c.literal("false") {
		return nil
	}
	at := *c
	text, err := c.number()
	if err == nil && !inRange(text) {
		err = at.fail("the number %s does not fit a 64-bit float", clip(text))
	}
	return err
}

// inRange reports whether a number fits a float64, for values that are skipped. What
// has fewer than 300 digits and no exponent does.
func inRange(text []byte) bool {
	if len(text) < 300 && bytes.IndexByte(text, 'e') < 0 && bytes.IndexByte(text, 'E') < 0 {
		return true
	}
	_, err := strconv.ParseFloat(string(text), 64)
	return err == nil
}
