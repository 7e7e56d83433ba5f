package pyast

import "testing"

// TestCanonical has what TestPython cannot compare: that formatting does not matter, and what Python itself rejects.
func TestCanonical(t *testing.T) {
	tests := []struct{ name, source, want string }{
		{
			"formatting", "msgspec . field(  # why\n  default_factory = lambda :[ ],\n  name=\"a\", )",
			"msgspec.field(default_factory=lambda: [], name='a')",
		},
		{"parentheses", "((a) | (b | c))", "a | (b | c)"},
		{"numbers", "0x10 + 1_0e0", "16 + 10.0"},
		{"quotes", `"a" 'b'`, "'ab'"},
		{"no character", `f("\ud800", '''a
b\N{BULLET}''')`, `f("\ud800", '''a b\N{BULLET}''')`},
		{"a line break in a placeholder", "f'{x + '''a\nb'''}'", `f'''{x + """a\nb"""}'''`},
		{"broken", "f(a,\n  $, b)", "f ( a , $ , b )"},
		{"no expression", "print", "print"},
	}
	p := newParser(t)
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			tree := parse(t, p, "x = "+test.source+"\n")
			if got := Canonical(tree, expression(t, tree)); got != test.want {
				t.Errorf("got  %s\nwant %s", got, test.want)
			}
		})
	}
}
