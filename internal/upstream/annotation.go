package upstream

import (
	"fmt"
	"slices"
	"strings"

	"github.com/vllm-vcr/conformance/internal/pyast"
)

// An annotation is read to one way of writing it, so that another spelling of the same type is no change:
// Optional["List[X]"] becomes list[X] | None. On the way, what of vLLM it names is reached.
type annotation struct {
	x    *extractor
	m    *module
	tree *pyast.Tree // of the module, or of a quoted part
	line int         // of the quoted part; 0 in the module
	what string      // for gaps: "EngineCoreRequest.params"
	from *pyast.Node // function whose own imports count too; nil for none
	err  error
}

// plainNames are modules whose names are written without them.
var plainNames = []string{"typing", "typing_extensions", "collections.abc", "builtins", "types", "concurrent.futures"}

// shortModules are written as everybody imports them.
var shortModules = []struct{ long, short string }{{"numpy", "np"}}

// lowerNames are the generics that have a builtin of their own.
var lowerNames = map[string]string{
	"List": "list", "Dict": "dict", "Tuple": "tuple", "Set": "set", "FrozenSet": "frozenset", "Type": "type",
}

// annotation returns the type that an annotation says, and reaches what it names.
func (x *extractor) annotation(m *module, n *pyast.Node, what string) (string, error) {
	a := &annotation{x: x, m: m, tree: m.tree, what: what}
	text := a.text(n)
	return text, a.err
}

func (a *annotation) gap(n *pyast.Node, why string) {
	line := a.line
	if line == 0 {
		line = n.Line
	}
	a.x.gap(a.m, line, a.what, why)
}

// text is the one way of writing the type.
func (a *annotation) text(n *pyast.Node) string {
	if n == nil || a.err != nil {
		return ""
	}
	switch n.Kind {
	case "type", "parenthesized_expression":
		for child := range n.NamedChildren() {
			return a.text(child)
		}
	case "string", "concatenated_string":
		return a.quoted(n)
	case "identifier", "attribute", "member_type":
		return a.name(n)
	case "generic_type", "subscript":
		return a.generic(n)
	case "union_type", "binary_operator":
		return a.union(n)
	case "list":
		return "[" + strings.Join(a.all(n), ", ") + "]"
	case "none":
		return "None"
	case "ellipsis":
		return "..."
	}
	if _, err := pyast.Literal(a.tree, n); err != nil {
		a.gap(n, fmt.Sprintf("its type %s is known only when it runs", pyast.Canonical(a.tree, n)))
	}
	return pyast.Canonical(a.tree, n)
}

func (a *annotation) all(n *pyast.Node) []string {
	var texts []string
	for child := range n.NamedChildren() {
		texts = append(texts, a.text(child))
	}
	return texts
}

// quoted reads a type that is written as a string.
func (a *annotation) quoted(n *pyast.Node) string {
	value, err := pyast.Literal(a.tree, n)
	text, isText := value.(string)
	if err != nil || !isText {
		a.gap(n, "its type is a string that cannot be read")
		return pyast.Canonical(a.tree, n)
	}
	tree, err := a.x.parser.Parse(a.x.ctx, []byte(strings.TrimSpace(text)))
	if err != nil || len(tree.Errors()) > 0 {
		a.gap(n, fmt.Sprintf("its type %q is no expression", text))
		return text
	}
	inner := &annotation{x: a.x, m: a.m, tree: tree, line: n.Line, what: a.what, from: a.from}
	if a.line > 0 {
		inner.line = a.line
	}
	for statement := range tree.Root.NamedChildren() {
		for expression := range statement.NamedChildren() {
			text = inner.text(expression)
			a.err = inner.err
			return text
		}
	}
	a.gap(n, fmt.Sprintf("its type %q is no expression", text))
	return text
}

// union is a | b, with None last if it was written first or by Optional.
func (a *annotation) union(n *pyast.Node) string {
	if operator := n.ByField("operator"); n.Kind == "binary_operator" && a.tree.Text(operator) != "|" {
		a.gap(n, "its type is computed by "+a.tree.Text(operator))
		return pyast.Canonical(a.tree, n)
	}
	return joinUnion(a.all(n))
}

