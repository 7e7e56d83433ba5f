package protocol

// Annotations and signatures of Python, as wire profiles have them: "dict[str, list[int]] | None", "(self, level: int=1) -> None".
//
// [ParsePyType] gives a type one spelling: Optional[X] and Union[None, X] are X | None, and a type in quotes is that type. It
// refuses nothing: what is not a type, or is nested too deeply, stays as it is written, as a [PyVerbatim].

import (
	"strings"
	"unicode"
)

// Bounds on what is taken apart.
const (
	maxAnnotation = 16 << 10 // bytes of an annotation
	maxBrackets   = 32       // brackets within each other
)

// PyKind is what a [PyType] is.
type PyKind uint8

// Kinds of [PyType].
const (
	PyNamed    PyKind = iota // int, list[int], np.ndarray, and the ellipsis of tuple[int, ...]
	PyUnion                  // int | str | None
	PyVerbatim               // a value of a Literal, what Annotated adds to a type, any other expression
)

// A PyType is an annotation.
type PyType struct {
	Kind PyKind
	// Name is what is before the brackets, without the module typing: "list", "np.ndarray". Of a [PyVerbatim] it is the
	// whole text; a [PyUnion] has none.
	Name string
	// Args are the types in brackets. Of a [PyUnion] they are its options: none is a union itself, and None is the last.
	Args []PyType
}

// ParsePyType reads an annotation. Spaces around it do not count.
func ParsePyType(annotation string) PyType {
	annotation = strings.TrimSpace(annotation)
	if t, ok := parseWholeType(annotation); ok {
		return t
	}
	return PyType{Kind: PyVerbatim, Name: annotation}
}

// parseWholeType reads a text that may be anything, and reports whether it is one type.
func parseWholeType(text string) (t PyType, ok bool) {
	if _, _, isList := cutOutside(text, ","); isList || len(text) > maxAnnotation || !isBalanced(text) {
		return t, false
	}
	t = parseType(text, 0)
	return t, t.Kind != PyVerbatim
}

// parseType reads a balanced text that is within depth brackets, and has no comma but within brackets of its own.
func parseType(text string, depth int) PyType {
	options := SplitPy(text, '|')
	if len(options) < 2 {
		return parseOption(strings.Join(options, ""), text, depth)
	}
	return pyUnion(parseTypes(options, depth))
}

func parseTypes(texts []string, depth int) []PyType {
	var types []PyType
	for _, text := range texts {
		types = append(types, parseType(text, depth))
	}
	return types
}

// parseOption reads a text that is not a union; whole is what it stays if it is not a type.
func parseOption(text, whole string, depth int) PyType {
	verbatim := PyType{Kind: PyVerbatim, Name: whole}
	if inside, is := UnquotePy(text); is {
		if t, ok := parseWholeType(strings.TrimSpace(inside)); ok {
			return t
		}
		return verbatim
	}
	name, inside, hasArgs := strings.Cut(text, "[")
	name = strings.TrimSpace(name)
	if short, of := strings.CutPrefix(name, "typing."); of && !strings.Contains(short, ".") {
		name = short
	}
	if !isName(name) || depth == maxBrackets {
		return verbatim
	}
	if !hasArgs {
		return PyType{Name: name}
	}
	inside, closed := strings.CutSuffix(inside, "]")
	if !closed || !isBalanced(inside) { // X[A][B]
		return verbatim
	}
	args := SplitPy(inside, ',')
	types := 0 // how many of args are types
	switch name {
	case "Literal":
	case "Annotated":
		types = min(len(args), 1)
	case "Optional", "Union":
		if name == "Optional" {
			args = append(args, "None")
		}
		if len(args) > 0 {
			return pyUnion(parseTypes(args, depth+1))
		}
	default:
		types = len(args)
	}
	t := PyType{Name: name, Args: parseTypes(args[:types], depth+1)}
	for _, arg := range args[types:] {
		t.Args = append(t.Args, PyType{Kind: PyVerbatim, Name: arg})
	}
	return t
}

func pyUnion(options []PyType) PyType {
	var flat []PyType
	hasNone := false
	for _, o := range options {
		for _, each := range o.Options() {
			if each.IsNone() {
				hasNone = true
			} else {
				flat = append(flat, each)
			}
		}
	}
	if hasNone {
		flat = append(flat, PyType{Name: "None"})
	}
	if len(flat) == 1 {
		return flat[0]
	}
	return PyType{Kind: PyUnion, Args: flat}
}

// Options returns the options of a union; any other type is its only one.
func (t PyType) Options() []PyType {
	if t.Kind == PyUnion {
		return t.Args
	}
	return []PyType{t}
}

// IsNone reports whether the type is None.
func (t PyType) IsNone() bool { return t.Kind == PyNamed && t.Name == "None" && len(t.Args) == 0 }

