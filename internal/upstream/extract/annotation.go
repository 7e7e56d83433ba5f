package extract

import (
	"fmt"
	"slices"
	"strings"

	"github.com/vllm-vcr/conformance/internal/upstream/pyast"
	"github.com/vllm-vcr/conformance/internal/wire/pytype"
)

// An annotation is a type that is being read: its names are resolved, and what of vLLM it names is reached.
type annotation struct {
	x    *extractor
	m    *module
	line int         // of the string that the type is in; 0 if it is in none
	what string      // for gaps: "EngineCoreRequest.params"
	from *pyast.Node // function whose own imports count too; nil for none
}

// plainModules are modules whose names are written without them.
var plainModules = []string{"typing", "typing_extensions", "collections.abc", "builtins", "types", "concurrent.futures"}

// lowerNames are the generics that have a builtin of their own.
var lowerNames = map[string]string{
	"List": "list", "Dict": "dict", "Tuple": "tuple", "Set": "set", "FrozenSet": "frozenset", "Type": "type",
}

// annotation returns the type that an annotation means, and reaches what it names. Another spelling of the same type is
// the same text: Optional["List[X]"] is list[X] | None.
func (x *extractor) annotation(m *module, n *pyast.Node, what string) string {
	a := &annotation{x: x, m: m, what: what}
	return pytype.Parse(a.text(n)).String()
}

func (a *annotation) gap(n *pyast.Node, why string, args ...any) {
	a.x.gap(a.m, a.lineOf(n), a.what, fmt.Sprintf(why, args...))
}

func (a *annotation) lineOf(n *pyast.Node) int {
	if a.line > 0 {
		return a.line
	}
	return n.Line
}

// text returns the type with its names as they are usually written.
func (a *annotation) text(n *pyast.Node) string {
	if n == nil {
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
		if operator := n.ByField("operator").Text(); n.Kind == "binary_operator" && operator != "|" {
			a.gap(n, "its type is computed by %s", operator)
			return pyast.Canonical(n)
		}
		return a.join(slices.Collect(n.NamedChildren()), " | ")
	case "list":
		return "[" + a.join(slices.Collect(n.NamedChildren()), ", ") + "]"
	case "none":
		return "None"
	case "ellipsis":
		return "..."
	}
	text := pyast.Canonical(n)
	if _, err := pyast.Literal(n); err != nil {
		a.gap(n, "its type %s is known only when it runs", text)
	}
	return text
}

func (a *annotation) join(nodes []*pyast.Node, separator string) string {
	var texts []string
	for _, n := range nodes {
		texts = append(texts, a.text(n))
	}
	return strings.Join(texts, separator)
}

// quoted reads a type that is written as a string.
func (a *annotation) quoted(n *pyast.Node) string {
	value, err := pyast.Literal(n)
	text, isText := value.(string)
	if err != nil || !isText {
		a.gap(n, "its type is a string that cannot be read")
		return pyast.Canonical(n)
	}
	tree, err := a.x.parser.Parse(a.x.ctx, []byte(strings.TrimSpace(text)))
	if err == nil && len(tree.Errors()) == 0 {
		for statement := range tree.Root.NamedChildren() {
			for expression := range statement.NamedChildren() {
				inner := *a
				inner.line = a.lineOf(n)
				return inner.text(expression)
			}
		}
	}
	a.gap(n, "its type %q is no expression", text)
	return text
}

// generic returns head[arguments].
func (a *annotation) generic(n *pyast.Node) string {
	var head *pyast.Node
	var arguments []*pyast.Node
	for child := range n.NamedChildren() { // the grammar has two forms of it
		switch {
		case head == nil:
			head = child
		case child.Kind == "type_parameter" || child.Kind == "tuple" && n.Kind == "subscript":
			arguments = slices.AppendSeq(arguments, child.NamedChildren())
		default:
			arguments = append(arguments, child)
		}
	}
	name := a.text(head)
	var texts []string
	for i, argument := range arguments {
		switch {
		case name == "Literal": // a value, or the name of another Literal
			for argument.Kind == "type" && len(argument.Children) == 1 {
				argument = argument.Children[0]
			}
			if argument.Kind == "identifier" {
				texts = append(texts, a.name(argument))
				continue
			}
			texts = append(texts, pyast.Canonical(argument))
		case name == "Annotated" && i > 0:
			texts = append(texts, pyast.Canonical(argument))
		default:
			texts = append(texts, a.text(argument))
		}
	}
	return name + "[" + strings.Join(texts, ", ") + "]"
}

// name returns a plain or dotted name.
func (a *annotation) name(n *pyast.Node) string {
	text := pyast.Canonical(n)
	ref := a.x.resolveType(a.m, a.from, text)
	switch {
	case ref.lost != "":
		a.gap(n, "its type names %s: %s", text, ref.lost)
		return text
	case ref.external != "":
		return externalName(ref.external)
	}
	a.x.reach(ref, reason{a.m, a.lineOf(n), a.what})
	return joinDots(ref.name, ref.rest)
}

// externalName writes a name of elsewhere as it is usually written.
func externalName(dotted string) string {
	for _, m := range plainModules {
		if name, found := strings.CutPrefix(dotted, m+"."); found {
			if lower, known := lowerNames[name]; known {
				return lower
			}
			return name
		}
	}
	if name, found := strings.CutPrefix(dotted, "numpy."); found {
		return "np." + name
	}
	if dotted == "collections.OrderedDict" || dotted == "collections.defaultdict" {
		return "dict"
	}
	return dotted
}
