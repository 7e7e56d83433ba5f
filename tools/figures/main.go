// Command figures measures the shape of this repository's Go code: lines, lengths of functions, small files, and functions
// that only one other function calls. It judges nothing.
//
//	cd tools && go run ./figures [-list] ..
//
// Product code is what is neither a test nor generated nor in testdata or examples. A function has a single caller when exactly one
// other function, anywhere in the product code, mentions it; it is foreign when that caller is in another file. Exported
// functions, methods that some interface asks for, and main are left out of both.
//
// Some functions are in another file than their caller for a reason, so they are counted apart: see placed. So is a function that
// is itself the only caller of one in its own file, as serveChat is in chat.go: it begins what the file is about, and moved to its
// caller, it would only make that one foreign.
package main

import (
	"bytes"
	"flag"
	"fmt"
	"go/ast"
	"go/token"
	"go/types"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/tools/go/packages"
)

func main() {
	list := flag.Bool("list", false, "list single-caller functions in a foreign file, and small files")
	flag.Parse()
	root := flag.Arg(0)
	if root == "" {
		root = "."
	}
	if err := run(root, *list); err != nil {
		fmt.Fprintln(os.Stderr, "figures:", err)
		os.Exit(1)
	}
}

func run(root string, list bool) error {
	root, err := filepath.Abs(root)
	if err != nil {
		return err
	}
	if err := countLines(root, list); err != nil {
		return err
	}
	loaded, err := packages.Load(&packages.Config{
		Dir:  root,
		Mode: packages.NeedName | packages.NeedFiles | packages.NeedSyntax | packages.NeedTypes | packages.NeedTypesInfo | packages.NeedImports | packages.NeedDeps | packages.NeedModule,
	}, "./...")
	if err != nil {
		return err
	}
	if packages.PrintErrors(loaded) > 0 {
		return fmt.Errorf("the packages do not compile")
	}
	functions(loaded, root, list)
	return nil
}

// countLines counts files as they are, for all platforms.
func countLines(root string, list bool) error {
	var product, productFiles, tests, small, generated int
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() {
			switch entry.Name() {
			case ".git", "testdata", "examples", "tools", "node_modules":
				return filepath.SkipDir
			}
			return nil
		}
		if filepath.Ext(path) != ".go" {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		lines := bytes.Count(text, []byte("\n"))
		if bytes.HasPrefix(text, []byte("// Code generated ")) {
			generated += lines
			return nil
		}
		if strings.HasSuffix(path, "_test.go") {
			tests += lines
			return nil
		}
		product += lines
		productFiles++
		if lines < 60 && entry.Name() != "doc.go" {
			small++
			if list {
				fmt.Printf("small %s %d\n", strings.TrimPrefix(path, root+"/"), lines)
			}
		}
		return nil
	})
	fmt.Printf("product code              %6d lines in %d files\n", product, productFiles)
	fmt.Printf("test code                 %6d lines\n", tests)
	fmt.Printf("generated code            %6d lines\n", generated)
	fmt.Printf("files under 60 lines      %6d (doc.go aside)\n", small)
	return err
}

// A function is one that the product code declares.
type function struct {
	name    string
	file    string
	hidden  bool // exported, or called by the runtime
	callers map[*types.Func]bool
}

