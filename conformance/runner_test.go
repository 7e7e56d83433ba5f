package conformance

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/manifest"
	"github.com/vllm-vcr/conformance/player"
)

// storeFunc is a function as a store.
type storeFunc func(context.Context, manifest.Golden) ([]byte, string, error)

func (f storeFunc) Fetch(ctx context.Context, g manifest.Golden) ([]byte, string, error) {
	return f(ctx, g)
}

func TestFetch(t *testing.T) {
	hangs := storeFunc(func(ctx context.Context, g manifest.Golden) ([]byte, string, error) {
		<-ctx.Done()
		return nil, g.BucketPath, fmt.Errorf("get %s: %w", g.BucketPath, context.Cause(ctx))
	})
	interrupted, interrupt := context.WithCancelCause(t.Context())
	interrupt(errors.New("interrupted by the user"))
	path := usualGolden(t).BucketPath
	tests := []struct {
		name  string
		ctx   context.Context
		limit time.Duration
		store Store
		want  outcome
	}{
		{
			"no such file", t.Context(), never, NewStore(StoreOptions{Dir: t.TempDir()}),
			judgedOnce(ExitInfra, "integrity", Error, path+": ", "no such file", "check bucket_path in the manifest"),
		},
		{
			"no such file built in", t.Context(), never, NewStore(StoreOptions{Files: fstest.MapFS{}}),
			judgedOnce(ExitInfra, "integrity", Error, path+": ", "does not exist"),
		},
		{
			"a store that hangs", t.Context(), time.Millisecond, hangs,
			judgedOnce(ExitInfra, "integrity", Error, "get "+path+": the fetch of the golden took longer than 1ms"),
		},
		{
			"interrupted before", interrupted, never, hangs,
			judgedOnce(ExitInfra, "integrity", Error, "not run: interrupted by the user"),
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			g := usualGolden(t)
			runner := Runner{Store: test.store, Timeouts: Timeouts{Golden: test.limit}}
			test.want.check(t, runner.Run(test.ctx, g.plan(t, Selection{})))
		})
	}
}

// TestNewStore: the bytes that a store of ours verified itself fail integrity as
// those that the runner verified do.
func TestNewStore(t *testing.T) {
	g := usualGolden(t)
	dir := t.TempDir()
	path := filepath.Join(dir, g.BucketPath)
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
	write := func(data []byte) {
		require.NoError(t, os.WriteFile(path, data, 0o600))
	}
	flipped := slices.Clone(g.data)
	flipped[len(flipped)/2] ^= 1
	bad := judgedOnce(ExitFail, "integrity", Fail, path, "want "+g.SHA256)
	for _, store := range []struct {
		name string
		opt  StoreOptions
	}{
		{"directory", StoreOptions{Dir: dir}},
		{"bucket that is a directory", StoreOptions{Bucket: dir}},
		{"file bucket", StoreOptions{Bucket: "file://" + dir, Dir: "not looked at"}},
	} {
		t.Run(store.name, func(t *testing.T) {
			runner := Runner{Store: NewStore(store.opt)}
			write(g.data)
			report := runner.Run(t.Context(), g.plan(t, Selection{}))
			outcome{exit: ExitOK}.check(t, report)
			if at := report.Results[0].Location; !strings.HasSuffix(at, path) {
				t.Errorf("location %q, want the whole path %s", at, path)
			}
			write(flipped)
			bad.check(t, runner.Run(t.Context(), g.plan(t, Selection{})))
		})
	}
	t.Run("built in", func(t *testing.T) {
		files := fstest.MapFS{g.BucketPath: {Data: g.data}}
		runner := Runner{Store: NewStore(StoreOptions{Files: files})}
		outcome{exit: ExitOK}.check(t, runner.Run(t.Context(), g.plan(t, Selection{})))
	})
}

// TestCorruptGoldenWithoutIntegrity: leaving integrity out of the selection does
// not leave a corrupt golden unnoticed, nor green.
func TestCorruptGoldenWithoutIntegrity(t *testing.T) {
	matrix, mf := repository(t)
	line, _ := matrix.ByName("0.33")
	bad, good := goldenOf(t, line.Name, "multiturn-s7"), goldenOf(t, line.Name, "multiturn-s13")
	bad.data[100] ^= 1
	cases, err := NewPlan(&compat.Matrix{Lines: []compat.Line{line}}, mf, Selection{
		Goldens: []string{bad.ID, good.ID}, Assertions: []Assertion{SameLine, Provenance},
	})
	require.NoError(t, err)
	runner := Runner{Store: storeFunc(func(ctx context.Context, g manifest.Golden) ([]byte, string, error) {
		if g.ID == bad.ID {
			return bad.Fetch(ctx, g)
		}
		return good.Fetch(ctx, g)
	})}
	report := runner.Run(t.Context(), cases)
	var got []string
	for _, r := range report.Results {
		got = append(got, r.Case.Golden.ID+"/"+r.Case.Check()+": "+string(r.Verdict))
	}
	want := []string{ // in whatever order the manifest has them
		good.ID + "/line: pass", good.ID + "/provenance: pass", bad.ID + "/line: error", bad.ID + "/provenance: skip",
	}
	if cases[0].Golden.ID == bad.ID {
		want = slices.Concat(want[2:], want[:2])
	}
	require.True(t, slices.Equal(got, want) && report.ExitCode == ExitFail, "exit code %d, %q, want %d, %q", report.ExitCode, got, ExitFail, want)
}

