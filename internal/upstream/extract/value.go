package extract

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"math"
	"math/big"
	"slices"
	"strconv"
	"strings"

	"github.com/vllm-vcr/conformance/internal/base/jsonout"
	"github.com/vllm-vcr/conformance/internal/upstream/pyast"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// evaluate returns the value of an expression that is a literal, the name of a constant, or a member of an enum.
func (x *extractor) evaluate(m *module, n *pyast.Node) (value any, known bool) {
	for range maxHops {
		if value, err := pyast.Literal(n); err == nil {
			return value, true
		}
		if n.Kind != "identifier" && n.Kind != "attribute" {
			break
		}
		ref := x.resolve(m, strings.TrimSuffix(n.Text(), ".value"))
		if ref.def == nil || ref.doubt != "" || ref.def.condition != "" || ref.def.again > 0 {
			break
		}
		if ref.def.kind == aClass && ref.rest != "" {
			value, known = x.class(reference{module: ref.module, name: ref.name, def: ref.def}).values[ref.rest]
			return value, known
		}
		if ref.def.kind != aValue || ref.rest != "" {
			break
		}
		m, n = ref.module, ref.def.node
	}
	return nil, false
}

// jsonOf returns a value as a profile has it: bytes as "0x00", tuples and sets as lists, floats with a point.
func jsonOf(value any) (text json.RawMessage, ok bool) {
	list := func(values []any) (json.RawMessage, bool) {
		parts := make([][]byte, len(values))
		for i, v := range values {
			text, ok := jsonOf(v)
			if !ok {
				return nil, false
			}
			parts[i] = text
		}
		return slices.Concat([]byte("["), bytes.Join(parts, []byte(",")), []byte("]")), true
	}
	switch v := value.(type) {
	case nil:
		return json.RawMessage("null"), true
	case bool, int64, string:
		return marshal(v), true
	case *big.Int:
		return json.RawMessage(v.String()), true
	case float64:
		text := strconv.FormatFloat(v, 'g', -1, 64)
		if !strings.ContainsAny(text, ".e") {
			text += ".0"
		}
		return json.RawMessage(text), !math.IsInf(v, 0) && !math.IsNaN(v)
	case []byte:
		return marshal("0x" + hex.EncodeToString(v)), true
	case pyast.Tuple:
		return list(v)
	case pyast.Set:
		return list(v)
	case []any:
		return list(v)
	case pyast.Dict:
		parts := make([][]byte, len(v))
		for i, item := range v {
			key, isText := item.Key.(string)
			value, ok := jsonOf(item.Value)
			if !isText || !ok {
				return nil, false
			}
			parts[i] = slices.Concat(marshal(key), []byte(":"), value)
		}
		return slices.Concat([]byte("{"), bytes.Join(parts, []byte(",")), []byte("}")), true
	}
	return nil, false
}

