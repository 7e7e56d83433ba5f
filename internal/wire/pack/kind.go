package pack

import (
	"encoding/binary"
	"math"
)

// Kind is the family a MessagePack value belongs to, whatever its width.
type Kind uint8

// The kinds. Invalid is the end of the bytes and for the byte c1.
const (
	Invalid Kind = iota
	Nil
	Bool
	Int   // signed or unsigned, 5 to 64 bits
	Float // 32 or 64 bits
	String
	Bin
	Array
	Map
	Ext
)

// String returns the kind's name as used in error messages: "int", "str", ….
func (k Kind) String() string {
	switch k {
	case Nil:
		return "nil"
	case Bool:
		return "bool"
	case Int:
		return "int"
	case Float:
		return "float"
	case String:
		return "str"
	case Bin:
		return "bin"
	case Array:
		return "array"
	case Map:
		return "map"
	case Ext:
		return "ext"
	default:
		return "invalid"
	}
}

// isContainer reports whether values of the kind hold other values.
func (k Kind) isContainer() bool { return k == Array || k == Map }

// The first bytes of the forms that are not packed into a range.
const (
	tagNil      = 0xc0
	tagNever    = 0xc1 // reserved: no message may contain it as a first byte
	tagFalse    = 0xc2
	tagTrue     = 0xc3
	tagBin8     = 0xc4
	tagBin16    = 0xc5
	tagBin32    = 0xc6
	tagExt8     = 0xc7
	tagExt16    = 0xc8
	tagExt32    = 0xc9
	tagFloat32  = 0xca
	tagFloat64  = 0xcb
	tagUint8    = 0xcc
	tagUint16   = 0xcd
	tagUint32   = 0xce
	tagUint64   = 0xcf
	tagInt8     = 0xd0
	tagInt16    = 0xd1
	tagInt32    = 0xd2
	tagInt64    = 0xd3
	tagFixExt1  = 0xd4
	tagFixExt2  = 0xd5
	tagFixExt4  = 0xd6
	tagFixExt8  = 0xd7
	tagFixExt16 = 0xd8
	tagStr8     = 0xd9
	tagStr16    = 0xda
	tagStr32    = 0xdb
	tagArray16  = 0xdc
	tagArray32  = 0xdd
	tagMap16    = 0xde
	tagMap32    = 0xdf

	fixMap   = 0x80 // up to 15 pairs in the tag
	fixArray = 0x90 // up to 15 elements in the tag
	fixStr   = 0xa0 // up to 31 bytes in the tag
	negInt   = 0xe0 // -32..-1 in the tag
)

// form describes what a first byte announces. Exactly one of width and fixed is
// meaningful: the length is in the next width bytes, or, when width is 0,
// it is fixed (for numbers: the bytes of the number).
type form struct {
	kind  Kind
	width uint8
	fixed uint8
}

// forms maps a first byte to its form. It is never written after start.
var forms = makeForms()

func makeForms() (t [256]form) {
	for i := range 0x80 {
		t[i] = form{kind: Int}
	}
	for i := range 16 {
		t[fixMap+i] = form{kind: Map, fixed: uint8(i)}
		t[fixArray+i] = form{kind: Array, fixed: uint8(i)}
	}
	for i := range 32 {
		t[fixStr+i] = form{kind: String, fixed: uint8(i)}
		t[negInt+i] = form{kind: Int}
	}
	t[tagNil] = form{kind: Nil}
	t[tagFalse], t[tagTrue] = form{kind: Bool}, form{kind: Bool}
	t[tagFloat32], t[tagFloat64] = form{kind: Float, fixed: 4}, form{kind: Float, fixed: 8}
	for i := range 4 {
		t[tagUint8+i] = form{kind: Int, fixed: 1 << i}
		t[tagInt8+i] = form{kind: Int, fixed: 1 << i}
	}
	for i := range 5 {
		t[tagFixExt1+i] = form{kind: Ext, fixed: 1 << i}
	}
	for i := range 3 {
		t[tagBin8+i] = form{kind: Bin, width: 1 << i}
		t[tagExt8+i] = form{kind: Ext, width: 1 << i}
		t[tagStr8+i] = form{kind: String, width: 1 << i}
	}
	for i := range 2 {
		t[tagArray16+i] = form{kind: Array, width: 2 << i}
		t[tagMap16+i] = form{kind: Map, width: 2 << i}
	}
	return t
}

