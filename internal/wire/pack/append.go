package pack

import (
	"encoding/binary"
	"math"
)

// The Append functions write one value, in its smallest form, after b and return
// the longer slice, like append. They allocate only when b lacks capacity. A
// length the format cannot hold (negative, or 2^32 and more) writes the byte c1,
// which every reader refuses, instead of a wrapped length.

// AppendNil appends nil.
func AppendNil(b []byte) []byte { return append(b, tagNil) }

// AppendBool appends a bool.
func AppendBool(b []byte, v bool) []byte {
	if v {
		return append(b, tagTrue)
	}
	return append(b, tagFalse)
}

// AppendInt appends an integer; a non-negative one in its unsigned form, as
// msgspec and rmp write it.
func AppendInt(b []byte, v int64) []byte {
	switch {
	case v >= 0:
		return AppendUint(b, uint64(v))
	case v >= -32:
		return append(b, byte(v))
	case v >= math.MinInt8:
		return append(b, tagInt8, byte(v))
	case v >= math.MinInt16:
		return binary.BigEndian.AppendUint16(append(b, tagInt16), uint16(v))
	case v >= math.MinInt32:
		return binary.BigEndian.AppendUint32(append(b, tagInt32), uint32(v))
	default:
		return binary.BigEndian.AppendUint64(append(b, tagInt64), uint64(v))
	}
}

// AppendUint appends a non-negative integer.
func AppendUint(b []byte, v uint64) []byte {
	switch {
	case v < 0x80:
		return append(b, byte(v))
	case v <= math.MaxUint8:
		return append(b, tagUint8, byte(v))
	case v <= math.MaxUint16:
		return append(b, tagUint16, byte(v>>8), byte(v))
	case v <= math.MaxUint32:
		return append(b, tagUint32, byte(v>>24), byte(v>>16), byte(v>>8), byte(v))
	default:
		return binary.BigEndian.AppendUint64(append(b, tagUint64), v)
	}
}

// AppendUint32s appends an array of integers, the counterpart of
// [Cursor.Uint32s].
func AppendUint32s(b []byte, v []uint32) []byte {
	b = AppendArrayHeader(b, len(v))
	for _, u := range v {
		b = AppendUint(b, uint64(u))
	}
	return b
}

// AppendFloat32 appends a float32, always four bytes of it.
func AppendFloat32(b []byte, v float32) []byte {
	return binary.BigEndian.AppendUint32(append(b, tagFloat32), math.Float32bits(v))
}

// AppendFloat64 appends a float64, always eight bytes of it: a float is not
// narrowed, because readers tell the widths apart.
func AppendFloat64(b []byte, v float64) []byte {
	return binary.BigEndian.AppendUint64(append(b, tagFloat64), math.Float64bits(v))
}

// AppendString appends a str.
func AppendString(b []byte, s string) []byte {
	if len(s) < 32 {
		return append(append(b, fixStr|byte(len(s))), s...)
	}
	return append(appendLength(b, len(s), tagStr8, tagStr16, tagStr32), s...)
}

// AppendBin appends a bin.
func AppendBin(b, data []byte) []byte {
	return append(appendLength(b, len(data), tagBin8, tagBin16, tagBin32), data...)
}

// AppendExt appends an ext with its type code.
func AppendExt(b []byte, code int8, data []byte) []byte {
	switch len(data) {
	case 1:
		b = append(b, tagFixExt1)
	case 2:
		b = append(b, tagFixExt2)
	case 4:
		b = append(b, tagFixExt4)
	case 8:
		b = append(b, tagFixExt8)
	case 16:
		b = append(b, tagFixExt16)
	default:
		b = appendLength(b, len(data), tagExt8, tagExt16, tagExt32)
	}
	return append(append(b, byte(code)), data...)
}

// AppendArrayHeader appends the header of an array; its n elements follow.
func AppendArrayHeader(b []byte, n int) []byte {
	if 0 <= n && n < 16 {
		return append(b, fixArray|byte(n))
	}
	return appendLength(b, n, tagNever, tagArray16, tagArray32)
}

// AppendArray writes an array of values that are encoded already.
func AppendArray(b []byte, values ...[]byte) []byte {
	b = AppendArrayHeader(b, len(values))
	for _, v := range values {
		b = append(b, v...)
	}
	return b
}

// AppendMapHeader appends the header of a map; its n pairs, key before value,
// follow.
func AppendMapHeader(b []byte, n int) []byte {
	if 0 <= n && n < 16 {
		return append(b, fixMap|byte(n))
	}
	return appendLength(b, n, tagNever, tagMap16, tagMap32)
}

// appendLength appends a tag and the length in the smallest of 1, 2 and 4 bytes;
// tag8 is tagNever where a form of one byte does not exist.
func appendLength(b []byte, n int, tag8, tag16, tag32 byte) []byte {
	switch {
	case n < 0 || uint64(n) > math.MaxUint32:
		return append(b, tagNever)
	case n <= math.MaxUint8 && tag8 != tagNever:
		return append(b, tag8, byte(n))
	case n <= math.MaxUint16:
		return append(b, tag16, byte(n>>8), byte(n))
	default:
		return append(b, tag32, byte(n>>24), byte(n>>16), byte(n>>8), byte(n))
	}
}
