package pyast

import (
	"errors"
	"fmt"
	"math/big"
	"strconv"
	"strings"
	"unicode/utf8"
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
func Literal(n *Node) (any, error) {
	if n == nil {
		return nil, errors.New("no expression: want a literal")
	}
	if broken := n.Errors(); len(broken) > 0 {
		return nil, broken[0]
	}
	return literal(n)
}

func literal(n *Node) (any, error) {
	switch n.Kind {
	case "none":
		return nil, nil
	case "true", "false":
		return n.Kind == "true", nil
	case "integer", "float":
		return numberValue(n)
	case "string", "concatenated_string":
		return stringValue(n)
	case "parenthesized_expression", "type":
		if inner := first(n); inner != nil {
			return literal(inner)
		}
	case "unary_operator":
		return signed(n)
	case "tuple", "expression_list":
		values, err := literals(n)
		return Tuple(values), err
	case "list":
		return literals(n)
	case "set":
		values, err := literals(n)
		return Set(values), err
	case "dictionary":
		items := Dict{}
		for pair := range n.NamedChildren() {
			if pair.Kind != "pair" {
				return nil, noLiteral(pair)
			}
			key, err := literal(pair.ByField("key"))
			if err != nil {
				return nil, err
			}
			value, err := literal(pair.ByField("value"))
			if err != nil {
				return nil, err
			}
			items = append(items, Item{key, value})
		}
		return items, nil
	}
	return nil, noLiteral(n)
}

func noLiteral(n *Node) error {
	return fmt.Errorf("line %d: %s is not a literal", n.Line, excerpt(n.Text()))
}

// literals returns the values of the elements of n, and an empty slice for none.
func literals(n *Node) ([]any, error) {
	values := []any{}
	for child := range n.NamedChildren() {
		value, err := literal(child)
		if err != nil {
			return nil, err
		}
		values = append(values, value)
	}
	return values, nil
}

// signed returns the value of a number with a sign before it.
func signed(n *Node) (any, error) {
	sign := n.ByField("operator").Text()
	if sign != "+" && sign != "-" {
		return nil, noLiteral(n)
	}
	value, err := literal(n.ByField("argument"))
	if err != nil {
		return nil, err
	}
	negative := value
	switch value := value.(type) {
	case int64:
		negative = integer(new(big.Int).Neg(big.NewInt(value)))
	case *big.Int:
		negative = integer(new(big.Int).Neg(value))
	case float64:
		negative = -value
	default:
		return nil, noLiteral(n)
	}
	if sign == "-" {
		return negative, nil
	}
	return value, nil
}

// integer returns i as an int64 if it fits.
func integer(i *big.Int) any {
	if i.IsInt64() {
		return i.Int64()
	}
	return i
}

// numberValue returns the value of a number without a sign.
func numberValue(n *Node) (any, error) {
	text := n.Text()
	if n.Kind == "float" {
		value, err := strconv.ParseFloat(strings.ReplaceAll(text, "_", ""), 64)
		if err != nil && value == 0 { // beyond the range it is infinite, for Python too
			return nil, noLiteral(n)
		}
		return value, nil
	}
	// A number of Python 2 may begin with a zero, and is an octal one for Go.
	if digits := strings.Trim(text, "0_"); text[0] == '0' && digits != "" && digits[0] >= '0' && digits[0] <= '9' {
		return nil, noLiteral(n)
	}
	value, ok := new(big.Int).SetString(text, 0)
	if !ok {
		return nil, noLiteral(n)
	}
	return integer(value), nil
}

// stringValue returns the value of a string, or of several that stand side by side: a string or []byte.
func stringValue(n *Node) (any, error) {
	var text strings.Builder
	kind := byte(0)
	for _, at := range stringsOf(n) {
		prefix := prefixOf(at)
		if strings.ContainsAny(prefix, "ft") {
			return nil, fmt.Errorf("line %d: %s is not a literal: its value is made when it runs", at.Line, excerpt(at.Text()))
		}
		value, err := decode(at, prefix)
		if err != nil {
			return nil, fmt.Errorf("line %d: %s: %w", at.Line, excerpt(at.Text()), err)
		}
		of := byte('s')
		if strings.Contains(prefix, "b") {
			of = 'b'
		}
		if kind != 0 && kind != of {
			return nil, fmt.Errorf("line %d: strings and bytes side by side", at.Line)
		}
		kind = of
		text.WriteString(value)
	}
	switch kind {
	case 's':
		return text.String(), nil
	case 'b':
		return []byte(text.String()), nil
	}
	return nil, noLiteral(n)
}

// stringsOf returns the parts of a string.
func stringsOf(n *Node) []*Node {
	if n.Kind == "concatenated_string" {
		return elements(n)
	}
	return []*Node{n}
}

// prefixOf returns the letters before the quote, in lower case.
func prefixOf(n *Node) string {
	if len(n.Children) == 0 || n.Children[0].Kind != "string_start" {
		return ""
	}
	return strings.ToLower(strings.TrimRight(n.Children[0].Text(), `"'`))
}

// decode returns what a string without placeholders holds; bytes as the bytes they are.
func decode(n *Node, prefix string) (string, error) {
	last := len(n.Children) - 1
	if last < 1 || n.Children[0].Kind != "string_start" || n.Children[last].Kind != "string_end" {
		return "", errors.New("no whole string")
	}
	start := n.Children[0]
	marks := start.End - start.Start - len(prefix)
	// Not where the last child starts: that of r"\\" has the whole text in it.
	return unescape(n.tree.newlines(start.End, n.End-marks), prefix)
}

// newlines returns a piece of the source with the line ends that Python sees.
func (t *Tree) newlines(start, end int) string {
	return newlines.Replace(string(t.Source[start:end]))
}

var newlines = strings.NewReplacer("\r\n", "\n", "\r", "\n")

// unescape replaces the escape sequences of a text. As in Python, a backslash before anything else stays.
func unescape(text, prefix string) (string, error) {
	isBytes := strings.Contains(prefix, "b")
	if i := strings.IndexFunc(text, func(r rune) bool { return r >= utf8.RuneSelf }); isBytes && i >= 0 {
		return "", errors.New("bytes may hold ASCII only")
	}
	if strings.Contains(prefix, "r") {
		return text, nil
	}
	var out strings.Builder
	for {
		before, rest, found := strings.Cut(text, `\`)
		out.WriteString(before)
		if !found {
			return out.String(), nil
		}
		size, err := escape(&out, rest, isBytes)
		if err != nil {
			return "", err
		}
		text = rest[size:]
	}
}

// simpleEscapes are those of one letter, in pairs: the letter and what it stands for.
const simpleEscapes = "\n\x00\\\\''\"\"a\ab\bf\fn\nr\rt\tv\v"

// escape writes what the sequence at the start of text stands for, which follows a backslash, and returns its length.
func escape(out *strings.Builder, text string, isBytes bool) (size int, err error) {
	if text == "" {
		return 0, errors.New("a backslash at the end")
	}
	c := text[0]
	for i := 0; i < len(simpleEscapes); i += 2 {
		if simpleEscapes[i] == c {
			if c != '\n' { // the line goes on
				out.WriteByte(simpleEscapes[i+1])
			}
			return 1, nil
		}
	}
	digits := 0
	switch {
	case c >= '0' && c <= '7':
		for digits < 3 && digits < len(text) && text[digits] >= '0' && text[digits] <= '7' {
			digits++
		}
		return digits, writeCode(out, text[:digits], 8, isBytes)
	case c == 'x':
		digits = 2
	case c == 'u' && !isBytes:
		digits = 4
	case c == 'U' && !isBytes:
		digits = 8
	case c == 'N' && !isBytes:
		return 0, errors.New(`a character by its name, \N{…}, cannot be told here`)
	default:
		out.WriteByte('\\')
		return 0, nil
	}
	if len(text) <= digits {
		return 0, fmt.Errorf(`\%c needs %d digits`, c, digits)
	}
	return 1 + digits, writeCode(out, text[1:1+digits], 16, isBytes)
}

func writeCode(out *strings.Builder, digits string, base int, isBytes bool) error {
	code, err := strconv.ParseUint(digits, base, 32)
	switch {
	case err != nil:
		return fmt.Errorf("%q are no digits of base %d", digits, base)
	case isBytes:
		out.WriteByte(byte(code)) // Python takes the low byte of an octal one above 255 too
	case code > utf8.MaxRune || code >= 0xd800 && code <= 0xdfff:
		return fmt.Errorf("U+%04X is not a character", code)
	default:
		out.WriteRune(rune(code))
	}
	return nil
}
