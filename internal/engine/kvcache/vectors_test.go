package kvcache_test

import (
	"bufio"
	"compress/gzip"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/engine/kvcache"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// releases are the vLLM releases that testdata/vectors.py was run with: one for each of
// the combinations of rules. The cache of the other lines was asked too, and answers as
// that of 0.33 does (0.31, 0.32) or of 0.30 (0.25, 0.26, 0.28 and 0.29, the first three
// of them without hashes of no seed).
var releases = []struct{ name, line string }{
	{name: "0.33.0", line: "0.33"},
	{name: "0.30.0", line: "0.30"},
	{name: "0.27.1", line: "0.27"},
}

// TestAsVLLM replays what a random client did to the KV cache managers of released
// engines, and sees the same blocks, free counts and events.
func TestAsVLLM(t *testing.T) {
	for _, release := range releases {
		t.Run(release.name, func(t *testing.T) {
			r := replay{t: t, rules: kvcache.RulesOf(release.line)}
			for l := range vectors(t, release.name) {
				if r.line(l); t.Failed() {
					return
				}
			}
			require.True(t, r.operations >= 5000 && r.hashes >= 800, "%d operations and %d hashes compared: the vectors should have more", r.operations, r.hashes)
		})
	}
}

// replay does the operations of the vectors. See vectors.py for their form.
type replay struct {
	t                  *testing.T
	rules              kvcache.Rules
	pool               *kvcache.Pool
	sequences          map[int]*kvcache.Sequence
	own                map[int]uint64 // the source of a sequence's own tokens
	last               string         // the operation, for messages
	number             int
	name               string
	operations, hashes int
}

type caseOptions struct {
	Name, Algorithm, Seed string
	Blocks                int
	BlockSize             int `json:"block_size"`
	Caching               bool
	MaxModelLen           int `json:"max_model_len"`
}

func (r *replay) line(l line) {
	r.t.Helper()
	r.number++
	op := get[string](l, 0)
	if op != "is" {
		r.last = fmt.Sprintf("line %d of case %s: %s", r.number, r.name, l)
	}
	switch op {
	case "vllm":
	case "hash":
		r.hash(l)
	case "case":
		r.begin(get[caseOptions](l, 1))
	case "new":
		prompt := get[[4]uint64](l, 2)
		s := sequence(prompt, get[extra](l, 3))
		r.sequences[get[int](l, 1)], r.own[get[int](l, 1)] = s, prompt[2]
	case "look":
		r.same(r.pool.Lookup(r.of(l)), get[int](l, 2))
	case "admit":
		s := r.of(l)
		r.blocks(s, 0, l, r.pool.Admit(s, get[int](l, 2), get[int](l, 3), get[int](l, 4), kvcache.Admission{
			Whole: get[bool](l, 5), Reserve: get[int](l, 6), Watermark: get[int](l, 7), Delay: get[bool](l, 8),
		}))
	case "grow":
		s := r.of(l)
		before := len(r.pool.BlockIDs(s))
		r.blocks(s, before, l, r.pool.Allocate(s, get[int](l, 2), get[int](l, 3), get[int](l, 4)))
	case "say":
		s := r.of(l)
		for range get[int](l, 2) {
			s.Tokens = append(s.Tokens, token(r.own[get[int](l, 1)], uint64(len(s.Tokens))))
		}
	case "store":
		r.pool.Store(r.of(l), get[int](l, 2))
	case "free":
		r.pool.Free(r.of(l))
	case "reset":
		r.same(r.pool.Reset(), get[bool](l, 1))
	case "is":
		r.operations++
		r.same(r.pool.FreeBlocks(), get[int](l, 1))
		r.same(described(r.pool.TakeEvents()), get[[]any](l, 2))
	default:
		r.t.Fatalf("unknown operation %s", l)
	}
}

func (r *replay) begin(o caseOptions) {
	pool, err := kvcache.New(kvcache.Options{
		Blocks: o.Blocks, BlockSize: o.BlockSize, Caching: o.Caching, Algorithm: kvcache.Algorithm(o.Algorithm),
		Seed: o.Seed, Events: true, MaxModelLen: o.MaxModelLen, Rules: r.rules,
	})
	require.NoError(r.t, err)
	r.pool, r.name, r.number = pool, o.Name, 1
	r.sequences, r.own = map[int]*kvcache.Sequence{}, map[int]uint64{}
}

func (r *replay) of(l line) *kvcache.Sequence { return r.sequences[get[int](l, 1)] }

// same compares one result of the last operation.
func (r *replay) same(got, want any) {
	r.t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		r.t.Errorf("%s (-vLLM +ours):\n%s", r.last, diff)
	}
}

// blocks compares the ids after the first so many with the last value of l, null if
// there was no room.
func (r *replay) blocks(s *kvcache.Sequence, first int, l line, ok bool) {
	r.t.Helper()
	want := get[[]int](l, len(l)-1)
	r.same(ok, want != nil)
	if ok {
		r.same(r.pool.BlockIDs(s)[first:], want)
	}
}

