// Package pyast reads Python source into a syntax tree, without Python.
//
// The parser is tree-sitter with its Python grammar, the one that editors and code hosts use, compiled to WebAssembly
// and run by wazero. The module is built by wasm/build from pinned sources, and cannot do anything: all that it imports is a
// function that returns whether to stop. Against a `python3` on the machine it has three merits. It is there on every
// machine that a static binary runs on. It says the same everywhere, whereas the `ast` of an older Python rejects
// the syntax of a newer release. And it does not give up at an error: what it cannot read becomes a node of its own
// with a line, so that a reader can name that place and still vouch for the rest.
//
//	parser, err := pyast.New(ctx)
//	tree, err := parser.Parse(ctx, source)
//	for class := range tree.Root.All() {
//		if class.Kind == "class_definition" {
//			name := class.ByField("name").Text()
//			…
//		}
//	}
//
// Kinds and fields are those of the grammar. Read Tree.Errors: a tree is not to be trusted within these places.
//
// The grammar knows Python up to 3.12, and the template strings of 3.14; a default of a type parameter, of 3.13, is an
// error. It is more lenient than Python: it also takes the print and exec statements of Python 2 and blocks with
// nothing in them, so what it accepts need not compile. Compared with Python in all files of two vLLM releases, it is
// wrong in three ways: `a & b ^ c` is read as a & (b ^ c), `with a if b else c as d` as a if b else (c as d), and
// `return a, *(b)` is an error.
package pyast
