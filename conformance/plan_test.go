package conformance

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/manifest"
	"github.com/vllm-vcr/conformance/player"
)

// smallMatrix is a tracker, a validated line and one that is not.
var smallMatrix = &compat.Matrix{File: "compat.toml", Lines: []compat.Line{
	{Name: "nightly", Tag: "nightly"},
	{Name: "0.33", Tag: "v0.33.0", FidelityValidated: true},
	{Name: "0.32", Tag: "v0.32.0"},
}}

// smallManifest has its goldens in another order than the matrix has its lines.
var smallManifest = &manifest.Manifest{File: "manifest.toml", Goldens: []manifest.Golden{
	{Line: "0.32", ID: "a", Role: manifest.Fidelity, Pos: 3},
	{Line: "0.33", ID: "b", Role: manifest.Fidelity, Pos: 9},
	{Line: "0.33", ID: "a", Role: manifest.Schema, Pos: 20},
}}

func TestNewPlan(t *testing.T) {
	var (
		vllmRS   = RealFrontend{Binary: "vllm-rs", ModelDir: "model"}
		fidelity = []Assertion{Fidelity}
		index    = []player.Match{player.MatchIndex}
	)
	tests := []struct {
		name string
		sel  Selection
		want []string // Name, then what gates and why it is skipped
	}{
		{
			name: "everything",
			want: []string{
				"nightly (no goldens: informational, not validated)",
				"0.33/b/integrity gates", "0.33/b/line gates", "0.33/b/provenance gates", "0.33/b/schema gates",
				"0.33/b/fidelity-index-1 gates", "0.33/b/fidelity-index-16 gates",
				"0.33/b/fidelity-prefix-1 gates", "0.33/b/fidelity-prefix-16 gates",
				"0.33/a/integrity gates", "0.33/a/line gates", "0.33/a/provenance gates", "0.33/a/schema gates",
				"0.32/a/integrity", "0.32/a/line", "0.32/a/provenance", "0.32/a/schema",
				"0.32/a/fidelity-index-1", "0.32/a/fidelity-index-16", "0.32/a/fidelity-prefix-1", "0.32/a/fidelity-prefix-16",
			},
		},
		{
			name: "lines by name and tag, twice, in the order of the matrix",
			sel:  Selection{Lines: []string{"0.32", "v0.33.0", "v0.32.0"}, Assertions: []Assertion{Integrity}},
			want: []string{"0.33/b/integrity gates", "0.33/a/integrity gates", "0.32/a/integrity"},
		},
		{
			name: "assertions in their order, once",
			sel:  Selection{Lines: []string{"0.32"}, Assertions: []Assertion{Schema, Integrity, Schema}},
			want: []string{"0.32/a/integrity", "0.32/a/schema"},
		},
		{
			name: "variants in the order asked for, once",
			sel: Selection{
				Lines: []string{"0.32"}, Assertions: fidelity,
				Matches: []player.Match{player.MatchPrefix, player.MatchIndex, player.MatchPrefix}, Concurrency: []int{4, 1, 4},
			},
			want: []string{
				"0.32/a/fidelity-prefix-4", "0.32/a/fidelity-prefix-1", "0.32/a/fidelity-index-4", "0.32/a/fidelity-index-1",
			},
		},
		{
			name: "a golden of several lines",
			sel:  Selection{Goldens: []string{"a"}, Assertions: []Assertion{Integrity}},
			want: []string{"0.33/a/integrity gates", "0.32/a/integrity"},
		},
		{
			name: "all lines gate",
			sel:  Selection{Assertions: []Assertion{Integrity}, Enforce: EnforceAll},
			want: []string{
				"nightly gates (no goldens, but the line gates: register one)",
				"0.33/b/integrity gates", "0.33/a/integrity gates", "0.32/a/integrity gates",
			},
		},
		{
			name: "no line gates",
			sel:  Selection{Lines: []string{"0.33"}, Assertions: []Assertion{Integrity}, Enforce: EnforceNone},
			want: []string{"0.33/b/integrity", "0.33/a/integrity"},
		},
		{
			name: "no golden has the role",
			sel:  Selection{Goldens: []string{"a"}, Lines: []string{"0.33"}, Assertions: fidelity},
			want: nil,
		},
		{
			name: "behind the real frontend of a line, named by its tag",
			sel: Selection{
				Assertions: fidelity, Matches: index, Concurrency: []int{1, 4}, Lines: []string{"0.33", "0.32"},
				Frontends: map[string]RealFrontend{"v0.33.0": vllmRS},
			},
			want: []string{
				"0.33/b/fidelity-index-1 gates", "0.33/b/fidelity-index-4 gates",
				"0.33/b/fidelity-frontend-index-4 gates", "0.33/b/fidelity-frontend-stream-index-4 gates",
				"0.32/a/fidelity-index-1", "0.32/a/fidelity-index-4",
			},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			cases, err := NewPlan(smallMatrix, smallManifest, test.sel)
			require.NoError(t, err)
			var got []string
			for _, c := range cases {
				got = append(got, planned(c))
				if c.Golden.ID != "" && c.Entry != entryOf(c.Golden) {
					t.Errorf("%s is registered at %q, want %q", c.Name(), c.Entry, entryOf(c.Golden))
				}
			}
			require.NoDiff(t, cmp.Diff(test.want, got), "-want +got")
		})
	}
}

