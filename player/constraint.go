package player

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/vllm-vcr/conformance/internal/engine/grammar"
	"github.com/vllm-vcr/conformance/internal/wire/pack"
)

// errManyConstraints and errNoConstraint are what vllm/sampling_params.py
// StructuredOutputsParams refuses.
var (
	errManyConstraints = errors.New("only one kind of constraint may be given")
	errNoConstraint    = errors.New("no constraint is given")
)

// decodeConstraint reads a StructuredOutputsParams: a map whose keys are all set, or
// only those that are not nil.
func decodeConstraint(raw []byte) (grammar.Constraint, error) {
	var c grammar.Constraint
	cur := pack.NewCursor(raw)
	n, err := cur.MapLen()
	if err != nil {
		return c, err
	}
	for range n {
		key, err := cur.StrString()
		if err != nil {
			return c, err
		}
		found, err := decodeConstraintValue(&cur, key)
		if err != nil {
			return c, fmt.Errorf("%s: %w", key, err)
		}
		if found.Kind != 0 && c.Kind != 0 {
			return c, errManyConstraints
		}
		if found.Kind != 0 {
			c = found
		}
	}
	if c.Kind == 0 {
		return c, errNoConstraint
	}
	return c, nil
}

// decodeConstraintValue returns a constraint of no kind for what is none.
func decodeConstraintValue(cur *pack.Cursor, key string) (c grammar.Constraint, err error) {
	if cur.Nil() {
		return c, nil
	}
	switch key {
	case "json":
		c.Kind = grammar.JSON
		if cur.Kind() == pack.String {
			c.Text, err = cur.StrString()
			return c, err
		}
		var text []byte
		text, err = appendAsJSON(nil, cur, 0)
		c.Text = string(text)
	case "json_object":
		var set bool
		if set, err = cur.Bool(); set {
			c.Kind = grammar.JSONObject
		}
	case "regex":
		c.Kind = grammar.Regex
		c.Text, err = cur.StrString()
	case "grammar":
		c.Kind = grammar.Grammar
		c.Text, err = cur.StrString()
	case "structural_tag":
		c.Kind = grammar.StructuralTag
		c.Text, err = cur.StrString()
	case "choice":
		c.Kind = grammar.Choice
		c.Choices, err = decodeChoices(cur)
	default:
		err = cur.Skip()
	}
	return c, err
}

func decodeChoices(cur *pack.Cursor) ([]string, error) {
	n, err := cur.ArrayLen()
	if err != nil {
		return nil, err
	}
	var choices []string
	for range n {
		text, err := cur.StrString()
		if err != nil {
			return nil, err
		}
		choices = append(choices, text)
	}
	return choices, nil
}

// deepest bounds how deep a schema may be nested.
const deepest = 512

// appendAsJSON writes a msgpack value as JSON.
func appendAsJSON(b []byte, cur *pack.Cursor, depth int) ([]byte, error) {
	if depth > deepest {
		return b, fmt.Errorf("nested more than %d deep", deepest)
	}
	switch kind := cur.Kind(); kind {
	case pack.Nil:
		cur.Nil()
		return append(b, "null"...), nil
	case pack.Bool:
		v, err := cur.Bool()
		return strconv.AppendBool(b, v), err
	case pack.Int:
		if v, err := cur.Int(); err == nil {
			return strconv.AppendInt(b, v, 10), nil
		}
		v, err := cur.Uint()
		return strconv.AppendUint(b, v, 10), err
	case pack.Float:
		v, err := cur.Float()
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return b, fmt.Errorf("%v is no JSON number", v)
		}
		return strconv.AppendFloat(b, v, 'g', -1, 64), err
	case pack.String:
		v, err := cur.StrString()
		return appendJSONString(b, v), err
	case pack.Array, pack.Map:
		return appendListAsJSON(b, cur, kind, depth)
	default:
		return b, fmt.Errorf("%s is no JSON value", kind)
	}
}

// appendListAsJSON writes an array or a map.
func appendListAsJSON(b []byte, cur *pack.Cursor, kind pack.Kind, depth int) ([]byte, error) {
	brackets, size := "[]", cur.ArrayLen
	if kind == pack.Map {
		brackets, size = "{}", cur.MapLen
	}
	n, err := size()
	if err != nil {
		return b, err
	}
	b = append(b, brackets[0])
	for i := range n {
		if i > 0 {
			b = append(b, ',')
		}
		if kind == pack.Map {
			key, err := cur.StrString()
			if err != nil {
				return b, err
			}
			b = append(appendJSONString(b, key), ':')
		}
		if b, err = appendAsJSON(b, cur, depth+1); err != nil {
			return b, err
		}
	}
	return append(b, brackets[1]), nil
}

// appendJSONString writes a string; what is not UTF-8 is replaced.
func appendJSONString(b []byte, text string) []byte {
	b = append(b, '"')
	for _, r := range strings.ToValidUTF8(text, "\ufffd") {
		switch {
		case r == '"' || r == '\\':
			b = append(b, '\\', byte(r))
		case r < ' ':
			b = fmt.Appendf(b, `\u%04x`, r)
		default:
			b = append(b, string(r)...)
		}
	}
	return append(b, '"')
}
