package player

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/trace"
)

// goldenOf reads the golden of the newest line that a pattern names.
func goldenOf(t *testing.T, pattern string) *trace.Trace {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("..", "testdata", "goldens", "conformance", "*", "cpu", "tiny", pattern))
	if err != nil || len(files) == 0 {
		t.Fatalf("no golden %s: %v", pattern, err)
	}
	golden, err := trace.Read(slices.Max(files), trace.Options{Strict: true, KeepExtra: true})
	must(t, err)
	return golden
}

// Engines that share a replay say what a real engine said, whichever of them is asked, however the records are found: each
// record once, in its chunks, and no further than it goes when more is asked for. Where they look for the whole prompt or
// the id, the order of the requests does not matter.
func TestRanksShareAGolden(t *testing.T) {
	const ranks = 4
	golden := goldenOf(t, "multiturn-s7-*")
	for _, match := range Matches() {
		t.Run(string(match), func(t *testing.T) {
			replay, err := NewReplay(golden, ReplayOptions{Match: match, Strict: true, Once: true})
			must(t, err)
			var ids []string
			for i, at := range trace.ReplaySubset(golden.Records) {
				ids = append(ids, idOf(t, match, i, &golden.Records[at]))
			}
			for range 2 { // the second time after a rewind
				var rigs [ranks]*rig
				for i := range rigs {
					rigs[i] = newRig(t, Options{Source: replay, EngineIndex: i, DataParallelSize: ranks}, 1)
				}
				for i, rec := range slices.Backward(replay.records) {
					q := ask(ids[i], rec.PromptTokenIDs, rec.OutputTokens+9)
					rigs[i%ranks].submit(q)
				}
				var running sync.WaitGroup
				for _, r := range rigs {
					running.Go(r.runAll)
				}
				running.Wait()
				for i, rec := range replay.records {
					checkRecord(t, rigs[i%ranks].answer(ids[i]), i, rec)
				}
				if s := replay.Summary(); s.Unused != 0 || s.Requests != s.Whole || s.Again+s.Unmatched+s.Exhausted != 0 {
					t.Errorf("not each record was found once, by all of its prompt: %s", s)
				}
				replay.Rewind()
			}
		})
	}
}

// idOf is what a request for a record is called: at random but where the id finds the record.
func idOf(t *testing.T, match Match, i int, rec *trace.Record) (id string) {
	t.Helper()
	switch match {
	case MatchIndex:
		return fmt.Sprintf("cmpl-replay-%d-0a1b2c3d", i)
	case MatchRequestID:
		must(t, json.Unmarshal(rec.Extra["request_id"], &id))
		return id
	}
	return fmt.Sprintf("cmpl-%x", i)
}

func checkRecord(t *testing.T, got *answer, i int, rec *trace.Record) {
	t.Helper()
	var chunks [][]uint32
	rest := rec.OutputTokenIDs
	for _, n := range rec.Chunks() {
		chunks, rest = append(chunks, rest[:n]), rest[n:]
	}
	require.NoDiff(t, cmp.Diff(chunks, got.chunks), "record %d, line %d (-want +got)", i, rec.Line)
	if want := protocol.FinishReason(rec.FinishReason.Wire() + 1); got.finish != want {
		t.Errorf("record %d, line %d finished by %v, want %v", i, rec.Line, got.finish, want)
	}
}
