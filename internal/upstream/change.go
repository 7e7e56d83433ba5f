package upstream

import (
	"maps"
	"slices"
	"strings"

	"github.com/vllm-vcr/conformance/internal/pyast"
)

// changes looks in all modules that were read for statements that make something of the wire other than its declaration
// says: that bind its name anew, take it away, or change its parts. What a module that was not read does stays unseen.
func (x *extractor) changes() error {
	known := map[string]bool{}
	for _, defs := range []map[*definition]bool{x.reached, x.taken} {
		for d := range defs {
			known[d.declared] = true
		}
	}
	for _, name := range slices.Sorted(maps.Keys(x.modules)) {
		m := x.modules[name]
		if m == nil || m.broken != nil {
			continue
		}
		for n := range m.tree.Root.All() {
			for _, target := range changed(m.tree, n) {
				if err := x.change(m, n, target, known); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// change notes what a statement changes, if it is of the wire.
func (x *extractor) change(m *module, n *pyast.Node, target string, known map[string]bool) error {
	parts := strings.Split(target, ".")
	function := enclosingFunction(n)
	isOfWire := slices.ContainsFunc(parts, func(part string) bool { return known[part] })
	if !isOfWire || n.Kind != "global_statement" && isLocal(m.tree, function, parts[0]) {
		return nil
	}
	ref, err := x.resolve(m, target)
	if err != nil || ref.def == nil || !x.reached[ref.def] && !x.taken[ref.def] {
		return err
	}
	if ref.rest != "" && !strings.HasPrefix(ref.rest, "_") {
		return nil // an attribute of the class, which is not written
	}
	what := "constant "
	if ref.def.kind == aClass {
		what = "class "
	}
	x.gapAt(m, n, what+ref.name, "it is changed after its declaration: "+firstLine(m.tree, n))
	return nil
}

// firstLine is what a message shows of a statement.
func firstLine(t *pyast.Tree, n *pyast.Node) string {
	line, _, _ := strings.Cut(t.Text(n), "\n")
	return strings.TrimRight(line, "\r")
}

// changed returns the dotted names that a node binds, deletes or changes, but for the plain assignments, classes,
// functions and imports that are declarations.
func changed(t *pyast.Tree, n *pyast.Node) []string {
	switch n.Kind {
	case "assignment":
		if left := n.ByField("left"); left == nil || left.Kind == "identifier" {
			return nil
		}
		return targets(t, n.ByField("left"))
	case "augmented_assignment":
		return targets(t, n.ByField("left"))
	case "for_statement":
		return targets(t, n.ByField("left"))
	case "named_expression":
		return targets(t, n.ByField("name"))
	case "as_pattern_target", "delete_statement":
		return below(t, n)
	case "global_statement":
		return globalNames(t, n)
	case "call":
		return changedByCall(t, n)
	}
	return nil
}

// targets are the dotted names that an assignment to a node changes. Those of a function or a class body are its own.
func targets(t *pyast.Tree, n *pyast.Node) []string {
	if n == nil {
		return nil
	}
	switch n.Kind {
	case "identifier":
		if scope(n) != nil {
			return nil
		}
		return []string{t.Text(n)}
	case "attribute":
		if text := t.Text(n); isDotted(text) {
			return []string{text}
		}
	case "subscript":
		return subscripted(t, n)
	case "pattern_list", "tuple_pattern", "list_pattern", "expression_list", "tuple", "list", "list_splat_pattern",
		"parenthesized_expression":
		return below(t, n)
	}
	return nil
}

func below(t *pyast.Tree, n *pyast.Node) []string {
	var all []string
	for child := range n.NamedChildren() {
		all = append(all, targets(t, child)...)
	}
	return all
}

// subscripted are the names that x["key"] = value changes: x, or what the dictionary of a module's names has by the key.
func subscripted(t *pyast.Tree, n *pyast.Node) []string {
	value := n.ByField("value")
	if !isNamespace(t, value) {
		if text := t.Text(value); value.Kind == "attribute" && isDotted(text) {
			return []string{text}
		}
		return nil
	}
	key, err := pyast.Literal(t, n.ByField("subscript"))
	if name, isText := key.(string); err == nil && isText {
		return []string{name}
	}
	return nil // the module says it: see computesNames
}

// isNamespace tells the calls that return the names of a module.
func isNamespace(t *pyast.Tree, n *pyast.Node) bool {
	switch t.Text(n) {
	case "globals()":
		return true
	case "vars()", "locals()":
		return scope(n) == nil
	}
	return false
}

// scope is the function or class that a node is in, or nil.
func scope(n *pyast.Node) *pyast.Node {
	for n = n.Parent; n != nil; n = n.Parent {
		switch n.Kind {
		case "function_definition", "class_definition", "lambda":
			return n
		}
	}
	return nil
}

func isDotted(text string) bool {
	for part := range strings.SplitSeq(text, ".") {
		if part == "" || strings.ContainsAny(part, " \t\r\n()[]{}\"'\\") {
			return false
		}
	}
	return true
}

// globalNames are the names that a function may bind in its module, if it does.
func globalNames(t *pyast.Tree, n *pyast.Node) []string {
	var bound []string
	function := enclosingFunction(n)
	for child := range n.NamedChildren() {
		for at := range function.ByField("body").All() {
			if name := t.Text(child); binds(t, at, name) {
				bound = append(bound, name)
				break
			}
		}
	}
	return bound
}

// changedByCall are the names that a call changes: setattr(X, …), X.__annotations__.update(…), and extend(X) where
// nothing takes the result.
func changedByCall(t *pyast.Tree, call *pyast.Node) []string {
	var first, second *pyast.Node
	for n := range call.ByField("arguments").NamedChildren() {
		if first == nil {
			first = n
		} else if second == nil {
			second = n
		}
	}
	function := t.Text(call.ByField("function"))
	if object, inner, is := strings.Cut(function, ".__"); is && strings.Contains(inner, "__.") && isDotted(function) {
		return []string{object}
	}
	if first == nil || first.Kind != "identifier" && first.Kind != "attribute" || !isDotted(t.Text(first)) {
		return nil
	}
	switch {
	case function == "setattr" || function == "delattr":
		names := []string{t.Text(first)}
		if name, err := pyast.Literal(t, second); second != nil && err == nil {
			if text, isText := name.(string); isText && isDotted(text) {
				names = append(names, t.Text(first)+"."+text)
			}
		}
		return names
	case call.Parent.Kind == "expression_statement" && scope(call) == nil:
		return []string{t.Text(first)}
	}
	return nil
}

// computesNames returns what in a module sets names that only running it tells, and how: by exec, or in the dictionary of
// its names. A function __getattr__ answers for names that are not there, and keeps them so.
func computesNames(t *pyast.Tree) (at *pyast.Node, how string) {
	for n := range t.Root.All() {
		switch n.Kind {
		case "call":
			switch function := t.Text(n.ByField("function")); {
			case (function == "exec" || function == "eval") && n.Parent.Kind == "expression_statement" && scope(n) == nil:
				return n, "its module runs text as code by " + function
			case function == "globals().update" || function == "vars().update" && scope(n) == nil:
				return n, "its module sets names that are known only when it runs: " + firstLine(t, n)
			}
		case "assignment":
			if computesTarget(t, n.ByField("left")) {
				return n, "its module sets names that are known only when it runs: " + firstLine(t, n)
			}
		}
	}
	return nil, ""
}

// computesTarget tells the assignments to a name of the module that is computed, and to modules themselves.
func computesTarget(t *pyast.Tree, left *pyast.Node) bool {
	if left == nil || left.Kind != "subscript" {
		return false
	}
	value := left.ByField("value")
	if t.Text(value) == "sys.modules" {
		return true
	}
	if !isNamespace(t, value) || enclosingName(t, left) == "__getattr__" {
		return false
	}
	_, err := pyast.Literal(t, left.ByField("subscript"))
	return err != nil
}
