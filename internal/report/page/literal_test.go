package page_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"testing"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// TestMarkupIsLiteral: text that is not in the source never becomes markup, in no package, so all of it goes through the one
// escape. (The compiler converts constants by itself, and nothing else.)
func TestMarkupIsLiteral(t *testing.T) {
	var files []string
	err := filepath.WalkDir("../../..", func(path string, entry fs.DirEntry, err error) error {
		if filepath.Ext(path) == ".go" && !entry.IsDir() {
			files = append(files, path)
		}
		return err
	})
	require.NoError(t, err)
	literals := 0
	for _, file := range files {
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		require.NoError(t, err)
		ast.Inspect(parsed, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok || len(call.Args) != 1 || !isMarkup(call.Fun) {
				return true
			}
			if _, ok := call.Args[0].(*ast.BasicLit); !ok {
				t.Errorf("%s makes markup of what is not a literal", file)
			}
			literals++
			return true
		})
	}
	if literals < 3 {
		t.Errorf("%d literals were found, want those of this package at least", literals)
	}
}

// isMarkup tells a conversion to Markup, in this package or another.
func isMarkup(fun ast.Expr) bool {
	if selector, ok := fun.(*ast.SelectorExpr); ok {
		fun = selector.Sel
	}
	name, ok := fun.(*ast.Ident)
	return ok && name.Name == "Markup"
}
