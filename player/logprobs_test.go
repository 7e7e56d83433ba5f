package player

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/vllm-vcr/conformance/internal/wire/pack"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
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

func TestLogprobsAreMadeUpWhenAsked(t *testing.T) {
	prompt := []uint32{9, 0, 3}
	spoken := take{prompt: prompt, output: []uint32{5, 0, 9, 9}, chunks: []int{1, 3}}
	const vocab = 10
	for _, tt := range []struct {
		name   string
		change []change
		width  int // of the sampled tokens' rows; 0: no table
		prompt int // of the prompt's
	}{
		{"not asked", nil, 0, 0},
		{"the sampled token only", []change{logprobsOf(0)}, 1, 0},
		{"two more", []change{logprobsOf(2)}, 3, 0},
		{"the whole vocabulary", []change{logprobsOf(protocol.AllLogprobs)}, vocab + 1, 0},
		{"more than the vocabulary", []change{logprobsOf(1 << 20)}, vocab + 1, 0},
		{"of the prompt", []change{promptLogprobs(3)}, 0, 4},
		{"of the whole vocabulary for the prompt", []change{promptLogprobs(protocol.AllLogprobs)}, 0, vocab + 1},
		{"of both", []change{logprobsOf(1), promptLogprobs(0)}, 2, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := ran(t, Options{Trace: traceOf(t, spoken), Vocab: vocab}, ask("replay-0", prompt, 9, tt.change...))
			for i, e := range r.envelopes {
				out := e.Outputs.Outputs[0]
				sampled := readTable(t, out.Logprobs, e.aux)
				checkTable(t, sampled, out.Tokens, tt.width, vocab, [3]string{"<i4", "<f4", "<i8"})
				if sampled != nil && slices.Max(sampled.ranks) != 1 {
					t.Errorf("sampled tokens have the ranks %v, want 1", sampled.ranks)
				}
				promptWidth := tt.prompt
				if i > 0 {
					promptWidth = 0 // the first output has told it
				}
				checkTable(t, readTable(t, out.PromptLogprobs, e.aux), prompt[1:], promptWidth, vocab, [3]string{"int32", "float32", "int32"})
			}
			if got := r.answer("replay-0").tokens(); !slices.Equal(got, spoken.output) {
				t.Errorf("tokens %v, want %v", got, spoken.output)
			}
		})
	}
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

func checkTable(t *testing.T, got *table, tokens []uint32, width, vocab int, types [3]string) {
	t.Helper()
	if width == 0 {
		if got != nil {
			t.Errorf("a table that nobody asked for: %v", got)
		}
		return
	}
	if got == nil {
		t.Fatal("the table is missing: a frontend answers HTTP 500")
	}
	if got.types != types || len(got.ids) != len(tokens) {
		t.Errorf("%d rows of types %v, want %d of %v", len(got.ids), got.types, len(tokens), types)
	}
	for i, row := range got.ids {
		rank := int(got.ranks[i])
		if len(row) != width || row[0] != tokens[i] || rank < 1 || rank > vocab {
			t.Fatalf("row %d has %d ids, %d first, rank %d, want %d, %d first, rank 1 to %d", i, len(row), row[0], rank, width, tokens[i], vocab)
		}
		if at := 1 + slices.Index(row[1:], tokens[i]); at != rank && (at != 0 || rank < width) {
			t.Errorf("row %d: rank %d, and the ids are %v", i, rank, row)
		}
		checkRow(t, row, got.values[i], vocab)
	}
}

// checkRow checks the most likely ids, from column 1 on: the sampled one is the
// most likely, so it comes again, and no other one twice.
func checkRow(t *testing.T, row []uint32, values []float32, vocab int) {
	t.Helper()
	seen := map[uint32]bool{}
	for k, id := range row[1:] {
		if seen[id] || id >= uint32(vocab) {
			t.Fatalf("row %v: id %d is there twice or not below %d", row, id, vocab)
		}
		seen[id] = true
		if v := values[k+1]; !(v < 0) || k > 0 && v >= values[k] {
			t.Fatalf("log-probabilities %v do not fall", values)
		}
	}
	if at := 1 + slices.Index(row[1:], row[0]); at > 0 && values[at] != values[0] {
		t.Errorf("row %v has two log-probabilities of its token: %v", row, values)
	}
}

func TestLogprobsOfTokensPastTheVocabularyNameRealNeighbours(t *testing.T) {
	// Nobody named the vocabulary, and the recording knows larger ids.
	r := ran(t, Options{Trace: traceOf(t, take{prompt: count(0, 4), output: []uint32{151000}})}, ask("replay-0", count(0, 4), 1, logprobsOf(3)))
	e := r.envelopes[0]
	got := readTable(t, e.Outputs.Outputs[0].Logprobs, e.aux)
	equal(t, "ids", [][]uint32{{151000, 151000, 150999, 150998}}, got.ids)
}

func TestPromptLogprobsOfShortPrompts(t *testing.T) {
	for _, n := range []int{0, 1, 2} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			prompt := count(3, n)
			r := ran(t, Options{Trace: traceOf(t, take{prompt: prompt, output: []uint32{1}})}, ask("replay-0", prompt, 1, promptLogprobs(2)))
			e := r.envelopes[0]
			if rows := len(readTable(t, e.Outputs.Outputs[0].PromptLogprobs, e.aux).ids); rows != max(n-1, 0) {
				t.Errorf("%d rows for %d prompt tokens, want one a token after the first", rows, n)
			}
		})
	}
}