// marshal returns a bool, an integer or a text as JSON.
func marshal(v any) json.RawMessage {
	text, _ := jsonout.Line(v) // cannot fail
	return bytes.TrimSpace(text)
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
func (x *extractor) preset(m *module, n *pyast.Node) preset {
	if n == nil || n.Kind == "ellipsis" {
		return preset{required: true}
	}
	if n.Kind == "call" && slices.Contains(fieldMakers, x.resolve(m, n.ByField("function").Text()).external) {
		return x.fieldCall(m, n.ByField("arguments"))
	}
	value, known := x.evaluate(m, n)
	text, ok := jsonOf(value)
	switch {
	case known && value == nil:
		return preset{}
	case known && ok:
		return preset{value: text}
	}
	return preset{value: marshal(pyast.Canonical(n))}
}

// fieldCall reads field(default=..., default_factory=..., name=...).
func (x *extractor) fieldCall(m *module, arguments *pyast.Node) preset {
	p, wireName := preset{required: true}, ""
	for n := range arguments.NamedChildren() {
		value := n.ByField("value")
		switch name := n.ByField("name").Text(); {
		case n.Kind != "keyword_argument": // pydantic takes the default without its name
			p = x.preset(m, n)
		case name == "default":
			p = x.preset(m, value)
		case name == "default_factory":
			p = x.factory(m, value)
		case name == "name":
			literal, _ := pyast.Literal(value)
			var isText bool
			if wireName, isText = literal.(string); !isText {
				wireName = pyast.Canonical(value)
			}
		}
	}
	p.wireName = wireName
	return p
}

// factory returns a default that is made anew for each object: an empty container, or a struct with its own defaults, which
// is an empty one of its kind here.
func (x *extractor) factory(m *module, n *pyast.Node) preset {
	ref := x.resolve(m, n.Text())
	switch ref.external {
	case "builtins.list", "builtins.set", "builtins.tuple", "builtins.frozenset":
		return preset{value: json.RawMessage("[]")}
	case "builtins.dict":
		return preset{value: json.RawMessage("{}")}
	}
	if ref.def != nil && ref.def.kind == aClass && ref.rest == "" {
		switch c := x.class(ref); c.kind {
		case structClass, dataClass, tupleClass:
			if c.encoding() == "array" {
				return preset{value: json.RawMessage("[]")}
			}
			return preset{value: json.RawMessage("{}")}
		}
	}
	return preset{value: marshal(pyast.Canonical(n) + "()")}
}

// What a name may be assigned that is a type and no struct. What calls of anything else make is known only when they run.
var (
	typeVariables = []string{
		"typing.TypeVar", "typing.ParamSpec", "typing_extensions.TypeVar", "typing_extensions.ParamSpec",
	}
	newTypes = []string{"typing.NewType", "typing_extensions.NewType"}
)

// readAlias takes a name that annotations use, and that stands for another type. It becomes a constant, whose value is
// that type, as what it permits is of the wire: PauseMode is Literal['abort', 'wait', 'keep'].
func (x *extractor) readAlias(w wanted) {
	ref, what := w.ref, "type "+w.ref.name
	m, n := ref.module, ref.def.node
	if n.Kind == "call" {
		function := n.ByField("function")
		arguments := slices.Collect(n.ByField("arguments").NamedChildren())
		switch maker := x.resolve(m, function.Text()).external; {
		case slices.Contains(typeVariables, maker):
		case slices.Contains(newTypes, maker) && len(arguments) == 2:
			x.takeConstant(ref, marshal(x.annotation(m, arguments[1], what)))
		default:
			x.gapAt(m, ref.def.statement, what, "it is made by a call of "+pyast.Canonical(function)+
				", so that what it is, is known only when it runs ("+w.why.what+")")
		}
		return
	}
	if _, err := pyast.Literal(n); err == nil && n.Kind != "string" && n.Kind != "none" {
		x.gapAt(m, ref.def.statement, what, "it is used as a type, and is the value "+pyast.Canonical(n))
		return
	}
	text := x.annotation(m, n, what)
	x.checkConstant(ref, what)
	x.takeConstant(ref, marshal(text))
}

// classMakers make a class at run time. What they make in the module of the wire is taken to be of it.
var classMakers = []string{
	"msgspec.defstruct", "dataclasses.make_dataclass", "collections.namedtuple", "typing.NamedTuple", "builtins.type",
	"enum.Enum", "enum.IntEnum", "enum.StrEnum",
}

// constant takes a name that nothing uses as a type: its value if it is a literal, the type if it is one, or nothing.
func (x *extractor) constant(ref reference) {
	n := ref.def.node
	if value, err := pyast.Literal(n); err == nil {
		if text, ok := jsonOf(value); ok {
			x.checkConstant(ref, "constant "+ref.name)
			x.takeConstant(ref, text)
		}
		return
	}
	switch n.Kind {
	case "subscript", "generic_type", "binary_operator", "union_type", "type":
		x.reach(ref, reason{ref.module, ref.def.statement.Line, "type " + ref.name})
	case "call": // it becomes a gap
		if slices.Contains(classMakers, x.resolve(ref.module, n.ByField("function").Text()).external) {
			x.reach(ref, reason{ref.module, ref.def.statement.Line, "class " + ref.name})
		}
	}
}

// checkConstant notes that a name may have another value.
func (x *extractor) checkConstant(ref reference, what string) {
	if ref.def.condition != "" {
		x.gapAt(ref.module, ref.def.statement, what, "it is declared "+ref.def.condition)
	}
	if ref.def.again > 0 {
		x.gapAt(ref.module, ref.def.statement, what, "it is declared more than once")
	}
}

func (x *extractor) takeConstant(ref reference, value json.RawMessage) {
	x.taken[ref.def] = true
	x.profile.Constants[ref.name] = protocol.Constant{
		Place: protocol.Place{Module: ref.module.path, At: ref.def.statement.Line}, Value: value,
	}
}
