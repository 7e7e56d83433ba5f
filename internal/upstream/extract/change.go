package extract

import (
	"maps"
	"slices"
	"strings"

	"github.com/vllm-vcr/conformance/internal/upstream/pyast"
)

// changes looks in all modules that were read for statements that make something of the wire other than its declaration
// says: that bind its name anew, take it away, or change its parts. What a module that was not read does stays unseen.
func (x *extractor) changes() {
	known := map[string]bool{} // names of what is of the wire
	for _, defs := range []map[*definition]bool{x.reached, x.taken} {
		for d := range defs {
			known[d.declared] = true
		}
	}
	for _, name := range slices.Sorted(maps.Keys(x.modules)) {
		m := x.loadWhole(name)
		if m == nil {
			continue
		}
		for n := range m.tree.Root.All() {
			for _, target := range changed(n) {
				if slices.ContainsFunc(strings.Split(target, "."), func(part string) bool { return known[part] }) {
					x.change(m, n, target)
				}
			}
		}
	}
}

// change notes what a statement changes, if it is of the wire.
func (x *extractor) change(m *module, n *pyast.Node, target string) {
	head, _, _ := strings.Cut(target, ".")
	if n.Kind != "global_statement" && isLocal(enclosingFunction(n), head) {
		return
	}
	ref := x.resolve(m, target)
	if ref.def == nil || !x.reached[ref.def] && !x.taken[ref.def] {
		return
	}
	if ref.rest != "" && !strings.HasPrefix(ref.rest, "_") {
		return // an attribute of the class, which is not written
	}
	what := "constant "
	if ref.def.kind == aClass {
		what = "class "
	}
	x.gapAt(m, n, what+ref.name, "it is changed after its declaration: "+firstLine(n))
}

// changed returns the dotted names that a node binds, deletes or changes, but for the plain assignments, classes,
// functions and imports that are declarations.
func changed(n *pyast.Node) []string {
	switch left := n.ByField("left"); n.Kind {
	case "assignment":
		if left == nil || left.Kind == "identifier" {
			return nil
		}
		return targets(left)
	case "augmented_assignment", "for_statement":
		return targets(left)
	case "named_expression":
		return targets(n.ByField("name"))
	case "as_pattern_target", "delete_statement":
		return targetsBelow(n)
	case "global_statement": // the names that its function may bind in the module, if it does
		var bound []string
		for child := range n.NamedChildren() {
			if bindsIn(enclosingFunction(n), child.Text()) {
				bound = append(bound, child.Text())
			}
		}
		return bound
	case "call":
		return changedByCall(n)
	}
	return nil
}

// targets returns the dotted names that an assignment to a node changes. Those of a function or a class body are its own.
func targets(n *pyast.Node) []string {
	text := n.Text()
	if n == nil {
		return nil
	}
	switch n.Kind {
	case "identifier":
		if scope(n) == nil {
			return []string{text}
		}
	case "attribute":
		if isDotted(text) {
			return []string{text}
		}
	case "subscript": // of x["key"]: x, or what the dictionary of a module's names has by the key
		value := n.ByField("value")
		if isNamespace(value) {
			if name, is := textOf(n.ByField("subscript")); is {
				return []string{name}
			}
			return nil // the module has computed names
		}
		if value.Kind == "attribute" && isDotted(value.Text()) {
			return []string{value.Text()}
		}
	case "pattern_list", "tuple_pattern", "list_pattern", "expression_list", "tuple", "list", "list_splat_pattern",
		"parenthesized_expression":
		return targetsBelow(n)
	}
	return nil
}

func targetsBelow(n *pyast.Node) []string {
	var all []string
	for child := range n.NamedChildren() {
		all = append(all, targets(child)...)
	}
	return all
}

func isDotted(text string) bool {
	for part := range strings.SplitSeq(text, ".") {
		if part == "" || strings.ContainsAny(part, " \t\r\n()[]{}\"'\\") {
			return false
		}
	}
	return true
}

// changedByCall returns the names that a call changes: setattr(X, …), X.__annotations__.update(…), and extend(X) where
// nothing takes the result.
func changedByCall(call *pyast.Node) []string {
	function := call.ByField("function").Text()
	if object, inner, is := strings.Cut(function, ".__"); is && strings.Contains(inner, "__.") && isDotted(function) {
		return []string{object}
	}
	arguments := slices.Collect(call.ByField("arguments").NamedChildren())
	if len(arguments) == 0 || arguments[0].Kind != "identifier" && arguments[0].Kind != "attribute" {
		return nil
	}
	object := arguments[0].Text()
	switch {
	case !isDotted(object):
		return nil
	case function == "setattr" || function == "delattr":
		names := []string{object}
		if len(arguments) > 1 {
			if name, is := textOf(arguments[1]); is && isDotted(name) {
				names = append(names, object+"."+name)
			}
		}
		return names
	case call.Parent.Kind == "expression_statement" && scope(call) == nil:
		return []string{object}
	}
	return nil
}
