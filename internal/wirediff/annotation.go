package wirediff

import (
	"math"
	"slices"
	"strings"
	"unicode"
)

// typ is a Python annotation as the wire shows it: the alternatives that a value
// can be of.
type typ []option

// option is one alternative: "str", "array[int]". A literal is its own name, in
// double quotes if it is a text.
type option struct {
	name string
	args []typ
}

// spellings are names that the wire does not tell apart.
var spellings = map[string]string{
	"List": "array", "list": "array", "set": "array", "Set": "array", "frozenset": "array", "Sequence": "array",
	"Iterable": "array", "Collection": "array", "deque": "array", "MutableSequence": "array",
	"Dict": "map", "dict": "map", "Mapping": "map", "MutableMapping": "map", "defaultdict": "map",
	"Tuple": "tuple", "object": "Any", "NoneType": "None",
	"np.ndarray": "ndarray", "numpy.ndarray": "ndarray", "torch.Tensor": "Tensor",
}

// mostAnnotation bounds what is taken for an annotation, in bytes. A longer text is
// compared as it is.
const mostAnnotation = 1024

// parseType reads an annotation. What it does not know is a name like any other.
func parseType(annotation string) typ {
	annotation = strings.TrimSpace(annotation)
	if len(annotation) > mostAnnotation {
		return typ{{name: annotation}}
	}
	if s, ok := unquoted(annotation); ok {
		return parseType(s)
	}
	var t typ
	for _, part := range split(annotation, '|') {
		t = append(t, parseOption(part)...)
	}
	slices.SortFunc(t, func(a, b option) int { return strings.Compare(a.String(), b.String()) })
	return slices.CompactFunc(t, func(a, b option) bool { return a.String() == b.String() })
}

func parseOption(text string) typ {
	if s, ok := unquoted(text); ok {
		return parseType(s)
	}
	name, inner, hasArgs := strings.Cut(text, "[")
	inner = strings.TrimSuffix(strings.TrimSpace(inner), "]")
	args := split(inner, ',')
	name = spelled(strings.TrimSpace(name))
	switch {
	case name == "Optional":
		return append(parseType(inner), option{name: "None"})
	case name == "Annotated" && len(args) > 0:
		return parseType(args[0])
	case name == "Union":
		return parseType(strings.Join(args, "|"))
	case name == "Literal":
		return literals(args)
	case name == "tuple" && (!hasArgs || len(args) == 2 && args[1] == "..."):
		name, args = "array", args[:min(len(args), 1)]
	}
	o := option{name: name}
	for _, a := range args {
		o.args = append(o.args, parseType(a))
	}
	for len(o.args) > 0 && o.name != "tuple" && o.args[len(o.args)-1].String() == "Any" {
		o.args = o.args[:len(o.args)-1] // list is list[Any]
	}
	return typ{o}
}

func literals(args []string) typ {
	var t typ
	for _, a := range args {
		if s, ok := unquoted(a); ok {
			a = `"` + s + `"`
		}
		t = append(t, option{name: a})
	}
	return t
}

// spelled is a name without the module that it is imported from, unless that tells
// it from others.
func spelled(name string) string {
	if s, known := spellings[name]; known {
		return s
	}
	for _, module := range []string{"typing.", "collections.abc.", "collections.", "t."} {
		if s, ok := strings.CutPrefix(name, module); ok {
			return spelled(s)
		}
	}
	return name
}

func (t typ) String() string {
	parts := make([]string, len(t))
	for i, o := range t {
		parts[i] = o.String()
	}
	return strings.Join(parts, " | ")
}

func (o option) String() string {
	if len(o.args) == 0 {
		return o.name
	}
	parts := make([]string, len(o.args))
	for i, a := range o.args {
		parts[i] = a.String()
	}
	return o.name + "[" + strings.Join(parts, ", ") + "]"
}

