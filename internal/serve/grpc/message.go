package grpc

import (
	"encoding/binary"
	"math"
	"slices"
	"unicode/utf8"
)

// Kinds of fields on the wire.
const (
	kindVarint  = 0
	kindFixed64 = 1
	kindBytes   = 2
	kindFixed32 = 5
)

// A Field is one field of a message.
type Field struct {
	Number int
	kind   uint8
	num    uint64
	bytes  []byte
}

var errMessage = Errorf(Internal, "Exception deserializing request!")

// Fields calls each with the fields of a message, in their order.
func Fields(message []byte, each func(f Field) error) error {
	for len(message) > 0 {
		tag, n := binary.Uvarint(message)
		if n <= 0 || tag>>3 == 0 || tag>>3 > 1<<29-1 {
			return errMessage
		}
		message = message[n:]
		f := Field{Number: int(tag >> 3), kind: uint8(tag & 7)}
		switch f.kind {
		case kindVarint:
			if f.num, n = binary.Uvarint(message); n <= 0 {
				return errMessage
			}
		case kindFixed64:
			if n = 8; len(message) < n {
				return errMessage
			}
			f.num = binary.LittleEndian.Uint64(message)
		case kindFixed32:
			if n = 4; len(message) < n {
				return errMessage
			}
			f.num = uint64(binary.LittleEndian.Uint32(message))
		case kindBytes:
			size, head := binary.Uvarint(message)
			if head <= 0 || size > uint64(len(message)-head) {
				return errMessage
			}
			n = head + int(size)
			f.bytes = message[head:n]
		default:
			return errMessage
		}
		message = message[n:]
		if err := each(f); err != nil {
			return err
		}
	}
	return nil
}

// Uint is the value of an integer, a bool or an enum.
func (f Field) Uint() uint64 { return f.num }

// Int is the value of an int32.
func (f Field) Int() int { return int(int32(f.num)) }

// Bool is the value of a bool.
func (f Field) Bool() bool { return f.num != 0 }

// Float is the value of a float.
func (f Field) Float() float64 { return float64(math.Float32frombits(uint32(f.num))) }

// Bytes is the value of a message, or of bytes.
func (f Field) Bytes() []byte { return f.bytes }

// Text is the value of a string.
func (f Field) Text() (string, error) {
	if f.kind != kindBytes || !utf8.Valid(f.bytes) {
		return "", errMessage
	}
	return string(f.bytes), nil
}

// Uint32s adds the values of a list of numbers: all of them, or one in the older form.
func (f Field) Uint32s(to []uint32) ([]uint32, error) {
	if f.kind == kindVarint {
		return append(to, uint32(f.num)), nil
	}
	for b := f.bytes; len(b) > 0; {
		v, n := uint64(b[0]), 1
		if v >= 0x80 {
			v, n = binary.Uvarint(b)
		}
		if n <= 0 {
			return nil, errMessage
		}
		to, b = append(to, uint32(v)), b[n:]
	}
	return to, nil
}

// AppendUint writes a number, unless it is 0. It also is for enums and for numbers with a sign, which are converted.
func AppendUint(b []byte, field int, v uint64) []byte {
	if v == 0 {
		return b
	}
	return AppendNumber(b, field, v)
}

// AppendNumber writes a number, also 0.
func AppendNumber(b []byte, field int, v uint64) []byte {
	return binary.AppendUvarint(binary.AppendUvarint(b, uint64(field)<<3|kindVarint), v)
}

// AppendBool writes a bool, unless it is false.
func AppendBool(b []byte, field int, v bool) []byte {
	if !v {
		return b
	}
	return AppendUint(b, field, 1)
}

// AppendFloat writes a float, also 0.
func AppendFloat(b []byte, field int, v float32) []byte {
	b = binary.AppendUvarint(b, uint64(field)<<3|kindFixed32)
	return binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
}

// AppendDouble writes a double, unless it is 0.
func AppendDouble(b []byte, field int, v float64) []byte {
	if v == 0 {
		return b
	}
	b = binary.AppendUvarint(b, uint64(field)<<3|kindFixed64)
	return binary.LittleEndian.AppendUint64(b, math.Float64bits(v))
}

// AppendBytes writes bytes, or a message, also an empty one.
func AppendBytes[T string | []byte](b []byte, field int, v T) []byte {
	b = binary.AppendUvarint(b, uint64(field)<<3|kindBytes)
	return append(binary.AppendUvarint(b, uint64(len(v))), v...)
}

// AppendString writes a text, unless it is empty.
func AppendString(b []byte, field int, v string) []byte {
	if v == "" {
		return b
	}
	return AppendBytes(b, field, v)
}

// AppendUint32s writes a list of numbers, unless it is empty.
func AppendUint32s(b []byte, field int, v []uint32) []byte {
	if len(v) == 0 {
		return b
	}
	return AppendMessage(b, field, func(b []byte) []byte {
		for _, n := range v {
			b = binary.AppendUvarint(b, uint64(n))
		}
		return b
	})
}

// AppendFloats writes a list of numbers, unless it is empty.
func AppendFloats(b []byte, field int, v []float32) []byte {
	if len(v) == 0 {
		return b
	}
	b = binary.AppendUvarint(b, uint64(field)<<3|kindBytes)
	b = binary.AppendUvarint(b, uint64(4*len(v)))
	for _, f := range v {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(f))
	}
	return b
}

// AppendMessage writes what write appends as a message.
func AppendMessage(b []byte, field int, write func(b []byte) []byte) []byte {
	b = binary.AppendUvarint(b, uint64(field)<<3|kindBytes)
	start := len(b)
	b = write(b)
	var size [binary.MaxVarintLen64]byte
	n := binary.PutUvarint(size[:], uint64(len(b)-start))
	return slices.Insert(b, start, size[:n]...)
}
