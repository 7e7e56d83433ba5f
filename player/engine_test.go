package player

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// declaredLengths are how many fields EngineCoreOutputs and EngineCoreOutput have in the profile of a line.
func declaredLengths(t *testing.T, line string) [2]int {
	t.Helper()
	p, err := protocol.LoadProfile(line)
	must(t, err)
	return [2]int{len(p.Structs["EngineCoreOutputs"].Fields), len(p.Structs["EngineCoreOutput"].Fields)}
}

// Every envelope of this test is decoded as the line's frontend decodes it.
func TestEveryLineReadsWhatItGets(t *testing.T) {
	for _, line := range protocol.Lines() {
		t.Run(line, func(t *testing.T) {
			want := declaredLengths(t, line)
			tr := traceOf(t, take{prompt: count(0, 300), output: count(7, 90), chunks: []int{1, 80, 9}, cached: 8})
			r := newRig(t, Options{VLLMVersion: line, Trace: tr}, 1)
			r.submit(
				ask("replay-0", count(0, 300), 99, logprobsOf(2), promptLogprobs(1), stopAt(96)),
				ask("random-x", count(0, 3), 3), ask("zero-x", count(0, 3), 0),
				ask("refused-x", count(0, 3), 3, func(r *protocol.Request) { r.HasSampling = false }),
			)
			r.runAll()
			r.abortAll()
			for _, e := range r.envelopes {
				version := ""
				if want[0] > 8 && e.SchedulerStats != nil {
					version = "default"
				}
				if e.Fields != want[0] || e.WeightVersion != version {
					t.Errorf("EngineCoreOutputs of %d fields, weight version %q, want %d, %q", e.Fields, e.WeightVersion, want[0], version)
				}
				for _, out := range e.Outputs.Outputs {
					if out.Fields != want[1] {
						t.Errorf("EngineCoreOutput of %d fields, want %d", out.Fields, want[1])
					}
				}
				if e.WaveComplete != -1 || e.StartWave != -1 {
					t.Error("a wave on a client socket ends a Rust frontend")
				}
			}
			a := r.answer("replay-0")
			if diff := cmp.Diff(count(7, 90), a.tokens()); diff != "" || a.finish != protocol.FinishStop || a.stop != "96" {
				t.Errorf("finished by %v, stop_reason %q, tokens (-want +got):\n%s", a.finish, a.stop, diff)
			}
		})
	}
}
