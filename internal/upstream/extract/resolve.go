package extract

import (
	"fmt"
	"slices"
	"strings"

	"github.com/vllm-vcr/conformance/internal/upstream/pyast"
)

// A reference is what a name means.
type reference struct {
	module   *module     // of vLLM that declares it
	name     string      // there
	def      *definition // nil if it is not of vLLM, or not found
	rest     string      // what of it is meant: "FINAL_ONLY" of RequestOutputKind.FINAL_ONLY
	external string      // dotted name elsewhere: "msgspec.Struct", "builtins.int"
	lost     string      // why it was not found, if so
	doubt    string      // why it may be another, if so
	later    string      // why it may become another when its module has run to the end, if so
}

// why returns why a name leads to nothing of vLLM.
func (r reference) why() string {
	if r.external != "" {
		return "it is " + r.external + ", which is not of vLLM"
	}
	return r.lost
}

// builtins are the names that need no import and may stand in annotations and class headers.
var builtins = []string{
	"object", "bool", "int", "float", "complex", "str", "bytes", "bytearray", "memoryview", "list", "tuple", "dict",
	"set", "frozenset", "type", "slice", "range", "None", "Exception", "BaseException",
}

// maxHops bounds how often a name is imported from one module to the next.
const maxHops = 16

// resolve finds what a dotted name means in a module. It follows imports and re-exports within vLLM.
func (l *library) resolve(m *module, dotted string) reference {
	return l.follow(m, dotted, route{stars: true})
}

// A route is how a name was followed until now.
type route struct {
	hops  int
	stars bool // what imports everything behind a definition is looked at
}

func (r route) next() route { return route{r.hops + 1, r.stars} }

func (l *library) follow(m *module, dotted string, way route) reference {
	if way.hops > maxHops {
		return reference{lost: "its imports lead in a circle"}
	}
	head, rest, _ := strings.Cut(dotted, ".")
	d := m.defs[head]
	if d == nil {
		return l.followStars(m, dotted, way)
	}
	ref := reference{module: m, name: head, def: d, rest: rest}
	if d.kind == anImport {
		ref = l.followImport(m, d, rest, way)
		if d.again > 0 && ref.doubt == "" {
			ref.doubt = fmt.Sprintf("%s:%d imports it from elsewhere than line %d", m.path, d.statement.Line, d.again)
		}
	}
	if ref.later != "" || !way.stars {
		return ref
	}
	// An import of everything, behind the definition, may put another in its place.
	for _, s := range m.stars {
		if s.statement.Start < d.statement.End {
			continue
		}
		if isOurs(s.from) {
			if there := l.loadWhole(s.from); there != nil {
				other := l.follow(there, dotted, route{hops: way.hops + 1})
				if other.lost != "" || other.def == ref.def && other.external == ref.external {
					continue
				}
			}
		}
		ref.later = fmt.Sprintf("%s:%d imports everything from %s, which may have another", m.path, s.statement.Line, s.from)
		break
	}
	return ref
}

// followStars looks where the module imports everything from, last first, and among the names that Python knows.
func (l *library) followStars(m *module, dotted string, way route) reference {
	for _, s := range slices.Backward(m.stars) {
		if !isOurs(s.from) {
			continue
		}
		there := l.loadWhole(s.from)
		if there == nil {
			return reference{lost: "it may come from " + s.from + ", which cannot be read"}
		}
		if ref := l.follow(there, dotted, way.next()); ref.def != nil || ref.external != "" {
			return ref
		}
	}
	if slices.Contains(builtins, dotted) {
		return reference{external: "builtins." + dotted}
	}
	lost := m.path + " neither declares nor imports it"
	if len(m.errors) > 0 {
		lost += " in what can be read of it: " + m.errors[0].Error()
	}
	return reference{lost: lost}
}

func (l *library) followImport(m *module, d *definition, rest string, way route) reference {
	switch {
	case !isOurs(d.module):
		return reference{external: joinDots(d.module, d.name, rest)}
	case d.name == "":
		return l.inModule(d.module, rest, way)
	case d.module == m.name: // from . import name, in the package itself
		return l.inModule(joinDots(d.module, d.name), rest, way)
	}
	there := l.loadWhole(d.module)
	if there == nil {
		return l.noModule(d.module)
	}
	ref := l.follow(there, joinDots(d.name, rest), way.next())
	if below := joinDots(d.module, d.name); ref.lost != "" && l.load(below) != nil { // the name is that of a module in the package
		return l.inModule(below, rest, way)
	}
	return ref
}