// String returns the annotation as Python's ast.unparse writes it.
func (t PyType) String() string {
	if len(t.Args) == 0 {
		return t.Name
	}
	args := make([]string, len(t.Args))
	for i, arg := range t.Args {
		args[i] = arg.String()
	}
	if t.Kind == PyUnion {
		return strings.Join(args, " | ")
	}
	return t.Name + "[" + strings.Join(args, ", ") + "]"
}

func isName(text string) bool {
	return text == "..." || text != "" && strings.IndexFunc(text, func(r rune) bool { return r != '.' && !isLetter(r) }) < 0
}

func isLetter(r rune) bool { return r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r) }

// PyWords returns the identifiers in an annotation, without their modules: those of types, and whatever else there is.
func PyWords(annotation string) []string {
	return strings.FieldsFunc(annotation, func(r rune) bool { return !isLetter(r) })
}

// A Signature is the head of a method, such as "(self, level: int=1) -> None".
type Signature struct {
	Params   []Param // that a call over the wire can give, which is by position; self is none
	Variadic bool    // it takes *args too
	Result   PyType  // PyVerbatim and empty without one
}

// A Param is a parameter of a method.
type Param struct {
	Name     string
	Type     PyType // Any without an annotation
	Optional bool   // it has a default
}

// ParseSignature reads a signature. A text that is none has no parameters.
func ParseSignature(text string) Signature {
	parameters, result := CutResult(text)
	s := Signature{Result: ParsePyType(result)}
	parameters = strings.TrimSuffix(strings.TrimPrefix(parameters, "("), ")")
	for _, part := range SplitPy(parameters, ',') {
		part, _, optional := cutOutside(part, "=")
		name, annotation, _ := strings.Cut(part, ":")
		switch name = strings.TrimSpace(name); {
		case name == "*":
			return s // what follows is given by name
		case name == "self", name == "/", name == "", strings.HasPrefix(name, "**"):
		case strings.HasPrefix(name, "*"):
			s.Variadic = true
		default:
			p := Param{Name: name, Type: PyType{Name: "Any"}, Optional: optional}
			if annotation = strings.TrimSpace(annotation); annotation != "" {
				p.Type = ParsePyType(annotation)
			}
			s.Params = append(s.Params, p)
		}
	}
	return s
}

// CutResult returns the parameters of a signature, in parentheses, and what follows the arrow.
func CutResult(signature string) (parameters, result string) {
	parameters, result, _ = cutOutside(signature, "->")
	return strings.TrimSpace(parameters), strings.TrimSpace(result)
}

// SplitPy returns the parts of text between separators that are in no brackets and no quotes, without the spaces around
// them. Empty parts are left out.
func SplitPy(text string, separator byte) []string {
	var parts []string
	for found := true; found; {
		var part string
		part, text, found = cutOutside(text, string(separator))
		if part = strings.TrimSpace(part); part != "" {
			parts = append(parts, part)
		}
	}
	return parts
}

// cutOutside is strings.Cut at the first separator that is in no brackets and no quotes.
func cutOutside(text, separator string) (before, after string, found bool) {
	var s bracketScanner
	for i := range len(text) {
		if s.isOutside() && strings.HasPrefix(text[i:], separator) {
			return text[:i], text[i+len(separator):], true
		}
		s.take(text[i])
	}
	return text, "", false
}

// isBalanced reports whether every bracket and every quote of a text is closed, and none is closed that was not opened.
func isBalanced(text string) bool {
	var s bracketScanner
	for i := range len(text) {
		if s.take(text[i]); s.open < 0 {
			return false
		}
	}
	return s.isOutside()
}

// UnquotePy returns what a text is a string literal of.
func UnquotePy(text string) (inside string, is bool) {
	if len(text) < 2 || text[0] != '\'' && text[0] != '"' || strings.Contains(text, `\`) ||
		strings.IndexByte(text[1:], text[0]) != len(text)-2 {
		return "", false
	}
	return text[1 : len(text)-1], true
}

// A bracketScanner counts the brackets and quotes that are open.
type bracketScanner struct {
	open    int
	quote   byte
	escaped bool // by a backslash, within quotes
}

func (s *bracketScanner) isOutside() bool { return s.open == 0 && s.quote == 0 }

func (s *bracketScanner) take(b byte) {
	switch {
	case s.escaped:
		s.escaped = false
	case s.quote != 0 && b == '\\':
		s.escaped = true
	case s.quote != 0:
		if b == s.quote {
			s.quote = 0
		}
	case b == '\'' || b == '"':
		s.quote = b
	case strings.IndexByte("[({", b) >= 0:
		s.open++
	case strings.IndexByte("])}", b) >= 0:
		s.open--
	}
}
