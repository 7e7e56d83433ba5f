package kvcache

import (
	"encoding/binary"
	"slices"
)

// encoder writes what is hashed.
type encoder interface {
	begin()
	end() []byte // valid until begin
	open(n int)  // a tuple of n values follows
	close(n int)
	bytes([]byte)
	tokens([]uint32)
	number(int)
	text(string)
	name(string) // a text that is one and the same object wherever it stands
	none()
}

// plain writes values one after the other, each with its length: fast, and never the
// same for two blocks.
type plain struct{ buf []byte }

func (e *plain) begin()      { e.buf = e.buf[:0] }
func (e *plain) end() []byte { return e.buf }
func (e *plain) open(n int)  { e.number(n) }
func (e *plain) close(int)   {}
func (e *plain) none()       { e.number(0) }

func (e *plain) number(n int) { e.buf = binary.LittleEndian.AppendUint64(e.buf, uint64(n)) }

func (e *plain) bytes(b []byte) {
	e.number(len(b))
	e.buf = append(e.buf, b...)
}

func (e *plain) tokens(tokens []uint32) {
	start := len(e.buf)
	e.buf = slices.Grow(e.buf, 4*len(tokens))[:start+4*len(tokens)]
	for i, t := range tokens {
		binary.LittleEndian.PutUint32(e.buf[start+4*i:], t)
	}
}

func (e *plain) text(s string) {
	e.number(len(s))
	e.buf = append(e.buf, s...)
}

func (e *plain) name(s string) { e.text(s) }

// cbor writes canonical CBOR (RFC 8949, 4.2) as cbor2.dumps(…, canonical=True) does.
type cbor struct{ buf []byte }

// Major types of CBOR.
const (
	cborUint   = 0 << 5
	cborNegint = 1 << 5
	cborBytes  = 2 << 5
	cborText   = 3 << 5
	cborArray  = 4 << 5
	cborNull   = 0xf6
)

func (e *cbor) begin()      { e.buf = e.buf[:0] }
func (e *cbor) end() []byte { return e.buf }
func (e *cbor) open(n int)  { e.head(cborArray, uint64(n)) }
func (e *cbor) close(int)   {}
func (e *cbor) none()       { e.buf = append(e.buf, cborNull) }

// head writes a type and a number in its shortest form.
func (e *cbor) head(major byte, n uint64) {
	switch {
	case n < 24:
		e.buf = append(e.buf, major|byte(n))
	case n < 1<<8:
		e.buf = append(e.buf, major|24, byte(n))
	case n < 1<<16:
		e.buf = binary.BigEndian.AppendUint16(append(e.buf, major|25), uint16(n))
	case n < 1<<32:
		e.buf = binary.BigEndian.AppendUint32(append(e.buf, major|26), uint32(n))
	default:
		e.buf = binary.BigEndian.AppendUint64(append(e.buf, major|27), n)
	}
}

func (e *cbor) bytes(b []byte) {
	e.head(cborBytes, uint64(len(b)))
	e.buf = append(e.buf, b...)
}

func (e *cbor) tokens(tokens []uint32) {
	for _, t := range tokens {
		e.head(cborUint, uint64(t))
	}
}

func (e *cbor) number(n int) {
	if n < 0 {
		e.head(cborNegint, uint64(-1-n))
		return
	}
	e.head(cborUint, uint64(n))
}

func (e *cbor) text(s string) {
	e.head(cborText, uint64(len(s)))
	e.buf = append(e.buf, s...)
}

func (e *cbor) name(s string) { e.text(s) }