func entryOf(g manifest.Golden) string {
	return map[int]string{3: "manifest.toml:3", 9: "manifest.toml:9", 20: "manifest.toml:20"}[g.Pos]
}

func planned(c Case) string {
	s := c.Name()
	if c.Gating {
		s += " gates"
	}
	if c.Skip != "" {
		s += " (" + c.Skip + ")"
	}
	return s
}

func TestNewPlanOnlyOtherRoles(t *testing.T) {
	mf := &manifest.Manifest{Goldens: []manifest.Golden{{Line: "0.33", ID: "a", Role: manifest.Schema}}}
	cases, err := NewPlan(smallMatrix, mf, Selection{Lines: []string{"0.33"}, Assertions: []Assertion{Fidelity}})
	require.NoError(t, err)
	require.True(t, len(cases) == 1 && planned(cases[0]) == "0.33 gates (no golden has the role that the selected assertions need)", "got %v", cases)
}

func TestNewPlanErrors(t *testing.T) {
	frontend := func(line string) Selection {
		return Selection{Frontends: map[string]RealFrontend{line: {Binary: "vllm-rs"}}}
	}
	tests := []struct {
		name string
		sel  Selection
		want string
	}{
		{"line", Selection{Lines: []string{"0.99"}}, `compat.toml has no line "0.99": it has nightly, 0.33, 0.32`},
		{"golden", Selection{Goldens: []string{"c"}}, `manifest.toml has no golden "c" on the selected lines: it has a, b`},
		{"golden of another line", Selection{Lines: []string{"0.32"}, Goldens: []string{"b"}}, `manifest.toml has no golden "b" on the selected lines: it has a`},
		{"golden of a line without", Selection{Lines: []string{"nightly"}, Goldens: []string{"b"}}, "it has none"},
		{"one of two goldens", Selection{Goldens: []string{"a", "c"}}, `no golden "c"`},
		{"assertion", Selection{Assertions: []Assertion{"faith"}}, `unknown assertion "faith": want one of integrity, line, provenance, schema, fidelity, wire, frames, nixl`},
		{"match", Selection{Matches: []player.Match{"suffix"}}, `unknown match "suffix": want index or prefix`},
		{"concurrency", Selection{Concurrency: []int{1, 0}}, "concurrency 0: want at least 1"},
		{"frontend of no line", frontend("0.99"), `frontend: compat.toml has no line "0.99"`},
		{"frontend of a line without goldens", frontend("nightly"), "frontend of line nightly: no case would go through it"},
		{"frontend without binary", Selection{Frontends: map[string]RealFrontend{"0.33": {}}}, "frontend of line 0.33 has no binary"},
		{"frontend named twice", Selection{Frontends: map[string]RealFrontend{"0.33": {Binary: "a"}, "v0.33.0": {Binary: "b"}}}, "frontend: line 0.33 has two, one of them as v0.33.0"},
		{"frontend of another line", Selection{Lines: []string{"0.32"}, Frontends: frontend("0.33").Frontends}, "frontend of line 0.33: no case would go through it"},
		{"frontend without fidelity", Selection{Assertions: []Assertion{Schema}, Frontends: frontend("0.33").Frontends}, "no case would go through it"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			cases, err := NewPlan(smallMatrix, smallManifest, test.sel)
			require.True(t, err != nil && strings.Contains(err.Error(), test.want) && cases == nil, "got %d cases and %v, want an error with %q", len(cases), err, test.want)
		})
	}
}

