package conformance

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/vllm-vcr/conformance/internal/golden/s3store"
	"github.com/vllm-vcr/conformance/internal/testenv"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/manifest"
	"github.com/vllm-vcr/conformance/trace"
)

// manifestCopy is a copy of the manifest with one golden of it, and what the tap would
// have written when that was captured.
type manifestCopy struct {
	Registration
	golden  manifest.Golden
	capture *subjectGolden // rewritten by the tap's writer, with sync points
}

// copied are what a new copy has: made once, as to edit the manifest takes longer than most of what tests do with it.
var copied struct {
	sync.Mutex
	manifest, golden []byte
	manifestCopy
}

// copyManifest takes the smallest fidelity golden of the newest line. In the copy it is
// compressed as nothing of ours compresses, and under another path: registering
// its capture would change nothing else.
func copyManifest(t *testing.T) *manifestCopy {
	t.Helper()
	copied.Lock()
	defer copied.Unlock()
	if copied.manifest == nil {
		copied.manifestCopy, copied.golden = layOut(t)
		text, err := os.ReadFile(copied.Manifest)
		require.NoError(t, err)
		copied.manifest = text
	}
	d, capture, dir := copied.manifestCopy, *copied.capture, t.TempDir()
	d.capture = &capture
	capture.data = bytes.Clone(capture.data)
	d.Matrix, _ = repository(t)
	d.Trace, d.Manifest, d.Goldens = filepath.Join(dir, "run.jsonl.gz"), filepath.Join(dir, "manifest.toml"), filepath.Join(dir, "goldens")
	writeTo(t, d.Manifest, copied.manifest)
	writeTo(t, filepath.Join(d.Goldens, d.golden.BucketPath), copied.golden)
	writeTo(t, d.Trace, capture.data)
	return &d
}

// layOut makes the first copy, and returns the bytes of its golden too.
func layOut(t *testing.T) (manifestCopy, []byte) {
	t.Helper()
	matrix, mf := repository(t)
	at := slices.IndexFunc(mf.Goldens, func(g manifest.Golden) bool { return g.ID == "edge-s1" })
	g := mf.Goldens[at]
	dir := t.TempDir()
	d := &manifestCopy{capture: goldenOf(t, g.Line, g.ID)}
	d.capture.register(deflated(t, inflated(t, d.capture.data)))
	d.capture.BucketPath = path.Join(path.Dir(g.BucketPath), g.ID+"-before.jsonl.gz")
	g = d.capture.Golden
	d.golden = g
	d.Registration = Registration{
		Trace: filepath.Join(dir, "run.jsonl.gz"), Line: g.Line, ID: g.ID, Workload: g.Workload,
		Matrix: matrix, Manifest: filepath.Join(dir, "manifest.toml"), Goldens: filepath.Join(dir, "goldens"), S3: s3store.Options{},
	}
	d.edit(t, "manifest.toml", func(e *manifest.Editor) error { return e.Put(g) })
	golden := d.capture.data
	d.rewrite(t, func(*trace.Trace) {})
	return *d, golden
}

func inflated(t testing.TB, data []byte) []byte {
	t.Helper()
	r, err := gzip.NewReader(bytes.NewReader(data))
	require.NoError(t, err)
	text, err := io.ReadAll(r)
	require.NoError(t, err)
	return text
}

// deflated compresses text, and hardly.
func deflated(t testing.TB, text []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w, err := gzip.NewWriterLevel(&b, gzip.HuffmanOnly)
	if err == nil {
		_, err = w.Write(text)
		err = errors.Join(err, w.Close())
	}
	require.NoError(t, err)
	return b.Bytes()
}

func writeTo(t *testing.T, name string, data []byte) {
	t.Helper()
	require.NoError(t, errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, data, 0o644)))
}

// rewrite changes what the tap wrote.
func (d *manifestCopy) rewrite(t *testing.T, change func(*trace.Trace)) {
	t.Helper()
	d.capture.rewrite(t, change)
	writeTo(t, d.Trace, d.capture.data)
}

// files are what the copy has.
func (d *manifestCopy) files(t *testing.T) map[string]string {
	t.Helper()
	return testenv.Files(t, filepath.Dir(d.Manifest))
}

// manifest reads its manifest, which must have no errors.
func (d *manifestCopy) parsed(t *testing.T) *manifest.Manifest {
	t.Helper()
	m, findings := manifest.Load(d.Manifest)
	require.NoError(t, errorsOf(append(findings, CheckInputs(d.Matrix, m)...)))
	return m
}

// registered is what its manifest has of the golden.
func (d *manifestCopy) registered(t *testing.T) manifest.Golden {
	t.Helper()
	goldens := d.parsed(t).Goldens
	at := slices.IndexFunc(goldens, func(g manifest.Golden) bool { return g.Line == d.golden.Line && g.ID == d.ID })
	if at < 0 {
		t.Fatalf("the manifest has no %s/%s any more", d.golden.Line, d.ID)
	}
	return goldens[at]
}

func (d *manifestCopy) register(t *testing.T) Registered {
	t.Helper()
	done, err := Register(t.Context(), d.Registration)
	require.NoError(t, err)
	return done
}

// conform runs everything about the golden from its manifest.
func (d *manifestCopy) conform(t *testing.T, store Store) {
	t.Helper()
	cases, err := NewPlan(d.Matrix, d.parsed(t), Selection{Lines: []string{d.golden.Line}, Goldens: []string{d.ID}, Enforce: EnforceAll})
	require.NoError(t, err)
	report := (&Runner{Store: store}).Run(t.Context(), cases)
	require.True(t, report.ExitCode == ExitOK && report.Counts[Pass] == len(cases), "%s: %v", report.Reason, report.Results)
}

// edit makes its manifest from a file.
func (d *manifestCopy) edit(t *testing.T, from string, change func(*manifest.Editor) error) {
	t.Helper()
	text, err := os.ReadFile(from)
	require.NoError(t, err)
	editor, err := manifest.NewEditor(d.Manifest, text, lineNames(d.Matrix))
	require.NoError(t, err)
	require.NoError(t, change(editor))
	writeTo(t, d.Manifest, editor.Bytes())
}

// remove takes the golden out of its manifest.
func (d *manifestCopy) remove(t *testing.T) {
	t.Helper()
	d.edit(t, d.Manifest, func(e *manifest.Editor) error { return e.Remove(d.golden.Line, d.golden.ID) })
}
