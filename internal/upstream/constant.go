package upstream

import (
	"maps"
	"slices"
	"strings"

	"github.com/vllm-vcr/conformance/internal/protocol"
	"github.com/vllm-vcr/conformance/internal/pyast"
)

// What a name may be assigned that is a type and no struct. Calls of anything else make what only running tells.
var (
	typeVariables = []string{
		"typing.TypeVar", "typing.ParamSpec", "typing_extensions.TypeVar", "typing_extensions.ParamSpec",
	}
	newTypes = []string{"typing.NewType", "typing_extensions.NewType"}
)

// readAlias takes a name that annotations use, and that stands for another type. It becomes a constant, whose value is
// that type, as what it permits is of the wire: PauseMode is Literal['abort', 'wait', 'keep'].
func (x *extractor) readAlias(w wanted) error {
	ref, what := w.ref, "type "+w.ref.name
	n := ref.def.node
	if n.Kind == "call" {
		return x.readCallAlias(w)
	}
	if _, isLiteral := constantOf(ref.module, n); isLiteral && n.Kind != "string" && n.Kind != "none" {
		value := pyast.Canonical(ref.module.tree, n)
		x.gapAt(ref.module, ref.def.statement, what, "it is used as a type, and is the value "+value)
		return nil
	}
	text, err := x.annotation(ref.module, n, what)
	if err != nil {
		return err
	}
	x.doubtful(ref, what)
	x.takeConstant(ref, marshal(text))
	return nil
}

func (x *extractor) readCallAlias(w wanted) error {
	ref, what := w.ref, "type "+w.ref.name
	m, n := ref.module, ref.def.node
	function, err := x.resolve(m, m.tree.Text(n.ByField("function")))
	if err != nil {
		return err
	}
	switch {
	case slices.Contains(typeVariables, function.external):
		return nil
	case slices.Contains(newTypes, function.external):
		var arguments []*pyast.Node
		arguments = slices.AppendSeq(arguments, n.ByField("arguments").NamedChildren())
		if len(arguments) == 2 {
			text, err := x.annotation(m, arguments[1], what)
			x.takeConstant(ref, marshal(text))
			return err
		}
	}
	x.gapAt(m, ref.def.statement, what, "it is made by a call of "+pyast.Canonical(m.tree, n.ByField("function"))+
		", so that only running it tells what it is ("+w.why.what+")")
	return nil
}

// constant takes a name that nothing uses as a type: its value if it is a literal, the type if it is one, or nothing.
func (x *extractor) constant(ref reference) error {
	value, isLiteral := constantOf(ref.module, ref.def.node)
	if isLiteral {
		if text, ok := jsonOf(value); ok {
			x.doubtful(ref, "constant "+ref.name)
			x.takeConstant(ref, text)
		}
		return nil
	}
	switch ref.def.node.Kind {
	case "subscript", "generic_type", "binary_operator", "union_type", "type":
		x.reach(ref, reason{ref.module, ref.def.statement.Line, "type " + ref.name})
	case "call":
		return x.reachMade(ref)
	}
	return nil
}

// classMakers make a class at run time. What they make in the module of the wire is taken to be of it.
var classMakers = []string{
	"msgspec.defstruct", "dataclasses.make_dataclass", "collections.namedtuple", "typing.NamedTuple", "builtins.type",
	"enum.Enum", "enum.IntEnum", "enum.StrEnum",
}

// reachMade reaches a class that a call makes, so that it becomes a gap.
func (x *extractor) reachMade(ref reference) error {
	function, err := x.resolve(ref.module, ref.module.tree.Text(ref.def.node.ByField("function")))
	if err != nil || !slices.Contains(classMakers, function.external) {
		return err
	}
	x.reach(ref, reason{ref.module, ref.def.statement.Line, "class " + ref.name})
	return nil
}

func constantOf(m *module, n *pyast.Node) (value any, isLiteral bool) {
	value, err := pyast.Literal(m.tree, n)
	return value, err == nil
}

// doubtful notes that a name may have another value.
func (x *extractor) doubtful(ref reference, what string) {
	if ref.def.condition != "" {
		x.gapAt(ref.module, ref.def.statement, what, "it is declared "+ref.def.condition)
	}
	if ref.def.again > 0 {
		x.gapAt(ref.module, ref.def.statement, what, "it is declared more than once")
	}
}

func (x *extractor) takeConstant(ref reference, value []byte) {
	x.taken[ref.def] = true
	x.profile.Constants[ref.name] = protocol.Constant{
		Place: protocol.Place{Module: ref.module.path, At: ref.def.statement.Line}, Value: value,
	}
}

// encoderCodes takes the extension types of MessagePack: what the encoder passes to msgpack.Ext.
func (x *extractor) encoderCodes() error {
	const what = "extension types of MessagePack"
	m, err := x.need(serialModule, what)
	if err != nil || m == nil {
		return err
	}
	found := false
	for n := range m.tree.Root.All() {
		if n.Kind != "call" || !strings.HasSuffix(m.tree.Text(n.ByField("function")), "msgpack.Ext") {
			continue
		}
		for code := range n.ByField("arguments").NamedChildren() {
			ref, err := x.resolve(m, m.tree.Text(code))
			if err != nil {
				return err
			}
			if ref.def == nil || ref.def.kind != aValue {
				x.gapAt(m, n, what, "the type is no constant of a module: "+pyast.Canonical(m.tree, code))
				break
			}
			found = true
			if err := x.constant(ref); err != nil {
				return err
			}
			break
		}
	}
	if !found {
		x.gap(m, 0, what, "nothing calls msgpack.Ext with a constant")
	}
	return nil
}

// eventMedia takes the names of where a block may be, MEDIUM_GPU and its like.
func (x *extractor) eventMedia() error {
	m, err := x.need(eventsModule, "media of KV cache events")
	if err != nil || m == nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(m.defs)) {
		d := m.defs[name]
		if d.kind == aValue && strings.HasPrefix(name, "MEDIUM_") {
			if err := x.constant(reference{module: m, name: name, def: d}); err != nil {
				return err
			}
		}
	}
	return nil
}