// TestNewPlanIsPure: the same inputs give the same plan, and are left as they are.
func TestNewPlanIsPure(t *testing.T) {
	matrix, mf := repository(t)
	sel := Selection{Assertions: []Assertion{Schema, Integrity}, Lines: []string{"0.32", "0.33"}}
	first, err := NewPlan(matrix, mf, sel)
	require.NoError(t, err)
	second, err := NewPlan(matrix, mf, sel)
	require.NoError(t, err)
	if !slices.Equal(names(first), names(second)) {
		t.Errorf("%q, then %q", names(first), names(second))
	}
	again, _ := repository(t)
	require.NoDiff(t, cmp.Diff(again, matrix), "the plan changed the matrix")
	require.True(t, slices.Equal(sel.Assertions, []Assertion{Schema, Integrity}), "the plan changed the selection: %v", sel.Assertions)
}

func names(cases []Case) []string {
	var all []string
	for _, c := range cases {
		all = append(all, c.Name())
	}
	return all
}

func TestNewPlanOfOtherSuites(t *testing.T) {
	for _, suite := range []Suite{SuiteLive, SuiteFrontend} {
		t.Run(string(suite), func(t *testing.T) {
			cases, err := NewPlan(smallMatrix, smallManifest, Selection{Suite: suite, Lines: []string{"0.33", "0.32"}})
			require.NoError(t, err)
			var want []string
			for _, line := range []string{"0.33", "0.32"} {
				for _, a := range AssertionsOf(suite) {
					want = append(want, line+"/"+string(suite)+"/"+string(a))
				}
			}
			if diff := cmp.Diff(want, names(cases)); diff != "" || !cases[0].Gating || cases[len(cases)-1].Gating {
				t.Errorf("-want +got:\n%s", diff)
			}
			last := AssertionsOf(suite)[len(AssertionsOf(suite))-1]
			cases, err = NewPlan(smallMatrix, smallManifest, Selection{Suite: suite, Lines: []string{"0.33"}, Assertions: []Assertion{last}, Run: []string{"0.33/**"}})
			if err != nil || len(cases) != 1 || cases[0].Assertion != last {
				t.Errorf("one assertion: %q, %v", names(cases), err)
			}
			for _, sel := range []Selection{
				{Goldens: []string{"b"}},
				{Matches: []player.Match{player.MatchIndex}},
				{Concurrency: []int{1}},
				{Assertions: []Assertion{Fidelity}},
				{Frontends: map[string]RealFrontend{"0.33": {Binary: "vllm-rs"}}},
			} {
				sel.Suite = suite
				if _, err := NewPlan(smallMatrix, smallManifest, sel); err == nil {
					t.Errorf("no error of %+v", sel)
				}
			}
		})
	}
	if _, err := NewPlan(smallMatrix, smallManifest, Selection{Suite: SuiteSelfTest}); err == nil || err.Error() != `unknown suite "self-test": want one of replay, live, frontend, prefill, decode, kv-consumer, router, generated` {
		t.Errorf("a suite without a plan: %v", err)
	}
}
