package upstream

import (
	"bytes"
	"context"
	"fmt"
	"path"
	"regexp"
	"strings"

	"github.com/vllm-vcr/conformance/internal/pyast"
)

// ours is the package whose modules are read. Names of others are not followed.
const ours = "vllm"

// maxModules bounds what a release can make us read.
const maxModules = 400

// A module is one Python file, and what its top level declares.
type module struct {
	name   string // "vllm.v1.engine"
	path   string // "vllm/v1/engine/__init__.py"
	tree   *pyast.Tree
	defs   map[string]*definition
	stars  []star
	errors []pyast.SyntaxError
	runs   *pyast.Node // what sets names that only running it tells; nil for nothing
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
}

// fetch reads the files of these paths that were not asked for before.
func (l *library) fetch(paths []string) error {
	var missing []string
	for _, p := range paths {
		if _, asked := l.texts[p]; !asked {
			missing = append(missing, p)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	texts, err := l.source.Read(l.ctx, missing)
	if err != nil {
		return err
	}
	for _, p := range missing {
		l.texts[p] = texts[p]
	}
	return nil
}

// load returns a module by its dotted name, or nil if there is none.
func (l *library) load(name string) (*module, error) {
	if m, known := l.modules[name]; known {
		return m, nil
	}
	file := strings.ReplaceAll(name, ".", "/")
	candidates := []string{file + "/__init__.py", file + ".py"} // as Python prefers them
	for _, p := range candidates {
		if err := l.fetch([]string{p}); err != nil {
			return nil, err
		}
		if text := l.texts[p]; text != nil {
			m, err := l.parse(name, p, text)
			l.modules[name] = m
			return m, err
		}
	}
	l.modules[name] = nil
	return nil, nil
}

func (l *library) parse(name, path string, text []byte) (*module, error) {
	if len(l.modules) >= maxModules {
		return nil, fmt.Errorf("%s: more than %d modules are of the wire: this is no vLLM", l.source.Where(), maxModules)
	}
	m := &module{name: name, path: path, defs: map[string]*definition{}}
	if encoding := encodingOf(text); encoding != "" {
		m.broken = fmt.Errorf("its encoding is %s: want utf-8", encoding)
		return m, nil
	}
	tree, err := l.parser.Parse(l.ctx, text)
	if err != nil {
		if l.ctx.Err() != nil {
			return nil, fmt.Errorf("%s: %s: %w", l.source.Where(), path, context.Cause(l.ctx))
		}
		m.broken = err
		return m, nil
	}
	m.tree, m.errors = tree, tree.Errors()
	m.collect(tree.Root, "")
	m.runs, m.how = computesNames(tree)
	return m, nil
}

// encodingLine is what the first two lines of a file may say of its encoding.
var encodingLine = regexp.MustCompile(`^[ \t\f]*#.*?coding[:=][ \t]*([-_.a-zA-Z0-9]+)`)

// encodingOf is what a file says that its encoding is, if that is another than UTF-8 or less than it.
func encodingOf(text []byte) string {
	lines := bytes.SplitN(text, []byte("\n"), 3)
	for _, line := range lines[:min(2, len(lines))] {
		if found := encodingLine.FindSubmatch(line); found != nil {
			switch name := strings.ToLower(strings.ReplaceAll(string(found[1]), "_", "-")); name {
			case "utf-8", "utf8", "utf-8-sig", "ascii", "us-ascii":
				return ""
			}
			return string(found[1])
		}
	}
	return ""
}

// isPackage tells whether the module is the __init__.py of a folder, which relative imports start from.
func (m *module) isPackage() bool { return path.Base(m.path) == "__init__.py" }

// collect notes what the statements of a block declare.
func (m *module) collect(block *pyast.Node, condition string) {
	for n := range block.NamedChildren() {
		m.statement(n, condition)
	}
}

func (m *module) statement(n *pyast.Node, condition string) {
	switch n.Kind {
	case "expression_statement":
		m.expression(n, condition)
	case "class_definition", "function_definition", "decorated_definition":
		m.declare(n, condition)
	case "type_alias_statement":
		name, right := n.ByField("left"), n.ByField("right")
		m.define(m.tree.Text(name), &definition{kind: aValue, node: right, statement: n, condition: condition})
	case "import_statement", "import_from_statement":
		m.imports(n, condition)
	case "if_statement":
		m.branches(n, condition)
	case "ERROR", "block", "else_clause", "elif_clause", "try_statement", "except_clause", "finally_clause",
		"with_statement", "for_statement", "while_statement", "match_statement", "case_clause":
		m.collect(n, "under a condition")
	}
}

// branches reads an if statement. What is for type checkers alone is how the module means its names.
func (m *module) branches(n *pyast.Node, condition string) {
	test := m.tree.Text(n.ByField("condition"))
	if test == "TYPE_CHECKING" || test == "typing.TYPE_CHECKING" {
		m.collect(n.ByField("consequence"), condition)
		return
	}
	for child := range n.NamedChildren() {
		m.statement(child, "under a condition")
	}
}

// expression notes the names that an assignment binds.
func (m *module) expression(n *pyast.Node, condition string) {
	for e := range n.NamedChildren() {
		var names []*pyast.Node
		value := e
		for value != nil && value.Kind == "assignment" { // a = b = value
			names = append(names, value.ByField("left"))
			value = value.ByField("right")
		}
		for _, name := range names {
			if name != nil && name.Kind == "identifier" && value != nil {
				m.define(m.tree.Text(name), &definition{kind: aValue, node: value, statement: n, condition: condition})
			}
		}
	}
}

// declare notes a class or a function.
func (m *module) declare(n *pyast.Node, condition string) {
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
	m.define(m.tree.Text(d.node.ByField("name")), d)
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
	from, relative := m.origin(n.ByField("module_name"))
	for child := range n.NamedChildren() {
		switch {
		case child.Kind == "wildcard_import":
			m.stars = append(m.stars, star{from, n})
		case child.Field != "name":
		case n.Kind == "import_from_statement":
			m.importName(n, child, from, relative, condition)
		default:
			m.importModule(n, child, condition)
		}
	}
}

// importName notes "from M import name [as alias]".
func (m *module) importName(statement, n *pyast.Node, from string, relative bool, condition string) {
	name, alias := m.renamed(n)
	d := &definition{kind: anImport, statement: statement, module: from, name: name, condition: condition}
	if relative && from == "" {
		return // it leads out of the package
	}
	m.define(alias, d)
}

// importModule notes "import a.b.c [as alias]".
func (m *module) importModule(statement, n *pyast.Node, condition string) {
	name, alias := m.renamed(n)
	d := &definition{kind: anImport, statement: statement, module: name, condition: condition}
	if n.Kind != "aliased_import" { // binds "a" alone
		alias, _, _ = strings.Cut(name, ".")
		d.module = alias
	}
	m.define(alias, d)
}

func (m *module) renamed(n *pyast.Node) (name, alias string) {
	if n.Kind == "aliased_import" {
		return m.tree.Text(n.ByField("name")), m.tree.Text(n.ByField("alias"))
	}
	return m.tree.Text(n), m.tree.Text(n)
}

// origin is the dotted name of the module that is imported from.
func (m *module) origin(n *pyast.Node) (name string, relative bool) {
	if n == nil || n.Kind != "relative_import" {
		return m.tree.Text(n), false
	}
	text := m.tree.Text(n)
	rest := strings.TrimLeft(text, ".")
	up := len(text) - len(rest)
	if m.isPackage() {
		up--
	}
	parts := strings.Split(m.name, ".")
	if up >= len(parts) {
		return "", true
	}
	parts = parts[:len(parts)-up]
	if rest != "" {
		parts = append(parts, rest)
	}
	return strings.Join(parts, "."), true
}
