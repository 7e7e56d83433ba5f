package pyast

import (
	"encoding/binary"
	"fmt"
	"iter"
	"slices"
)

// A Tree is the syntax tree of a module.
type Tree struct {
	Source []byte
	Root   *Node // of the kind "module"; "ERROR" if nothing in it could be read

	// unseen is what the parser put in to go on and is no node: line ends and the bounds of blocks.
	unseen []Node
	// broken is whether the parser itself reports an error.
	broken bool
}

// A Node is a piece of the source. Those that are not Named are its punctuation and keywords.
type Node struct {
	Kind            string // of the grammar: "class_definition", "assignment", "="
	Named           bool
	Field           string // its role in its parent: "name", "body", "left", "type", "right"; "" without one
	Broken, Missing bool   // Broken: an ERROR node, of what could not be read; Missing: of no length, put in to go on
	Start, End      int    // bytes of Source
	Line            int    // of Start, from 1
	Parent          *Node  // nil for the root
	Children        []*Node

	tree *Tree
}

// Text returns the source of a node as it is written. Of a nil node it is "".
func (n *Node) Text() string {
	if n == nil {
		return ""
	}
	return string(n.tree.Source[n.Start:n.End])
}

// ByField returns the first child of that role, or nil if there is none. A nil node has none.
func (n *Node) ByField(name string) *Node {
	if n == nil {
		return nil
	}
	for _, child := range n.Children {
		if child.Field == name {
			return child
		}
	}
	return nil
}

// NamedChildren iterates over the children that are Named, without comments and the backslashes that continue a line.
// A nil node has none.
func (n *Node) NamedChildren() iter.Seq[*Node] {
	return func(yield func(*Node) bool) {
		if n == nil {
			return
		}
		for _, child := range n.Children {
			if child.Named && !child.filler() && !yield(child) {
				return
			}
		}
	}
}

// filler reports whether a node stands for nothing: it may be anywhere between others.
func (n *Node) filler() bool { return n.Kind == "comment" || n.Kind == "line_continuation" }

// All iterates over the node and all below it, each before what it holds.
func (n *Node) All() iter.Seq[*Node] {
	return func(yield func(*Node) bool) {
		if n == nil {
			return
		}
		for stack := []*Node{n}; len(stack) > 0; {
			last := len(stack) - 1
			at := stack[last]
			stack = stack[:last]
			if !yield(at) {
				return
			}
			for _, child := range slices.Backward(at.Children) {
				stack = append(stack, child)
			}
		}
	}
}

// A record is a node as the module writes it: five little-endian words, see wasm/pyast.c.
const (
	recordSize = 20
	flagsAt    = 3 // byte of a record
)

const (
	flagNamed = 1 << iota
	flagMissing
	flagBroken
	flagBreaksWithin
)

const symbolError = 1<<16 - 1 // has no place in the table of symbols

// tree builds the nodes of records. The first count of them are nodes, in pre-order.
func (g grammar) tree(source []byte, records []byte, count int) (*Tree, error) {
	tree := &Tree{Source: source}
	nodes := make([]Node, len(records)/recordSize)
	depth := make([]uint16, len(nodes))
	counts := make([]uint32, len(nodes)) // of children
	for i := range nodes {
		record := records[i*recordSize:]
		nodes[i].tree = tree
		if err := g.fill(&nodes[i], record); err != nil {
			return nil, err
		}
		parent := binary.LittleEndian.Uint32(record[16:])
		if nodes[i].End > len(source) || nodes[i].Start > nodes[i].End || i > 0 && int(parent) >= i {
			return nil, fmt.Errorf("the Python parser returned a tree whose node %d is impossible", i)
		}
		if i == 0 || i >= count {
			continue
		}
		nodes[i].Parent = &nodes[parent]
		counts[parent]++
		if depth[i] = depth[parent] + 1; depth[i] > MaxDepth {
			return nil, fmt.Errorf("line %d: nested deeper than %d levels", nodes[i].Line, MaxDepth)
		}
	}
	// All children are in one array.
	children := make([]*Node, count-1)
	for i, n := range counts[:count] {
		nodes[i].Children, children = children[:0:n], children[n:]
	}
	for i := range nodes[1:count] {
		n := &nodes[1+i]
		n.Parent.Children = append(n.Parent.Children, n)
	}
	tree.Root, tree.unseen = &nodes[0], nodes[count:]
	tree.broken = records[flagsAt]&flagBreaksWithin != 0
	return tree, nil
}

// fill sets what a node has of its own.
func (g grammar) fill(n *Node, record []byte) error {
	word := func(i int) int { return int(binary.LittleEndian.Uint32(record[4*i:])) }
	symbol, field, flags := word(0)&0xffff, word(0)>>16&0xff, word(0)>>24
	switch {
	case symbol == symbolError:
		n.Kind = "ERROR"
	case symbol < len(g.symbols):
		n.Kind = g.symbols[symbol]
	default:
		return fmt.Errorf("the Python parser returned a node of the unknown kind %d", symbol)
	}
	if field >= len(g.fields) {
		return fmt.Errorf("the Python parser returned a node of the unknown role %d", field)
	}
	n.Field = g.fields[field]
	n.Named, n.Missing, n.Broken = flags&flagNamed != 0, flags&flagMissing != 0, flags&flagBroken != 0
	n.Start, n.End, n.Line = word(1), word(2), word(3)+1
	return nil
}
