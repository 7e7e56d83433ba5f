package pack

import (
	"bytes"
	"fmt"
	"math"
)

// Cursor reads the values of a message one after the other. It checks everything
// it reads, so the bytes need no earlier [Validate]. A read that fails leaves the
// cursor where it was. Errors are [*SyntaxError] or [*ValueError] with the offset
// in the bytes given to [NewCursor].
//
// A Cursor is a small value: copy it to look ahead.
type Cursor struct {
	b   []byte
	off int
}

// NewCursor returns a cursor at the first byte of b. It keeps b, and what it
// returns without copying (Str, Bin, Ext, Raw, Rest) points into it.
func NewCursor(b []byte) Cursor { return Cursor{b: b} }

// Offset is how many bytes have been read.
func (c *Cursor) Offset() int { return c.off }

// Seek goes to an offset, of a value in the bytes.
func (c *Cursor) Seek(offset int) { c.off = offset }

// Done reports whether every byte has been read.
func (c *Cursor) Done() bool { return c.off >= len(c.b) }

// Rest returns the bytes not read yet, whether or not they are well formed.
func (c *Cursor) Rest() []byte { return c.b[c.off:len(c.b):len(c.b)] }

// Kind is the kind of the next value, by its first byte only; [Invalid] at the
// end of the bytes.
func (c *Cursor) Kind() Kind {
	if c.off >= len(c.b) {
		return Invalid
	}
	return forms[c.b[c.off]].kind
}

// Nil reads the next value if it is nil, and reports whether it was.
func (c *Cursor) Nil() bool {
	if c.off < len(c.b) && c.b[c.off] == tagNil {
		c.off++
		return true
	}
	return false
}

// ArrayLen reads the header of an array and returns its number of elements,
// which is never more than the bytes that remain.
func (c *Cursor) ArrayLen() (int, error) {
	if n := c.shortLen(fixArray, 15); n >= 0 && n < len(c.b)-c.off {
		c.off++
		return n, nil
	}
	if n, ok := c.longLen(tagArray16, 2); ok {
		return n, nil
	}
	h, err := c.read(Array)
	return h.n, err
}

// MapLen reads the header of a map and returns its number of pairs, which is
// never more than half the bytes that remain.
func (c *Cursor) MapLen() (int, error) {
	if n := c.shortLen(fixMap, 15); n >= 0 && 2*n < len(c.b)-c.off {
		c.off++
		return n, nil
	}
	h, err := c.read(Map)
	return h.n, err
}

// Bool reads a bool.
func (c *Cursor) Bool() (bool, error) {
	h, err := c.read(Bool)
	return h.tag == tagTrue && err == nil, err
}

// Int reads an integer of any width. One above 2^63-1 is an error.
func (c *Cursor) Int() (int64, error) {
	if n := c.shortLen(0, 127); n >= 0 {
		c.off++
		return int64(n), nil
	}
	start := c.off
	h, err := c.read(Int)
	if err != nil {
		return 0, err
	}
	i := h.integer(c.b)
	if !i.negative && i.bits > math.MaxInt64 {
		c.off = start
		return 0, valueError(start, "expected a signed 64-bit int, found %d", i.bits)
	}
	return int64(i.bits), nil
}

// Uint reads an integer of any width. A negative one is an error.
func (c *Cursor) Uint() (uint64, error) {
	start := c.off
	h, err := c.read(Int)
	if err != nil {
		return 0, err
	}
	i := h.integer(c.b)
	if i.negative {
		c.off = start
		return 0, valueError(start, "expected a non-negative int, found %d", int64(i.bits))
	}
	return i.bits, nil
}

// Float reads a float32, a float64 or an integer, as msgspec does where a float
// is typed. Integers beyond 2^53 are rounded to the nearest float64.
func (c *Cursor) Float() (float64, error) {
	h, err := readHead(c.b, c.off)
	if err != nil {
		return 0, err
	}
	switch h.kind {
	case Float:
		c.off = h.next()
		return h.float(c.b), nil
	case Int:
		c.off = h.next()
		i := h.integer(c.b)
		if i.negative {
			return float64(int64(i.bits)), nil
		}
		return float64(i.bits), nil
	default:
		return 0, kindError(c.off, Float, h.kind)
	}
}

// Str reads a str and returns its bytes, not copied and not checked to be UTF-8.
func (c *Cursor) Str() ([]byte, error) {
	if n := c.shortLen(fixStr, 31); n >= 0 && n < len(c.b)-c.off {
		start := c.off + 1
		c.off = start + n
		return c.b[start:c.off:c.off], nil
	}
	if n, ok := c.longLen(tagStr8, 1); ok {
		start := c.off
		c.off += n
		return c.b[start:c.off:c.off], nil
	}
	return c.payload(String)
}

