package protocol

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/vllm-vcr/conformance/internal/wire/pack"
)

// ExtRawView is the msgpack extension type that holds the bytes of a tensor
// (vllm/v1/serial_utils.py CUSTOM_TYPE_RAW_VIEW).
const ExtRawView = 3

// inlineLimit is the size from which a tensor travels as an auxiliary frame:
// VLLM_MSGPACK_ZERO_COPY_THRESHOLD (vllm/envs.py).
const inlineLimit = 256

// Logprobs is a table of log-probabilities: one row per token (or per prompt
// position after the first), Width columns a row. Column 0 is the token that
// was sampled, a Python frontend fails without it; the others are the most
// likely ones (vllm/v1/outputs.py, vllm/v1/engine/logprobs.py).
type Logprobs struct {
	Width    int       // requested count plus one
	TokenIDs []uint32  // rows*Width
	Values   []float32 // rows*Width
	Ranks    []int64   // rows: rank of the sampled token, from 1
}

// Rows returns the number of rows.
func (l *Logprobs) Rows() int { return len(l.Ranks) }

// check reports whether the tables fit each other.
func (l *Logprobs) check() error {
	if n := l.Rows() * l.Width; l.Width < 1 || len(l.TokenIDs) != n || len(l.Values) != n {
		return fmt.Errorf("%d ids and %d values for %d rows of %d", len(l.TokenIDs), len(l.Values), l.Rows(), l.Width)
	}
	return nil
}

// tensorTypes names the element types of ids, values and ranks as the line
// writes them: sampled logprobs are numpy arrays, prompt logprobs are torch
// tensors (vllm/v1/outputs.py LogprobsLists, LogprobsTensors).
type tensorTypes struct{ ids, values, ranks string }

var (
	numpyTypes = tensorTypes{"<i4", "<f4", "<i8"}
	torchTypes = tensorTypes{"int32", "float32", "int32"}
)

// Tensor holds numbers in rows: Values has as many as the product of Shape, which is
// empty for a single number.
type Tensor struct {
	Shape  []int
	Values []float32
}

// appendTensor writes [dtype, shape, data]: data inline when small, else the
// number of the auxiliary frame, counted from the msgpack frame as 0.
func (b *Batch) appendTensor(out []byte, dtype string, shape []int, data []byte) []byte {
	out = pack.AppendArrayHeader(out, 3)
	out = pack.AppendString(out, dtype)
	out = appendInts(out, shape)
	if len(data) < inlineLimit {
		return pack.AppendExt(out, ExtRawView, data)
	}
	b.aux = append(b.aux, data)
	return pack.AppendInt(out, int64(len(b.aux)))
}

func int32Bytes[T uint32 | int64](values []T) []byte {
	b := make([]byte, 0, 4*len(values))
	for _, v := range values {
		b = binary.LittleEndian.AppendUint32(b, uint32(v))
	}
	return b
}

func int64Bytes(values []int64) []byte {
	b := make([]byte, 0, 8*len(values))
	for _, v := range values {
		b = binary.LittleEndian.AppendUint64(b, uint64(v))
	}
	return b
}

func float32Bytes(values []float32) []byte {
	b := make([]byte, 0, 4*len(values))
	for _, v := range values {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
	}
	return b
}
