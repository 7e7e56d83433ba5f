package trace

import (
	"bytes"
	"math"
	"strconv"
)

// exactPow10 holds powers of ten a float64 represents exactly, as many as a
// fraction of 19 digits in all can need. A decimal of at most 53 bits divided
// by one of them is rounded once, hence correctly.
var exactPow10 = [...]float64{
	1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9,
	1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18,
}

// digits consumes decimal digits from i on, and returns them folded onto v and
// the index behind them. More than 19 digits wrap; callers check.
func digits(b []byte, i int, v uint64) (uint64, int) {
	for ; i < len(b); i++ {
		d := b[i] - '0'
		if d > 9 {
			break
		}
		v = v*10 + uint64(d)
	}
	return v, i
}

// uint consumes an integer in 0..most. A fraction, an exponent or a sign makes
// a number not an integer, whatever its value.
func (c *cursor) uint(most uint64) (uint64, error) {
	c.space()
	start := c.i
	v, end := digits(c.b, start, 0)
	n := end - start
	if n == 0 {
		return 0, c.fail("want an integer of at least 0, got %s", c.here())
	}
	if n > 1 && c.b[start] == '0' {
		return 0, c.fail("a number must not start with 0")
	}
	if end < len(c.b) && (c.b[end] == '.' || c.b[end]|0x20 == 'e') {
		return 0, c.fail("want an integer, got a number with a fraction or an exponent")
	}
	// 20 digits fit if they start with 1 and did not wrap: what wraps comes
	// out below 10^19.
	if n > 20 || n == 20 && (c.b[start] != '1' || v < 1e19) || v > most {
		return 0, c.fail("the integer %s is too large: at most %d", clip(c.b[start:end]), most)
	}
	c.i = end
	return v, nil
}

// count consumes an integer that must fit an int.
func (c *cursor) count() (int, error) {
	v, err := c.uint(math.MaxInt)
	return int(v), err
}

// float consumes a number. Nearly all numbers of a trace are short decimals,
// exact by one division; the rest goes to strconv.
func (c *cursor) float() (float64, error) {
	c.space()
	start, whole := c.i, c.i
	neg := whole < len(c.b) && c.b[whole] == '-'
	if neg {
		whole++
	}
	v, i := digits(c.b, whole, 0)
	n, exp := i-whole, 0
	if n == 0 || n > 1 && c.b[whole] == '0' {
		return c.longFloat(start)
	}
	if i < len(c.b) && c.b[i] == '.' {
		dot := i + 1
		v, i = digits(c.b, dot, v)
		exp = i - dot
		n += exp
		if exp == 0 {
			return c.longFloat(start)
		}
	}
	if n > 19 || v >= 1<<53 || i < len(c.b) && c.b[i]|0x20 == 'e' {
		return c.longFloat(start)
	}
	c.i = i
	f := float64(v) / exactPow10[exp]
	if neg {
		f = -f
	}
	return f, nil
}

// longFloat is float for the numbers that need more than 53 bits or have an
// exponent, and for the errors.
func (c *cursor) longFloat(start int) (float64, error) {
	c.i = start
	text, err := c.number()
	if err != nil {
		return 0, err
	}
	f, err := strconv.ParseFloat(string(text), 64)
	if err != nil {
		c.i = start
		return 0, c.fail("the number %s does not fit a 64-bit float", clip(text))
	}
	return f, nil
}

// number consumes a number by the grammar of RFC 8259 and returns its text.
func (c *cursor) number() ([]byte, error) {
	start := c.i
	if c.i < len(c.b) && c.b[c.i] == '-' {
		c.i++
	}
	whole := c.i
	if err := c.digits("a value"); err != nil {
		return nil, err
	}
	if c.b[whole] == '0' && c.i > whole+1 {
		return nil, c.fail("a number must not start with 0")
	}
	if c.i < len(c.b) && c.b[c.i] == '.' {
		c.i++
		if err := c.digits("a digit after the point"); err != nil {
			return nil, err
		}
	}
	if c.i < len(c.b) && c.b[c.i]|0x20 == 'e' {
		c.i++
		if c.i < len(c.b) && (c.b[c.i] == '+' || c.b[c.i] == '-') {
			c.i++
		}
		if err := c.digits("a digit of the exponent"); err != nil {
			return nil, err
		}
	}
	return c.b[start:c.i], nil
}

func (c *cursor) digits(want string) error {
	start := c.i
	if _, c.i = digits(c.b, start, 0); c.i == start {
		return c.fail("want %s, got %s", want, c.here())
	}
	return nil
}

// entries counts the entries of the flat array that the cursor is behind the
// bracket of, so that its slice is made once, at its size. It is bounded by
// the bytes at hand, and only a hint if the array is malformed.
func (c *cursor) entries() int {
	end := bytes.IndexByte(c.b[c.i:], ']')
	if end < 0 {
		return 0
	}
	return bytes.Count(c.b[c.i:c.i+end], []byte{','}) + 1
}

// room returns an empty slice for the array that the cursor is in, in the
// storage of old if that suffices. It is never nil.
func room[T any](c *cursor, old []T) []T {
	if n := c.entries(); old == nil || cap(old) < n {
		return make([]T, 0, n)
	}
	return old[:0]
}

// uints consumes an array of integers into the storage of old.
func uints[T uint32 | uint64](c *cursor, old []T) ([]T, error) {
	if err := c.expect('[', "an array of integers"); err != nil {
		return nil, err
	}
	out := room(c, old)
	if c.accept(']') {
		return out, nil
	}
	for {
		v, err := c.uint(uint64(^T(0)))
		if err != nil {
			return nil, err
		}
		out = append(out, T(v))
		if !c.accept(',') {
			return out, c.expect(']', "',' or ']'")
		}
	}
}
