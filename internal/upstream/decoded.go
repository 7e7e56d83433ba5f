package upstream

import (
	"strings"

	"github.com/vllm-vcr/conformance/internal/pyast"
)

// decodedTypes reaches what both sides decode: the types that they pass to msgspec, or to the decoder of vLLM.
func (x *extractor) decodedTypes() error {
	for _, name := range []string{coreModule, clientModule, utilsModule, coordinatorModule} {
		m, err := x.load(name)
		if err != nil {
			return err
		}
		if m == nil || m.broken != nil {
			continue // a gap already
		}
		for n := range m.tree.Root.All() {
			if n.Kind != "call" {
				continue
			}
			if of := decodedType(m.tree, n); of != nil {
				if err := x.reachDecoded(m, n, of); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// decodedType is the argument of a call that names the type to decode to, if it has one.
func decodedType(t *pyast.Tree, call *pyast.Node) *pyast.Node {
	function := t.Text(call.ByField("function"))
	last := function[strings.LastIndexByte(function, '.')+1:]
	var positional []*pyast.Node
	for n := range call.ByField("arguments").NamedChildren() {
		if n.Kind != "keyword_argument" {
			positional = append(positional, n)
			continue
		}
		decodes := last == "decode" || last == "convert" || last == "Decoder"
		if decodes && t.Text(n.ByField("name")) == "type" {
			return n.ByField("value")
		}
	}
	switch {
	case (last == "MsgpackDecoder" || last == "Decoder") && len(positional) > 0:
		return positional[0]
	case function == "msgspec.convert" && len(positional) > 1:
		return positional[1]
	}
	return nil
}

func (x *extractor) reachDecoded(m *module, call, of *pyast.Node) error {
	function := enclosingFunction(call)
	if head, _, _ := strings.Cut(m.tree.Text(of), "."); isLocal(m.tree, function, head) {
		return nil // whoever calls this function, or what it looks at, names the type
	}
	what := "what is decoded by " + pyast.Canonical(m.tree, call)
	a := &annotation{x: x, m: m, tree: m.tree, what: what, from: function}
	a.text(of)
	return a.err
}

// enclosingFunction is the function that a node is in, or nil.
func enclosingFunction(n *pyast.Node) *pyast.Node {
	for n = n.Parent; n != nil && n.Kind != "function_definition"; n = n.Parent {
	}
	return n
}

// isLocal tells whether a function has a parameter or a variable of that name.
func isLocal(t *pyast.Tree, function *pyast.Node, name string) bool {
	for ; function != nil; function = enclosingFunction(function) {
		for n := range function.ByField("parameters").NamedChildren() {
			if parameterName(t, n) == name {
				return true
			}
		}
		for n := range function.ByField("body").All() {
			if binds(t, n, name) {
				return true
			}
		}
	}
	return false
}

// binds tells whether an assignment, a loop or a comprehension sets a variable.
func binds(t *pyast.Tree, n *pyast.Node, name string) bool {
	switch n.Kind {
	case "assignment", "for_statement", "for_in_clause":
		for target := range n.ByField("left").All() {
			if target.Kind == "identifier" && t.Text(target) == name {
				return true
			}
		}
	}
	return false
}

func parameterName(t *pyast.Tree, n *pyast.Node) string {
	if name := n.ByField("name"); name != nil {
		return t.Text(name)
	}
	if n.Kind == "typed_parameter" {
		for first := range n.NamedChildren() {
			return t.Text(first)
		}
	}
	return t.Text(n)
}

// resolveIn is resolve for a name within a function, which may import what it needs by itself.
func (x *extractor) resolveIn(m *module, function *pyast.Node, dotted string) (reference, error) {
	for ; function != nil; function = enclosingFunction(function) {
		local := &module{name: m.name, path: m.path, tree: m.tree, defs: map[string]*definition{}}
		for n := range function.ByField("body").All() {
			if n.Kind == "import_from_statement" || n.Kind == "import_statement" {
				local.imports(n, "")
			}
		}
		head, _, _ := strings.Cut(dotted, ".")
		if local.defs[head] != nil {
			return x.resolve(local, dotted)
		}
	}
	return x.resolve(m, dotted)
}
