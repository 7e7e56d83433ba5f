package pack

import "math"

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

// compare orders integers by value.
func (i integer) compare(j integer) int {
	switch {
	case i == j:
		return 0
	case i.negative != j.negative:
		if i.negative {
			return -1
		}
		return 1
	case i.bits < j.bits: // two's complement orders negatives too
		return -1
	default:
		return 1
	}
}

// float returns the value of a [Float] of either width.
func (h head) float(b []byte) float64 {
	u := bigEndian(h.payload(b))
	if h.tag == tagFloat32 {
		return float64(math.Float32frombits(uint32(u)))
	}
	return math.Float64frombits(u)
}
