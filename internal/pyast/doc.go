// Package pyast reads Python source into a syntax tree, without Python.
//
// The parser is tree-sitter with its Python grammar, the one that editors and code hosts use, compiled to WebAssembly and
// run by wazero inside this process. Against a `python3` on the machine it has three merits. It is there on every machine
// that the one static binary runs on. It says the same everywhere, whereas the `ast` of an older Python rejects the syntax
// of a newer release. And it does not give up at an error: what it cannot read becomes a node of its own with a line, so
// that a reader can name that place and still vouch for the rest.
//
//	parser, err := pyast.New(ctx)
//	tree, err := parser.Parse(ctx, source)
//	for class := range tree.Root.All() {
//		if class.Kind == "class_definition" {
//			name := tree.Text(class.ByField("name"))
//			…
//		}
//	}
//
// Kinds and fields are those of the grammar. Read Tree.Errors: a tree is not to be trusted within these places.
//
// The grammar knows Python up to 3.14, and is more lenient than Python: it also takes the print and exec statements of
// Python 2, for one. What it accepts need not compile.
package pyast
