package protocol

import (
	"encoding/binary"
	"fmt"
	"math"
	"strings"

	"github.com/vllm-vcr/conformance/internal/wire/pack"
)

// An Array is an ndarray or a torch tensor of a message (vllm/v1/serial_utils.py).
type Array struct {
	Dtype string // "<i8", "int32"
	Shape []int
	data  []byte // little-endian
}

// elementWidths are the bytes of one element.
var elementWidths = map[string]int{
	"<i4": 4, "<i8": 8, "<f4": 4, "<f8": 8, "int32": 4, "int64": 8, "float32": 4, "float64": 8,
}

// ReadTensor reads one of integers or floats of 4 or 8 bytes. aux are the frames after the message.
func ReadTensor(cur *pack.Cursor, aux [][]byte) (Array, error) {
	t, err := readArray(cur, aux)
	if err != nil {
		return t, err
	}
	size, known := elementWidths[t.Dtype]
	if !known {
		return t, fmt.Errorf("dtype %q, want integers or floats of 4 or 8 bytes", t.Dtype)
	}
	for _, dim := range t.Shape {
		if dim > 0 && size > len(t.data)/dim { // so that the product cannot overflow
			size = -1
			break
		}
		size *= dim
	}
	if len(t.data) != size {
		return t, fmt.Errorf("%d bytes for shape %v of %s", len(t.data), t.Shape, t.Dtype)
	}
	return t, nil
}

// maxDimensions bounds the shape of a tensor that is read.
const maxDimensions = 8

// readArray reads [dtype, shape, data], of any type (vllm/v1/serial_utils.py _decode_tensor).
func readArray(cur *pack.Cursor, aux [][]byte) (t Array, err error) {
	n, err := cur.ArrayLen()
	if err != nil {
		return t, err
	}
	if n != 3 {
		return t, fmt.Errorf("an array of %d values, want dtype, shape and data", n)
	}
	if t.Dtype, err = cur.StrString(); err != nil {
		return t, fmt.Errorf("dtype: %w", err)
	}
	if t.Shape, err = readList(cur, smallInt); err != nil {
		return t, fmt.Errorf("shape: %w", err)
	}
	if len(t.Shape) > maxDimensions {
		return t, fmt.Errorf("shape: %d dimensions", len(t.Shape))
	}
	if t.data, err = tensorBytes(cur, aux); err != nil {
		return t, fmt.Errorf("data: %w", err)
	}
	return t, nil
}

// tensorBytes is in the message, or in a frame of its own that is counted from 1.
func tensorBytes(cur *pack.Cursor, aux [][]byte) ([]byte, error) {
	if cur.Kind() != pack.Int {
		code, data, err := cur.Ext()
		if err == nil && code != ExtRawView {
			err = fmt.Errorf("extension type %d, want %d", code, ExtRawView)
		}
		return data, err
	}
	i, err := cur.Int()
	if err != nil {
		return nil, err
	}
	if i < 1 || i > int64(len(aux)) {
		return nil, fmt.Errorf("auxiliary frame %d of %d", i, len(aux))
	}
	return aux[i-1], nil
}

// Integers are the values of a tensor of integers.
func (t Array) Integers() []int64 {
	var values []int64
	for width, rest := elementWidths[t.Dtype], t.data; len(rest) > 0; rest = rest[width:] {
		if width == 4 {
			values = append(values, int64(int32(binary.LittleEndian.Uint32(rest))))
		} else {
			values = append(values, int64(binary.LittleEndian.Uint64(rest)))
		}
	}
	return values
}

// Floats are the values of a tensor of floats.
func (t Array) Floats() []float64 {
	var values []float64
	for width, rest := elementWidths[t.Dtype], t.data; len(rest) > 0; rest = rest[width:] {
		if width == 4 {
			values = append(values, float64(math.Float32frombits(binary.LittleEndian.Uint32(rest))))
		} else {
			values = append(values, math.Float64frombits(binary.LittleEndian.Uint64(rest)))
		}
	}
	return values
}

// IsFloat reports whether the elements are floats; else they are integers.
func (t Array) IsFloat() bool { return strings.Contains(t.Dtype, "f") }
