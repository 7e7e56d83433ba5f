package pyast

import (
	"errors"
	"fmt"
	"math/big"
	"strconv"
	"strings"
)

// Values of literals that Go has no type for. A list is an []any.
type (
	// A Tuple is what Python writes in parentheses.
	Tuple []any
	// A Set is in the order of the source.
	Set []any
	// A Dict is in the order of the source, a key that is there twice too.
	Dict []Item
	// An Item is a key of a Dict and its value.
	Item struct{ Key, Value any }
)

// Literal returns the value of an expression that is a literal: nil for None, bool, int64, *big.Int for what does not
// fit, float64, string, []byte, and [Tuple], []any, [Set] and [Dict] of these. Anything else is an error that names the
// line and the expression, an f-string too, even one without a placeholder.
func Literal(t *Tree, n *Node) (any, error) {
	if n == nil {
		return nil, errors.New("no expression: want a literal")
	}
	if broken := t.ErrorsIn(n); len(broken) > 0 {
		return nil, broken[0]
	}
	return t.literal(n)
}

func (t *Tree) literal(n *Node) (any, error) {
	switch n.Kind {
	case "none":
		return nil, nil
	case "true", "false":
		return n.Kind == "true", nil
	case "integer", "float":
		return t.number(n)
	case "string", "concatenated_string":
		return t.stringValue(n)
	case "parenthesized_expression", "type":
		return t.inner(n)
	case "unary_operator":
		return t.signed(n)
	case "tuple", "expression_list":
		values, err := t.values(n)
		return Tuple(values), err
	case "list":
		return t.values(n)
	case "set":
		values, err := t.values(n)
		return Set(values), err
	case "dictionary":
		return t.dict(n)
	}
	return nil, t.noLiteral(n)
}

func (t *Tree) noLiteral(n *Node) error {
	return fmt.Errorf("line %d: %s is no literal", n.Line, excerpt(t.Text(n)))
}

// inner returns the value of the one expression within n.
func (t *Tree) inner(n *Node) (any, error) {
	for child := range n.NamedChildren() {
		return t.literal(child)
	}
	return nil, t.noLiteral(n)
}

// values returns those of the elements of n, and an empty slice for none.
func (t *Tree) values(n *Node) ([]any, error) {
	values := []any{}
	for child := range n.NamedChildren() {
		value, err := t.literal(child)
		if err != nil {
			return nil, err
		}
		values = append(values, value)
	}
	return values, nil
}

func (t *Tree) dict(n *Node) (Dict, error) {
	items := Dict{}
	for pair := range n.NamedChildren() {
		if pair.Kind != "pair" {
			return nil, t.noLiteral(pair)
		}
		key, err := t.literal(pair.ByField("key"))
		if err != nil {
			return nil, err
		}
		value, err := t.literal(pair.ByField("value"))
		if err != nil {
			return nil, err
		}
		items = append(items, Item{key, value})
	}
	return items, nil
}

// signed returns the value of a number with a sign before it.
func (t *Tree) signed(n *Node) (any, error) {
	sign := t.Text(n.ByField("operator"))
	value, err := t.literal(n.ByField("argument"))
	if err != nil {
		return nil, err
	}
	switch value := value.(type) {
	case int64, *big.Int, float64:
		if sign == "+" {
			return value, nil
		}
		if sign == "-" {
			return negative(value), nil
		}
	}
	return nil, t.noLiteral(n)
}

func negative(value any) any {
	switch value := value.(type) {
	case int64:
		return integer(new(big.Int).Neg(big.NewInt(value)))
	case *big.Int:
		return integer(new(big.Int).Neg(value))
	case float64:
		return -value
	}
	return value
}

// integer returns i as an int64 if it fits.
func integer(i *big.Int) any {
	if i.IsInt64() {
		return i.Int64()
	}
	return i
}

// number returns the value of a number without a sign.
func (t *Tree) number(n *Node) (any, error) {
	text := t.Text(n)
	if n.Kind == "float" {
		value, err := strconv.ParseFloat(strings.ReplaceAll(text, "_", ""), 64)
		if err != nil && value == 0 { // beyond the range it is infinite, for Python too
			return nil, t.noLiteral(n)
		}
		return value, nil
	}
	// A number of Python 2 may begin with a zero, and is an octal one for Go.
	if digits := strings.Trim(text, "0_"); text[0] == '0' && digits != "" && digits[0] >= '0' && digits[0] <= '9' {
		return nil, t.noLiteral(n)
	}
	value, ok := new(big.Int).SetString(text, 0)
	if !ok {
		return nil, t.noLiteral(n)
	}
	return integer(value), nil
}
