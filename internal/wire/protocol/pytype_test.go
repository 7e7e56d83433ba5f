package protocol

import (
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

func TestParse(t *testing.T) {
	deep := strings.Repeat("list[", 40) + "Optional[int]" + strings.Repeat("]", 40)
	tests := []struct{ name, annotation, want string }{
		{"a name", " int ", "int"},
		{"nothing", "", ""},
		{"a module", "torch.Tensor|None", "torch.Tensor | None"},
		{"an optional", "Optional[int]", "int | None"},
		{"of typing", "typing.Optional[typing.List[int]]", "List[int] | None"},
		{"a union", "Union[str, None, int]", "str | int | None"},
		{"a union of unions", "Optional[Union[int,'str | None']]", "int | str | None"},
		{"None first", "None | int", "int | None"},
		{"None alone", "Optional[None]", "None"},
		{"within brackets", "dict[str, None|list[ int ]]", "dict[str, list[int] | None]"},
		{"quoted", "'RequestError | None'", "RequestError | None"},
		{"quoted inside", `list["Foo"]`, "list[Foo]"},
		{"a quoted text that is no type", `list["a, b"]`, `list["a, b"]`},
		{"a quoted word that has quotes", `"a\"b"`, `"a\"b"`},
		{"a tuple of any length", "tuple[int,...]", "tuple[int, ...]"},
		{"values", "Literal['a', \"b|c\", 'Optional[d]', 3]", "Literal['a', \"b|c\", 'Optional[d]', 3]"},
		{"a value with a quote", `Literal['it\'s', ']'] | None`, `Literal['it\'s', ']'] | None`},
		{"annotated", "Annotated[Optional[np.ndarray], F(lambda _, h: h(list[list[int]]))]", "Annotated[np.ndarray | None, F(lambda _, h: h(list[list[int]]))]"},
		{"a function", "str | Callable[[int, str], R]", "str | Callable[[int, str], R]"},
		{"commas without anything between them", "dict[str,,int,]", "dict[str, int]"},
		{"bars without anything between them", "int || None|", "int | None"},
		{"a bar alone", "|", "|"},
		{"open brackets", "list[int", "list[int"},
		{"closed brackets", "int] | None", "int] | None"},
		{"brackets behind brackets", "a[None | int][b]", "a[None | int][b]"},
		{"an open quote", "'int | None", "'int | None"},
		{"several types", "None | int, str", "None | int, str"},
		{"an expression", "f(x) + 1", "f(x) + 1"},
		{"nested too deeply", deep, deep},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got := ParsePyType(test.annotation)
			require.True(t, got.String() == test.want, "got %q, want %q", got, test.want)
			if again := ParsePyType(test.want); !reflect.DeepEqual(got, again) {
				t.Errorf("got %+v, and read again %+v", got, again)
			}
		})
	}
}

func TestParseSignature(t *testing.T) {
	param := func(name, annotation string, optional bool) Param {
		return Param{Name: name, Type: ParsePyType(annotation), Optional: optional}
	}
	tests := []struct {
		name, text string
		params     []Param
		variadic   bool
		result     string
	}{
		{name: "none", text: "(self)"},
		{name: "no text"},
		{name: "no signature", text: "::error::x"},
		{name: "a result", text: "(self) -> list[dict[str, str]]", result: "list[dict[str, str]]"},
		{
			name: "defaults", text: "(self, a, level: int=1, mode: M='x, y') -> None", result: "None",
			params: []Param{param("a", "Any", false), param("level", "int", true), param("mode", "M", true)},
		},
		{
			name: "brackets", text: "(self, f: str | Callable[..., R], t: float | None=None, args: tuple=())",
			params: []Param{param("f", "str | Callable[..., R]", false), param("t", "float | None", true), param("args", "tuple", true)},
		},
		{name: "any number", text: "(self, /, *args, **kwargs)", variadic: true},
		{name: "keywords alone", text: "(self, *, a: int=1)"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			want := Signature{Params: test.params, Variadic: test.variadic, Result: ParsePyType(test.result)}
			require.NoDiff(t, cmp.Diff(want, ParseSignature(test.text)), "(-want +got)")
		})
	}
}

// FuzzParse: what was read is read again as the same, and is never deeper than bounds allow.
func FuzzParse(f *testing.F) {
	for _, seed := range []string{
		"int | None", "list[", "'", "Literal['a", "Union[]", "Optional[]", "]|[", "tuple[...]", "Annotated[]", "x | 'a] | b' | c",
		"f['a, b']", `"'a' | b"`, "typing.typing.x[|]", "(a | b) | c", "\\'", "Optional['Literal[\"|\"]']", "(self, a: int=1, *b) -> c",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, annotation string) {
		got := ParsePyType(annotation)
		if again := ParsePyType(got.String()); !reflect.DeepEqual(got, again) {
			t.Errorf("%q is %+v, and read again %+v", annotation, got, again)
		}
		if n := depth(got); n > 100 {
			t.Errorf("%q is %d deep", annotation, n)
		}
		ParseSignature(annotation)
	})
}

func depth(t PyType) int {
	deepest := 0
	for _, arg := range t.Args {
		deepest = max(deepest, depth(arg))
	}
	return deepest + 1
}