func functions(loaded []*packages.Package, root string, list bool) {
	all := map[*types.Func]*function{}
	var lengths []int
	var interfaces []*types.Interface
	for _, p := range loaded {
		for _, file := range p.Syntax {
			for _, decl := range file.Decls {
				f, ok := decl.(*ast.FuncDecl)
				if !ok {
					continue
				}
				start, end := p.Fset.Position(f.Pos()), p.Fset.Position(f.End())
				lengths = append(lengths, end.Line-start.Line+1)
				object := p.TypesInfo.Defs[f.Name].(*types.Func)
				all[object] = &function{
					name: object.FullName(), file: start.Filename, callers: map[*types.Func]bool{},
					hidden: object.Exported() || f.Name.Name == "main" || f.Name.Name == "init",
				}
			}
		}
		for _, tv := range p.TypesInfo.Types {
			if i, ok := tv.Type.Underlying().(*types.Interface); ok && i.NumMethods() > 0 {
				interfaces = append(interfaces, i)
			}
		}
	}
	for _, p := range loaded {
		for _, file := range p.Syntax {
			for _, decl := range file.Decls {
				var caller *types.Func
				if f, ok := decl.(*ast.FuncDecl); ok {
					caller = p.TypesInfo.Defs[f.Name].(*types.Func)
				}
				ast.Inspect(decl, func(n ast.Node) bool {
					id, ok := n.(*ast.Ident)
					if !ok {
						return true
					}
					if used, ok := p.TypesInfo.Uses[id].(*types.Func); ok {
						if f := all[used.Origin()]; f != nil && used.Origin() != caller {
							f.callers[caller] = true
						}
					}
					return true
				})
			}
		}
	}
	single, foreign, settled := 0, 0, 0
	var names []string
	heads := map[*types.Func]bool{} // the only callers of functions of their own file
	for object, f := range all {
		if len(f.callers) == 1 && !f.hidden && !asked(object, interfaces) {
			for caller := range f.callers {
				heads[caller] = heads[caller] || caller != nil && all[caller].file == f.file
			}
		}
	}
	for object, f := range all {
		if f.hidden || len(f.callers) != 1 || asked(object, interfaces) {
			continue
		}
		single++
		for caller := range f.callers {
			if caller != nil && all[caller].file != f.file {
				foreign++
				if heads[object] || placed(object, f, loaded[0].Fset) {
					settled++
					continue
				}
				names = append(names, fmt.Sprintf("foreign %s (%s) called in %s", f.name, strings.TrimPrefix(f.file, root+"/"), strings.TrimPrefix(all[caller].file, root+"/")))
			}
		}
	}
	slices.Sort(lengths)
	at := func(percent int) int { return lengths[len(lengths)*percent/100] }
	fmt.Printf("functions                 %6d (lines: median %d, p90 %d, p99 %d, longest %d)\n",
		len(lengths), at(50), at(90), at(99), lengths[len(lengths)-1])
	fmt.Printf("with a single caller      %6d\n", single)
	fmt.Printf("  in another file         %6d, of which %d are where they belong, and %d are foreign\n", foreign, settled, foreign-settled)
	if list {
		slices.Sort(names)
		fmt.Println(strings.Join(names, "\n"))
	}
}

// asked reports whether a method may be called through an interface.
func asked(object *types.Func, interfaces []*types.Interface) bool {
	receiver := object.Signature().Recv()
	if receiver == nil {
		return false
	}
	for _, i := range interfaces {
		for method := range i.Methods() {
			if method.Name() == object.Name() && (types.Implements(receiver.Type(), i) || types.Implements(types.NewPointer(receiver.Type()), i)) {
				return true
			}
		}
	}
	return false
}

// placed reports whether a function is where a reader looks for it, wherever its callers are:
//   - a method beside the type that it belongs to: moved to its only caller, it would take a part of the type with it;
//   - a constructor beside the type that it makes, for the same reason;
//   - the constructor of a command, as CONTRIBUTING.md gives each command a file, and one file lists them;
//   - what a file of one platform has, as its twin for the others must be in another file.
func placed(object *types.Func, f *function, files *token.FileSet) bool {
	beside := func(t types.Type) bool {
		if pointer, ok := t.(*types.Pointer); ok {
			t = pointer.Elem()
		}
		named, ok := t.(*types.Named)
		return ok && files.Position(named.Obj().Pos()).Filename == f.file
	}
	signature := object.Signature()
	if receiver := signature.Recv(); receiver != nil {
		return beside(receiver.Type())
	}
	name := object.Name()
	if results := signature.Results(); strings.HasPrefix(name, "new") && (strings.HasSuffix(name, "Command") || results.Len() > 0 && beside(results.At(0).Type())) {
		return true
	}
	for _, platform := range []string{"_linux.go", "_unix.go", "_windows.go", "_darwin.go", "_other.go", "_amd64.go", "_arm64.go"} {
		if strings.HasSuffix(f.file, platform) {
			return true
		}
	}
	return false
}
