package wirediff

import (
	"slices"
	"strings"

	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// spellings are names that the wire does not tell apart.
var spellings = map[string]string{
	"List": "array", "list": "array", "set": "array", "Set": "array", "frozenset": "array", "Sequence": "array",
	"Iterable": "array", "Collection": "array", "deque": "array", "MutableSequence": "array",
	"Dict": "map", "dict": "map", "Mapping": "map", "MutableMapping": "map", "defaultdict": "map",
	"Tuple": "tuple", "object": "Any", "NoneType": "None",
	"np.ndarray": "ndarray", "numpy.ndarray": "ndarray", "torch.Tensor": "Tensor",
}

// wireType returns a type as the wire shows it: a list, a set and a tuple of any length are arrays, what Annotated adds
// is left out, and a Literal is the union of its words, in double quotes. The options of a union are sorted, each once.
func wireType(t protocol.PyType) protocol.PyType {
	var options []protocol.PyType
	for _, option := range t.Options() {
		options = append(options, wireOption(option).Options()...)
	}
	slices.SortFunc(options, func(a, b protocol.PyType) int { return strings.Compare(a.String(), b.String()) })
	options = slices.CompactFunc(options, func(a, b protocol.PyType) bool { return a.String() == b.String() })
	if len(options) == 1 {
		return options[0]
	}
	return protocol.PyType{Kind: protocol.PyUnion, Args: options}
}

// wireOption is wireType for a type that is not a union.
func wireOption(t protocol.PyType) protocol.PyType {
	if t.Kind == protocol.PyVerbatim {
		return t
	}
	name, args := t.Name, t.Args
	for _, module := range []string{"collections.abc.", "collections.", "t."} {
		name = strings.TrimPrefix(name, module)
	}
	if known := spellings[name]; known != "" {
		name = known
	}
	switch {
	case name == "Annotated" && len(args) > 0:
		return wireType(args[0])
	case name == "Literal":
		words := protocol.PyType{Kind: protocol.PyUnion, Args: slices.Clone(args)}
		for i, word := range args {
			if text, quoted := protocol.UnquotePy(word.Name); quoted {
				words.Args[i].Name = `"` + text + `"`
			}
		}
		return words
	case name == "tuple" && (len(args) == 0 || len(args) == 2 && args[1].Name == "..."):
		name, args = "array", args[:min(len(args), 1)]
	}
	shown := protocol.PyType{Name: name}
	for _, arg := range args {
		shown.Args = append(shown.Args, wireType(arg))
	}
	for n := len(shown.Args); n > 0 && name != "tuple" && shown.Args[n-1].String() == "Any"; n-- {
		shown.Args = shown.Args[:n-1] // list is list[Any]
	}
	return shown
}

// readType reads an annotation as [wireType].
func readType(annotation string) protocol.PyType { return wireType(protocol.ParsePyType(annotation)) }

// accepts reports whether a reader of one wire type understands every value of another.
func accepts(reader, writer protocol.PyType) bool {
	for _, w := range writer.Options() {
		if !slices.ContainsFunc(reader.Options(), func(r protocol.PyType) bool { return acceptsOption(r, w) }) {
			return false
		}
	}
	return true
}

func acceptsOption(r, w protocol.PyType) bool {
	switch {
	case r.Name == "Any", w.Name == "": // or nothing is declared
		return true
	case r.Name == "float" && w.Name == "int", r.Name == "str" && strings.HasPrefix(w.Name, `"`):
		return true
	case r.Name != w.Name || r.Name == "tuple" && len(r.Args) != len(w.Args):
		return false
	}
	for i, arg := range r.Args {
		if i >= len(w.Args) || !accepts(arg, w.Args[i]) { // w may have any element
			return false
		}
	}
	return true
}