// accepts tells whether a reader of type t understands every value of type w.
func (t typ) accepts(w typ) bool {
	for _, value := range w {
		if !slices.ContainsFunc(t, func(o option) bool { return o.accepts(value) }) {
			return false
		}
	}
	return true
}

func (o option) accepts(w option) bool {
	switch {
	case o.name == "Any":
		return true
	case o.name == "float" && w.name == "int":
		return true
	case o.name == "str" && strings.HasPrefix(w.name, `"`):
		return true
	case o.name != w.name || o.name == "tuple" && len(o.args) != len(w.args):
		return false
	}
	for i := range o.args {
		if i >= len(w.args) { // any element
			return false
		}
		if !o.args[i].accepts(w.args[i]) {
			return false
		}
	}
	return true
}

// parameter is one of a method's, self left out.
type parameter struct {
	name     string
	text     string // annotation, empty without one
	optional bool
	value    string // the default as it is written
}

// signature is the head of a method.
type signature struct {
	params   []parameter
	variadic bool   // it takes *args
	result   string // annotation, empty without one
}

// most is the number of arguments that the method takes at most.
func (s signature) most() int {
	if s.variadic {
		return math.MaxInt
	}
	return len(s.params)
}

// least is the number that it must be given.
func (s signature) least() int {
	n := 0
	for _, p := range s.params {
		if !p.optional {
			n++
		}
	}
	return n
}

// parseSignature reads "(self, level: int=1) -> None". Text that is none has no
// parameters.
func parseSignature(text string) signature {
	var s signature
	head, result, _ := cut(text, "->")
	s.result = strings.TrimSpace(result)
	head = strings.TrimSpace(head)
	head = strings.TrimSuffix(strings.TrimPrefix(head, "("), ")")
	for _, part := range split(head, ',') {
		name, value, optional := cut(part, "=")
		name, annotation, _ := strings.Cut(name, ":")
		p := parameter{strings.TrimSpace(name), strings.TrimSpace(annotation), optional, strings.TrimSpace(value)}
		switch {
		case p.name == "*":
			return s // what follows is given by name, which no call over the wire can
		case strings.HasPrefix(p.name, "**"), p.name == "/", p.name == "self":
		case strings.HasPrefix(p.name, "*"):
			s.variadic = true
		default:
			s.params = append(s.params, p)
		}
	}
	return s
}

// unquoted is the text of a string literal.
func unquoted(s string) (string, bool) {
	if len(s) < 2 || s[0] != s[len(s)-1] || s[0] != '\'' && s[0] != '"' || strings.IndexByte(s[1:], s[0]) != len(s)-2 {
		return s, false
	}
	return s[1 : len(s)-1], true
}

// split cuts at the separators that stand in no brackets and no quotes. Nothing
// has no parts, and a part is never empty.
func split(s string, separator byte) []string {
	var parts []string
	for rest, found := s, true; found; {
		var head string
		head, rest, found = cut(rest, string(separator))
		if head = strings.TrimSpace(head); head != "" {
			parts = append(parts, head)
		}
	}
	return parts
}

// cut is strings.Cut at the first separator in no brackets and no quotes.
func cut(s, separator string) (before, after string, found bool) {
	open, quote := 0, byte(0)
	for i := range len(s) {
		switch b := s[i]; {
		case quote != 0:
			if b == quote {
				quote = 0
			}
		case open == 0 && strings.HasPrefix(s[i:], separator):
			return s[:i], s[i+len(separator):], true
		case b == '\'' || b == '"':
			quote = b
		case strings.IndexByte("[({", b) >= 0:
			open++
		case strings.IndexByte("])}", b) >= 0:
			open--
		}
	}
	return s, "", false
}

// identifiers are the names in an annotation, without the modules before them.
func identifiers(annotation string) []string {
	return strings.FieldsFunc(annotation, func(r rune) bool {
		return r != '_' && !unicode.IsLetter(r) && !unicode.IsDigit(r)
	})
}
