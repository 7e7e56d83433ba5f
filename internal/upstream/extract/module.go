package extract

import (
	"bytes"
	"context"
	"fmt"
	"path"
	"strings"

	"github.com/vllm-vcr/conformance/internal/base/lazyregexp"
	"github.com/vllm-vcr/conformance/internal/upstream/pyast"
)

// ours is the package whose modules are read. Names of others are not followed.
const ours = "vllm"

// maxModules bounds what a release can make us read.
const maxModules = 400

// maxText bounds all modules that are parsed, in bytes: their trees, which are kept, take up to 150 times as much. Those of vLLM
// have 740 kB.
const maxText = 4 << 20

// A module is one Python file, and what its top level declares.
type module struct {
	name   string // "vllm.v1.engine"
	path   string // "vllm/v1/engine/__init__.py"
	tree   *pyast.Tree
	defs   map[string]*definition
	stars  []star
	errors []pyast.SyntaxError
	runs   *pyast.Node // what sets names that are known only when it runs; nil for nothing
	how    string      // it does
	broken error       // it could not be parsed at all
}

// A star is "from M import *".
type star struct {
	from      string
	statement *pyast.Node
}

// A definition is what a name of a module's top level stands for: the last one, if several.
type definition struct {
	kind       definitionKind
	declared   string        // the name
	node       *pyast.Node   // the class, the function, or the value that is assigned; nil for a name without a value
	statement  *pyast.Node   // that it is in, decorators included
	decorators []*pyast.Node // expressions
	condition  string        // why it may not be declared: "under a condition"; empty if it always is
	again      int           // line of an earlier definition; 0 if there is none
	module     string        // import: from there,
	name       string        // this; empty for the module itself
}

type definitionKind int

const (
	aClass definitionKind = iota
	aFunction
	aValue
	anImport
)

// A library reads the modules of a source, each once.
type library struct {
	ctx     context.Context // of the one extraction that it is made for
	parser  *pyast.Parser
	source  Source
	texts   map[string][]byte  // by path; nil for one that is not there
	modules map[string]*module // by name; nil for one that is not there
	parsed  int                // bytes
	// err is why the source could not be read. No module is found from then on, and what was extracted is of no use.
	err error
}

// fetch reads the files of these paths that were not fetched before.
func (l *library) fetch(paths ...string) {
	var missing []string
	for _, p := range paths {
		if _, known := l.texts[p]; !known {
			missing = append(missing, p)
		}
	}
	if len(missing) == 0 || l.err != nil {
		return
	}
	texts, err := l.source.Read(l.ctx, missing)
	if l.err = err; err != nil {
		return
	}
	for _, p := range missing {
		l.texts[p] = texts[p]
	}
}

// load returns a module by its dotted name, or nil if there is none. One that cannot be parsed is [module.broken].
func (l *library) load(name string) *module {
	if m, known := l.modules[name]; known || l.err != nil {
		return m
	}
	file := strings.ReplaceAll(name, ".", "/")
	for _, p := range []string{file + "/__init__.py", file + ".py"} { // as Python prefers them
		if l.fetch(p); l.texts[p] != nil {
			l.modules[name] = l.parse(name, p, l.texts[p])
			return l.modules[name]
		}
	}
	l.modules[name] = nil
	return nil
}

// loadWhole returns a module that can be parsed, or nil.
func (l *library) loadWhole(name string) *module {
	if m := l.load(name); m != nil && m.broken == nil {
		return m
	}
	return nil
}

func (l *library) parse(name, path string, text []byte) *module {
	if len(l.modules) >= maxModules {
		l.err = fmt.Errorf("%s: more than %d modules are of the wire: this is no vLLM", l.source.Where(), maxModules)
		return nil
	}
	if l.parsed += len(text); l.parsed > maxText {
		l.err = fmt.Errorf("%s: more than %d bytes of Python are of the wire: this is no vLLM", l.source.Where(), maxText)
		return nil
	}
	m := &module{name: name, path: path, defs: map[string]*definition{}}
	if encoding := encodingOf(text); encoding != "" {
		m.broken = fmt.Errorf("its encoding is %s: want utf-8", encoding)
		return m
	}
	m.tree, m.broken = l.parser.Parse(l.ctx, text)
	if m.broken != nil && l.ctx.Err() != nil {
		l.err = fmt.Errorf("%s: %s: %w", l.source.Where(), path, context.Cause(l.ctx))
		return nil
	}
	if m.broken != nil {
		return m
	}
	m.errors = m.tree.Errors()
	m.collect(m.tree.Root, "")
	m.runs, m.how = computedNames(m.tree)
	return m
}

// encodingLine is what the first two lines of a file may say of its encoding.
var encodingLine = lazyregexp.New(`^[ \t\f]*#.*?coding[:=][ \t]*([-_.a-zA-Z0-9]+)`)

// encodingOf returns the encoding that a file declares, if that is another than UTF-8 or less than it.
func encodingOf(text []byte) string {
	lines := bytes.SplitN(text, []byte("\n"), 3)
	for _, line := range lines[:min(2, len(lines))] {
		if found := encodingLine().FindSubmatch(line); found != nil {
			switch name := strings.ToLower(strings.ReplaceAll(string(found[1]), "_", "-")); name {
			case "utf-8", "utf8", "utf-8-sig", "ascii", "us-ascii":
				return ""
			}
			return string(found[1])
		}
	}
	return ""
}

