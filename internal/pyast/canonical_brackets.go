package pyast

import "slices"

// list writes expressions with commas between them. alone asks for the comma that makes a tuple of one.
func (w *writer) list(values []*Node, alone bool) {
	for i, value := range values {
		if i > 0 {
			w.WriteString(", ")
		}
		w.expr(value, test)
	}
	if alone && len(values) == 1 {
		w.WriteByte(',')
	}
}

func hasComma(n *Node) bool {
	return slices.ContainsFunc(n.Children, func(c *Node) bool { return c.Kind == "," })
}

func (w *writer) tuple(n *Node, place int) {
	values := elements(n)
	if len(values) == 1 && !hasComma(n) { // (x) = 1 has a tuple to the left
		w.expr(values[0], place)
		return
	}
	own := tuple
	if len(values) == 0 {
		own = place - 1 // an empty one is nothing but its parentheses
	}
	w.parenthesised(own, place, func() { w.list(values, true) })
}

func (w *writer) attribute(n *Node) {
	parts := elements(n)
	object, name := parts[0], parts[len(parts)-1]
	w.expr(object, atom)
	switch inner := unwrapped(object); {
	case inner == nil:
	case inner.Kind == "true", inner.Kind == "false", inner.Kind == "integer" && !isImaginary(w.tree.Text(inner)):
		w.WriteByte(' ') // as 1.real would be no attribute
	}
	w.WriteString("." + w.tree.Text(name))
}

// call writes arguments as a call has them: those without a name before those with one.
func (w *writer) call(n *Node) {
	w.expr(n.ByField("function"), atom)
	arguments := n.ByField("arguments")
	w.WriteByte('(')
	defer w.WriteByte(')')
	if arguments.Kind == "generator_expression" {
		w.expr(arguments, test)
		return
	}
	all := elements(arguments)
	slices.SortStableFunc(all, func(a, b *Node) int { return namedLast(a) - namedLast(b) })
	for i, argument := range all {
		if i > 0 {
			w.WriteString(", ")
		}
		switch argument.Kind {
		case "keyword_argument":
			w.WriteString(w.tree.Text(argument.ByField("name")) + "=")
			w.expr(argument.ByField("value"), test)
		case "dictionary_splat":
			w.after("**", argument, test)
		default:
			w.expr(argument, test)
		}
	}
}

func namedLast(argument *Node) int {
	if argument.Kind == "keyword_argument" || argument.Kind == "dictionary_splat" {
		return 1
	}
	return 0
}

// subscript writes x[…]. An annotation may hold it as a name and its type parameters.
func (w *writer) subscript(n *Node) {
	parts := elements(n)
	w.expr(parts[0], atom)
	brackets, indexes := n, parts[1:]
	if n.Kind == "generic_type" && len(parts) == 2 {
		brackets, indexes = parts[1], elements(parts[1])
	}
	comma := hasComma(brackets)
	if len(indexes) == 1 && !comma {
		switch index := unwrapped(indexes[0]); {
		case index == nil:
		case index.Kind == "tuple" && first(index) != nil: // x[(a, b)] is x[a, b]
			indexes, comma = elements(index), true
		case index.Kind == "list_splat", index.Kind == "splat_type": // x[*a] is x[*a,]
			comma = true
		}
	}
	w.WriteByte('[')
	w.list(indexes, comma)
	w.WriteByte(']')
}

// slice writes a:b:c. A second colon without anything behind it goes.
func (w *writer) slice(n *Node) {
	colons := 0
	for _, child := range n.Children {
		switch {
		case child.Kind == ":":
			if colons++; colons == 1 {
				w.WriteByte(':')
			}
		case child.filler():
		default:
			if colons == 2 {
				w.WriteByte(':')
			}
			w.expr(child, test)
		}
	}
}

func (w *writer) dictionary(n *Node) {
	w.WriteByte('{')
	for i, item := range elements(n) {
		if i > 0 {
			w.WriteString(", ")
		}
		if item.Kind == "dictionary_splat" {
			w.after("**", item, bitOr)
			continue
		}
		w.pair(item)
	}
	w.WriteByte('}')
}

func (w *writer) pair(n *Node) {
	w.expr(n.ByField("key"), test)
	w.WriteString(": ")
	w.expr(n.ByField("value"), test)
}

func (w *writer) comprehension(n *Node) {
	w.WriteString(n.Children[0].Kind) // the bracket
	for child := range n.NamedChildren() {
		switch child.Kind {
		case "for_in_clause":
			w.forIn(child)
		case "if_clause":
			w.WriteString(" if ")
			w.expr(first(child), test+1)
		case "pair":
			w.pair(child)
		default:
			w.expr(child, test)
		}
	}
	w.WriteString(n.Children[len(n.Children)-1].Kind)
}

func (w *writer) forIn(n *Node) {
	if n.Children[0].Kind == "async" {
		w.WriteString(" async")
	}
	w.WriteString(" for ")
	w.expr(n.ByField("left"), tuple)
	w.WriteString(" in ")
	w.expr(n.ByField("right"), test+1)
}

func (w *writer) lambda(n *Node) {
	w.WriteString("lambda")
	if parameters := n.ByField("parameters"); parameters != nil {
		w.WriteByte(' ')
		w.parameters(parameters)
	}
	w.WriteString(": ")
	w.expr(n.ByField("body"), test)
}

// parameters writes those of a function or lambda, without parentheses.
func (w *writer) parameters(n *Node) {
	for i, parameter := range elements(n) {
		if i > 0 {
			w.WriteString(", ")
		}
		w.parameter(parameter)
	}
}

func (w *writer) parameter(n *Node) {
	switch n.Kind {
	case "typed_parameter":
		w.parameter(first(n))
		w.WriteString(": ")
		w.expr(n.ByField("type"), test)
	case "default_parameter", "typed_default_parameter":
		w.WriteString(w.tree.Text(n.ByField("name")))
		if annotation := n.ByField("type"); annotation != nil {
			w.WriteString(": ")
			w.expr(annotation, test)
		}
		w.WriteByte('=')
		w.expr(n.ByField("value"), test)
	case "list_splat_pattern":
		w.after("*", n, atom)
	case "dictionary_splat_pattern":
		w.after("**", n, atom)
	default:
		w.tokens(n)
	}
}