// TestInterruptedRun: what ran until then is kept, the rest is not run and says
// so, and the outcome is nobody's failure.
func TestInterruptedRun(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	g := usualGolden(t)
	runner := Runner{Store: g, Engine: Player, Progress: func(r Result) {
		if r.Case.Assertion == Provenance {
			cancel(errors.New("interrupted by the user"))
		}
	}}
	want := outcome{exit: ExitInfra, verdict: map[string]Verdict{}, says: map[string][]string{}}
	for _, check := range append([]string{"schema"}, fidelityChecks...) {
		want.verdict[check], want.says[check] = Error, []string{"not run: interrupted by the user"}
	}
	want.check(t, runner.Run(ctx, g.plan(t, Selection{})))
}

// TestInterruptedReplay: an interruption in the middle of a replay is not the
// subject's failure either.
func TestInterruptedReplay(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	g := usualGolden(t)
	runner := Runner{Store: g, Timeouts: endless}
	runner.Engine = func(opt player.Options) (Subject, error) {
		opt.Timing.Pace = player.PaceRecorded
		return sabotaged(func(_ *player.Request, s *player.Script) error {
			s.FirstToken = never
			cancel(errors.New("interrupted by the user"))
			return nil
		})(opt)
	}
	report := runner.Run(ctx, g.plan(t, oneByOne))
	outcome{
		exit: ExitInfra, verdict: map[string]Verdict{"fidelity-index-1": Error},
		says: map[string][]string{"fidelity-index-1": {"interrupted by the user"}},
	}.check(t, report)
}

// TestSchemaGolden: a golden of role schema is judged without a single token.
func TestSchemaGolden(t *testing.T) {
	g := usualGolden(t)
	g.Role, g.TokensSHA256 = manifest.Schema, ""
	g.rewrite(t, dropTokens)
	report := g.run(t)
	outcome{exit: ExitOK}.check(t, report)
	require.Equal(t, len(report.Results), 4, "cases: integrity, line, provenance and schema")
}

// TestRunTwiceAtOnce: what a run knows is its own, so one Runner serves several.
func TestRunTwiceAtOnce(t *testing.T) {
	g := usualGolden(t)
	cases := g.plan(t, Selection{Assertions: []Assertion{Integrity, Schema}})
	runner := Runner{Store: g}
	var runs sync.WaitGroup
	for range 2 {
		runs.Go(func() {
			for range 2 {
				report := runner.Run(t.Context(), cases)
				require.True(t, report.Counts[Pass] == len(cases) && len(report.Subject.Versions) == 1, "%s: %v, subject %+v", report.Reason, report.Counts, report.Subject)
			}
		})
	}
	runs.Wait()
	require.True(t, runner.Timeouts == (Timeouts{}) && runner.Engine == nil && runner.Log == nil && runner.Subject.Versions == nil, "the runs changed their runner: %+v", runner)
}

// TestGoldensAtOnce: a run that replays several goldens at a time reports what one does that replays one after the other, in the
// same order, also where it ends early.
func TestGoldensAtOnce(t *testing.T) {
	matrix, mf := repository(t)
	goldens := NewStore(StoreOptions{Dir: repoGoldens})
	cases, err := NewPlan(matrix, mf, Selection{Lines: []string{"0.33"}, Skip: []string{"**/fidelity-prefix-*", "**/wire"}})
	require.NoError(t, err)
	broken := cases[len(cases)/2].Golden
	store := storeFunc(func(ctx context.Context, g manifest.Golden) ([]byte, string, error) {
		if g.ID == broken.ID {
			return nil, "", errors.New("no such object")
		}
		return goldens.Fetch(ctx, g)
	})
	for _, max := range []int{0, 1} {
		var reports [2][]string
		for i, engine := range []Engine{Player, nil} {
			runner := Runner{Store: store, Engine: engine, MaxFailures: max}
			runner.Progress = func(r Result) {
				if r.Case.Assertion == Frames {
					r.Note = "" // whether the player repeats a session depends on what it gets in one step
				}
				reports[i] = append(reports[i], fmt.Sprintf("%s: %s %s", r.Case.Name(), r.Verdict, r.Note))
			}
			report := runner.Run(t.Context(), cases)
			if report.Counts[Error] != 1 || len(report.Subject.Versions) == 0 {
				t.Errorf("%d errors, versions %v, want 1 error and a version", report.Counts[Error], report.Subject.Versions)
			}
		}
		require.NoDiff(t, cmp.Diff(reports[0], reports[1]), "one after the other, and at once")
	}
}
