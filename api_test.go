package vcr_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// usableElsewhere are the packages that other modules may import: whatever their exported declarations name is exported
// from one of the public packages or from the standard library.
var usableElsewhere = []string{"player", "recorder", "servetest", "trace"}

func TestPublicSignatures(t *testing.T) {
	for _, folder := range usableElsewhere {
		for _, failure := range privateNames(t, folder) {
			t.Error(failure)
		}
	}
}

// privateNames returns one failure for each name in an exported declaration of the folder's package that another module
// cannot write.
func privateNames(t *testing.T, folder string) (failures []string) {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(folder, "*.go"))
	if err != nil || len(paths) == 0 {
		t.Fatalf("%s has no Go files: %v", folder, err)
	}
	for _, path := range paths {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		fset := token.NewFileSet()
		file, err := parser.ParseFile(fset, path, nil, parser.SkipObjectResolution)
		require.NoError(t, err)
		for _, decl := range file.Decls {
			check := func(name string, node ast.Node, params *ast.FieldList) {
				if bad := privateName(node, hiddenImports(file), typeParams(params)); bad != "" {
					at := fset.Position(decl.Pos())
					failures = append(failures, fmt.Sprintf("%s:%d: %s names %s, which other modules cannot", path, at.Line, name, bad))
				}
			}
			switch d := decl.(type) {
			case *ast.FuncDecl:
				if d.Name.IsExported() && (d.Recv == nil || ast.IsExported(receiver(d))) {
					check(d.Name.Name, d.Type, d.Type.TypeParams)
				}
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					switch s := spec.(type) {
					case *ast.TypeSpec:
						alias := s.Assign.IsValid() // which gives a type a name that other modules can write
						if s.Name.IsExported() && !alias && exportedOf(s.Type) != nil {
							check(s.Name.Name, exportedOf(s.Type), s.TypeParams)
						}
					case *ast.ValueSpec:
						if s.Names[0].IsExported() && s.Type != nil {
							check(s.Names[0].Name, s.Type, nil)
						}
					}
				}
			}
		}
	}
	return failures
}

// hiddenImports are the names under which a file imports packages of internal/ and modules of others.
func hiddenImports(file *ast.File) (names []string) {
	for _, spec := range file.Imports {
		path, _ := strconv.Unquote(spec.Path.Value)
		folder, ours := strings.CutPrefix(path, module+"/")
		if isStandard(path) || ours && !within(folder, "internal") {
			continue
		}
		name := path[strings.LastIndex(path, "/")+1:]
		if spec.Name != nil {
			name = spec.Name.Name
		}
		names = append(names, name)
	}
	return names
}

func typeParams(list *ast.FieldList) (names []string) {
	if list != nil {
		for _, field := range list.List {
			for _, name := range field.Names {
				names = append(names, name.Name)
			}
		}
	}
	return names
}

func receiver(d *ast.FuncDecl) string {
	typ := d.Recv.List[0].Type
	if star, ok := typ.(*ast.StarExpr); ok {
		typ = star.X
	}
	if index, ok := typ.(*ast.IndexExpr); ok {
		typ = index.X
	}
	return typ.(*ast.Ident).Name
}

// exportedOf is the part of a type that other packages see: of a struct its exported fields.
func exportedOf(typ ast.Expr) ast.Node {
	s, ok := typ.(*ast.StructType)
	if !ok {
		return typ
	}
	seen := &ast.FieldList{}
	for _, field := range s.Fields.List {
		embedded := field.Type
		if star, ok := embedded.(*ast.StarExpr); ok {
			embedded = star.X
		}
		if id, ok := embedded.(*ast.Ident); ok && len(field.Names) == 0 && !id.IsExported() {
			continue // of which only the methods are seen
		}
		if len(field.Names) == 0 || slices.ContainsFunc(field.Names, func(n *ast.Ident) bool { return n.IsExported() }) {
			seen.List = append(seen.List, field)
		}
	}
	return seen
}

// privateName returns the first type in node that is unexported or of a package in hidden.
func privateName(node ast.Node, hidden, params []string) (bad string) {
	ast.Inspect(node, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.SelectorExpr:
			if pkg, ok := n.X.(*ast.Ident); ok && slices.Contains(hidden, pkg.Name) {
				bad = pkg.Name + "." + n.Sel.Name
			}
			return false
		case *ast.Field:
			if bad == "" && n.Type != nil {
				bad = privateName(n.Type, hidden, params)
			}
			return false // not the names of fields and parameters
		case *ast.Ident:
			if !n.IsExported() && !predeclared(n.Name) && !slices.Contains(params, n.Name) {
				bad = n.Name
			}
		}
		return bad == ""
	})
	return bad
}

func predeclared(name string) bool {
	return types.Universe.Lookup(name) != nil
}
