package pyast

import (
	"strings"
)

// Canonical returns an expression, an annotation or the parameters of a function as one line of text that does not
// depend on how they are laid out: it is what `ast.unparse` of Python 3.11 writes. So `"a"` becomes 'a', 0x10 becomes
// 16, comments, line breaks, trailing commas and needless parentheses go, `Optional[ int ]` becomes Optional[int], and
// parameters come out as (self, x: int=1, *, y). An annotation in quotes stays a string.
//
// What could not be parsed, or is no expression, comes out as its tokens with one space between them.
func Canonical(t *Tree, n *Node) string {
	if n == nil {
		return ""
	}
	w := &writer{tree: t}
	if len(t.ErrorsIn(n)) > 0 {
		w.tokens(n)
	} else {
		w.expr(n, test)
	}
	// Within a placeholder of an f-string a string may keep its line breaks.
	return strings.ReplaceAll(w.String(), "\n", `\n`)
}

// How tightly an expression binds, as ast.unparse counts: one that binds less than its place asks for gets parentheses.
const (
	named = iota
	tuple
	yielded
	test
	or
	and
	not
	compare
	bitOr
	bitXor
	bitAnd
	shift
	arith
	term
	factor
	power
	await
	atom
)

var binaryPrecedence = map[string]int{
	"+": arith, "-": arith, "*": term, "@": term, "/": term, "%": term, "//": term, "<<": shift, ">>": shift,
	"|": bitOr, "^": bitXor, "&": bitAnd, "**": power, "and": and, "or": or,
}

// A writer writes the canonical text of a tree.
type writer struct {
	strings.Builder
	tree *Tree
	// noBackslash: within a placeholder of an f-string, where strings are quoted so that they need none.
	noBackslash bool
}

// parenthesised writes what f does, in parentheses if an expression of precedence own does not fit its place.
func (w *writer) parenthesised(own, place int, f func()) {
	if place > own {
		w.WriteByte('(')
		defer w.WriteByte(')')
	}
	f()
}

// expr writes an expression where one that binds at least as place is wanted.
func (w *writer) expr(n *Node, place int) {
	if n == nil {
		return
	}
	switch n.Kind {
	case "binary_operator":
		w.binary(n, place)
	case "union_type":
		w.parenthesised(bitOr, place, func() { w.union(n) })
	case "boolean_operator":
		w.boolean(n, place)
	case "comparison_operator":
		w.parenthesised(compare, place, func() { w.comparison(n) })
	case "unary_operator", "not_operator":
		w.unary(n, place)
	case "conditional_expression":
		w.parenthesised(test, place, func() { w.conditional(n) })
	case "named_expression":
		w.parenthesised(named, place, func() {
			w.expr(n.ByField("name"), atom)
			w.WriteString(" := ")
			w.expr(n.ByField("value"), atom)
		})
	case "await":
		w.parenthesised(await, place, func() { w.after("await ", n, atom) })
	case "yield":
		w.parenthesised(yielded, place, func() { w.yield(n) })
	case "lambda":
		w.parenthesised(test, place, func() { w.lambda(n) })
	default:
		w.primary(n, place)
	}
}

// primary writes what has its own brackets or none.
func (w *writer) primary(n *Node, place int) {
	switch n.Kind {
	case "parenthesized_expression", "type", "as_pattern_target":
		w.expr(first(n), place)
	case "attribute", "member_type":
		w.attribute(n)
	case "call":
		w.call(n)
	case "subscript", "generic_type":
		w.subscript(n)
	case "slice", "constrained_type":
		w.slice(n)
	case "list_splat", "list_splat_pattern", "splat_type":
		w.after("*", n, bitOr)
	case "list", "list_pattern":
		w.WriteByte('[')
		w.list(elements(n), false)
		w.WriteByte(']')
	case "tuple", "tuple_pattern", "expression_list", "pattern_list":
		w.tuple(n, place)
	case "set":
		w.WriteByte('{')
		w.list(elements(n), false)
		w.WriteByte('}')
	case "dictionary":
		w.dictionary(n)
	case "list_comprehension", "set_comprehension", "dictionary_comprehension", "generator_expression":
		w.comprehension(n)
	case "parameters":
		w.WriteByte('(')
		w.parameters(n)
		w.WriteByte(')')
	case "string", "concatenated_string":
		w.string(n)
	case "integer", "float":
		w.number(n)
	case "dotted_name":
		for i, name := range elements(n) {
			if i > 0 {
				w.WriteByte('.')
			}
			w.tokens(name)
		}
	default:
		w.tokens(n)
	}
}

