package conformance

import (
	"testing"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/internal/wire/pack"
)

// node is a msgpack value that a test changes: an array or a map with its parts, a
// map's keys among them, or the bytes of anything else.
type node struct {
	kind  pack.Kind
	parts []*node
	raw   []byte
}

// leaf is a value that holds no others.
func leaf(raw []byte) *node { return &node{raw: raw} }

func readNode(tb testing.TB, cur *pack.Cursor) *node {
	tb.Helper()
	n := &node{kind: cur.Kind()}
	var size int
	var err error
	switch n.kind {
	case pack.Array:
		size, err = cur.ArrayLen()
	case pack.Map:
		size, err = cur.MapLen()
		size *= 2
	default:
		n.raw, err = cur.Raw()
	}
	require.NoError(tb, err)
	for range size {
		n.parts = append(n.parts, readNode(tb, cur))
	}
	return n
}

func (n *node) append(b []byte) []byte {
	switch n.kind {
	case pack.Array:
		b = pack.AppendArrayHeader(b, len(n.parts))
	case pack.Map:
		b = pack.AppendMapHeader(b, len(n.parts)/2)
	}
	for _, p := range n.parts {
		b = p.append(b)
	}
	return append(b, n.raw...)
}

// at follows positions in arrays and keys in maps.
func (n *node) at(tb testing.TB, path ...any) *node {
	tb.Helper()
	for _, step := range path {
		switch step := step.(type) {
		case int:
			n = n.parts[step]
		case string:
			n = n.parts[n.key(tb, step)+1]
		}
	}
	return n
}

// key is the position of a key of a map.
func (n *node) key(tb testing.TB, name string) int {
	tb.Helper()
	for i := 0; i < len(n.parts); i += 2 {
		if string(n.parts[i].raw) == string(pack.AppendString(nil, name)) {
			return i
		}
	}
	tb.Fatalf("no key %q", name)
	return 0
}

// edited changes a message's first frame at a path.
func edited(tb testing.TB, frames [][]byte, change func(*node), path ...any) [][]byte {
	tb.Helper()
	cur := pack.NewCursor(frames[0])
	root := readNode(tb, &cur)
	change(root.at(tb, path...))
	return append([][]byte{root.append(nil)}, frames[1:]...)
}

// drops removes parts, with what belongs to a key.
func drops(from, count int) func(*node) {
	return func(n *node) { n.parts = append(n.parts[:from:from], n.parts[from+count:]...) }
}

// inserts adds parts.
func inserts(at int, parts ...*node) func(*node) {
	return func(n *node) {
		rest := append(parts, n.parts[at:]...)
		n.parts = append(n.parts[:at:at], rest...)
	}
}
