package tomlfile

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// keyedText has tables below a common key in each way that TOML knows.
const keyedText = `[models.b]
size = 4096
[models."a.1"]
size = 0.9
on = true
name = 'x'
[models.a.engine]
seeds = [7, 13]
x_mine = 1
[models]
x_note = 'mine'
c = {name = 'y'}
`

func TestKeyed(t *testing.T) {
	d := Parse("f.toml", []byte(keyedText), testCodes)
	var got []string
	for _, m := range d.Root().Keyed("models") {
		got = append(got, m.Key, m.Text("size"), m.Text("on"), m.Text("name"))
		if e := m.Nested("engine"); e != nil {
			got = append(got, e.Keys()...)
			require.NoDiff(t, cmp.Diff([]int64{7, 13}, e.Ints("seeds")), "seeds (-want +got)")
		}
	}
	want := []string{"b", "4096", "", "", "a.1", "0.9", "true", "x", "a", "", "", "", "seeds", "c", "", "", "y"}
	require.NoDiff(t, cmp.Diff(want, got), "keys and texts (-want +got)")
	require.NoDiff(t, cmp.Diff([]string(nil), render(d.Diagnostics())), "diagnostics (-want +got)")
}

func TestKeyedDiagnostics(t *testing.T) {
	tests := []struct{ name, src, want string }{
		{"no tables", "models = 1", `f.toml:1: T004 error: models must be a table, but is an integer; write [models]`},
		{"no table", "[models]\n\na = 1", `f.toml:3: T004 error: a must be a table, but is an integer; write [a]`},
		{"a table for a text", "[models.a.size]", `f.toml:1: T004 error: size must be a string, a number or a boolean, but is a table; write size = "..."`},
		{"a date for a text", "[models.a]\nsize = 2026-01-01", `f.toml:2: T004 error: size must be a string, a number or a boolean, but is a date or time; write size = "..."`},
		{"no integers", "[models.a]\nseeds = [1, 'b']", `f.toml:2: T004 error: seeds must be an array of integers, but is an array; write seeds = [1, 2]`},
		{
			"an unknown key", "[models.a]\nsizes = 1",
			`f.toml:2: T003 error: unknown key "sizes" in [models.a]; did you mean "size"? keys of your own start with x_`,
		},
		{
			"an unknown key below a quoted one", "[models.'0.33']\nsizes = 1",
			`f.toml:2: T003 error: unknown key "sizes" in [models."0.33"]; did you mean "size"? keys of your own start with x_`,
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			d := Parse("f.toml", []byte(test.src), testCodes)
			for _, m := range d.Root().Keyed("models") {
				m.Text("size")
				require.True(t, !m.Mistyped("seeds"), "seeds are mistyped before they are read")
				m.Ints("seeds")
				if want := test.name == "no integers"; m.Mistyped("seeds") != want {
					t.Errorf("seeds are mistyped: %v, want %v", !want, want)
				}
			}
			require.NoDiff(t, cmp.Diff([]string{test.want}, render(d.Diagnostics())), "diagnostics (-want +got)")
		})
	}
}
