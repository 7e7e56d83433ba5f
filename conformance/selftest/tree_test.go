package selftest

import (
	"slices"
	"testing"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/internal/wire/pack"
)

// FuzzTree: what parses is written with the same values, and what does not is an
// error.
func FuzzTree(f *testing.F) {
	for _, seed := range [][]byte{
		{0xc0},
		{0x93, 0x01, 0xa1, 'a', 0xc3},
		{0x82, 0xa1, 'a', 0x90, 0x07, 0x81, 0xc0, 0xcb, 0x40, 0, 0, 0, 0, 0, 0, 0},
		{0xde, 0x00, 0x01, 0xa1, 'k', 0xd4, 0x03, 0xff},
		{0xdd, 0xff, 0xff, 0xff, 0xff, 0x00},
		{0x92, 0x01},
		{0xc1},
		{},
		nested(pack.DefaultDepth), nested(pack.DefaultDepth + 1),
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, message []byte) {
		root, err := parse(message)
		if valid := pack.Validate(message); (err == nil) != (valid == nil) {
			t.Fatalf("parse: %v, validate: %v", err, valid)
		}
		if err != nil {
			return
		}
		if equal, err := pack.Equal(message, root.bytes()); err != nil || !equal {
			t.Fatalf("%s became %s (%v)", pack.Format(message), pack.Format(root.bytes()), err)
		}
	})
}

func TestTreeEdits(t *testing.T) {
	message := pack.AppendMapHeader(nil, 3)
	message = pack.AppendInt(pack.AppendString(message, "a"), 1)
	message = pack.AppendUint32s(pack.AppendInt(message, 5), []uint32{7, 8})
	message = pack.AppendNil(pack.AppendString(message, "b"))
	root, err := parse(message)
	require.NoError(t, err)
	require.True(t, root.value("c") == nil && root.value("b") != nil && root.value("b").isNil() && root.first(pack.Ext) == nil, "a key is found that is not there, or not found")
	root.remove("a")
	root.remove("c")
	root.value("b").become(text("x"))
	root.first(pack.Array).items[1] = number(300)
	if got, want := pack.Format(root.bytes()), `{5: [7, 300], "b": "x"}`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestEdits(t *testing.T) {
	tokens := []uint32{1, 2, 3}
	for _, test := range []struct {
		name  string
		edits edits
		want  []uint32
	}{
		{"none", nil, []uint32{1, 2, 3}},
		{"dropped", edits{0: nil}, []uint32{2, 3}},
		{"repeated", edits{2: {3, 3}}, []uint32{1, 2, 3, 3}},
		{"exchanged", edits{1: {3}, 2: {2}}, []uint32{1, 3, 2}},
	} {
		if got := test.edits.apply(tokens); !slices.Equal(got, test.want) {
			t.Errorf("%s: got %v, want %v", test.name, got, test.want)
		}
	}
}

func TestTarget(t *testing.T) {
	ones := func(n int) []int { return slices.Repeat([]int{1}, n) }
	counting := []uint32{1, 2, 3, 4, 5, 6, 7, 8}
	for _, test := range []struct {
		name   string
		target target
		want   bool
	}{
		{"fits", target{tokens: counting, chunks: ones(8)}, true},
		{"too short", target{tokens: counting[:7], chunks: ones(7)}, false},
		{"in one chunk", target{tokens: counting, chunks: []int{8}}, false},
		{"same as the next", target{tokens: counting, chunks: ones(8), next: counting}, false},
		{"begins alike", target{tokens: []uint32{1, 1, 3, 4, 5, 6, 7, 8}, chunks: ones(8)}, false},
		{"alike in the middle", target{tokens: []uint32{1, 2, 3, 4, 5, 5, 7, 8}, chunks: ones(8)}, false},
		{"ends alike", target{tokens: []uint32{1, 2, 3, 4, 5, 6, 8, 8}, chunks: ones(8)}, false},
	} {
		require.Equal(t, test.target.fits(), test.want, "%s", test.name)
	}
	for _, test := range []struct {
		chunks []int
		want   int
	}{{nil, -1}, {[]int{3}, -1}, {[]int{1, 2}, -1}, {[]int{1, 2, 1}, 1}, {[]int{4, 2, 1}, 0}} {
		require.Equal(t, (&target{chunks: test.chunks}).splittable(), test.want, "%v: chunk", test.chunks)
	}
}
