package conformance

import (
	"encoding/binary"
	"fmt"
	"strings"

	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/wire/pack"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// takeLogprobs checks the tables that a request asked for: one row a token, one
// column for the token itself and one for each of the most likely.
func (l *live) takeLogprobs(a *ask, o *protocol.RequestOutput, aux [][]byte) {
	if n := a.sampling.Logprobs; n != protocol.NoLogprobs && len(o.Tokens) > 0 {
		l.f.Asserted++
		ids, err := logprobTable(o.Logprobs, aux, len(o.Tokens), n+1)
		if err == nil {
			err = firstColumn(ids, n+1, o.Tokens)
		}
		l.logprobs(a, "new_logprobs", err)
		a.logprobs += len(o.Tokens)
	}
	if n := a.sampling.PromptLogprobs; n != protocol.NoLogprobs && a.outputs == 1 {
		l.f.Asserted++
		ids, err := logprobTable(o.PromptLogprobs, aux, len(a.prompt)-1, n+1)
		if err == nil {
			err = firstColumn(ids, n+1, a.prompt[1:])
		}
		l.logprobs(a, "new_prompt_logprobs_tensors", err)
	}
}

func (l *live) logprobs(a *ask, field string, err error) {
	if err != nil {
		l.fail(field, check.Failed(CodeLogprobs, "request %s: %s: %v: a real frontend answers HTTP 500", a.id, field, err).Within(l.messages, outputPath(field)))
	}
}

// logprobTable reads LogprobsLists or LogprobsTensors, [ids, values, ranks, …], and
// returns the ids, row by row.
func logprobTable(raw []byte, aux [][]byte, rows, columns int) ([]int64, error) {
	if raw == nil {
		return nil, fmt.Errorf("missing, although asked for")
	}
	cur := pack.NewCursor(raw)
	n, err := cur.ArrayLen()
	if err != nil || n < 3 {
		return nil, fmt.Errorf("an array of %d values, want ids, logprobs and ranks: %v", n, err)
	}
	var ids []int64
	for i, part := range []string{"token ids", "logprobs", "ranks"} {
		t, err := readTensor(&cur, aux)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", part, err)
		}
		if want := []int{rows, columns}[:min(3-i, 2)]; fmt.Sprint(t.shape) != fmt.Sprint(want) {
			return nil, fmt.Errorf("%s have shape %v, want %v", part, t.shape, want)
		}
		if floats := strings.Contains(t.dtype, "f"); floats != (i == 1) {
			return nil, fmt.Errorf("%s are of type %q", part, t.dtype)
		}
		if i == 0 {
			ids = t.integers()
		}
	}
	return ids, nil
}

// firstColumn: it is what was sampled; a Python frontend fails without.
func firstColumn(ids []int64, columns int, tokens []uint32) error {
	for i, token := range tokens {
		if got := ids[i*columns]; got != int64(token) {
			return fmt.Errorf("row %d begins with id %d, the token is %d", i, got, token)
		}
	}
	return nil
}

// tensor is an ndarray or a torch tensor of a message (vllm/v1/serial_utils.py).
type tensor struct {
	dtype string // "<i8", "int32"
	shape []int
	data  []byte // little-endian
}

// tensorWidths are the bytes of one element.
var tensorWidths = map[string]int{
	"<i4": 4, "<i8": 8, "<f4": 4, "<f8": 8, "int32": 4, "int64": 8, "float32": 4, "float64": 8,
}

func readTensor(cur *pack.Cursor, aux [][]byte) (t tensor, err error) {
	n, err := cur.ArrayLen()
	if err != nil || n != 3 {
		return t, fmt.Errorf("%d values, want dtype, shape and data: %v", n, err)
	}
	if t.dtype, err = cur.StrString(); err != nil {
		return t, fmt.Errorf("dtype: %w", err)
	}
	width, known := tensorWidths[t.dtype]
	if !known {
		return t, fmt.Errorf("dtype %q, want integers or floats of 4 or 8 bytes", t.dtype)
	}
	dims, err := cur.Uint32s(nil)
	if err != nil {
		return t, fmt.Errorf("shape: %w", err)
	}
	size := width
	for _, dim := range dims {
		t.shape = append(t.shape, int(dim))
		size *= int(dim)
	}
	if t.data, err = tensorBytes(cur, aux); err != nil {
		return t, fmt.Errorf("data: %w", err)
	}
	if len(t.data) != size {
		return t, fmt.Errorf("%d bytes for shape %v of %s", len(t.data), t.shape, t.dtype)
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

func (t tensor) integers() []int64 {
	var values []int64
	for width, rest := tensorWidths[t.dtype], t.data; len(rest) > 0; rest = rest[width:] {
		if width == 4 {
			values = append(values, int64(int32(binary.LittleEndian.Uint32(rest))))
		} else {
			values = append(values, int64(binary.LittleEndian.Uint64(rest)))
		}
	}
	return values
}