// inModule finds a dotted name that starts in the module itself, or in one below it.
func (l *library) inModule(name, rest string, way route) reference {
	there := l.loadWhole(name)
	head, below, _ := strings.Cut(rest, ".")
	switch {
	case rest == "":
		return reference{lost: name + " is a module"}
	case there != nil && (there.defs[head] != nil || below == ""):
		return l.follow(there, rest, way.next())
	case below == "":
		return l.noModule(name)
	}
	return l.inModule(joinDots(name, head), below, way.next())
}

func (l *library) noModule(name string) reference {
	if m := l.load(name); m != nil {
		return reference{lost: m.path + " cannot be parsed: " + m.broken.Error()}
	}
	return reference{lost: "there is no module " + name}
}

func isOurs(module string) bool { return module == ours || strings.HasPrefix(module, ours+".") }

func joinDots(parts ...string) string {
	parts = slices.DeleteFunc(parts, func(s string) bool { return s == "" })
	return strings.Join(parts, ".")
}

// resolveIn is resolve for a name within a function, which may import what it needs by itself; nil is none.
func (l *library) resolveIn(m *module, function *pyast.Node, dotted string) reference {
	head, _, _ := strings.Cut(dotted, ".")
	for ; function != nil; function = enclosingFunction(function) {
		local := &module{name: m.name, path: m.path, defs: map[string]*definition{}}
		for n := range function.ByField("body").All() {
			if n.Kind == "import_from_statement" || n.Kind == "import_statement" {
				local.imports(n, "")
			}
		}
		if local.defs[head] != nil {
			return l.resolve(local, dotted)
		}
	}
	return l.resolve(m, dotted)
}

// resolveType is resolveIn for a type. A name that only stands for another is that other.
func (l *library) resolveType(m *module, function *pyast.Node, dotted string) reference {
	ref := l.resolveIn(m, function, dotted)
	for range maxHops {
		if ref.def == nil || ref.def.kind != aValue || ref.rest != "" || ref.def.again > 0 || ref.def.condition != "" {
			break
		}
		if n := ref.def.node; n.Kind != "identifier" && n.Kind != "attribute" {
			break
		}
		ref = l.resolve(ref.module, ref.def.node.Text())
	}
	return ref
}

// enclosingFunction returns the function that a node is in, or nil.
func enclosingFunction(n *pyast.Node) *pyast.Node {
	for n = n.Parent; n != nil && n.Kind != "function_definition"; n = n.Parent {
	}
	return n
}

// enclosingName returns the name of the function that a node is in, or "".
func enclosingName(n *pyast.Node) string { return enclosingFunction(n).ByField("name").Text() }

// scope returns the function or class that a node is in, or nil.
func scope(n *pyast.Node) *pyast.Node {
	for n = n.Parent; n != nil; n = n.Parent {
		switch n.Kind {
		case "function_definition", "class_definition", "lambda":
			return n
		}
	}
	return nil
}

// isLocal reports whether a function has a parameter or a variable of that name.
func isLocal(function *pyast.Node, name string) bool {
	for ; function != nil; function = enclosingFunction(function) {
		for n := range function.ByField("parameters").NamedChildren() {
			if parameterName(n) == name {
				return true
			}
		}
		if bindsIn(function, name) {
			return true
		}
	}
	return false
}

// bindsIn reports whether an assignment, a loop or a comprehension in a function sets a variable.
func bindsIn(function *pyast.Node, name string) bool {
	for n := range function.ByField("body").All() {
		switch n.Kind {
		case "assignment", "for_statement", "for_in_clause":
			for target := range n.ByField("left").All() {
				if target.Kind == "identifier" && target.Text() == name {
					return true
				}
			}
		}
	}
	return false
}

func parameterName(n *pyast.Node) string {
	if name := n.ByField("name"); name != nil {
		return name.Text()
	}
	if n.Kind == "typed_parameter" {
		for first := range n.NamedChildren() {
			return first.Text()
		}
	}
	return n.Text()
}

// lastName returns the last part of a dotted name.
func lastName(n *pyast.Node) string {
	text := n.Text()
	return text[strings.LastIndexByte(text, '.')+1:]
}
