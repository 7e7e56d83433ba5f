package player

import (
	"testing"

	"github.com/vllm-vcr/conformance/internal/wire/pack"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// table is a decoded table of log-probabilities.
type table struct {
	types  [3]string // of ids, values and ranks
	ids    [][]int64
	values [][]float64
	ranks  []int64
}

// readTable decodes what a frontend gets: three tensors, small ones inline and
// large ones in the auxiliary frame they name.
func readTable(t *testing.T, raw []byte, aux [][]byte) *table {
	t.Helper()
	if raw == nil {
		return nil
	}
	cur := pack.NewCursor(raw)
	if n, err := cur.ArrayLen(); err != nil || n < 4 {
		t.Fatalf("%s: %d tables (%v), want 3 and the nil that ends them", pack.Format(raw), n, err)
	}
	var tensors [3]protocol.Array
	got := new(table)
	for i := range tensors {
		var err error
		tensors[i], err = protocol.ReadTensor(&cur, aux)
		must(t, err)
		got.types[i] = tensors[i].Dtype
	}
	ids, values, width := tensors[0].Integers(), tensors[1].Floats(), tensors[0].Shape[1]
	for row, rank := range tensors[2].Integers() {
		got.ids = append(got.ids, ids[row*width:(row+1)*width])
		got.values = append(got.values, values[row*width:(row+1)*width])
		got.ranks = append(got.ranks, rank)
	}
	return got
}

// floats reads a tensor of float32.
func floats(t *testing.T, raw []byte, aux [][]byte) (shape []int, values []float64) {
	t.Helper()
	cur := pack.NewCursor(raw)
	tensor, err := protocol.ReadTensor(&cur, aux)
	must(t, err)
	if tensor.Dtype != "float32" {
		t.Fatalf("a tensor of %s", tensor.Dtype)
	}
	return tensor.Shape, tensor.Floats()
}
