package kvcache

import (
	"encoding/binary"
	"math"
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
	name(string) // a text that is one and the same object wherever it is
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

// pickle writes what pickle.dumps(…, protocol=5) of CPython writes, as far as blocks
// need it. Everything but small values is numbered in the order it appears; a name
// that has appeared is written as its number.
type pickle struct {
	buf   []byte
	count int // of numbered objects
	names []named
}

type named struct {
	name   string
	number int
}

// Opcodes of pickle protocol 5 (Lib/pickle.py).
const (
	opProto           = 0x80
	opFrame           = 0x95
	opStop            = '.'
	opMark            = '('
	opTuple           = 't'
	opTuple1          = 0x85 // and 2, 3 after it
	opMemoize         = 0x94
	opBinGet          = 'h'
	opLongBinGet      = 'j'
	opNone            = 'N'
	opBinInt1         = 'K'
	opBinInt2         = 'M'
	opBinInt          = 'J'
	opLong1           = 0x8a
	opShortBinBytes   = 'C'
	opShortBinUnicode = 0x8c
	opBinUnicode      = 'X'
)

// pickleHeader is the protocol and the head of the one frame.
const pickleHeader = 2 + 1 + 8

func (e *pickle) begin() {
	e.buf = append(e.buf[:0], opProto, 5, opFrame, 0, 0, 0, 0, 0, 0, 0, 0)
	e.count, e.names = 0, e.names[:0]
}

func (e *pickle) end() []byte {
	e.buf = append(e.buf, opStop)
	binary.LittleEndian.PutUint64(e.buf[3:], uint64(len(e.buf)-pickleHeader))
	return e.buf
}

func (e *pickle) memoize() {
	e.buf = append(e.buf, opMemoize)
	e.count++
}

func (e *pickle) open(n int) {
	if n > 3 {
		e.buf = append(e.buf, opMark)
	}
}

func (e *pickle) close(n int) {
	op := byte(opTuple)
	if n <= 3 {
		op = opTuple1 + byte(n) - 1
	}
	e.buf = append(e.buf, op)
	e.memoize()
}

func (e *pickle) bytes(b []byte) {
	e.buf = append(append(e.buf, opShortBinBytes, byte(len(b))), b...)
	e.memoize()
}

func (e *pickle) tokens(tokens []uint32) {
	for _, t := range tokens {
		switch {
		case t <= math.MaxUint8:
			e.buf = append(e.buf, opBinInt1, byte(t))
		case t <= math.MaxUint16:
			e.buf = append(e.buf, opBinInt2, byte(t), byte(t>>8))
		case t <= math.MaxInt32:
			e.buf = append(e.buf, opBinInt, byte(t), byte(t>>8), byte(t>>16), byte(t>>24))
		default:
			e.buf = append(e.buf, opLong1, 5, byte(t), byte(t>>8), byte(t>>16), byte(t>>24), 0)
		}
	}
}

func (e *pickle) number(n int) {
	if n >= 0 {
		e.tokens([]uint32{uint32(n)})
		return
	}
	e.buf = binary.LittleEndian.AppendUint32(append(e.buf, opBinInt), uint32(n))
}

func (e *pickle) text(s string) {
	if len(s) <= math.MaxUint8 {
		e.buf = append(e.buf, opShortBinUnicode, byte(len(s)))
	} else {
		e.buf = binary.LittleEndian.AppendUint32(append(e.buf, opBinUnicode), uint32(len(s)))
	}
	e.buf = append(e.buf, s...)
	e.memoize()
}

func (e *pickle) name(s string) {
	for _, n := range e.names {
		if n.name == s {
			e.get(n.number)
			return
		}
	}
	e.names = append(e.names, named{s, e.count})
	e.text(s)
}

func (e *pickle) get(number int) {
	if number <= math.MaxUint8 {
		e.buf = append(e.buf, opBinGet, byte(number))
		return
	}
	e.buf = binary.LittleEndian.AppendUint32(append(e.buf, opLongBinGet), uint32(number))
}

func (e *pickle) none() { e.buf = append(e.buf, opNone) }
