package tomlfile

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/BurntSushi/toml"
	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// places lists every place below n as "path:line", in order of the path.
func places(n *node, path string) []string {
	var out []string
	for i, element := range n.elems {
		p := fmt.Sprintf("%s[%d]", path, i)
		out = append(out, fmt.Sprintf("%s:%d", p, element.line))
		out = append(out, places(element, p)...)
	}
	for _, key := range slices.Sorted(maps.Keys(n.keys)) {
		p := strings.TrimPrefix(path+"."+key, ".")
		out = append(out, fmt.Sprintf("%s:%d", p, n.keys[key].line))
		out = append(out, places(n.keys[key], p)...)
	}
	return out
}

func TestLayoutPlaces(t *testing.T) {
	tests := []struct {
		name string
		src  string
		want []string
	}{
		{name: "empty", src: ""},
		{name: "only a comment", src: "# key = 1"},
		{name: "pairs", src: "a = 1\n\nb = 'x' # c = 2\n", want: []string{"a:1", "b:3"}},
		{name: "no newline at the end", src: "a = 1\nb = true", want: []string{"a:1", "b:2"}},
		{name: "windows line ends", src: "a = 1\r\n\r\n[t] # x\r\nb = 2\r\n", want: []string{"a:1", "t:3", "t.b:4"}},
		{
			name: "arrays of tables",
			src:  "[[v]]\na = 1\n[[v]]\nb = 2\n[v.sub]\nc = 3\n",
			want: []string{"v:1", "v[0]:1", "v[0].a:2", "v[1]:3", "v[1].b:4", "v[1].sub:5", "v[1].sub.c:6"},
		},
		{name: "nested arrays of tables", src: "[[v]]\n[[v.w]]\na=1\n[[v.w]]\n", want: []string{
			"v:1", "v[0]:1", "v[0].w:2", "v[0].w[0]:2", "v[0].w[0].a:3", "v[0].w[1]:4",
		}},
		{name: "dotted and quoted keys", src: `a."b.c" . 'd' = 1` + "\n" + `"\u0065\x41\t" = 2`, want: []string{
			"a:1", "a.b.c:1", "a.b.c.d:1", "eA\t:2",
		}},
		{name: "a parent named after its child", src: "[a.b]\nc = 1\n[a]\nd = 1\n", want: []string{
			"a:3", "a.b:1", "a.b.c:2", "a.d:4",
		}},
		{name: "strings that look like keys", src: "a = \"x = 1 # [t]\"\nb = '[t] \"'\nc = \"\\\"\"\nd = 1", want: []string{
			"a:1", "b:2", "c:3", "d:4",
		}},
		{name: "multi-line strings", src: "a = \"\"\"\nb = 1\n[[c]]\n\\\"\"\" d = 2\"\"\"\"\"\ne = '''\n'' f = 3\n'''\ng = 4", want: []string{
			"a:1", "e:5", "g:8",
		}},
		{name: "escaped line end in a string", src: "a = \"\"\"x\\\n y\"\"\"\nb = 1", want: []string{"a:1", "b:3"}},
		{name: "empty strings", src: "a = \"\"\nb = ''\nc = \"\"\"\"\"\"\nd = ''''''\ne = 1", want: []string{
			"a:1", "b:2", "c:3", "d:4", "e:5",
		}},
		{name: "array over lines", src: "a = [ # x = 1\n  'b',\n\n  [1, 2], # ]\n]\nc = 1\n", want: []string{
			"a:1", "a[0]:2", "a[1]:1", "a[1][0]:4", "a[1][1]:4", "c:6",
		}},
		{name: "inline tables", src: "a = { b = 1, c.d = { e = [{ f = 2 }] } }\ng = [\n {h = 1},\n {h = 2}]", want: []string{
			"a:1", "a.b:1", "a.c:1", "a.c.d:1", "a.c.d.e:1", "a.c.d.e[0]:1", "a.c.d.e[0].f:1",
			"g:2", "g[0]:3", "g[0].h:3", "g[1]:4", "g[1].h:4",
		}},
		{name: "dates and numbers", src: "a = 1979-05-27 07:32:00Z # x\nb = [1_000, -0.5e3, inf]\nc = 0x1F", want: []string{
			"a:1", "b:2", "b[0]:2", "b[1]:2", "b[2]:2", "c:3",
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			l, err := layoutOf(tt.src)
			require.NoError(t, err)
			require.NoDiff(t, cmp.Diff(tt.want, places(l.root, "")), "places (-want +got)")
			checkAgainstDecoder(t, tt.src)
		})
	}
}

func TestLayoutLimits(t *testing.T) {
	tests := []struct {
		name string
		src  string
		want string // the error; empty when there is none
	}{
		{name: "key of the largest size", src: strings.Repeat("k", maxKey-1) + " = 1"},
		{name: "key too long", src: "\n" + strings.Repeat("k", maxKey) + " = 1", want: "line 2: a key and its parents have more than 256 bytes"},
		{name: "too many parts", src: strings.Repeat("a.", maxKey) + "a = 1", want: "line 1: a key and its parents have more than 256 bytes"},
		{name: "header and key together", src: "[" + strings.Repeat("t", maxKey-2) + "]\nab = 1", want: "line 2: a key and its parents have more than 256 bytes"},
		{name: "keys within keys", src: strings.Repeat(strings.Repeat("a", 20)+" = { ", 20) + strings.Repeat("}", 20), want: "line 1: a key and its parents have more than 256 bytes"},
		{name: "deepest arrays", src: "a = " + strings.Repeat("[", maxDepth-1) + "1" + strings.Repeat("]", maxDepth-1)},
		{name: "arrays too deep", src: "a = " + strings.Repeat("[", maxDepth) + "1" + strings.Repeat("]", maxDepth), want: "line 1: values are nested more than 32 deep"},
		{name: "tables too deep", src: strings.Repeat("a={", 40) + strings.Repeat("}", 40), want: "line 1: values are nested more than 32 deep"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := layoutOf(tt.src)
			var limit *limitError
			switch {
			case tt.want == "" && err != nil:
				t.Errorf("%v, want no error", err)
			case tt.want != "" && (!errors.As(err, &limit) || limit.Error() != tt.want):
				t.Errorf("%v, want %s", err, tt.want)
			}
		})
	}
}

