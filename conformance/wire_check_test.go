package conformance

import (
	"os"
	"testing"

	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/check/replay"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// wireGolden is the edge session of a line.
func wireGolden(tb testing.TB, line string) *subjectGolden {
	tb.Helper()
	return goldenOf(tb, line, "wire-edge-s1")
}

// pinnedWire is an edge session of 0.33 whose messages tests name by their lines. A new capture of the golden, from which it
// was copied, does not replace it.
func pinnedWire(tb testing.TB) *subjectGolden {
	tb.Helper()
	data, err := os.ReadFile(pinnedWirePath)
	require.NoError(tb, err)
	g := wireGolden(tb, "0.33")
	g.register(data)
	return g
}

const pinnedWirePath = repoCaptures + "/0.33.0-wire-edge-s1.jsonl.gz"

// onlyWire selects the one case.
var onlyWire = Selection{Assertions: []Assertion{Wire}}

// bootedWire starts a player on a session, ready to be replayed.
func bootedWire(tb testing.TB, g *subjectGolden) *replay.WireReplay {
	tb.Helper()
	runner := (&Runner{Store: g}).begin(tb.Context())
	c := Case{Line: g.line, Golden: g.Golden}
	loaded := runner.load(tb.Context(), c)
	if loaded.ReadErr != nil {
		tb.Fatal(loaded.ReadErr)
	}
	w, err := replay.NewWireSession("golden", loaded.Codec, loaded.Frames)
	require.NoError(tb, err)
	run, err := replay.BootWire(tb.Context(), runner.env, loaded, c, w)
	require.NoError(tb, err)
	tb.Cleanup(run.Close)
	return run
}

// mustAgree replays the whole session of at least so many messages.
func mustAgree(r *replay.WireReplay, t *testing.T, atLeast int) {
	t.Helper()
	require.NoError(t, r.All())
	var f check.Outcome
	r.Comparison.Report(&f)
	for _, wrong := range f.Failures {
		t.Errorf("%s %s", wrong.Code, wrong.Message)
	}
	require.True(t, f.Asserted >= atLeast, "%d messages compared, want those of a whole session", f.Asserted)
}

// The player says what the real engine of every line said, message by message, and
// nothing is masked that need not be.
func TestWireOfEveryLine(t *testing.T) {
	needed := map[string]int{}
	matrix, mf := repository(t)
	for _, l := range matrix.Lines {
		line := l.Name
		if !l.FidelityValidated && len(mf.ForLine(line)) == 0 {
			continue // it was adopted, and not captured yet
		}
		t.Run(line, func(t *testing.T) {
			run := bootedWire(t, wireGolden(t, line))
			mustAgree(run, t, 700)
			left := 0
			for _, m := range run.Recorded.Said {
				if m.Left != "" {
					left++
				}
			}
			if all := len(run.Recorded.Said); left > all/8 { // of a busy machine there are more without outputs
				t.Errorf("%d of %d messages not compared", left, all)
			}
			for place, n := range run.Comparison.Masked {
				needed[place] += n
			}
		})
	}
	for _, m := range replay.WireMasks {
		require.True(t, needed[m.Path] != 0, "the mask of %s is not needed on any line: take it out", m.Path)
		require.True(t, m.Reason != "", "the mask of %s has no reason", m.Path)
	}
}
