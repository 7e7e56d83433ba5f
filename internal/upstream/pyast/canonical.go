package pyast

import (
	"math"
	"math/big"
	"slices"
	"strconv"
	"strings"
)

// Canonical returns an expression, an annotation or the parameters of a function as one line of text that does not
// depend on how they are laid out: it is what `ast.unparse` of Python 3.11 writes. So `"a"` becomes 'a', 0x10 becomes
// 16, comments, line breaks, trailing commas and needless parentheses go, `Optional[ int ]` becomes Optional[int], and
// parameters come out as (self, x: int=1, *, y). An annotation in quotes stays a string.
//
// What could not be parsed, or is no expression, comes out as its tokens with one space between them. Of no node it is "".
func Canonical(n *Node) string {
	w := &writer{}
	if len(n.Errors()) > 0 {
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

// precedence is that of expressions by their kind, and of operators; all else binds as an atom.
var precedence = map[string]int{
	"named_expression": named, "yield": yielded, "lambda": test, "conditional_expression": test, "not_operator": not,
	"comparison_operator": compare, "union_type": bitOr, "unary_operator": factor, "await": await,

	"+": arith, "-": arith, "*": term, "@": term, "/": term, "%": term, "//": term, "<<": shift, ">>": shift,
	"|": bitOr, "^": bitXor, "&": bitAnd, "**": power, "and": and, "or": or,
}

// A writer writes the canonical text of a tree.
type writer struct {
	strings.Builder
	// noBackslash: within a placeholder of an f-string, where strings are quoted so that they need none.
	noBackslash bool
}

// expr writes an expression where one that binds at least as place is wanted.
func (w *writer) expr(n *Node, place int) {
	if n == nil {
		return
	}
	operator := n.ByField("operator").Text()
	own, found := precedence[n.Kind]
	switch n.Kind {
	case "parenthesized_expression", "type", "as_pattern_target":
		w.expr(first(n), place)
		return
	case "binary_operator", "boolean_operator":
		own, found = precedence[operator], true
	case "tuple", "tuple_pattern", "expression_list", "pattern_list":
		values := elements(n)
		if len(values) == 1 && !hasComma(n) { // (x) = 1 has a tuple to the left
			w.expr(values[0], place)
			return
		}
		if own, found = tuple, true; len(values) == 0 {
			own = place - 1 // an empty one is nothing but its parentheses
		}
	}
	if found && place > own {
		w.WriteByte('(')
		defer w.WriteByte(')')
	}
	switch n.Kind {
	case "binary_operator":
		left, right := own, own+1
		if operator == "**" {
			left, right = own+1, own
		}
		w.expr(n.ByField("left"), left)
		w.WriteString(" " + operator + " ")
		w.expr(n.ByField("right"), right)
	case "union_type":
		// The grammar may have `a[b] | c | d` as a[b] and the rest, which has no parentheses for that.
		for i, alternative := range alternatives(n, nil) {
			if i > 0 {
				w.WriteString(" | ")
			}
			w.expr(alternative, bitOr+1)
		}
	case "boolean_operator":
		w.boolean(n, operator, own)
	case "comparison_operator":
		for _, child := range n.Children {
			switch {
			case child.filler():
			case child.Field == "operators":
				w.WriteString(" " + strings.Join(strings.Fields(child.Text()), " ") + " ")
			default:
				w.expr(child, compare+1)
			}
		}
	case "unary_operator":
		w.WriteString(operator)
		w.expr(n.ByField("argument"), factor)
	case "not_operator":
		w.WriteString("not ")
		w.expr(n.ByField("argument"), not)
	case "conditional_expression":
		parts := elements(n)
		if len(parts) != 3 {
			w.tokens(n)
			break
		}
		w.expr(parts[0], test+1)
		w.WriteString(" if ")
		w.expr(parts[1], test+1)
		w.WriteString(" else ")
		w.expr(parts[2], test)
	case "named_expression":
		w.expr(n.ByField("name"), atom)
		w.WriteString(" := ")
		w.expr(n.ByField("value"), atom)
	case "await":
		w.after("await ", n, atom)
	case "yield":
		w.WriteString("yield")
		if slices.ContainsFunc(n.Children, func(child *Node) bool { return child.Kind == "from" }) {
			w.WriteString(" from")
		}
		if first(n) != nil {
			w.after(" ", n, atom)
		}
	case "lambda":
		w.WriteString("lambda")
		if parameters := n.ByField("parameters"); parameters != nil {
			w.WriteByte(' ')
			w.parameters(parameters)
		}
		w.WriteString(": ")
		w.expr(n.ByField("body"), test)
	case "tuple", "tuple_pattern", "expression_list", "pattern_list":
		w.list(elements(n), true)
	default:
		w.primary(n)
	}
}

// boolean writes a chain of one operator: `a or b or c` has three values, whereas (a or b) or c has two.
func (w *writer) boolean(n *Node, operator string, own int) {
	var values []*Node // from the right
	left := n
	for left.Kind == n.Kind && left.ByField("operator").Text() == operator {
		values = append(values, left.ByField("right"))
		left = left.ByField("left")
	}
	w.expr(left, own+1)
	for i, value := range slices.Backward(values) {
		w.WriteString(" " + operator + " ")
		// Each value binds tighter than the one before: so counts ast.unparse.
		w.expr(value, min(own+1+len(values)-i, atom))
	}
}

func alternatives(n *Node, all []*Node) []*Node {
	switch {
	case n.Kind == "type":
		return alternatives(first(n), all)
	case n.Kind == "union_type", n.Kind == "binary_operator" && n.ByField("operator").Text() == "|":
		for side := range n.NamedChildren() {
			all = alternatives(side, all)
		}
		return all
	}
	return append(all, n)
}

// primary writes what binds as an atom.
func (w *writer) primary(n *Node) {
	switch n.Kind {
	case "attribute", "member_type":
		parts := elements(n)
		w.expr(parts[0], atom)
		switch object := unwrapped(parts[0]); {
		case object == nil:
		case object.Kind == "true", object.Kind == "false", object.Kind == "integer" && !isImaginary(object.Text()):
			w.WriteByte(' ') // as 1.real would be no attribute
		}
		w.WriteString("." + parts[len(parts)-1].Text())
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
	case "set", "dictionary":
		w.WriteByte('{')
		w.list(elements(n), false)
		w.WriteByte('}')
	case "pair":
		w.expr(n.ByField("key"), test)
		w.WriteString(": ")
		w.expr(n.ByField("value"), test)
	case "dictionary_splat":
		w.after("**", n, bitOr)
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
func elements(n *Node) []*Node { return slices.Collect(n.NamedChildren()) }

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

func hasComma(n *Node) bool {
	return slices.ContainsFunc(n.Children, func(c *Node) bool { return c.Kind == "," })
}

// after writes the one expression within n after a word.
func (w *writer) after(word string, n *Node, place int) {
	w.WriteString(word)
	w.expr(first(n), place)
}

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
		w.WriteString(separator + strings.Join(strings.Fields(n.Text()), " "))
		separator = " "
	}
	visit(n)
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
	var positional, byName []*Node
	for argument := range arguments.NamedChildren() {
		if argument.Kind == "keyword_argument" || argument.Kind == "dictionary_splat" {
			byName = append(byName, argument)
		} else {
			positional = append(positional, argument)
		}
	}
	for i, argument := range append(positional, byName...) {
		if i > 0 {
			w.WriteString(", ")
		}
		switch argument.Kind {
		case "keyword_argument":
			w.WriteString(argument.ByField("name").Text() + "=")
			w.expr(argument.ByField("value"), test)
		case "dictionary_splat":
			w.after("**", argument, test)
		default:
			w.expr(argument, test)
		}
	}
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

func (w *writer) comprehension(n *Node) {
	w.WriteString(n.Children[0].Kind) // the bracket
	for child := range n.NamedChildren() {
		switch child.Kind {
		case "for_in_clause":
			if child.Children[0].Kind == "async" {
				w.WriteString(" async")
			}
			w.WriteString(" for ")
			w.expr(child.ByField("left"), tuple)
			w.WriteString(" in ")
			w.expr(child.ByField("right"), test+1)
		case "if_clause":
			w.after(" if ", child, test+1)
		default:
			w.expr(child, test)
		}
	}
	w.WriteString(n.Children[len(n.Children)-1].Kind)
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
		w.WriteString(n.ByField("name").Text())
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

func isImaginary(number string) bool { return strings.HasSuffix(strings.ToLower(number), "j") }

// number writes a number as repr does.
func (w *writer) number(n *Node) {
	text := n.Text()
	if isImaginary(text) && !strings.HasPrefix(strings.ToLower(text), "0x") {
		value, _ := strconv.ParseFloat(strings.ReplaceAll(text[:len(text)-1], "_", ""), 64)
		w.WriteString(strings.TrimSuffix(floatText(value), ".0") + "j")
		return
	}
	value, _ := numberValue(n)
	switch value := value.(type) {
	case int64:
		w.WriteString(strconv.FormatInt(value, 10))
	case *big.Int:
		w.WriteString(value.String())
	case float64:
		w.WriteString(floatText(value))
	default: // of another Python: as it is written
		w.WriteString(text)
	}
}

// floatText returns what repr of Python writes, which turns to an exponent at other places than Go.
func floatText(value float64) string {
	if math.IsInf(value, 0) {
		return "1e309"
	}
	text := strconv.FormatFloat(value, 'e', -1, 64)
	_, exponent, _ := strings.Cut(text, "e")
	if e, _ := strconv.Atoi(exponent); e < -4 || e >= 16 {
		return text
	}
	text = strconv.FormatFloat(value, 'f', -1, 64)
	if !strings.Contains(text, ".") {
		text += ".0"
	}
	return text
}
