package pyast

import (
	"math"
	"math/big"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

func TestLiteral(t *testing.T) {
	large, _ := new(big.Int).SetString("-123456789012345678901234567890", 10)
	tests := []struct {
		name, source string
		want         any
	}{
		{"None", "None", nil},
		{"True", "True", true},
		{"False", "(False)", false},
		{"int", "1_000", int64(1000)},
		{"hexadecimal", "0xDEAD_beef", int64(0xdeadbeef)},
		{"octal", "0O17", int64(15)},
		{"binary", "0b1_01", int64(5)},
		{"zeros", "00_0", int64(0)},
		{"smallest", "-9223372036854775808", int64(math.MinInt64)},
		{"large", "-123456789012345678901234567890", large},
		{"beyond int64", "9223372036854775808", new(big.Int).SetUint64(1 << 63)},
		{"negative", "-1", int64(-1)},
		{"signs", "-+-1", int64(1)},
		{"float", "1_0.5e-1", 1.05},
		{"without digits after", "-1.", -1.0},
		{"without digits before", ".5", 0.5},
		{"infinite", "1e400", math.Inf(1)},
		{"string", `'a'`, "a"},
		{"empty", `""`, ""},
		{"escapes", `"\a\b\f\n\r\t\v\\\'\"\0\101\x41\u0041\U0001F600\q\
z"`, "\a\b\f\n\r\t\v\\'\"\x00AAA😀\\qz"},
		{"raw", `r"\d\n"`, `\d\n`},
		{"raw, nothing but a quote", `r'\''`, `\'`},
		{"raw, nothing but backslashes", `R"\\"`, `\\`},
		{"three quotes", "'''a\n'b''' ", "a\n'b"},
		{"side by side", "('a' # c\n  \"b\" u'c'\n r'\\d')", "abc\\d"},
		{"bytes", `b'\xff\u00' rb"\x"`, []byte("\xff\\u00\\x")},
		{"tuple", "(1, (2,), ())", Tuple{int64(1), Tuple{int64(2)}, Tuple{}}},
		{"tuple without parentheses", "1, 'a'", Tuple{int64(1), "a"}},
		{"list", "[1, # one\n [],]", []any{int64(1), []any{}}},
		{"set", "{1, 2}", Set{int64(1), int64(2)}},
		{"dict", "{'b': 1, 'a': {}, 'b': None}", Dict{{"b", int64(1)}, {"a", Dict{}}, {"b", nil}}},
	}
	p := newParser(t)
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			tree := parse(t, p, "x = "+test.source)
			got, err := Literal(expression(t, tree))
			require.NoError(t, err)
			equal := cmp.Comparer(func(a, b *big.Int) bool { return a.Cmp(b) == 0 })
			require.NoDiff(t, cmp.Diff(test.want, got, equal), "(-want +got)")
		})
	}
}

func TestNoLiteral(t *testing.T) {
	tests := []struct{ name, source, want string }{
		{"a name", "a", `line 2: "a" is not a literal`},
		{"a name within", "[1,\n {2: (a.b,)}]", `line 3: "a.b" is not a literal`},
		{"a call", "set()", `line 2: "set()" is not a literal`},
		{"a sum", "1 + 1", `line 2: "1 + 1" is not a literal`},
		{"an ellipsis", "...", `line 2: "..." is not a literal`},
		{"the sign of a string", "-'a'", `line 2: "-'a'" is not a literal`},
		{"the sign of a truth", "-True", `line 2: "-True" is not a literal`},
		{"an inversion", "~1", `line 2: "~1" is not a literal`},
		{"an f-string", "f'a'", `line 2: "f'a'" is not a literal: its value is made when it runs`},
		{"an f-string beside", "'a' f'{b}'", `is not a literal: its value is made`},
		{"a template", "t'a'", `is not a literal: its value is made`},
		{"a splat", "[*a]", `line 2: "*a" is not a literal`},
		{"a splat of a dict", "{**a}", `line 2: "**a" is not a literal`},
		{"a comprehension", "[1 for a in b]", `is not a literal`},
		{"an octal of Python 2", "017", `line 2: "017" is not a literal`},
		{"a long of Python 2", "1L", `line 2: "1L" is not a literal`},
		{"an imaginary number", "1j", `line 2: "1j" is not a literal`},
		{"an imaginary float", "1.5j", `line 2: "1.5j" is not a literal`},
		{"strings and bytes", "'a' b'b'", `line 2: strings and bytes side by side`},
		{"bytes that are none", "b'é'", `bytes may hold ASCII only`},
		{"half a surrogate", `'\ud800'`, `U+D800 is not a character`},
		{"beyond all characters", `'\U00110000'`, `U+110000 is not a character`},
		{"too few digits", `'\x1'`, `\x needs 2 digits`},
		{"no digits", `'\xg0'`, `"g0" are no digits of base 16`},
		{"by name", `'\N{BULLET}'`, `a character by its name, \N{…}, cannot be told here`},
		{"an error within", "[1, $]", `line 2, column 9: cannot read "$"`},
	}
	p := newParser(t)
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			tree := parse(t, p, "\nx = "+test.source+"\n")
			got, err := Literal(expression(t, tree))
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, %v, want an error with %q", got, err, test.want)
			}
		})
	}
}

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
			if got := Canonical(expression(t, tree)); got != test.want {
				t.Errorf("got  %s\nwant %s", got, test.want)
			}
		})
	}
}
