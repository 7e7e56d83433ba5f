package upstream

import (
	"encoding/hex"
	"encoding/json"
	"math"
	"math/big"
	"slices"
	"strconv"
	"strings"

	"github.com/vllm-vcr/conformance/internal/pyast"
)

// evaluate returns the value of an expression that is a literal, the name of a constant, or a member of an enum.
func (x *extractor) evaluate(m *module, n *pyast.Node) (value any, known bool, err error) {
	return x.evaluateAt(m, n, 0)
}

func (x *extractor) evaluateAt(m *module, n *pyast.Node, hops int) (value any, known bool, err error) {
	if value, err := pyast.Literal(m.tree, n); err == nil {
		return value, true, nil
	}
	if n.Kind != "identifier" && n.Kind != "attribute" || hops > maxHops {
		return nil, false, nil
	}
	name := strings.TrimSuffix(m.tree.Text(n), ".value")
	ref, err := x.resolve(m, name)
	if err != nil || ref.def == nil || ref.doubt != "" || ref.def.condition != "" || ref.def.again > 0 {
		return nil, false, err
	}
	switch {
	case ref.def.kind == aValue && ref.rest == "":
		return x.evaluateAt(ref.module, ref.def.node, hops+1)
	case ref.def.kind == aClass && ref.rest != "":
		c, err := x.class(reference{module: ref.module, name: ref.name, def: ref.def})
		if err != nil || c.members == nil {
			return nil, false, err
		}
		value, known = c.members.values[ref.rest]
		return value, known, nil
	}
	return nil, false, nil
}

// jsonOf is a value as a profile says it: bytes as "0x00", tuples and sets as lists, floats with a point.
func jsonOf(value any) (text json.RawMessage, ok bool) {
	switch v := value.(type) {
	case nil:
		return json.RawMessage("null"), true
	case bool, int64, string:
		return marshal(v), true
	case *big.Int:
		return json.RawMessage(v.String()), true
	case float64:
		return floatText(v)
	case []byte:
		return marshal("0x" + hex.EncodeToString(v)), true
	case pyast.Tuple:
		return listText(v)
	case pyast.Set:
		return listText(v)
	case []any:
		return listText(v)
	case pyast.Dict:
		return dictText(v)
	}
	return nil, false
}

func marshal(v any) json.RawMessage {
	var b strings.Builder
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	_ = encoder.Encode(v) // of a bool, an integer or a text: cannot fail
	return json.RawMessage(strings.TrimSpace(b.String()))
}

func floatText(f float64) (json.RawMessage, bool) {
	if math.IsInf(f, 0) || math.IsNaN(f) {
		return nil, false
	}
	text := strconv.FormatFloat(f, 'g', -1, 64)
	if !strings.ContainsAny(text, ".e") {
		text += ".0"
	}
	return json.RawMessage(text), true
}

func listText(values []any) (json.RawMessage, bool) {
	var parts []string
	for _, v := range values {
		text, ok := jsonOf(v)
		if !ok {
			return nil, false
		}
		parts = append(parts, string(text))
	}
	return json.RawMessage("[" + strings.Join(parts, ",") + "]"), true
}

func dictText(items pyast.Dict) (json.RawMessage, bool) {
	var parts []string
	for _, item := range items {
		key, isText := item.Key.(string)
		value, ok := jsonOf(item.Value)
		if !isText || !ok {
			return nil, false
		}
		parts = append(parts, string(marshal(key))+":"+string(value))
	}
	return json.RawMessage("{" + strings.Join(parts, ",") + "}"), true
}

// A preset is what a field has when nobody sets it.
type preset struct {
	required bool
	value    json.RawMessage // nil for None
	wireName string          // if the field is written by another name
}

// fieldMakers are the functions that stand for a default and more.
var fieldMakers = []string{"dataclasses.field", "msgspec.field", "pydantic.Field", "pydantic.fields.Field"}

// preset reads the default of a field. One that is known only when it runs is its source.
func (x *extractor) preset(m *module, n *pyast.Node) (preset, error) {
	if n == nil {
		return preset{required: true}, nil
	}
	if n.Kind == "ellipsis" {
		return preset{required: true}, nil
	}
	if n.Kind == "call" {
		ref, err := x.resolve(m, m.tree.Text(n.ByField("function")))
		if err != nil {
			return preset{}, err
		}
		if slices.Contains(fieldMakers, ref.external) {
			return x.fieldCall(m, n.ByField("arguments"))
		}
	}
	value, known, err := x.evaluate(m, n)
	if err != nil {
		return preset{}, err
	}
	text, ok := jsonOf(value)
	switch {
	case known && value == nil:
		return preset{}, nil
	case known && ok:
		return preset{value: text}, nil
	}
	return preset{value: marshal(pyast.Canonical(m.tree, n))}, nil
}

// fieldCall reads field(default=..., default_factory=..., name=...).
func (x *extractor) fieldCall(m *module, arguments *pyast.Node) (preset, error) {
	p := preset{required: true}
	for n := range arguments.NamedChildren() {
		var err error
		name, value := m.tree.Text(n.ByField("name")), n.ByField("value")
		was := p.wireName
		switch {
		case n.Kind != "keyword_argument": // pydantic takes the default without its name
			p, err = x.preset(m, n)
		case name == "default":
			p, err = x.preset(m, value)
		case name == "default_factory":
			p, err = x.factory(m, value)
		case name == "name":
			renamed, literalErr := pyast.Literal(m.tree, value)
			text, isText := renamed.(string)
			if literalErr != nil || !isText {
				text = pyast.Canonical(m.tree, value)
			}
			p.wireName = text
			continue
		}
		if err != nil {
			return p, err
		}
		p.wireName = was
	}
	return p, nil
}

// factory is the value of a default that is made anew for each object: an empty container, or a struct with its own
// defaults, which is an empty one of its kind here.
func (x *extractor) factory(m *module, n *pyast.Node) (preset, error) {
	ref, err := x.resolve(m, m.tree.Text(n))
	if err != nil {
		return preset{}, err
	}
	switch ref.external {
	case "builtins.list", "builtins.set", "builtins.tuple", "builtins.frozenset":
		return preset{value: json.RawMessage("[]")}, nil
	case "builtins.dict":
		return preset{value: json.RawMessage("{}")}, nil
	}
	if ref.def != nil && ref.def.kind == aClass && ref.rest == "" {
		c, err := x.class(ref)
		if err != nil {
			return preset{}, err
		}
		switch c.kind {
		case structClass, dataClass, tupleClass:
			if c.encoding() == "array" {
				return preset{value: json.RawMessage("[]")}, nil
			}
			return preset{value: json.RawMessage("{}")}, nil
		}
	}
	return preset{value: marshal(pyast.Canonical(m.tree, n) + "()")}, nil
}
