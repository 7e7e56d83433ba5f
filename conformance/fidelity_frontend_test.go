package conformance

import (
	"slices"
	"testing"

	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/internal/testenv"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/manifest"
	"github.com/vllm-vcr/conformance/player"
)

// TestRealFrontend replays goldens behind the real vllm-rs of each release:
// those of its own line, and for a line that has none one of the newest line, whose
// tokens and chunks are as good as any for the question whether this frontend
// understands this line's player.
func TestRealFrontend(t *testing.T) {
	matrix, mf := repository(t)
	for _, version := range testenv.FrontendVersions() {
		t.Run(version, func(t *testing.T) {
			line, ok := matrix.ByName(protocol.LineOf(version))
			if !ok {
				t.Fatalf("compat.toml has no line for %s", version)
			}
			frontend := RealFrontend{Binary: testenv.Frontend(t, version), ModelDir: testenv.ModelDir(t)}
			report := liveRunner().Run(t.Context(), frontendCases(t, line, mf, frontend))
			for _, r := range report.Results {
				t.Logf("%s: %s: %d streams, %d tokens, %v", r.Case.Name(), r.Verdict, r.Asserted, r.Tokens, r.Duration)
				require.True(t, r.Verdict == Pass && r.Tokens != 0, "%s: %s: %v", r.Case.Name(), r.Verdict, r.Failures)
			}
		})
	}
}

func frontendCases(t *testing.T, line compat.Line, mf *manifest.Manifest, frontend RealFrontend) []Case {
	t.Helper()
	goldens := replayable(mf, line.Name)
	if len(goldens) == 0 {
		goldens = replayable(mf, protocol.Newest())
	}
	if len(goldens) == 0 {
		t.Fatalf("neither line %s nor line %s has a fidelity golden", line.Name, protocol.Newest())
	}
	var cases []Case
	for _, g := range goldens {
		for _, stream := range []bool{false, true} {
			cases = append(cases, Case{
				Line: line, Golden: g, Assertion: Fidelity, Gating: true,
				Variant: Variant{Match: player.MatchIndex, Concurrency: 16, Frontend: frontend, Stream: stream},
			})
		}
	}
	return cases
}

// replayable are the goldens of a line that show a frontend something of their own: what is at the edges, and several tokens in an
// output. To a frontend, the others say nothing else.
func replayable(mf *manifest.Manifest, line string) []manifest.Golden {
	return slices.DeleteFunc(slices.Clone(mf.ForLine(line)), func(g manifest.Golden) bool {
		return g.ID != "edge-s1" && g.ID != "multiturn-ngram-k3-s7"
	})
}
