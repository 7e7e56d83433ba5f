package pack

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"testing"
)

// slowSkip is Skip as the format has it, a header at a time.
func slowSkip(b []byte, off, depth int) (int, error) {
	h, err := readHead(b, off)
	if err != nil {
		return off, err
	}
	if !h.kind.isContainer() {
		return h.next(), nil
	}
	if depth == 0 {
		return off, syntaxError(off, "too deep")
	}
	off = h.next()
	for range h.values() {
		if off, err = slowSkip(b, off, depth-1); err != nil {
			return off, err
		}
	}
	return off, nil
}

// shortReads are the reads that have a short way for common forms, and the same
// by the general one.
var shortReads = []struct {
	name          string
	short, always func(c *Cursor) (any, error)
}{
	{
		"array", func(c *Cursor) (any, error) { return c.ArrayLen() },
		func(c *Cursor) (any, error) { h, err := c.read(Array); return h.n, err },
	},
	{
		"map", func(c *Cursor) (any, error) { return c.MapLen() },
		func(c *Cursor) (any, error) { h, err := c.read(Map); return h.n, err },
	},
	{
		"str", func(c *Cursor) (any, error) { return c.Str() },
		func(c *Cursor) (any, error) { return c.payload(String) },
	},
	{
		"int", func(c *Cursor) (any, error) { return c.Int() },
		func(c *Cursor) (any, error) {
			start := *c
			h, err := c.read(Int)
			if err != nil {
				return int64(0), err
			}
			if i := h.integer(c.b); i.negative || i.bits < 1<<63 {
				return int64(i.bits), nil
			}
			*c = start
			return c.Int()
		},
	},
	{
		"skip", func(c *Cursor) (any, error) { return nil, c.Skip() },
		func(c *Cursor) (any, error) {
			next, err := slowSkip(c.b, c.off, DefaultDepth)
			if err == nil {
				c.off = next
			}
			return nil, err
		},
	},
}

// compareReads reads b from off both ways: result, place and error are the same.
func compareReads(t *testing.T, b []byte, off int) {
	t.Helper()
	for _, read := range shortReads {
		short, always := Cursor{b: b, off: off}, Cursor{b: b, off: off}
		got, gotErr := read.short(&short)
		want, wantErr := read.always(&always)
		if short.off != always.off || !reflect.DeepEqual(got, want) || fmt.Sprint(gotErr) != fmt.Sprint(wantErr) {
			t.Fatalf("%s of % x at %d: want %v, at %d, %v\ngot %v, at %d, %v", read.name, b, off,
				want, always.off, wantErr, got, short.off, gotErr)
		}
		if p, ok := got.([]byte); ok && cap(p) != len(p) {
			t.Fatalf("%s of % x: whoever appends to the result writes into the message", read.name, b)
		}
	}
}

// TestShortReads: the short ways are the general one, for every first byte, at every
// length around what it needs, and for random bytes.
func TestShortReads(t *testing.T) {
	for tag := range 256 {
		for _, fill := range []byte{0x00, 0x81, 0xa1, 0xd9, 0xff} {
			for size := range 40 {
				b := []byte{0xc0, byte(tag)}
				for range size {
					b = append(b, fill)
				}
				compareReads(t, b, 1)
				if len(b) > 3 { // a length that just fits, and one that just does not
					b[2] = byte(len(b) - 3)
					compareReads(t, b, 1)
					b[2]++
					compareReads(t, b, 1)
					b[2], b[3] = 0, byte(len(b)-4)
					compareReads(t, b, 1)
					b[3]++
					compareReads(t, b, 1)
				}
			}
		}
	}
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 0))
	forms := []byte{0x80, 0x81, 0x82, 0x90, 0x91, 0x93, 0xa0, 0xa1, 0xa5, 0xc0, 0xc2, 0xd9, 0xdc, 0xde, 0xcd, 0xcb, 0x00, 0x01, 0x02, 0x05}
	for range 20_000 {
		b := make([]byte, random.IntN(30))
		for i := range b {
			b[i] = forms[random.IntN(len(forms))]
		}
		compareReads(t, b, random.IntN(len(b)+1))
	}
}

func TestSame(t *testing.T) {
	for _, test := range []struct {
		name    string
		rest, p []byte
		want    bool
	}{
		{"the same", []byte{0xc0, 0x01, 0xc0}, []byte{0xc0, 0x01}, true},
		{"all that is left", []byte{0xc0}, []byte{0xc0}, true},
		{"another value", []byte{0xc0, 0x02}, []byte{0xc0, 0x01}, false},
		{"cut", []byte{0xc0}, []byte{0xc0, 0x01}, false},
		{"the end", nil, []byte{0xc0}, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := NewCursor(append([]byte{0x07}, test.rest...))
			if _, err := c.Int(); err != nil {
				t.Fatal(err)
			}
			want := 1
			if test.want {
				want += len(test.p)
			}
			if got := c.Same(test.p); got != test.want || c.Offset() != want {
				t.Errorf("want %v at %d, got %v at %d", test.want, want, got, c.Offset())
			}
		})
	}
}
