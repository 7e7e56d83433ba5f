package message

import (
	"encoding/binary"
	"fmt"
	"math"
	"strings"

	"github.com/vllm-vcr/conformance/internal/wire/pack"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// tensor is an ndarray or a torch tensor of a message (vllm/v1/serial_utils.py).
type tensor struct {
	Dtype string // "<i8", "int32"
	Shape []int
	data  []byte // little-endian
}

// tensorWidths are the bytes of one element.
var tensorWidths = map[string]int{
	"<i4": 4, "<i8": 8, "<f4": 4, "<f8": 8, "int32": 4, "int64": 8, "float32": 4, "float64": 8,
}

func ReadTensor(cur *pack.Cursor, aux [][]byte) (t tensor, err error) {
	n, err := cur.ArrayLen()
	if err != nil || n != 3 {
		return t, fmt.Errorf("%d values, want dtype, shape and data: %v", n, err)
	}
	if t.Dtype, err = cur.StrString(); err != nil {
		return t, fmt.Errorf("dtype: %w", err)
	}
	width, known := tensorWidths[t.Dtype]
	if !known {
		return t, fmt.Errorf("dtype %q, want integers or floats of 4 or 8 bytes", t.Dtype)
	}
	dims, err := cur.Uint32s(nil)
	if err != nil {
		return t, fmt.Errorf("shape: %w", err)
	}
	size := width
	for _, dim := range dims {
		t.Shape = append(t.Shape, int(dim))
		size *= int(dim)
	}
	if t.data, err = tensorBytes(cur, aux); err != nil {
		return t, fmt.Errorf("data: %w", err)
	}
	if len(t.data) != size {
		return t, fmt.Errorf("%d bytes for shape %v of %s", len(t.data), t.Shape, t.Dtype)
	}
	return t, nil
}

// tensorBytes is in the message, or in a frame of its own that is counted from 1.
func tensorBytes(cur *pack.Cursor, aux [][]byte) ([]byte, error) {
	if cur.Kind() != pack.Int {
		code, data, err := cur.Ext()
		if err == nil && code != protocol.ExtRawView {
			err = fmt.Errorf("extension type %d, want %d", code, protocol.ExtRawView)
		}
		return data, err
	}
	i, err := cur.Int()
	if err != nil || i < 1 || i > int64(len(aux)) {
		return nil, fmt.Errorf("frame %d of the %d after the message: %v", i, len(aux), err)
	}
	return aux[i-1], nil
}

func (t tensor) Integers() []int64 {
	var values []int64
	for width, rest := tensorWidths[t.Dtype], t.data; len(rest) > 0; rest = rest[width:] {
		if width == 4 {
			values = append(values, int64(int32(binary.LittleEndian.Uint32(rest))))
		} else {
			values = append(values, int64(binary.LittleEndian.Uint64(rest)))
		}
	}
	return values
}

// Floats are the values of a tensor of floats.
func (t tensor) Floats() []float64 {
	var values []float64
	for width, rest := tensorWidths[t.Dtype], t.data; len(rest) > 0; rest = rest[width:] {
		if width == 4 {
			values = append(values, float64(math.Float32frombits(binary.LittleEndian.Uint32(rest))))
		} else {
			values = append(values, math.Float64frombits(binary.LittleEndian.Uint64(rest)))
		}
	}
	return values
}

// IsFloat reports whether the elements are floats; else they are integers.
func (t tensor) IsFloat() bool { return strings.Contains(t.Dtype, "f") }