// head is the checked header of one value: its payload, or for containers the
// count of what it holds, is known to fit the bytes that remain.
type head struct {
	kind Kind
	tag  byte // first byte
	code int8 // ext type code
	body int  // offset of the first byte after the header
	n    int  // scalars: bytes of payload; array: elements; map: pairs
}

// next is the offset after the value, or, for a container, of its first element.
func (h head) next() int {
	if h.kind.isContainer() {
		return h.body
	}
	return h.body + h.n
}

// payload returns the bytes of a scalar.
func (h head) payload(b []byte) []byte { return b[h.body : h.body+h.n] }

// readHead reads and checks the header at off.
func readHead(b []byte, off int) (head, error) {
	if off < 0 || off >= len(b) {
		return head{}, endError(b, off)
	}
	tag := b[off]
	f := forms[tag]
	h := head{kind: f.kind, tag: tag, body: off + 1}
	if f.kind == Invalid {
		return head{}, syntaxError(off, "the byte 0x%02x is never used in MessagePack", tag)
	}
	claimed := uint64(f.fixed)
	if f.width > 0 {
		if len(b)-h.body < int(f.width) {
			return head{}, syntaxError(off, "message ends inside the %d-byte length of a %s", f.width, f.kind)
		}
		claimed = bigEndian(b[h.body : h.body+int(f.width)])
		h.body += int(f.width)
	}
	if f.kind == Ext {
		if h.body >= len(b) {
			return head{}, syntaxError(off, "message ends before the type code of an ext")
		}
		h.code = int8(b[h.body])
		h.body++
	}
	if err := checkFits(f.kind, claimed, off, len(b)-h.body); err != nil {
		return head{}, err
	}
	h.n = int(claimed)
	return h, nil
}

// checkFits refuses a claimed length that the remaining bytes cannot hold: a
// payload byte, an array element and each half of a map pair take at least one.
func checkFits(k Kind, claimed uint64, off, remain int) error {
	need := claimed
	if k == Map {
		need *= 2
	}
	if need <= uint64(remain) {
		return nil
	}
	switch k {
	case Array:
		return syntaxError(off, "array of %d elements needs at least %d bytes, %d remain", claimed, need, remain)
	case Map:
		return syntaxError(off, "map of %d pairs needs at least %d bytes, %d remain", claimed, need, remain)
	default:
		return syntaxError(off, "%s of %d bytes, %d remain", k, claimed, remain)
	}
}

func endError(b []byte, off int) error {
	if len(b) == 0 {
		return syntaxError(0, "empty message")
	}
	return syntaxError(off, "message ends where a value is expected (%d bytes in all)", len(b))
}

// bigEndian reads 0, 1, 2, 4 or 8 bytes.
func bigEndian(p []byte) uint64 {
	switch len(p) {
	case 1:
		return uint64(p[0])
	case 2:
		return uint64(binary.BigEndian.Uint16(p))
	case 4:
		return uint64(binary.BigEndian.Uint32(p))
	case 8:
		return binary.BigEndian.Uint64(p)
	default:
		return 0
	}
}

// integer is any MessagePack integer: bits in two's complement, 64 wide.
type integer struct {
	bits     uint64
	negative bool
}

// integer returns the value of an [Int] of any width.
func (h head) integer(b []byte) integer {
	if h.tag < 0x80 {
		return integer{bits: uint64(h.tag)}
	}
	if h.tag >= negInt {
		return signed(int64(int8(h.tag)))
	}
	u := bigEndian(h.payload(b))
	switch h.tag {
	case tagInt8:
		return signed(int64(int8(u)))
	case tagInt16:
		return signed(int64(int16(u)))
	case tagInt32:
		return signed(int64(int32(u)))
	case tagInt64:
		return signed(int64(u))
	default:
		return integer{bits: u}
	}
}

func signed(v int64) integer { return integer{bits: uint64(v), negative: v < 0} }

// float returns the value of a [Float] of either width.
func (h head) float(b []byte) float64 {
	u := bigEndian(h.payload(b))
	if h.tag == tagFloat32 {
		return float64(math.Float32frombits(uint32(u)))
	}
	return math.Float64frombits(u)
}