// checkAgainstDecoder demands that the layout has the keys of src exactly as
// the decoder finds them, if both accept it.
func checkAgainstDecoder(t *testing.T, src string) {
	t.Helper()
	l, err := layoutOf(src)
	if err != nil {
		return
	}
	values, err := decode(src)
	if err != nil {
		return
	}
	require.NoDiff(t, cmp.Diff(shapeOf(values), shapeOfNode(l.root)), "shape of %q (-decoder +layout)", src)
}

// shapeOf reduces a decoded value to its keys and array lengths.
func shapeOf(value any) any {
	switch value := value.(type) {
	case map[string]any:
		shape := map[string]any{}
		for key, v := range value {
			shape[key] = shapeOf(v)
		}
		return emptyAsNil(shape)
	case []map[string]any:
		shape := make([]any, len(value))
		for i, v := range value {
			shape[i] = shapeOf(v)
		}
		return shape
	case []any:
		shape := make([]any, len(value))
		for i, v := range value {
			shape[i] = shapeOf(v)
		}
		if len(shape) == 0 {
			return nil
		}
		return shape
	}
	return nil
}

func shapeOfNode(n *node) any {
	if len(n.elems) > 0 {
		shape := make([]any, len(n.elems))
		for i, element := range n.elems {
			shape[i] = shapeOfNode(element)
		}
		return shape
	}
	shape := map[string]any{}
	for key, child := range n.keys {
		shape[key] = shapeOfNode(child)
	}
	return emptyAsNil(shape)
}

// emptyAsNil makes an empty table look like any other leaf: the places do not
// tell them apart.
func emptyAsNil(shape map[string]any) any {
	if len(shape) == 0 {
		return nil
	}
	return shape
}

func FuzzLayout(f *testing.F) {
	for _, seed := range []string{
		"[[vllm]]\nline = \"0.33\" # c\ndefault = true\n[[vllm]]\nline = '0.32'\nx_y = { a = 1, b = [1, {c = 2}] }\n",
		"a.b.c = 1\n[d.\"e.f\"]\ng = 1979-05-27T07:32:00Z\n", "a = \"\"\"\n\\\"\"\"\"\"\"\n", "a = '''''x'''''\n",
		"a = [\n# c\n1,\n]\n", "\"\\u00e9\" = 1\r\n", "a = {\n b = 1, # c\n}\n", "a = [[[{}]]]\n", "= 1", "[[", "a = \"\\", "\xef\xbb\xbfa = 1",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, src string) {
		if strings.ContainsRune(src, 0) || !utf8.ValidString(src) || strings.HasPrefix(src, "\xef\xbb\xbf") {
			return // refused or removed before the scanner sees it
		}
		checkAgainstDecoder(t, src)
	})
}

func FuzzParse(f *testing.F) {
	for _, seed := range []string{
		"[[golden]]\nname = \"a\"\nsize = 1\nat = 2026-01-31T12:00:00Z\ntags = [\"a\"]\nvalid = true\n", "[golden]\n", "golden = [{name = 1}, {nme = \"b\"}]\n",
		"golden = []\nname = 2026-01-31", "\x00", "\xff", "golden = [1]", "NAME = \"x\"\n",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		d := Parse("f.toml", data, testCodes)
		var strict struct {
			Name   string           `toml:"name"`
			Golden []map[string]any `toml:"golden"`
		}
		meta, err := strictDecode(data, &strict)
		if d.Root() == nil {
			if !HasErrors(d.Diagnostics()) {
				t.Fatalf("no root and no error for %q", data)
			}
			return
		}
		d.Root().String("name")
		for _, g := range d.Root().Tables("golden") {
			visit(g)
		}
		diagnostics := d.Diagnostics()
		lines := 1 + strings.Count(string(data), "\n")
		for _, found := range diagnostics {
			require.True(t, found.Line >= 1 && found.Line <= lines, "line %d of %d: %s", found.Line, lines, found)
		}
		// What the decoder itself calls undecoded, we must have called unknown.
		if err == nil {
			checkUndecoded(t, meta, diagnostics)
		}
	})
}

func strictDecode(data []byte, v any) (meta toml.MetaData, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%v", r)
		}
	}()
	return toml.Decode(string(data), v)
}

// checkUndecoded demands a diagnostic for each top-level key that the decoder found
// no field for.
func checkUndecoded(t *testing.T, meta toml.MetaData, diagnostics []Diagnostic) {
	t.Helper()
	for _, key := range meta.Undecoded() {
		if len(key) != 1 || strings.HasPrefix(key[0], freePrefix) {
			continue
		}
		if !slices.ContainsFunc(diagnostics, func(f Diagnostic) bool { return strings.Contains(f.Message, fmt.Sprintf("%q", key[0])) }) {
			t.Errorf("no diagnostic for the undecoded key %q in %v", key[0], diagnostics)
		}
	}
}
