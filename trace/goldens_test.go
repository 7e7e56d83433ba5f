package trace

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/klauspost/compress/gzip"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/manifest"
)

const (
	goldenRoot  = "../testdata/goldens"
	captureRoot = "../testdata/captures"
)

// pinned is what a trace must say.
type pinned struct {
	tokens  string // its digest of token streams
	prompts bool   // every record has its prompt
}

// captures are traces of earlier sessions, which stay as they are when goldens are
// captured anew. Their digests were computed apart from this package, with Python's
// json, struct and hashlib, by the formula of ArrivalDigest.
var captures = map[string]pinned{
	"0.27.1-multiturn-s7.trace.jsonl.gz": {"edb9f3a3a724388a61f7ff5dc18362381a5bb1fb58658549339eda9606573b4b", false},
	"0.27.1-ngram-s7.trace.jsonl.gz":     {"8ffd1f25db427d90dcac23fe4ab2dab61e4ed6f302b0bb643ad0762ae21fed33", false},
	"0.33.0-multiturn-s7.trace.jsonl.gz": {"78641d4c831224333647c76f1bb8e37c963dbf63ebc0a149016c60adbfe47e6a", true},
}

// knownExtra are the keys that the recorder adds to those of this package.
var knownExtra = map[string]bool{
	"line": true, "recorder_version": true, "captured_at": true, // of the meta line
	"request_id": true, "sampling_params": true, "stop_reason": true, "priority": true, "cache_salt": true,
}

// shipped returns the goldens in the repository that are raw frames, or those that
// are traces; none is a failure.
func shipped(tb testing.TB, frames bool) []manifest.Golden {
	tb.Helper()
	registry, findings := manifest.Load("../conformance/manifest.toml")
	if len(findings) != 0 {
		tb.Fatalf("findings: %v", findings)
	}
	goldens := slices.DeleteFunc(registry.Goldens, func(g manifest.Golden) bool { return g.Role.Raw() != frames })
	if len(goldens) == 0 {
		tb.Fatalf("no goldens with frames=%v in %s", frames, registry.File)
	}
	return goldens
}

// goldenPaths lists the traces among the goldens in the repository.
func goldenPaths(tb testing.TB) []string {
	tb.Helper()
	var paths []string
	for _, g := range shipped(tb, false) {
		paths = append(paths, g.Location("", goldenRoot))
	}
	return paths
}

// capturePaths lists the traces of earlier sessions.
func capturePaths() []string {
	var paths []string
	for _, name := range slices.Sorted(maps.Keys(captures)) {
		paths = append(paths, filepath.Join(captureRoot, name))
	}
	return paths
}

func inflate(tb testing.TB, path string) []byte {
	tb.Helper()
	f, err := os.Open(path)
	require.NoError(tb, err)
	defer f.Close()
	z, err := gzip.NewReader(f)
	require.NoError(tb, err)
	b, err := io.ReadAll(z)
	require.NoError(tb, err)
	return b
}

func TestGoldens(t *testing.T) {
	for _, g := range shipped(t, false) {
		t.Run(g.Line+"/"+g.ID, func(t *testing.T) { checkGolden(t, g.Location("", goldenRoot), pinned{g.TokensSHA256, true}) })
	}
	for _, path := range capturePaths() {
		t.Run(filepath.Base(path), func(t *testing.T) { checkGolden(t, path, captures[filepath.Base(path)]) })
	}
}

func checkGolden(t *testing.T, path string, want pinned) {
	t.Helper()
	tr, err := Read(path, Options{Strict: true, KeepExtra: true})
	require.NoError(t, err)
	checkGoldenMeta(t, tr)
	for i := range tr.Records {
		checkGoldenRecord(t, &tr.Records[i])
		if want.prompts {
			checkGoldenPrompt(t, *tr.Meta.BlockSize, &tr.Records[i])
		}
	}
	subset := ReplaySubset(tr.Records)
	byPrompt, byArrival := TokensDigest(tr.Records, subset), ArrivalDigest(tr.Records, subset)
	require.True(t, byPrompt == want.tokens || byArrival == want.tokens, "want the digest %s, got %s in the order of prompts and %s in that of arrival", want.tokens, byPrompt, byArrival)
}

