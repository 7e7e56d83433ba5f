package conformance

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/check/replay"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/player"
)

func TestList(t *testing.T) {
	cases, err := NewPlan(smallMatrix, smallManifest, Selection{Assertions: []Assertion{Schema, Fidelity}, Matches: []player.Match{player.MatchIndex}, Concurrency: []int{1}})
	require.NoError(t, err)
	var got bytes.Buffer
	require.NoError(t, List(&got, cases))
	want := strings.Join([]string{
		"CASE                     SUITE   ROLE      GATE  GOLDEN            NOTE",
		"nightly                  replay  -         -     -                 no goldens: informational, not validated",
		"0.33/b/schema            replay  fidelity  yes   manifest.toml:9   -",
		"0.33/b/fidelity-index-1  replay  fidelity  yes   manifest.toml:9   -",
		"0.33/a/schema            replay  schema    yes   manifest.toml:20  -",
		"0.32/a/schema            replay  fidelity  -     manifest.toml:3   -",
		"0.32/a/fidelity-index-1  replay  fidelity  -     manifest.toml:3   -",
		"",
	}, "\n")
	require.NoDiff(t, cmp.Diff(want, got.String()), "-want +got")
}

// TestRequests: every request is listed by the name that expectations know it by, with
// what is recorded of it, and one without a block of prompt only where it is found.
func TestRequests(t *testing.T) {
	g := usualGolden(t)
	var text bytes.Buffer
	runner := Runner{Store: g}
	require.NoError(t, runner.Requests(t.Context(), &text, g.plan(t, Selection{Concurrency: []int{1}})))
	rows := map[string][]string{}
	for line := range strings.Lines(text.String()) {
		if fields := strings.Fields(line); strings.Contains(line, "/") {
			rows[fields[0]] = fields[1:]
			if p, err := ParsePattern(fields[0]); err != nil || p.Request() < 0 {
				t.Errorf("%s is no pattern of a request: %v", fields[0], err)
			}
		}
	}
	record := firstStream(g.read(t))
	// Request 0 is on line 7, with 24 tokens in chunks of one.
	want := []string{"7", fmt.Sprint(len(replay.PromptOf(record))), "24", "24", record.FinishReason.String()}
	require.NoDiff(t, cmp.Diff(want, rows["0.33/multiturn-s7/fidelity-index-1/replay-0"]), "request 0 -want +got")
	require.True(t, rows["0.33/multiturn-s7/fidelity-index-1/replay-179"] != nil && len(rows) == 360, "%d requests, want 180 of each of two cases", len(rows))
}

func TestRequestsOfNothing(t *testing.T) {
	g := usualGolden(t)
	runner := Runner{Store: g}
	var text bytes.Buffer
	if err := runner.Requests(t.Context(), &text, g.plan(t, Selection{Assertions: []Assertion{Schema}})); err != nil || strings.Count(text.String(), "\n") != 1 {
		t.Errorf("a plan without fidelity has %q, %v", &text, err)
	}
	g.data = g.data[:100]
	err := runner.Requests(t.Context(), &text, g.plan(t, Selection{}))
	require.True(t, err != nil && strings.HasPrefix(err.Error(), "0.33/multiturn-s7/fidelity-index-1: ") && strings.Contains(err.Error(), "sha256"), "a golden with other bytes: %v", err)
}
