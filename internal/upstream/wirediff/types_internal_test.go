package wirediff

import (
	"testing"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

func TestReadType(t *testing.T) {
	tests := []struct{ name, annotation, want string }{
		{"a union in any order", "Union[str, None, int]", "None | int | str"},
		{"twice", "int | str | int", "int | str"},
		{"arrays", "set[tuple[int, ...]]", "array[array[int]]"},
		{"a bare list", "List", "array"},
		{"a list of anything", "list[Any]", "array"},
		{"a tuple", "tuple[int, str]", "tuple[int, str]"},
		{"maps", "typing.Mapping[str, Any]", "map[str]"},
		{"another module", "collections.abc.Sequence[int]", "array[int]"},
		{"annotated", "Annotated[np.ndarray, F(lambda _, h: h(list[list[int]]))] | None", "None | ndarray"},
		{"words", "Literal['a', 'b|c']", `"a" | "b|c"`},
		{"a tensor", "torch.Tensor | None", "None | Tensor"},
		{"no type", "list[int", "list[int"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			require.Equal(t, readType(test.annotation).String(), test.want, "readType")
		})
	}
}

func TestAccepts(t *testing.T) {
	tests := []struct {
		name, reader, writer string
		want                 bool
	}{
		{"the same", "int", "int", true},
		{"another", "int", "str", false},
		{"none", "int", "int | None", false},
		{"none that may be", "int | None", "int", true},
		{"an int for a float", "float", "int", true},
		{"a float for an int", "int", "float", false},
		{"anything", "Any", "list[int] | None", true},
		{"anything for something", "int", "Any", false},
		{"elements", "list[float]", "tuple[int, ...]", true},
		{"other elements", "list[int]", "list[str]", false},
		{"any elements", "list", "list[int]", true},
		{"any elements for some", "list[int]", "list", false},
		{"a word for text", "str", "Literal['a']", true},
		{"text for a word", "Literal['a']", "str", false},
		{"a word more", "Literal['a']", "Literal['a', 'b']", false},
		{"values", "dict[str, int]", "dict[str, str]", false},
		{"tuples", "tuple[int, str]", "tuple[int]", false},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			require.Equal(t, accepts(readType(test.reader), readType(test.writer)), test.want, "accepts")
		})
	}
}

func FuzzReadType(f *testing.F) {
	for _, seed := range []string{"int | None", "list[", "Literal['a']", "Union[]", "Optional", "tuple[...]", "Annotated[]"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, annotation string) {
		if got := readType(annotation); !accepts(got, got) {
			t.Errorf("%q does not accept itself", got)
		}
	})
}