func joinUnion(options []string) string {
	var all []string
	none := false
	for _, o := range options {
		for part := range strings.SplitSeq(o, " | ") {
			// A part of a nested type is no option: put what was within brackets together again.
			if last := len(all) - 1; last >= 0 && unbalanced(all[last]) {
				all[last] += " | " + part
				continue
			}
			all = append(all, part)
		}
	}
	all = slices.DeleteFunc(all, func(o string) bool {
		none = none || o == "None"
		return o == "None"
	})
	if none {
		all = append(all, "None")
	}
	return strings.Join(all, " | ")
}

// unbalanced tells whether a bracket of a type is still open.
func unbalanced(text string) bool {
	return strings.Count(text, "[")+strings.Count(text, "(") != strings.Count(text, "]")+strings.Count(text, ")")
}

// generic is head[arguments].
func (a *annotation) generic(n *pyast.Node) string {
	head, arguments := genericParts(n)
	name := a.text(head)
	switch name {
	case "Literal":
		return name + "[" + strings.Join(a.values(arguments), ", ") + "]"
	case "Annotated":
		if len(arguments) == 0 {
			break
		}
		parts := append([]string{a.text(arguments[0])}, a.verbatim(arguments[1:])...)
		return name + "[" + strings.Join(parts, ", ") + "]"
	}
	var texts []string
	for _, argument := range arguments {
		texts = append(texts, a.text(argument))
	}
	switch name {
	case "Optional":
		return joinUnion(append(texts, "None"))
	case "Union":
		return joinUnion(texts)
	}
	return name + "[" + strings.Join(texts, ", ") + "]"
}

// values are those of a Literal, which may be named by another one.
func (a *annotation) values(nodes []*pyast.Node) []string {
	texts := a.verbatim(nodes)
	for i, n := range nodes {
		for n.Kind == "type" && len(n.Children) == 1 {
			n = n.Children[0]
		}
		if n.Kind == "identifier" {
			texts[i] = a.name(n)
		}
	}
	return texts
}

func (a *annotation) verbatim(nodes []*pyast.Node) []string {
	var texts []string
	for _, n := range nodes {
		texts = append(texts, pyast.Canonical(a.tree, n))
	}
	return texts
}

// genericParts takes X[A, B] apart, which the grammar has two forms of.
func genericParts(n *pyast.Node) (head *pyast.Node, arguments []*pyast.Node) {
	for child := range n.NamedChildren() {
		switch {
		case head == nil:
			head = child
		case child.Kind == "type_parameter" || child.Kind == "tuple" && n.Kind == "subscript":
			arguments = slices.AppendSeq(arguments, child.NamedChildren())
		default:
			arguments = append(arguments, child)
		}
	}
	return head, arguments
}

// name is a plain or dotted name.
func (a *annotation) name(n *pyast.Node) string {
	text := pyast.Canonical(a.tree, n)
	ref, err := a.x.typeNamed(a.m, a.from, text)
	if err != nil {
		a.err = err
		return ""
	}
	switch {
	case ref.lost != "":
		a.gap(n, fmt.Sprintf("its type names %s: %s", text, ref.lost))
		return text
	case ref.external != "":
		return externalName(ref.external)
	}
	line := n.Line
	if a.line > 0 {
		line = a.line
	}
	if a.x.reach(ref, reason{a.m, line, a.what}); ref.rest != "" {
		return ref.name + "." + ref.rest
	}
	return ref.name
}

// typeNamed is resolve for a type. A name that only stands for another is that other.
func (x *extractor) typeNamed(m *module, function *pyast.Node, dotted string) (reference, error) {
	ref, err := x.resolveIn(m, function, dotted)
	for range maxHops {
		if err != nil || ref.def == nil || ref.def.kind != aValue || ref.rest != "" || ref.def.again > 0 ||
			ref.def.condition != "" {
			break
		}
		if n := ref.def.node; n.Kind != "identifier" && n.Kind != "attribute" {
			break
		}
		ref, err = x.resolve(ref.module, ref.module.tree.Text(ref.def.node))
	}
	return ref, err
}

// externalName writes a name of elsewhere as it is usually written.
func externalName(dotted string) string {
	for _, m := range plainNames {
		if name, found := strings.CutPrefix(dotted, m+"."); found {
			if lower, known := lowerNames[name]; known {
				return lower
			}
			return name
		}
	}
	for _, m := range shortModules {
		if name, found := strings.CutPrefix(dotted, m.long+"."); found {
			return m.short + "." + name
		}
	}
	if dotted == "collections.OrderedDict" || dotted == "collections.defaultdict" {
		return "dict"
	}
	return dotted
}
