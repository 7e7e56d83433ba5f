package recorder

import (
	"encoding/json"
	"io"
	"log/slog"
	"math"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/trace"
)

// capturePath is a file of testdata/captures.
func capturePath(name string) string { return filepath.Join("..", "testdata", "captures", name) }

// obsRun is what came of deriving one frames file.
type obsRun struct {
	trace *trace.Trace
	steps []trace.StepStats
	stats Stats
}

// obsDerive derives the one engine of a frames file into a folder of the test.
func obsDerive(t *testing.T, frames string, opt Options) obsRun {
	t.Helper()
	dir := t.TempDir()
	path, stepsPath := filepath.Join(dir, "run.jsonl.gz"), filepath.Join(dir, "steps.jsonl")
	var counts Counts
	err := Derive(t.Context(), frames, opt, func(int) (Sinks, error) {
		return Sinks{Trace: obsCreate(t, path), Steps: obsCreate(t, stepsPath)}, nil
	}, &counts, slog.New(slog.NewTextHandler(t.Output(), nil)))
	require.NoError(t, err)
	run := obsRun{stats: counts.Snapshot()}
	run.trace, err = trace.Read(path, trace.Options{Strict: true, KeepExtra: true})
	require.NoError(t, err)
	run.steps, err = readSteps(stepsPath, trace.Options{Strict: true})
	require.NoError(t, err)
	return run
}

// hashFollows reports whether the hash is that of what else the meta line says.
func hashFollows(m trace.Meta) bool {
	return *m.ConfigHash == trace.ConfigHash(trace.Or(m.GPU, ""), trace.Or(m.VLLMTag, *m.VLLMVersion), trace.Or(m.EngineConfig, ""))
}

// readSteps reads a whole file of step statistics.
func readSteps(path string, opt trace.Options) (all []trace.StepStats, err error) {
	r, err := trace.OpenSteps(path, opt)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	for {
		var line trace.StepStats
		if err := r.Next(&line); err == io.EOF {
			return all, nil
		} else if err != nil {
			return nil, err
		}
		all = append(all, line)
	}
}

func obsCreate(t testing.TB, path string) *File {
	t.Helper()
	f, err := Create(Destination{Path: path})
	require.NoError(t, err)
	return f
}

// TestCapturesGiveTheirGoldens derives sessions that another tap captured, and
// compares with the traces that another program derived from them: every key, and
// every digit of every time by the tap's clock.
func TestCapturesGiveTheirGoldens(t *testing.T) {
	for _, test := range []struct {
		name    string
		prompts bool
	}{
		{name: "0.27.1-multiturn-s7"},
		{name: "0.27.1-ngram-s7"},
		{name: "0.33.0-multiturn-s7", prompts: true},
	} {
		t.Run(test.name, func(t *testing.T) {
			want, err := trace.Read(capturePath(test.name+".trace.jsonl.gz"), trace.Options{Strict: true})
			require.NoError(t, err)
			m := want.Meta
			run := obsDerive(t, capturePath(test.name+".jsonl.gz"), Options{
				RecordTokens: true, RecordPrompts: test.prompts, BlockSize: *m.BlockSize,
				Model: *m.Model, GPU: *m.GPU, TP: uint(*m.TP), MaxNumSeqs: uint(*m.MaxNumSeqs),
				VLLMVersion: *m.VLLMTag, EngineConfig: *m.EngineConfig,
			})
			if len(want.Records) != 180 {
				t.Fatalf("the golden has %d records, want 180", len(want.Records))
			}
			got := run.trace
			require.NoDiff(t, cmp.Diff(m, got.Meta, cmpopts.IgnoreFields(trace.Meta{}, "Extra")), "meta (-want +got)")
			if !hashFollows(got.Meta) {
				t.Errorf("config_hash does not follow from the meta line: %s", *got.Meta.ConfigHash)
			}
			used := 0
			for i := range got.Records {
				used += checkTimes(t, &want.Records[i], &got.Records[i])
			}
			require.True(t, used >= 170, "%d of 180 records have times by the engine's clock", used)
			ignore := cmpopts.IgnoreFields(trace.Record{}, "Extra", "Line", "TTFTMs", "ITLMs", "EngineClock", "TapTimes")
			if diff := cmp.Diff(want.Records, got.Records, ignore); diff != "" {
				t.Errorf("records (-want +got):\n%.4000s", diff)
			}
			if s := run.stats; s.Done != 180 || s.Requests != 180 || s.Records != 180 || s.Undecodable+s.Unknown+s.Late+s.Clamped+s.Lost+s.WrongEngine != 0 {
				t.Errorf("counts %+v", s)
			}
			checkSteps(t, run)
		})
	}
}

// checkTimes compares the times by the tap's clock. It returns 1 if the record's own are by the engine's.
func checkTimes(t *testing.T, want, got *trace.Record) (used int) {
	t.Helper()
	tap, tolerance := &trace.TapTimes{TTFTMs: got.TTFTMs, ITLMs: got.ITLMs}, 0.0
	if got.EngineClock == trace.ClockUsed {
		used = 1
		if tolerance = keptDifference; got.TapTimes != nil {
			tap, tolerance = got.TapTimes, 0
		}
	}
	differ := math.Abs(tap.TTFTMs-want.TTFTMs) > tolerance || len(tap.ITLMs) != len(want.ITLMs)
	for i := 0; i < len(want.ITLMs) && !differ; i++ {
		differ = math.Abs(tap.ITLMs[i]-want.ITLMs[i]) > tolerance
	}
	require.True(t, !differ, "line %d: %v ms and %v, want %v and %v", got.Line, tap.TTFTMs, tap.ITLMs, want.TTFTMs, want.ITLMs)
	return used
}

func checkSteps(t *testing.T, run obsRun) {
	t.Helper()
	if len(run.steps) == 0 || uint64(len(run.steps)) != run.stats.Steps {
		t.Fatalf("%d lines of statistics, counted %d", len(run.steps), run.stats.Steps)
	}
	last, queries := -1.0, uint64(0)
	for _, s := range run.steps {
		require.True(t, s.TsMs >= last, "line %d: %v ms comes after %v", s.Line, s.TsMs, last)
		last = s.TsMs
		queries += uint64(s.Scheduler.PrefixCache.Queries)
		var all map[string]json.RawMessage
		if err := json.Unmarshal(s.Raw, &all); err != nil || len(all) < 12 {
			t.Errorf("line %d: %d keys, %v", s.Line, len(all), err)
		}
	}
	prompts := 0
	for _, r := range run.trace.Records {
		prompts += r.PromptTokens
	}
	require.Equal(t, queries, uint64(prompts), "the prefix cache was asked for tokens, the prompts have %d", prompts)
}
