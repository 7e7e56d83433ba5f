package conformance

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

func TestPatternMatch(t *testing.T) {
	const name = "0.33/multiturn-s7/fidelity-index-1"
	tests := []struct {
		pattern, name string
		want          bool
	}{
		{name, name, true},
		{name, name + "6", false},
		{"0.33/multiturn-s7", name, false},
		{name + "/more", name, false},
		{"nightly", "nightly", true},
		{"*/*/*", name, true},
		{"*/*", name, false},
		{"*/*/*/*", name, false},
		{"0.33/*/fidelity-*", name, true},
		{"0.33/*/fidelity-*", "0.33/multiturn-s7/schema", false},
		{"0.3*/m*s7/*-index-*", name, true},
		{"0.33/*s7*/*1", name, true},
		{"0.33/*s8*/*1", name, false},
		{"*33*/multi*turn*-s*7/*", name, true},
		{"0.33/m*/*/", "", false},
		{"**", name, true},
		{"**", "nightly", true},
		{"0.33/**", name, true},
		{"0.33/**", "0.33", true},
		{"0.33/**", "0.3/a/b", false},
		{"**/fidelity-index-1", name, true},
		{"**/index-1", name, false},
		{"**/multiturn-s7/**", name, true},
		{"**/multiturn-*/**/fidelity-index-1", name, true},
		{"0.33/**/**/fidelity-index-1", name, true},
		{"**/multiturn-s7", name, false},
		{"**/a/**/b", "a/x/a/b/c/b", true},
		{"**/a/b/**/b", "a/x/a/b/c/b", true},
		{"**/a/b/c", "a/x/a/b/c/b", false},
		{"0.33/?ultiturn-s7/[a-z]*", name, false},
		{"0+33/**", name, false},
		{"0.33/multiturn-s7/*/replay-7", name, true},
		{"**/replay-0", name, true},
		{"0.33/multiturn-s7/replay-7", name, false},
	}
	for _, test := range tests {
		t.Run(test.pattern+" "+test.name, func(t *testing.T) {
			p, err := ParsePattern(test.pattern)
			if err != nil {
				if test.name != "" {
					t.Fatal(err)
				}
				return
			}
			if got := p.Match(test.name); got != test.want || p.String() != test.pattern {
				t.Errorf("%s matches: %v, want %v", p, got, test.want)
			}
		})
	}
}

func TestParsePattern(t *testing.T) {
	tests := []struct {
		name, pattern string
		request       int
		err           string
	}{
		{"case", "0.33/a/schema", -1, ""},
		{"request", "0.33/a/fidelity-index-1/replay-12", 12, ""},
		{"first request", "**/replay-0", 0, ""},
		{"a golden of that name", "0.33/replay-12/schema", -1, ""},
		{"nothing", "", 0, `a pattern is empty: "**" matches every case`},
		{"empty component", "0.33//schema", 0, `pattern "0.33//schema": component 2 is empty`},
		{"at the start", "/0.33", 0, "component 1 is empty"},
		{"at the end", "0.33/", 0, "component 2 is empty"},
		{"blank", "0.33/ a", 0, `component 2 is " a": it begins or ends with a blank`},
		{"two stars within", "0.33/a**", 0, `component 2 is "a**": ** is a component of its own`},
		{"three stars", "0.33/***", 0, `component 2 is "***"`},
		{"any request", "0.33/a/*/replay-*", 0, `component 4 is "replay-*": a request is replay- and its index, such as replay-7`},
		{"no index", "0.33/a/*/replay-", 0, `component 4 is "replay-"`},
		{"index with a zero", "0.33/a/*/replay-07", 0, `component 4 is "replay-07"`},
		{"index with a sign", "0.33/a/*/replay-+7", 0, `component 4 is "replay-+7"`},
		{"large index", "0.33/a/*/replay-99999999999", 0, `component 4 is "replay-99999999999"`},
		{"request of nothing", "replay-7", 0, `pattern "replay-7": names a request, but no case of it: **/replay-7`},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			p, err := ParsePattern(test.pattern)
			switch {
			case test.err == "" && (err != nil || p.Request() != test.request):
				t.Errorf("request %d, %v, want %d", p.Request(), err, test.request)
			case test.err != "" && (err == nil || !strings.Contains(err.Error(), test.err)):
				t.Errorf("error %v, want %q", err, test.err)
			}
		})
	}
}