// StrString is [Cursor.Str] as a string of its own.
func (c *Cursor) StrString() (string, error) {
	p, err := c.payload(String)
	return string(p), err
}

// Bin reads a bin and returns its bytes, not copied. A str is not a bin.
func (c *Cursor) Bin() ([]byte, error) { return c.payload(Bin) }

// Ext reads an ext and returns its type code and its bytes, not copied.
func (c *Cursor) Ext() (code int8, data []byte, err error) {
	h, err := c.read(Ext)
	if err != nil {
		return 0, nil, err
	}
	return h.code, capped(h.payload(c.b)), nil
}

// Raw reads the next value whatever it is and returns its encoding, not copied.
func (c *Cursor) Raw() ([]byte, error) {
	start := c.off
	if err := c.Skip(); err != nil {
		return nil, err
	}
	return c.b[start:c.off:c.off], nil
}

// Same reads the next bytes if they are those of p, the encoding of one or more
// whole values, and reports whether they were.
func (c *Cursor) Same(p []byte) bool {
	if !bytes.HasPrefix(c.b[c.off:], p) {
		return false
	}
	c.off += len(p)
	return true
}

// Skip passes over the next value whatever it is, at most [DefaultDepth] deep.
func (c *Cursor) Skip() error {
	if c.off < len(c.b) {
		if size := int(fixedSizes[c.b[c.off]]); size > 0 && size <= len(c.b)-c.off {
			c.off += size
			return nil
		}
	}
	next, err := Skip(c.b, c.off, DefaultDepth)
	if err != nil {
		return err
	}
	c.off = next
	return nil
}

func (c *Cursor) payload(k Kind) ([]byte, error) {
	h, err := c.read(k)
	if err != nil {
		return nil, err
	}
	return capped(h.payload(c.b)), nil
}

// shortLen is the number, up to limit, that the next byte carries next to the tag, of
// which it has none of the bits; -1 if it is another byte, or the end. The forms
// that are read this way are nearly all there are, and readHead is dear for them.
func (c *Cursor) shortLen(tag, limit byte) int {
	if c.off < len(c.b) {
		if n := c.b[c.off] ^ tag; n <= limit {
			return int(n)
		}
	}
	return -1
}

// longLen reads a header of tag and a length of width bytes, 1 or 2, if that comes
// next and the bytes behind it are as many at least.
func (c *Cursor) longLen(tag byte, width int) (n int, ok bool) {
	rest := c.b[c.off:]
	if len(rest) < 3 || rest[0] != tag {
		return 0, false
	}
	n = int(rest[1])
	if width == 2 {
		n = n<<8 | int(rest[2])
	}
	if n > len(rest)-1-width {
		return 0, false
	}
	c.off += 1 + width
	return n, true
}

// read reads the header of a value of kind k and, of a scalar, its payload.
func (c *Cursor) read(k Kind) (head, error) {
	h, err := readHead(c.b, c.off)
	if err != nil {
		return head{}, err
	}
	if h.kind != k {
		return head{}, kindError(c.off, k, h.kind)
	}
	c.off = h.next()
	return h, nil
}

func kindError(off int, want, got Kind) error {
	return valueError(off, "expected %s, found %s", want, got)
}

// capped keeps a caller that appends to a returned slice from writing into the
// message.
func capped(p []byte) []byte { return p[:len(p):len(p)] }

// SyntaxError says that bytes are not one well-formed MessagePack message, or
// that it is nested too deeply to be read.
type SyntaxError struct {
	Offset int    // byte at which the offending value begins
	Reason string // what is wrong with it, lower case
}

func (e *SyntaxError) Error() string {
	return fmt.Sprintf("msgpack: byte %d: %s", e.Offset, e.Reason)
}

// ValueError says that a value is well formed but is not of the kind, or not in
// the range, that was asked for.
type ValueError struct {
	Offset int    // byte at which the value begins
	Reason string // what was expected and what was found, lower case
}

func (e *ValueError) Error() string {
	return fmt.Sprintf("msgpack: byte %d: %s", e.Offset, e.Reason)
}

func syntaxError(off int, format string, args ...any) error {
	return &SyntaxError{Offset: off, Reason: fmt.Sprintf(format, args...)}
}

func valueError(off int, format string, args ...any) error {
	return &ValueError{Offset: off, Reason: fmt.Sprintf(format, args...)}
}

// Elements are the raw values of the array that raw begins with; they share its memory.
func Elements(raw []byte) (values [][]byte, err error) {
	cur := NewCursor(raw)
	n, err := cur.ArrayLen()
	for ; err == nil && n > 0; n-- {
		var v []byte
		if v, err = cur.Raw(); err == nil {
			values = append(values, v)
		}
	}
	return values, err
}
