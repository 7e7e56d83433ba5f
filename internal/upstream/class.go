package upstream

import (
	"fmt"
	"slices"
	"strings"

	"github.com/vllm-vcr/conformance/internal/pyast"
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

	config      map[string]any // of msgspec: array_like, omit_defaults, tag; with what is inherited
	undecorated bool           // derived from a dataclass without being made one: it has the fields of the base
	keywordOnly bool           // kw_only of this class alone
	members     *enumeration   // of an enum
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
func (x *extractor) class(ref reference) (*class, error) {
	return x.classAt(ref, 0)
}

func (x *extractor) classAt(ref reference, depth int) (*class, error) {
	if c := x.classes[ref.def]; c != nil {
		return c, nil
	}
	c := &class{name: ref.name, module: ref.module, def: ref.def, config: map[string]any{}}
	if depth > maxHops {
		x.gapAt(ref.module, ref.def.node, "class "+ref.name, "its bases lead in a circle")
		return c, nil
	}
	x.suspicious(c)
	if err := x.header(c, depth); err != nil {
		return nil, err
	}
	if err := x.decorators(c); err != nil {
		return nil, err
	}
	x.inherit(c)
	if err := x.body(c); err != nil {
		return nil, err
	}
	x.classes[ref.def] = c
	return c, nil
}

// gap notes what of a class could not be read. It counts once the class turns out to be of the wire.
func (x *extractor) classGap(c *class, n *pyast.Node, why string, args ...any) {
	x.pending[c.def] = append(x.pending[c.def], Gap{
		Module: c.module.path, Line: n.Line, What: "class " + c.name, Why: fmt.Sprintf(why, args...),
	})
}

// suspicious notes what makes a class other than it looks.
func (x *extractor) suspicious(c *class) {
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
	for _, e := range c.module.errors {
		if near(c.module, d.statement, e) {
			x.classGap(c, d.node, "syntax that is not known: %s", e.Error())
		}
	}
}

// near tells whether a syntax error lies in a statement, or between it and its neighbours: what could not be read may
// be of it.
func near(m *module, statement *pyast.Node, e pyast.SyntaxError) bool {
	from, to := 0, int(^uint(0)>>1)
	for n := range statement.Parent.NamedChildren() {
		switch {
		case n.Broken:
		case n.End <= statement.Start:
			from = lastLine(m, n) + 1
		case n.Start >= statement.End:
			to = min(to, n.Line)
		}
	}
	return e.Line >= from && e.Line < to
}

func lastLine(m *module, n *pyast.Node) int {
	return n.Line + strings.Count(strings.TrimRight(m.tree.Text(n), "\r\n"), "\n")
}

// header reads the bases and the keywords of a class.
func (x *extractor) header(c *class, depth int) error {
	for n := range c.def.node.ByField("superclasses").NamedChildren() {
		switch n.Kind {
		case "keyword_argument":
			x.keyword(c, n)
		case "identifier", "attribute", "subscript":
			if err := x.base(c, n, depth); err != nil {
				return err
			}
		default:
			x.classGap(c, n, "its header has %s, which is known only when it runs", shownArgument(c.module.tree, n))
		}
	}
	return nil
}

// keyword reads one of the header: array_like=True.
func (x *extractor) keyword(c *class, n *pyast.Node) {
	t := c.module.tree
	name := t.Text(n.ByField("name"))
	if slices.Contains(inertKeywords, name) {
		return
	}
	value, err := pyast.Literal(t, n.ByField("value"))
	switch {
	case err != nil:
		x.classGap(c, n, "%s is known only when it runs", shownArgument(t, n))
	case name == "kw_only":
		c.keywordOnly = value == true
	case slices.Contains(wireKeywords, name):
		c.config[name] = value
	case value != nil && value != false:
		x.classGap(c, n, "a profile cannot say %s", shownArgument(t, n))
	}
}

// shownArgument is an argument of a call as it is usually written: name=value, **values.
func shownArgument(t *pyast.Tree, n *pyast.Node) string {
	if n.Kind == "keyword_argument" {
		return t.Text(n.ByField("name")) + "=" + pyast.Canonical(t, n.ByField("value"))
	}
	for values := range n.NamedChildren() {
		switch n.Kind {
		case "dictionary_splat":
			return "**" + pyast.Canonical(t, values)
		case "list_splat":
			return "*" + pyast.Canonical(t, values)
		}
		break
	}
	return pyast.Canonical(t, n)
}

// base reads one of the classes that a class is derived from.
func (x *extractor) base(c *class, n *pyast.Node, depth int) error {
	t := c.module.tree
	name := n
	if n.Kind == "subscript" {
		name = n.ByField("value")
	}
	ref, err := x.typeNamed(c.module, nil, t.Text(name))
	if err != nil {
		return err
	}
	if ref.doubt != "" {
		x.classGap(c, n, "which base %s is meant cannot be read: %s", t.Text(name), ref.doubt)
	}
	switch {
	case ref.lost != "":
		x.classGap(c, n, "its base %s is not to be found: %s", t.Text(name), ref.lost)
	case ref.external != "":
		c.derive(ref.external, n)
	case ref.def.kind == aClass && ref.rest == "":
		parent, err := x.classAt(ref, depth+1)
		if err != nil {
			return err
		}
		c.bases = append(c.bases, parent)
	default:
		x.classGap(c, n, "its base %s is no class of %s", t.Text(name), ref.module.path)
	}
	return nil
}

// derive notes a base of elsewhere.
func (c *class) derive(base string, n *pyast.Node) {
	switch {
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

// decorators reads those of a class.
func (x *extractor) decorators(c *class) error {
	for _, n := range c.def.decorators {
		name := n
		if n.Kind == "call" {
			name = n.ByField("function")
		}
		makes, err := x.makesDataclass(c.module, c.module.tree.Text(name))
		if err != nil {
			return err
		}
		switch makes {
		case yes:
			c.kind = dataClass
		case unknown:
			x.classGap(c, n, "what its decorator %s does to it cannot be read", c.module.tree.Text(name))
		}
	}
	return nil
}

type answer int

const (
	unknown answer = iota
	no
	yes
)

// makesDataclass tells whether a decorator makes a dataclass of a class, and nothing else.
func (x *extractor) makesDataclass(m *module, name string) (answer, error) {
	ref, err := x.resolve(m, name)
	switch {
	case err != nil || ref.lost != "" || ref.rest != "" || ref.doubt != "":
		return unknown, err
	case slices.Contains(dataDecorators, ref.external):
		return yes, nil
	case slices.Contains(inertDecorators, ref.external):
		return no, nil
	case ref.external != "" || ref.def.kind != aFunction:
		return unknown, nil
	}
	for _, n := range ref.def.decorators {
		if n.Kind == "call" {
			n = n.ByField("function")
		}
		transformer, err := x.resolve(ref.module, ref.module.tree.Text(n))
		if err != nil {
			return unknown, err
		}
		if slices.Contains(transformers, transformer.external) {
			return yes, nil
		}
	}
	return unknown, nil
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

// body reads the statements of a class.
func (x *extractor) body(c *class) error {
	if c.kind == enumClass {
		return x.enumMembers(c)
	}
	if c.kind == plainClass || c.kind == foreignClass || c.kind == containerClass || c.undecorated {
		return nil
	}
	for n := range c.def.node.ByField("body").NamedChildren() {
		if n.Kind != "expression_statement" {
			x.compound(c, n, "fields")
		} else if err := x.member(c, n); err != nil {
			return err
		}
	}
	if c.kind == structClass {
		c.fields = append(selectFields(c.fields, false), selectFields(c.fields, true)...)
	}
	return nil
}

// compound looks at a statement of a class body that is no expression: one that assigns or calls something may declare.
func (x *extractor) compound(c *class, n *pyast.Node, what string) {
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

func selectFields(fields []field, keywordOnly bool) []field {
	var chosen []field
	for _, f := range fields {
		if f.keywordOnly == keywordOnly {
			chosen = append(chosen, f)
		}
	}
	return chosen
}

// member reads a statement of a class body that may declare a field.
func (x *extractor) member(c *class, statement *pyast.Node) error {
	t := c.module.tree
	for n := range statement.NamedChildren() {
		switch {
		case n.Kind == "call":
			x.classGap(c, n, "its body calls %s", pyast.Canonical(t, n.ByField("function")))
		case strings.HasPrefix(t.Text(n.ByField("left")), "__annotations__"):
			x.classGap(c, n, "its body sets __annotations__")
		case n.Kind == "assignment" && n.ByField("type") != nil:
			isField, err := x.isField(c.module, n.ByField("type"))
			if err != nil || !isField {
				return err
			}
			c.add(field{
				name: t.Text(n.ByField("left")), module: c.module, line: n.Line, annotation: n.ByField("type"),
				value: n.ByField("right"), keywordOnly: c.keywordOnly && c.kind == structClass,
			})
		case c.setsField(n):
			x.classGap(c, n, "its body sets a field otherwise: %s", firstLine(t, n))
		}
	}
	return nil
}

// setsField tells whether a node binds or deletes the name of a field.
func (c *class) setsField(n *pyast.Node) bool {
	t := c.module.tree
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
		isField := func(f field) bool { return at.Kind == "identifier" && f.name == t.Text(at) }
		if slices.ContainsFunc(c.fields, isField) {
			return true
		}
	}
	return false
}

// isField tells the annotations of fields from those of what the class alone has.
func (x *extractor) isField(m *module, annotation *pyast.Node) (bool, error) {
	text := strings.TrimLeft(m.tree.Text(annotation), `"'( `)
	end := strings.IndexFunc(text, func(r rune) bool {
		return r != '.' && r != '_' && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z')
	})
	if end >= 0 {
		text = text[:end]
	}
	if !strings.Contains(text, "ClassVar") && !strings.Contains(text, "InitVar") && !strings.Contains(text, "KW_ONLY") {
		return true, nil
	}
	ref, err := x.resolve(m, text)
	switch ref.external {
	case "typing.ClassVar", "typing_extensions.ClassVar", "dataclasses.InitVar", "dataclasses.KW_ONLY":
		return false, err
	}
	return true, err
}

// add appends a field. One that the base has too keeps its place.
func (c *class) add(f field) {
	for i := range c.fields {
		if c.fields[i].name == f.name {
			c.fields[i] = f
			return
		}
	}
	c.fields = append(c.fields, f)
}

// encoding is how the class is written: "array" or "map".
func (c *class) encoding() string {
	if c.kind == tupleClass || c.kind == structClass && c.config["array_like"] == true {
		return "array"
	}
	return "map"
}

// tag is what tells the class from others of its union.
func (c *class) tag() string {
	switch tag := c.config["tag"].(type) {
	case bool:
		if tag {
			return c.name
		}
	case string:
		return tag
	}
	return ""
}
