package player

import (
	"encoding/binary"
	"math"
	"testing"

	"github.com/vllm-vcr/conformance/internal/wire/pack"
)

// table is a decoded table of log-probabilities.
type table struct {
	types  [3]string // of ids, values and ranks
	ids    [][]uint32
	values [][]float32
	ranks  []uint32
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
	got := new(table)
	var data [3][]byte
	var shapes [3][]int
	for i := range data {
		got.types[i], shapes[i], data[i] = readTensor(t, &cur, aux)
	}
	for row := range shapes[0][0] {
		width := shapes[0][1]
		var ids []uint32
		var values []float32
		for k := range width {
			at := 4 * (row*width + k)
			ids = append(ids, binary.LittleEndian.Uint32(data[0][at:]))
			values = append(values, math.Float32frombits(binary.LittleEndian.Uint32(data[1][at:])))
		}
		got.ids, got.values = append(got.ids, ids), append(got.values, values)
		size := len(data[2]) / shapes[2][0]
		got.ranks = append(got.ranks, binary.LittleEndian.Uint32(data[2][row*size:]))
	}
	return got
}

func readTensor(t *testing.T, cur *pack.Cursor, aux [][]byte) (dtype string, shape []int, data []byte) {
	t.Helper()
	n, err := cur.ArrayLen()
	if err != nil || n != 3 {
		t.Fatalf("a tensor of %d values (%v)", n, err)
	}
	if dtype, err = cur.StrString(); err != nil {
		t.Fatal(err)
	}
	dims, err := cur.ArrayLen()
	must(t, err)
	for range dims {
		d, err := cur.Int()
		must(t, err)
		shape = append(shape, int(d))
	}
	if cur.Kind() == pack.Int {
		i, err := cur.Int()
		if err != nil || i < 1 || int(i) > len(aux) {
			t.Fatalf("auxiliary frame %d of %d (%v)", i, len(aux), err)
		}
		return dtype, shape, aux[i-1]
	}
	if _, data, err = cur.Ext(); err != nil {
		t.Fatal(err)
	}
	return dtype, shape, data
}

// floats reads a tensor of float32.
func floats(t *testing.T, raw []byte, aux [][]byte) (shape []int, values []float32) {
	t.Helper()
	if raw == nil {
		t.Fatal("there is no tensor")
	}
	cur := pack.NewCursor(raw)
	dtype, shape, data := readTensor(t, &cur, aux)
	if dtype != "float32" {
		t.Fatalf("a tensor of %s", dtype)
	}
	for i := 0; i < len(data); i += 4 {
		values = append(values, math.Float32frombits(binary.LittleEndian.Uint32(data[i:])))
	}
	return shape, values
}

// Most tokens of a prompt are not among the few most likely ones, and some are.
func TestRanksOfAPrompt(t *testing.T) {
	const top = 5
	prompt := count(0, 1001)
	r := ran(t, Options{}, ask("a", prompt, 1, promptLogprobs(top)))
	e := r.envelopes[0]
	among := 0
	for _, rank := range readTable(t, e.Outputs.Outputs[0].PromptLogprobs, e.aux).ranks {
		if rank <= top {
			among++
		}
	}
	if among < 100 || among > 400 {
		t.Errorf("%d of 1000 tokens are among the %d most likely ones, want 100 to 400", among, top)
	}
}