// TestNamesAreTheirPatterns: the name of every case selects that case alone.
func TestNamesAreTheirPatterns(t *testing.T) {
	matrix, mf := repository(t)
	all, err := EveryCase(matrix, mf, Selection{})
	if err != nil || len(all) < 380 {
		t.Fatalf("%d cases, %v", len(all), err)
	}
	for i, c := range all {
		p, err := ParsePattern(c.Name())
		require.NoError(t, err)
		if n := len(slices.DeleteFunc(names(all), func(name string) bool { return !p.Match(name) })); n != 1 || !p.Match(all[i].Name()) {
			t.Errorf("%s matches %d cases, want itself", p, n)
		}
	}
}

func TestRunAndSkip(t *testing.T) {
	tests := []struct {
		name string
		sel  Selection
		want []string
		err  string
	}{
		{name: "by name", sel: Selection{Run: []string{"0.33/b/schema"}}, want: []string{"0.33/b/schema"}},
		{
			name: "several", sel: Selection{Run: []string{"0.32/a/schema", "0.33/*/integrity"}},
			want: []string{"0.33/b/integrity", "0.33/a/integrity", "0.32/a/schema"},
		},
		{
			name: "skip", sel: Selection{Lines: []string{"0.32"}, Skip: []string{"**/fidelity-*", "*/*/line"}},
			want: []string{"0.32/a/integrity", "0.32/a/provenance", "0.32/a/schema"},
		},
		{
			name: "both", sel: Selection{Run: []string{"0.33/**"}, Skip: []string{"0.33/b/**", "**/schema"}},
			want: []string{"0.33/a/integrity", "0.33/a/line", "0.33/a/provenance"},
		},
		{name: "a line without goldens", sel: Selection{Run: []string{"nightly"}}, want: []string{"nightly"}},
		{
			name: "a skip of what this run has not", sel: Selection{Lines: []string{"0.32"}, Assertions: []Assertion{Schema}, Skip: []string{"0.33/b/fidelity-frontend-*"}},
			want: []string{"0.32/a/schema"},
		},
		{
			name: "of an own variant", sel: Selection{Lines: []string{"0.32"}, Concurrency: []int{3}, Run: []string{"**/*-3"}},
			want: []string{"0.32/a/fidelity-index-3", "0.32/a/fidelity-prefix-3"},
		},
		{name: "a typo", sel: Selection{Run: []string{"0.33/**", "0.33/b/shcema"}}, err: `run: pattern "0.33/b/shcema" matches no case: did you mean "0.33/b/schema"?`},
		{name: "a golden", sel: Selection{Run: []string{"0.33/b"}}, err: `run: pattern "0.33/b" matches no case: did you mean "0.33/b/**"?`},
		{name: "a wildcard that matches nothing", sel: Selection{Skip: []string{"0.34/**"}}, err: `skip: pattern "0.34/**" matches no case`},
		{name: "malformed", sel: Selection{Skip: []string{"a//b"}}, err: `skip: pattern "a//b": component 2 is empty`},
		{name: "a request", sel: Selection{Run: []string{"**/replay-3"}}, err: `run: pattern "**/replay-3" names a request: a case runs as a whole`},
		{name: "everything skipped", sel: Selection{Skip: []string{"**"}}, err: `no case is left to run: of the 21 selected cases, run [] and skip ["**"] leave none`},
		{name: "nothing of the selection", sel: Selection{Lines: []string{"0.32"}, Run: []string{"0.33/**"}}, err: `no case is left to run: of the 8 selected cases, run ["0.33/**"] and skip [] leave none`},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			cases, err := NewPlan(smallMatrix, smallManifest, test.sel)
			got := ""
			if err != nil {
				got = err.Error()
			}
			if diff := cmp.Diff(test.want, names(cases)); diff != "" || got != test.err {
				t.Errorf("error %q, want %q; cases -want +got:\n%s", got, test.err, diff)
			}
		})
	}
}

func TestEveryCase(t *testing.T) {
	every, err := EveryCase(smallMatrix, smallManifest, Selection{Lines: []string{"0.32"}, Goldens: []string{"a"}, Concurrency: []int{3}, Run: []string{"nothing"}})
	require.NoError(t, err)
	all := names(every)
	for _, want := range []string{"nightly", "0.33/a/integrity", "0.32/a/fidelity-index-16", "0.32/a/fidelity-index-3", "0.33/b/fidelity-frontend-stream-index-16"} {
		require.True(t, slices.Contains(all, want), "%s is missing among %q", want, all)
	}
	slices.Sort(all)
	if n := len(slices.Compact(slices.Clone(all))); n != len(all) {
		t.Errorf("%d cases, %d of them different", len(all), n)
	}
	if _, err := EveryCase(smallMatrix, smallManifest, Selection{Concurrency: []int{0}}); err == nil {
		t.Error("no error of a selection that is none")
	}
}
