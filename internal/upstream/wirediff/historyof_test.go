package wirediff_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/internal/upstream/wirediff"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

func TestNew(t *testing.T) {
	h := historyFixture(t)
	var got []string
	add := func(format string, args ...any) { got = append(got, fmt.Sprintf(format, args...)) }
	for _, r := range h.Releases {
		add("release %s %s %s, %d gaps", r.Name, r.Version, r.Commit, len(r.Gaps))
	}
	for _, s := range h.Steps {
		add("%s to %s: %s, %d changes", s.From, s.To, s.Verdict, len(s.Changes))
	}
	for _, s := range h.Sizes {
		add("%s %s %v", s.Encoding, s.Struct, s.Fields)
	}
	for _, k := range h.Handshake {
		add("key %s.%s %q", k.Message, k.Name, k.Is)
	}
	for _, u := range h.Utilities {
		add("method %s %v", u.Name, u.Is)
	}
	want := []string{
		"release 1.0.0 1.0.0 aaaaaaaaa, 0 gaps", "release 1.0.1 1.0.1 aaaaaaaaa, 0 gaps", "release 1.1 1.1.0 aaaaaaaaa, 0 gaps",
		"release 1.2 1.2.0 aaaaaaaaa, 1 gaps",
		"1.0.0 to 1.0.1: none, 0 changes", "1.0.1 to 1.1: breaking, CHANGES changes", "1.1 to 1.2: breaking, CHANGES changes",
		"array EngineCoreOutput [2 2 3 3]", "map EngineCoreReadyResponse [1 1 2 2]", "map Gone [0 0 -1 -1]", "map Same [1 1 1 1]",
		`key EngineCoreReadyResponse.n ["required" "required" "required" "required"]`,
		`key EngineCoreReadyResponse.world_size ["" "" "required" "required"]`,
		`key READY.status ["required" "required" "required" "required"]`,
		`key READY.lookahead ["" "" "optional" "optional"]`,
		"method sleep [{none true} {none true} {none true} {bool true}]", "method wake_up [{ false} { false} { false} {none false}]",
	}
	for i, step := range []wirediff.Step{h.Steps[1], h.Steps[2]} {
		if len(step.Changes) == 0 {
			t.Errorf("step %d has no changes", i+1)
		}
		want[5+i] = strings.Replace(want[5+i], "CHANGES", fmt.Sprint(len(step.Changes)), 1)
	}
	require.NoDiff(t, cmp.Diff(want, got), "-want +got")
	require.Equal(t, h.Gaps(), 1, "gaps")
}

// TestGapsAreNoSilence: a release that could not be read whole is never one that changed nothing.
func TestGapsAreNoSilence(t *testing.T) {
	all := sources(t)
	gaps := all[1].Gaps
	h, err := wirediff.NewHistory([]wirediff.Source{{Profile: all[3].Profile}, {Profile: all[2].Profile, Gaps: gaps}})
	require.NoError(t, err)
	require.Equal(t, h.Steps[0].Verdict, "unknown", "verdict")
	page := renderHistory(t, (*wirediff.History).HTML, h)
	for _, want := range []string{"No changes in the parts that could be read.", "1.0.1 m.py:7: struct New: it is made by code"} {
		require.Contains(t, page, want)
	}
}

func TestNewRefuses(t *testing.T) {
	all := sources(t)
	broken := change(t, all[0].Profile, "1.1", "eleven", func(*protocol.Profile) {})
	tests := []struct {
		name    string
		sources []wirediff.Source
		want    string
	}{
		{"one release", all[:1], "two releases at least"},
		{"twice", []wirediff.Source{all[0], all[1], all[0]}, "release 1.1.0 is listed twice"},
		{"no version", []wirediff.Source{all[0], {Profile: broken}}, `profile of line 1.1: "eleven" is not a version`},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if _, err := wirediff.NewHistory(test.sources); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want it to contain %q", err, test.want)
			}
		})
	}
}
