package wirediff

import "testing"

func TestParseType(t *testing.T) {
	tests := []struct{ name, annotation, want string }{
		{name: "a name", annotation: "int", want: "int"},
		{name: "nothing", annotation: "", want: ""},
		{name: "an optional", annotation: "Optional[int]", want: "None | int"},
		{name: "a union", annotation: "Union[str, None, int]", want: "None | int | str"},
		{name: "the same union", annotation: "int | str | None", want: "None | int | str"},
		{name: "quoted", annotation: "'RequestError | None'", want: "None | RequestError"},
		{name: "quoted inside", annotation: `list["Foo"] | None`, want: "None | array[Foo]"},
		{name: "arrays", annotation: "set[tuple[int, ...]]", want: "array[array[int]]"},
		{name: "a bare list", annotation: "List", want: "array"},
		{name: "a list of anything", annotation: "list[Any]", want: "array"},
		{name: "a tuple", annotation: "tuple[int, str]", want: "tuple[int, str]"},
		{name: "maps", annotation: "typing.Mapping[str, Any]", want: "map[str]"},
		{name: "annotated", annotation: "Annotated[np.ndarray, F(lambda _, h: h(list[list[int]]))] | None", want: "None | ndarray"},
		{name: "words", annotation: "Literal['a', 'b|c']", want: `"a" | "b|c"`},
		{name: "a module", annotation: "torch.Tensor | None", want: "None | Tensor"},
		{name: "twice", annotation: "int | int", want: "int"},
		{name: "open brackets", annotation: "list[int", want: "array[int]"},
		{name: "a bar alone", annotation: "|", want: ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if got := parseType(test.annotation).String(); got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

func TestAccepts(t *testing.T) {
	tests := []struct {
		name, reader, writer string
		want                 bool
	}{
		{name: "the same", reader: "int", writer: "int", want: true},
		{name: "another", reader: "int", writer: "str"},
		{name: "none", reader: "int", writer: "int | None"},
		{name: "none that may be", reader: "int | None", writer: "int", want: true},
		{name: "an int for a float", reader: "float", writer: "int", want: true},
		{name: "a float for an int", reader: "int", writer: "float"},
		{name: "anything", reader: "Any", writer: "list[int] | None", want: true},
		{name: "anything for something", reader: "int", writer: "Any"},
		{name: "elements", reader: "list[float]", writer: "tuple[int, ...]", want: true},
		{name: "other elements", reader: "list[int]", writer: "list[str]"},
		{name: "any elements", reader: "list", writer: "list[int]", want: true},
		{name: "any elements for some", reader: "list[int]", writer: "list"},
		{name: "a word for text", reader: "str", writer: "Literal['a']", want: true},
		{name: "text for a word", reader: "Literal['a']", writer: "str"},
		{name: "a word more", reader: "Literal['a']", writer: "Literal['a', 'b']"},
		{name: "values", reader: "dict[str, int]", writer: "dict[str, str]"},
		{name: "tuples", reader: "tuple[int, str]", writer: "tuple[int]"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if got := parseType(test.reader).accepts(parseType(test.writer)); got != test.want {
				t.Errorf("got %v, want %v", got, test.want)
			}
		})
	}
}

func TestParseSignature(t *testing.T) {
	tests := []struct {
		name, text  string
		least, most int
		params      string
		result      string
	}{
		{name: "none", text: "(self)", params: ""},
		{name: "no text", text: "", params: ""},
		{name: "a result", text: "(self) -> list[dict[str, str]]", result: "list[dict[str, str]]"},
		{name: "defaults", text: "(self, a, level: int=1, mode: M='x, y') -> None", least: 1, most: 3, params: "a level mode ", result: "None"},
		{name: "brackets", text: "(self, f: str | Callable[..., R], t: float | None=None)", least: 1, most: 2, params: "f t "},
		{name: "keywords alone", text: "(self, *, a: int=1, **kwargs)"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			s := parseSignature(test.text)
			names := ""
			for _, p := range s.params {
				names += p.name + " "
			}
			if names != test.params || s.least() != test.least || s.most() != test.most || s.result != test.result {
				t.Errorf("got %q, %d to %d, %q; want %q, %d to %d, %q",
					names, s.least(), s.most(), s.result, test.params, test.least, test.most, test.result)
			}
		})
	}
	if parseSignature("(self, *args)").most() < 1000 {
		t.Error("a method with *args takes as many as it is given")
	}
}

func FuzzParseType(f *testing.F) {
	for _, seed := range []string{"int | None", "list[", "'", "Literal['a", "Union[]", "Optional", "]|[", "tuple[...]", "Annotated[]"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, annotation string) {
		got := parseType(annotation)
		if !got.accepts(got) && got.String() != "" {
			t.Errorf("%q does not accept itself", got)
		}
		parseSignature(annotation)
	})
}