// collect notes what the statements of a block declare.
func (m *module) collect(block *pyast.Node, condition string) {
	for n := range block.NamedChildren() {
		switch n.Kind {
		case "expression_statement":
			for e := range n.NamedChildren() {
				m.assignment(n, e, condition)
			}
		case "class_definition", "function_definition", "decorated_definition":
			m.declaration(n, condition)
		case "type_alias_statement":
			d := &definition{kind: aValue, node: n.ByField("right"), statement: n, condition: condition}
			m.define(n.ByField("left").Text(), d)
		case "import_statement", "import_from_statement":
			m.imports(n, condition)
		case "if_statement":
			// What is for type checkers alone is how the module means its names.
			if test := n.ByField("condition").Text(); test == "TYPE_CHECKING" || test == "typing.TYPE_CHECKING" {
				m.collect(n.ByField("consequence"), condition)
			} else {
				m.collect(n, "under a condition")
			}
		case "ERROR", "block", "else_clause", "elif_clause", "try_statement", "except_clause", "finally_clause",
			"with_statement", "for_statement", "while_statement", "match_statement", "case_clause":
			m.collect(n, "under a condition")
		}
	}
}

// assignment notes the names that an expression of a statement binds.
func (m *module) assignment(statement, value *pyast.Node, condition string) {
	var names []*pyast.Node
	for value != nil && value.Kind == "assignment" { // a = b = value
		names = append(names, value.ByField("left"))
		value = value.ByField("right")
	}
	for _, name := range names {
		if name != nil && name.Kind == "identifier" && value != nil {
			m.define(name.Text(), &definition{kind: aValue, node: value, statement: statement, condition: condition})
		}
	}
}

// declaration notes a class or a function.
func (m *module) declaration(n *pyast.Node, condition string) {
	d := &definition{kind: aFunction, node: n, statement: n, condition: condition}
	if n.Kind == "decorated_definition" {
		d.node = n.ByField("definition")
		for child := range n.NamedChildren() {
			if child.Kind == "decorator" {
				for expression := range child.NamedChildren() {
					d.decorators = append(d.decorators, expression)
				}
			}
		}
	}
	if d.node == nil {
		return
	}
	if d.node.Kind == "class_definition" {
		d.kind = aClass
	}
	m.define(d.node.ByField("name").Text(), d)
}

func (m *module) define(name string, d *definition) {
	if before := m.defs[name]; before != nil {
		if before.kind == anImport && d.kind == aValue && d.condition != "" {
			return // the stand-in for what could not be imported
		}
		if before.kind != anImport || d.kind == anImport && (before.module != d.module || before.name != d.name) {
			d.again = before.statement.Line
		}
	}
	d.declared = name
	m.defs[name] = d
}

// imports notes what an import statement binds.
func (m *module) imports(n *pyast.Node, condition string) {
	from := m.importedFrom(n.ByField("module_name"))
	for child := range n.NamedChildren() {
		if child.Kind == "wildcard_import" {
			m.stars = append(m.stars, star{from, n})
		}
		if child.Field != "name" {
			continue
		}
		name, alias := child.Text(), child.Text()
		if child.Kind == "aliased_import" {
			name, alias = child.ByField("name").Text(), child.ByField("alias").Text()
		}
		d := &definition{kind: anImport, statement: n, module: from, name: name, condition: condition}
		if n.Kind == "import_statement" { // a.b.c as alias, or a.b.c, which binds a
			if child.Kind != "aliased_import" {
				alias, _, _ = strings.Cut(name, ".")
				name = alias
			}
			d.module, d.name = name, ""
		}
		if d.module != "" { // else it leads out of the package
			m.define(alias, d)
		}
	}
}

// importedFrom returns the dotted name of the module that is imported from; "" if that is outside of the package.
func (m *module) importedFrom(n *pyast.Node) string {
	text := n.Text()
	if n == nil || n.Kind != "relative_import" {
		return text
	}
	rest := strings.TrimLeft(text, ".")
	up := len(text) - len(rest)
	if path.Base(m.path) == "__init__.py" { // relative imports of a package start from itself
		up--
	}
	parts := strings.Split(m.name, ".")
	if up >= len(parts) {
		return ""
	}
	return joinDots(strings.Join(parts[:len(parts)-up], "."), rest)
}

// computedNames returns what in a module sets names that are known only when it runs, and how: by exec, or in the dictionary
// of its names. A function __getattr__ answers for names that are not there, and keeps them so.
func computedNames(t *pyast.Tree) (at *pyast.Node, how string) {
	for n := range t.Root.All() {
		switch n.Kind {
		case "call":
			switch function := n.ByField("function").Text(); {
			case (function == "exec" || function == "eval") && n.Parent.Kind == "expression_statement" && scope(n) == nil:
				return n, "its module runs text as code by " + function
			case function == "globals().update" || function == "vars().update" && scope(n) == nil:
				return n, setsNames + firstLine(n)
			}
		case "assignment":
			left := n.ByField("left")
			if left == nil || left.Kind != "subscript" {
				continue
			}
			value := left.ByField("value")
			_, err := pyast.Literal(left.ByField("subscript"))
			if value.Text() == "sys.modules" || isNamespace(value) && enclosingName(left) != "__getattr__" && err != nil {
				return n, setsNames + firstLine(n)
			}
		}
	}
	return nil, ""
}

const setsNames = "its module sets names that are known only when it runs: "

// isNamespace reports whether an expression is the dictionary of a module's names.
func isNamespace(n *pyast.Node) bool {
	switch n.Text() {
	case "globals()":
		return true
	case "vars()", "locals()":
		return scope(n) == nil
	}
	return false
}

// firstLine is what a message shows of a statement.
func firstLine(n *pyast.Node) string {
	line, _, _ := strings.Cut(n.Text(), "\n")
	return strings.TrimRight(line, "\r")
}