// elements returns the named children of a node without comments.
func elements(n *Node) []*Node {
	var all []*Node
	for child := range n.NamedChildren() {
		all = append(all, child)
	}
	return all
}

// first returns the first of the elements, or nil.
func first(n *Node) *Node {
	for child := range n.NamedChildren() {
		return child
	}
	return nil
}

// unwrapped returns the expression within parentheses, and within what stands for an annotation.
func unwrapped(n *Node) *Node {
	for n != nil && (n.Kind == "parenthesized_expression" || n.Kind == "type") {
		n = first(n)
	}
	return n
}

// after writes the one expression within n after a word.
func (w *writer) after(word string, n *Node, place int) {
	w.WriteString(word)
	w.expr(first(n), place)
}

// tokens writes the text of a node, token by token.
func (w *writer) tokens(n *Node) {
	separator := ""
	var visit func(n *Node)
	visit = func(n *Node) {
		if n.filler() {
			return
		}
		if len(n.Children) > 0 && n.Kind != "string" {
			for _, child := range n.Children {
				visit(child)
			}
			return
		}
		w.WriteString(separator + strings.Join(strings.Fields(w.tree.Text(n)), " "))
		separator = " "
	}
	visit(n)
}

func (w *writer) binary(n *Node, place int) {
	operator := w.tree.Text(n.ByField("operator"))
	own := binaryPrecedence[operator]
	left, right := own, own+1
	if operator == "**" {
		left, right = own+1, own
	}
	w.parenthesised(own, place, func() {
		w.expr(n.ByField("left"), left)
		w.WriteString(" " + operator + " ")
		w.expr(n.ByField("right"), right)
	})
}

// union writes the alternatives of an annotation. The grammar may have `a[b] | c | d` as a[b] and the rest, which has
// no parentheses for that.
func (w *writer) union(n *Node) {
	for i, alternative := range w.alternatives(n, nil) {
		if i > 0 {
			w.WriteString(" | ")
		}
		w.expr(alternative, bitOr+1)
	}
}

func (w *writer) alternatives(n *Node, all []*Node) []*Node {
	switch {
	case n.Kind == "type":
		return w.alternatives(first(n), all)
	case n.Kind == "union_type", n.Kind == "binary_operator" && w.tree.Text(n.ByField("operator")) == "|":
		for side := range n.NamedChildren() {
			all = w.alternatives(side, all)
		}
		return all
	}
	return append(all, n)
}

// boolean writes a chain of one operator: `a or b or c` has three values, whereas (a or b) or c has two.
func (w *writer) boolean(n *Node, place int) {
	operator := w.tree.Text(n.ByField("operator"))
	own := binaryPrecedence[operator]
	values := []*Node{n.ByField("right")}
	left := n.ByField("left")
	for left.Kind == n.Kind && w.tree.Text(left.ByField("operator")) == operator {
		values = append(values, left.ByField("right"))
		left = left.ByField("left")
	}
	w.parenthesised(own, place, func() {
		w.expr(left, own+1)
		for i := range values {
			w.WriteString(" " + operator + " ")
			// Each value binds tighter than the one before: so counts ast.unparse.
			w.expr(values[len(values)-1-i], min(own+2+i, atom))
		}
	})
}

func (w *writer) comparison(n *Node) {
	for _, child := range n.Children {
		switch {
		case child.filler():
		case child.Field == "operators":
			w.WriteString(" " + strings.Join(strings.Fields(w.tree.Text(child)), " ") + " ")
		default:
			w.expr(child, compare+1)
		}
	}
}

func (w *writer) unary(n *Node, place int) {
	own, operator := not, "not "
	if n.Kind == "unary_operator" {
		own, operator = factor, w.tree.Text(n.ByField("operator"))
	}
	w.parenthesised(own, place, func() {
		w.WriteString(operator)
		w.expr(n.ByField("argument"), own)
	})
}

func (w *writer) conditional(n *Node) {
	parts := elements(n)
	if len(parts) != 3 {
		w.tokens(n)
		return
	}
	w.expr(parts[0], test+1)
	w.WriteString(" if ")
	w.expr(parts[1], test+1)
	w.WriteString(" else ")
	w.expr(parts[2], test)
}

func (w *writer) yield(n *Node) {
	w.WriteString("yield")
	for _, child := range n.Children {
		if child.Kind == "from" {
			w.WriteString(" from")
		}
	}
	if value := first(n); value != nil {
		w.WriteByte(' ')
		w.expr(value, atom)
	}
}