func checkExtra(t *testing.T, where string, extra map[string]json.RawMessage) {
	t.Helper()
	for key, value := range extra {
		require.True(t, knownExtra[key], "%s: unknown key %s: %s", where, key, value)
	}
}

func checkGoldenMeta(t *testing.T, tr *Trace) {
	t.Helper()
	m := tr.Meta
	require.True(t, len(tr.Records) != 0 && len(tr.Warnings) == 0, "%d records, warnings %q", len(tr.Records), tr.Warnings)
	if want := ConfigHash(*m.GPU, *m.VLLMTag, *m.EngineConfig); *m.ConfigHash != want {
		t.Errorf("config_hash: stamped %s, recomputed %s", *m.ConfigHash, want)
	}
	checkExtra(t, "meta", m.Extra)
}

func checkGoldenRecord(t *testing.T, r *Record) {
	t.Helper()
	sum := 0
	for _, n := range r.Chunks() {
		sum += n
	}
	if sum != r.OutputTokens || len(r.Chunks()) != len(r.ITLMs)+1 {
		t.Errorf("line %d: chunks %v, want %d tokens in %d", r.Line, r.Chunks(), r.OutputTokens, len(r.ITLMs)+1)
	}
	require.True(t, len(r.OutputTokenIDs) == r.OutputTokens && r.ArrivalMs != nil && r.FinishReason != FinishAbsent, "line %d: incomplete", r.Line)
	checkExtra(t, fmt.Sprintf("line %d", r.Line), r.Extra)
}

func checkGoldenPrompt(t *testing.T, blockSize int, r *Record) {
	t.Helper()
	require.True(t, len(r.PromptTokenIDs) != 0, "line %d: no prompt_token_ids", r.Line)
	require.NoDiff(t, cmp.Diff(r.BlockHashes, BlockHashes(r.PromptTokenIDs, blockSize)), "line %d: block_hashes (-recorded +recomputed)", r.Line)
}

// TestGoldensRoundTrip holds the writer to the recorder's form: same keys, same
// order, same digits.
func TestGoldensRoundTrip(t *testing.T) {
	for _, path := range slices.Concat(goldenPaths(t), capturePaths()) {
		tr, err := Read(path, Options{Strict: true, KeepExtra: true})
		require.NoError(t, err)
		wantLines(t, path, writeTrace(t, false, tr.Meta, tr.Records...))
	}
}

// TestGoldenFramesRoundTrip is the same for raw frames.
func TestGoldenFramesRoundTrip(t *testing.T) {
	for _, g := range shipped(t, true) {
		path := g.Location("", goldenRoot)
		r, err := OpenFrames(path, Options{Strict: true})
		require.NoError(t, err)
		defer r.Close()
		var out bytes.Buffer
		w, err := NewFrameWriter(&out, false, r.Meta())
		require.NoError(t, err)
		var m Message
		for err = r.Next(&m); err == nil; err = r.Next(&m) {
			require.NoError(t, w.Write(&m))
		}
		if err != io.EOF {
			t.Fatal(err)
		}
		require.NoError(t, w.Close())
		wantLines(t, path, out.Bytes())
	}
}

// wantLines compares what was written with the lines of a file.
func wantLines(t *testing.T, path string, written []byte) {
	t.Helper()
	want, got := bytes.Split(inflate(t, path), []byte("\n")), bytes.Split(written, []byte("\n"))
	for i := range min(len(want), len(got)) {
		if !bytes.Equal(want[i], got[i]) {
			t.Fatalf("%s: line %d\nread    %s\nwritten %s", path, i+1, want[i], got[i])
		}
	}
	require.True(t, len(want) == len(got), "%s: read %d lines, wrote %d", path, len(want), len(got))
}
