package selftest

import (
	"github.com/vllm-vcr/conformance/internal/wire/pack"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// node is a value of a MessagePack message: a container of nodes, or the bytes of
// a scalar as they came.
type node struct {
	kind  pack.Kind
	leaf  []byte  // of a scalar
	items []*node // of a container; of a map: key, value, key, value
}

// parse reads a message whole.
func parse(message []byte) (*node, error) {
	if err := pack.Validate(message); err != nil {
		return nil, err
	}
	return nodeOf(protocol.ViewOf(message)), nil
}

// nodeOf is a value as a node that can be changed.
func nodeOf(v protocol.Value) *node {
	n := &node{kind: v.Kind()}
	if n.kind != pack.Array && n.kind != pack.Map {
		n.leaf = v.Bytes()
	}
	for part := range v.Parts() {
		if n.kind == pack.Map {
			n.items = append(n.items, nodeOf(part.Key()))
		}
		n.items = append(n.items, nodeOf(part))
	}
	return n
}

// bytes writes the message.
func (n *node) bytes() []byte { return n.append(nil) }

func (n *node) append(b []byte) []byte {
	switch n.kind {
	case pack.Array:
		b = pack.AppendArrayHeader(b, len(n.items))
	case pack.Map:
		b = pack.AppendMapHeader(b, len(n.items)/2)
	default:
		return append(b, n.leaf...)
	}
	for _, item := range n.items {
		b = item.append(b)
	}
	return b
}

// value returns the value of a text key of a map, nil if it has none.
func (n *node) value(key string) *node {
	for i := 0; i+1 < len(n.items) && n.kind == pack.Map; i += 2 {
		if n.items[i].isText(key) {
			return n.items[i+1]
		}
	}
	return nil
}

// isText reports whether the node is this str.
func (n *node) isText(s string) bool {
	return n.kind == pack.String && n.text() == s
}

// text is the str that the node is, else "".
func (n *node) text() string {
	return protocol.ViewOf(n.leaf).Text()
}

// isNil reports whether the node is nil.
func (n *node) isNil() bool { return n.kind == pack.Nil }

// become makes the node another one.
func (n *node) become(other *node) { *n = *other }

func array(items ...*node) *node { return &node{kind: pack.Array, items: items} }

func text(s string) *node { return &node{kind: pack.String, leaf: pack.AppendString(nil, s)} }

func null() *node { return &node{kind: pack.Nil, leaf: pack.AppendNil(nil)} }

func number(v uint64) *node { return &node{kind: pack.Int, leaf: pack.AppendUint(nil, v)} }

// numbers is an array of token ids.
func numbers(values []uint32) *node {
	n := array()
	for _, v := range values {
		n.items = append(n.items, number(uint64(v)))
	}
	return n
}
