package extract

import (
	"fmt"
	"slices"
	"strings"

	"github.com/vllm-vcr/conformance/internal/upstream/pyast"
	"github.com/vllm-vcr/conformance/internal/upstream/sources"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// What a class is to the encoder of vLLM, which is that of msgspec.
type classKind int

const (
	plainClass     classKind = iota
	structClass              // msgspec.Struct: a map, or an array if it is array_like
	dataClass                // a map, every key written
	tupleClass               // typing.NamedTuple: an array
	enumClass                // its value
	containerClass           // a dict or list of the types in its base
	foreignClass             // of a base that is not vLLM's, and not known
)

// A class is what its header and body declare, with what it inherits.
type class struct {
	name    string
	module  *module
	def     *definition
	kind    classKind
	bases   []*class
	fields  []field
	args    []*pyast.Node // of a container's base: dict[str, X]
	foreign string        // the base that is not known
	isABC   bool          // it is there to be derived from

	config      map[string]any    // of msgspec: array_like, omit_defaults, tag; with what is inherited
	undecorated bool              // derived from a dataclass without being made one: it has the fields of the base
	keywordOnly bool              // kw_only of this class alone
	members     []protocol.Member // of an enum
	values      map[string]any    // of its members, by name
}

// A field is one member of a struct, before its type is read.
type field struct {
	name        string
	module      *module
	line        int
	annotation  *pyast.Node
	value       *pyast.Node // nil if the field has no default
	keywordOnly bool        // msgspec puts it behind all others
}

// Names of elsewhere that a class may be derived from.
var (
	structBases = []string{"msgspec.Struct"}
	tupleBases  = []string{"typing.NamedTuple", "typing_extensions.NamedTuple"}
	enumBases   = []string{"enum.Enum", "enum.IntEnum", "enum.StrEnum", "enum.Flag", "enum.IntFlag"}
	inertBases  = []string{
		"abc.ABC", "typing.Generic", "typing.Protocol", "typing_extensions.Protocol", "builtins.object",
		"builtins.str", "builtins.int", "builtins.bytes", "builtins.Exception", "builtins.BaseException",
	}
	containerBases = []string{
		"collections.UserDict", "collections.UserList", "collections.OrderedDict", "collections.defaultdict",
		"builtins.dict", "builtins.list", "builtins.set", "builtins.tuple",
	}
	dataDecorators = []string{"dataclasses.dataclass", "pydantic.dataclasses.dataclass"}
	// transformers mark a decorator of vLLM as one that makes dataclasses.
	transformers = []string{"typing.dataclass_transform", "typing_extensions.dataclass_transform"}
	// inertDecorators change nothing of what is written.
	inertDecorators = []string{
		"enum.unique", "typing.final", "typing_extensions.final", "functools.total_ordering", "typing.runtime_checkable",
	}
	// inertKeywords of a struct's header change nothing of what is written.
	inertKeywords = []string{"gc", "frozen", "eq", "order", "weakref", "dict", "cache_hash", "repr_omit_defaults"}
	wireKeywords  = []string{"array_like", "omit_defaults", "tag"}
)

// class reads a class, once. Cycles among bases end at maxHops.
func (x *extractor) class(ref reference) *class { return x.classAt(ref, 0) }

func (x *extractor) classAt(ref reference, depth int) *class {
	if c := x.classes[ref.def]; c != nil {
		return c
	}
	c := &class{name: ref.name, module: ref.module, def: ref.def, config: map[string]any{}}
	if depth > maxHops {
		x.gapAt(ref.module, ref.def.node, "class "+ref.name, "its bases lead in a circle")
		return c
	}
	x.checkPlace(c)
	x.header(c, depth)
	x.decorators(c)
	x.inherit(c)
	switch {
	case c.kind == enumClass:
		x.enumBody(c)
	case c.kind == structClass || c.kind == tupleClass || c.kind == dataClass && !c.undecorated:
		x.structBody(c)
	}
	x.classes[ref.def] = c
	return c
}

// classGap notes what of a class could not be read. It counts once the class turns out to be of the wire.
func (x *extractor) classGap(c *class, n *pyast.Node, why string, args ...any) {
	x.pending[c.def] = append(x.pending[c.def], sources.Gap{
		Place: protocol.Place{Module: c.module.path, At: n.Line}, What: "class " + c.name, Why: fmt.Sprintf(why, args...),
	})
}

// checkPlace notes what makes a class other than it looks.
func (x *extractor) checkPlace(c *class) {
	d := c.def
	if d.condition != "" {
		x.classGap(c, d.node, "it is declared %s", d.condition)
	}
	if d.again > 0 {
		x.classGap(c, d.node, "it is declared more than once: also in line %d", d.again)
	}
	if c.module.runs != nil {
		x.classGap(c, c.module.runs, "%s", c.module.how)
	}
	// A syntax error between the class and its neighbours may be of it.
	from, to := 0, int(^uint(0)>>1) // lines
	for n := range d.statement.Parent.NamedChildren() {
		switch {
		case n.Broken:
		case n.End <= d.statement.Start:
			from = n.Line + strings.Count(strings.TrimRight(n.Text(), "\r\n"), "\n") + 1
		case n.Start >= d.statement.End:
			to = min(to, n.Line)
		}
	}
	for _, e := range c.module.errors {
		if from <= e.Line && e.Line < to {
			x.classGap(c, d.node, "syntax that is not known: %s", e.Error())
		}
	}
}

// header reads the bases and the keywords of a class.
func (x *extractor) header(c *class, depth int) {
	for n := range c.def.node.ByField("superclasses").NamedChildren() {
		switch n.Kind {
		case "keyword_argument":
			x.keyword(c, n)
		case "identifier", "attribute":
			x.base(c, n, n.Text(), depth)
		case "subscript":
			x.base(c, n, n.ByField("value").Text(), depth)
		default:
			x.classGap(c, n, "its header has %s, which is known only when it runs", shownArgument(n))
		}
	}
}

// keyword reads one of the header: array_like=True.
func (x *extractor) keyword(c *class, n *pyast.Node) {
	name := n.ByField("name").Text()
	if slices.Contains(inertKeywords, name) {
		return
	}
	value, err := pyast.Literal(n.ByField("value"))
	switch {
	case err != nil:
		x.classGap(c, n, "%s is known only when it runs", shownArgument(n))
	case name == "kw_only":
		c.keywordOnly = value == true
	case slices.Contains(wireKeywords, name):
		c.config[name] = value
	case value != nil && value != false:
		x.classGap(c, n, "a profile cannot say %s", shownArgument(n))
	}
}

// shownArgument returns an argument of a call as it is usually written: name=value, **values.
func shownArgument(n *pyast.Node) string {
	if n.Kind == "keyword_argument" {
		return n.ByField("name").Text() + "=" + pyast.Canonical(n.ByField("value"))
	}
	return pyast.Canonical(n)
}

// base reads one of the classes that a class is derived from.
func (x *extractor) base(c *class, n *pyast.Node, name string, depth int) {
	ref := x.resolveType(c.module, nil, name)
	if ref.doubt != "" {
		x.classGap(c, n, "which base %s is meant cannot be read: %s", name, ref.doubt)
	}
	switch base := ref.external; {
	case ref.lost != "":
		x.classGap(c, n, "its base %s is not to be found: %s", name, ref.lost)
	case ref.def != nil && ref.def.kind == aClass && ref.rest == "":
		c.bases = append(c.bases, x.classAt(ref, depth+1))
	case ref.def != nil:
		x.classGap(c, n, "its base %s is no class of %s", name, ref.module.path)
	case slices.Contains(structBases, base):
		c.kind = structClass
	case slices.Contains(tupleBases, base):
		c.kind = tupleClass
	case slices.Contains(enumBases, base):
		c.kind = enumClass
	case slices.Contains(containerBases, base):
		c.kind = containerClass
		for child := range n.NamedChildren() {
			if child.Field == "subscript" {
				c.args = append(c.args, child)
			}
		}
	case base == "abc.ABC":
		c.isABC = true
	case !slices.Contains(inertBases, base):
		c.kind, c.foreign = foreignClass, base
	}
}

// decorators reads those of a class. One of vLLM makes a dataclass if it is declared to.
func (x *extractor) decorators(c *class) {
	for _, n := range c.def.decorators {
		name := called(n).Text()
		ref := x.resolve(c.module, name)
		isPlain := ref.lost == "" && ref.rest == "" && ref.doubt == ""
		isTransformer := func(n *pyast.Node) bool {
			return slices.Contains(transformers, x.resolve(ref.module, called(n).Text()).external)
		}
		switch {
		case isPlain && slices.Contains(inertDecorators, ref.external):
		case isPlain && slices.Contains(dataDecorators, ref.external),
			isPlain && ref.def != nil && ref.def.kind == aFunction && slices.ContainsFunc(ref.def.decorators, isTransformer):
			c.kind = dataClass
		default:
			x.classGap(c, n, "what its decorator %s does to it cannot be read", name)
		}
	}
}

// called returns the function of a call; any other expression is returned as it is.
func called(n *pyast.Node) *pyast.Node {
	if n.Kind == "call" {
		return n.ByField("function")
	}
	return n
}

// inherit takes over what the bases have.
func (x *extractor) inherit(c *class) {
	var from *class
	for _, b := range c.bases {
		x.pending[c.def] = append(x.pending[c.def], x.pending[b.def]...)
		if b.kind == plainClass {
			continue
		}
		if from != nil && len(from.fields) > 0 && len(b.fields) > 0 {
			const why = "it is derived from %s and %s: the order of its fields cannot be read"
			x.classGap(c, c.def.node, why, from.name, b.name)
		}
		if from == nil || len(b.fields) > 0 {
			from = b
		}
	}
	if from == nil {
		return
	}
	if c.kind == plainClass {
		c.kind, c.foreign = from.kind, from.foreign
		c.undecorated = c.kind == dataClass
	}
	if c.kind == containerClass && c.args == nil {
		c.args = from.args
	}
	c.fields = slices.Clone(from.fields)
	for name, value := range from.config {
		if _, own := c.config[name]; !own && slices.Contains(wireKeywords, name) {
			c.config[name] = value
		}
	}
}

// structBody reads the fields that the statements of a class declare.
func (x *extractor) structBody(c *class) {
	for statement := range c.def.node.ByField("body").NamedChildren() {
		if statement.Kind != "expression_statement" {
			x.checkStatement(c, statement, "fields")
			continue
		}
		for n := range statement.NamedChildren() {
			left, annotation := n.ByField("left"), n.ByField("type")
			switch {
			case n.Kind == "call":
				x.classGap(c, n, "its body calls %s", pyast.Canonical(n.ByField("function")))
			case strings.HasPrefix(left.Text(), "__annotations__"):
				x.classGap(c, n, "its body sets __annotations__")
			case n.Kind == "assignment" && annotation != nil:
				if x.isField(c.module, annotation) {
					c.add(field{
						name: left.Text(), module: c.module, line: n.Line, annotation: annotation, value: n.ByField("right"),
						keywordOnly: c.keywordOnly && c.kind == structClass,
					})
				}
			case c.setsField(n):
				x.classGap(c, n, "its body sets a field otherwise: %s", firstLine(n))
			}
		}
	}
	if c.kind == structClass {
		slices.SortStableFunc(c.fields, func(a, b field) int {
			switch {
			case a.keywordOnly == b.keywordOnly:
				return 0
			case a.keywordOnly:
				return 1
			}
			return -1
		})
	}
}

// checkStatement looks at a statement of a class body that is no expression: one that assigns or calls something may
// declare.
func (x *extractor) checkStatement(c *class, n *pyast.Node, what string) {
	switch n.Kind {
	case "function_definition", "decorated_definition", "class_definition", "ERROR":
		return
	}
	for at := range n.All() {
		if at.Kind == "assignment" || at.Kind == "call" || at.Kind == "delete_statement" && c.setsField(at) {
			x.classGap(c, n, "it declares %s under a condition", what)
			return
		}
	}
}

// setsField reports whether a node binds or deletes the name of a field.
func (c *class) setsField(n *pyast.Node) bool {
	bound := n.ByField("left")
	switch n.Kind {
	case "assignment", "augmented_assignment":
	case "named_expression":
		bound = n.ByField("name")
	case "delete_statement":
		bound = n
	default:
		return false
	}
	for at := range bound.All() {
		if at.Kind == "identifier" && slices.ContainsFunc(c.fields, func(f field) bool { return f.name == at.Text() }) {
			return true
		}
	}
	return false
}

// isField reports whether an annotation is that of a field, and not of what the class alone has.
func (x *extractor) isField(m *module, annotation *pyast.Node) bool {
	text := strings.TrimLeft(annotation.Text(), `"'( `)
	end := strings.IndexFunc(text, func(r rune) bool {
		return r != '.' && r != '_' && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z')
	})
	if end >= 0 {
		text = text[:end]
	}
	if !strings.Contains(text, "ClassVar") && !strings.Contains(text, "InitVar") && !strings.Contains(text, "KW_ONLY") {
		return true
	}
	switch x.resolve(m, text).external {
	case "typing.ClassVar", "typing_extensions.ClassVar", "dataclasses.InitVar", "dataclasses.KW_ONLY":
		return false
	}
	return true
}

// add appends a field. One that the base has too keeps its place.
func (c *class) add(f field) {
	if i := slices.IndexFunc(c.fields, func(known field) bool { return known.name == f.name }); i >= 0 {
		c.fields[i] = f
		return
	}
	c.fields = append(c.fields, f)
}

// encoding returns how the class is written: "array" or "map".
func (c *class) encoding() string {
	if c.kind == tupleClass || c.kind == structClass && c.config["array_like"] == true {
		return "array"
	}
	return "map"
}

// method finds a method of a class or of what it is derived from.
func (c *class) method(name string) (of *class, function *pyast.Node) {
	for n := range c.def.node.ByField("body").NamedChildren() {
		if n.Kind == "decorated_definition" {
			n = n.ByField("definition")
		}
		if n != nil && n.Kind == "function_definition" && n.ByField("name").Text() == name {
			of, function = c, n // the last one counts
		}
	}
	for _, b := range c.bases {
		if function != nil {
			break
		}
		of, function = b.method(name)
	}
	return of, function
}

// enumBody reads the members of an enum, in the order of their declaration.
func (x *extractor) enumBody(c *class) {
	c.values = map[string]any{}
	_, own := c.method("_generate_next_value_")
	countsOtherwise := own != nil || x.derivesFrom(c, "enum.Flag") || x.derivesFrom(c, "enum.IntFlag")
	isText := x.derivesFrom(c, "enum.StrEnum") // auto() is the name in lower case
	last := int64(0)                           // else auto() is the next
	for n := range c.def.node.ByField("body").NamedChildren() {
		if n.Kind != "expression_statement" {
			x.checkStatement(c, n, "members")
			continue
		}
		for a := range n.NamedChildren() {
			left, right := a.ByField("left"), a.ByField("right")
			name := left.Text()
			isSunder := len(name) > 2 && strings.HasPrefix(name, "_") && strings.HasSuffix(name, "_")
			if a.Kind != "assignment" || right == nil || isSunder {
				continue
			}
			if left.Kind != "identifier" {
				x.classGap(c, a, "its member %s has no plain name", pyast.Canonical(left))
				continue
			}
			value, known := c.values[right.Text()]
			switch {
			case right.Kind != "call" && !known:
				value, known = x.evaluate(c.module, right)
			case right.Kind == "call":
				known = x.resolve(c.module, right.ByField("function").Text()).external == "enum.auto" && !countsOtherwise
				if value = last + 1; isText {
					value = strings.ToLower(name)
				}
			}
			text, isPlain := jsonOf(value)
			if !known || !isPlain {
				x.classGap(c, a, "the value of its member %s is known only when it runs", name)
				continue
			}
			if i, isInt := value.(int64); isInt {
				last = max(last, i)
			}
			c.values[name] = value
			c.members = append(c.members, protocol.Member{Name: name, Value: text, At: a.Line})
		}
	}
}

func (x *extractor) derivesFrom(c *class, base string) bool {
	for n := range c.def.node.ByField("superclasses").NamedChildren() {
		if x.resolve(c.module, n.Text()).external == base {
			return true
		}
	}
	return slices.ContainsFunc(c.bases, func(b *class) bool { return x.derivesFrom(b, base) })
}
