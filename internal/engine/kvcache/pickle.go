package kvcache

import (
	"encoding/binary"
	"math"
)

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