// hash compares all hashes of a prompt, as the events of storing it show them.
func (r *replay) hash(l line) {
	r.t.Helper()
	size := get[int](l, 3)
	pool, err := kvcache.New(kvcache.Options{
		Blocks: 300, BlockSize: size, Caching: true, Algorithm: kvcache.Algorithm(get[string](l, 1)),
		Seed: get[string](l, 2), Events: true, Rules: r.rules,
	})
	require.NoError(r.t, err)
	prompt := get[[4]uint64](l, 4)
	s := sequence(prompt, get[extra](l, 5))
	for range get[int](l, 6) {
		s.Tokens = append(s.Tokens, token(prompt[2], uint64(len(s.Tokens))))
	}
	if !pool.Allocate(s, 0, len(s.Tokens), 0) {
		r.t.Fatalf("no room for %s", l)
	}
	got := []string{}
	for _, h := range pool.TakeEvents()[0].(kvcache.BlockStored).Hashes {
		got = append(got, hex.EncodeToString(h))
	}
	r.same(got, get[[]string](l, 7))
	r.hashes += len(got)
}

// described is the form events have in the vectors.
func described(events []kvcache.Event) []any {
	list := []any{}
	for _, e := range events {
		switch e := e.(type) {
		case kvcache.BlockStored:
			list = append(list, describedStored(e))
		case kvcache.BlockRemoved:
			list = append(list, []any{"BlockRemoved", form(e.Hash)})
		case kvcache.AllBlocksCleared:
			list = append(list, []any{"AllBlocksCleared"})
		}
	}
	return list
}

func describedStored(e kvcache.BlockStored) []any {
	var parent any
	if e.Parent != nil {
		parent = form(e.Parent)
	}
	hashes, keys, sum := []any{}, []any{}, 0.0
	for _, h := range e.Hashes {
		hashes = append(hashes, form(h))
	}
	for _, t := range e.Tokens {
		sum += float64(t)
	}
	adapter := []any{nil, nil}
	if e.LoRA.Name != "" {
		adapter = []any{float64(e.LoRA.ID), e.LoRA.Name}
	}
	for _, block := range e.Keys {
		var all []any
		for _, k := range block {
			if k.Kind == kvcache.KeyFeature {
				all = append(all, []any{k.Text, float64(k.Offset)})
			} else {
				all = append(all, k.Text)
			}
		}
		keys = append(keys, nilOr(all))
	}
	return []any{"BlockStored", hashes, parent, sum, float64(len(e.Tokens)), adapter, keys}
}

func nilOr(list []any) any {
	if list == nil {
		return nil
	}
	return list
}

func form(hash []byte) string { return fmt.Sprintf("%016x", kvcache.IntHash(hash)) }

// extra is that of a sequence in the vectors.
type extra struct {
	LoRA     *[3]any
	Salt     string
	Uncached bool
	Features [][3]any
}

// sequence makes the sequence of a prompt, which is [family, shared, own, length].
func sequence(prompt [4]uint64, e extra) *kvcache.Sequence {
	var tokens []uint32
	for i := range prompt[3] {
		source := prompt[2]
		if i < prompt[1] {
			source = prompt[0]
		}
		tokens = append(tokens, token(source, i))
	}
	s := kvcache.NewSequence(tokens)
	s.Uncached, s.Extra.Salt = e.Uncached, e.Salt
	if e.LoRA != nil {
		s.Extra.LoRA = kvcache.LoRA{ID: int64(e.LoRA[0].(float64)), Name: e.LoRA[1].(string), Path: e.LoRA[2].(string)}
	}
	for _, f := range e.Features {
		s.Extra.Features = append(s.Extra.Features, kvcache.Feature{
			ID: f[0].(string), Offset: int(f[1].(float64)), Length: int(f[2].(float64)),
		})
	}
	return s
}

// token is the one of vectors.py.
func token(source, position uint64) uint32 {
	n := uint32(source*2654435761 + position*40503 + 12345)
	return n >> (n % 29)
}

// line is one line of the vectors.
type line []json.RawMessage

func (l line) String() string {
	b, _ := json.Marshal([]json.RawMessage(l))
	return string(b[:min(len(b), 300)])
}

// get decodes one value of a line; a malformed one is a defect of the vectors.
func get[T any](l line, i int) T {
	var v T
	if err := json.Unmarshal(l[i], &v); err != nil {
		panic(fmt.Sprintf("%s: value %d: %v", l, i, err))
	}
	return v
}

// vectors yields the lines of a release.
func vectors(t *testing.T, release string) func(func(line) bool) {
	t.Helper()
	f, err := os.Open("testdata/vectors-" + release + ".jsonl.gz")
	require.NoError(t, err)
	t.Cleanup(func() { f.Close() })
	packed, err := gzip.NewReader(f)
	require.NoError(t, err)
	return func(yield func(line) bool) {
		lines := bufio.NewScanner(packed)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			var l line
			if err := json.Unmarshal(lines.Bytes(), &l); err != nil {
				t.Fatalf("%s: %v", release, err)
			}
			if !yield(l) {
				return
			}
		}
		require.NoError(t, lines.Err())
	}
}
