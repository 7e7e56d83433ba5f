package conformance

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/vllm-vcr/conformance/internal/golden/s3store"
	"github.com/vllm-vcr/conformance/manifest"
	"github.com/vllm-vcr/conformance/trace"
)

// desk is a copy of the registry with one golden of it, and what the tap would
// have written when that was captured.
type desk struct {
	Registration
	golden  manifest.Golden
	capture *subjectGolden // rewritten by the tap's writer, with sync points
}

// deskFiles are what lies on a new desk: made once, as to edit the registry takes longer than most of what tests do with it.
var deskFiles struct {
	sync.Mutex
	manifest, golden []byte
	desk
}

// newDesk takes the smallest fidelity golden of the newest line. On the desk it lies
// compressed as nothing of ours compresses, and under another path: registering
// its capture would change nothing else.
func newDesk(t *testing.T) *desk {
	t.Helper()
	deskFiles.Lock()
	defer deskFiles.Unlock()
	if deskFiles.manifest == nil {
		deskFiles.desk, deskFiles.golden = layOut(t)
		text, err := os.ReadFile(deskFiles.Manifest)
		if err != nil {
			t.Fatal(err)
		}
		deskFiles.manifest = text
	}
	d, capture, dir := deskFiles.desk, *deskFiles.capture, t.TempDir()
	d.capture = &capture
	capture.data = bytes.Clone(capture.data)
	d.Window, _ = repository(t)
	d.Trace, d.Manifest, d.Goldens = filepath.Join(dir, "run.jsonl.gz"), filepath.Join(dir, "manifest.toml"), filepath.Join(dir, "goldens")
	writeTo(t, d.Manifest, deskFiles.manifest)
	writeTo(t, filepath.Join(d.Goldens, d.golden.BucketPath), deskFiles.golden)
	writeTo(t, d.Trace, capture.data)
	return &d
}

// layOut makes the first desk, and returns the bytes of the golden on it too.
func layOut(t *testing.T) (desk, []byte) {
	t.Helper()
	window, registry := repository(t)
	at := slices.IndexFunc(registry.Goldens, func(g manifest.Golden) bool { return g.ID == "edge-s1" })
	g := registry.Goldens[at]
	dir := t.TempDir()
	d := &desk{capture: goldenOf(t, g.Line, g.ID)}
	d.capture.register(deflated(t, inflated(t, d.capture.data)))
	d.capture.BucketPath = path.Join(path.Dir(g.BucketPath), g.ID+"-before.jsonl.gz")
	g = d.capture.Golden
	d.golden = g
	d.Registration = Registration{
		Trace: filepath.Join(dir, "run.jsonl.gz"), Line: g.Line, ID: g.ID, Workload: g.Workload,
		Window: window, Manifest: filepath.Join(dir, "manifest.toml"), Goldens: filepath.Join(dir, "goldens"), S3: s3store.Options{},
	}
	d.edit(t, "manifest.toml", func(e *manifest.Editor) error { return e.Put(g) })
	golden := d.capture.data
	d.rewrite(t, func(*trace.Trace) {})
	return *d, golden
}

func inflated(t testing.TB, data []byte) []byte {
	t.Helper()
	r, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
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
	if err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func writeTo(t *testing.T, name string, data []byte) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, data, 0o644)); err != nil {
		t.Fatal(err)
	}
}

// rewrite changes what the tap wrote.
func (d *desk) rewrite(t *testing.T, change func(*trace.Trace)) {
	t.Helper()
	d.capture.rewrite(t, change)
	writeTo(t, d.Trace, d.capture.data)
}

// files lists what is on the desk, with its content.
func (d *desk) files(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	dir := filepath.Dir(d.Manifest)
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		name, _ := filepath.Rel(dir, path)
		all[filepath.ToSlash(name)] = string(data)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// registry reads the desk's registry, which must have no errors.
func (d *desk) registry(t *testing.T) *manifest.Manifest {
	t.Helper()
	m, findings := manifest.Load(d.Manifest)
	if err := errorsOf(append(findings, CheckInputs(d.Window, m)...)); err != nil {
		t.Fatal(err)
	}
	return m
}

// registered is what the desk's registry has of the golden.
func (d *desk) registered(t *testing.T) manifest.Golden {
	t.Helper()
	goldens := d.registry(t).Goldens
	at := slices.IndexFunc(goldens, func(g manifest.Golden) bool { return g.Line == d.golden.Line && g.ID == d.ID })
	if at < 0 {
		t.Fatalf("the registry has no %s/%s any more", d.golden.Line, d.ID)
	}
	return goldens[at]
}

func (d *desk) register(t *testing.T) Registered {
	t.Helper()
	done, err := Register(t.Context(), d.Registration)
	if err != nil {
		t.Fatal(err)
	}
	return done
}

// conform runs everything about the golden from the desk's registry.
func (d *desk) conform(t *testing.T, store Store) {
	t.Helper()
	cases, err := NewPlan(d.Window, d.registry(t), Selection{Lines: []string{d.golden.Line}, Goldens: []string{d.ID}, Enforce: EnforceAll})
	if err != nil {
		t.Fatal(err)
	}
	report := (&Runner{Store: store}).Run(t.Context(), cases)
	if report.ExitCode != ExitOK || report.Counts[Pass] != len(cases) {
		t.Errorf("%s: %v", report.Reason, report.Results)
	}
}

// edit makes the desk's registry from a file.
func (d *desk) edit(t *testing.T, from string, change func(*manifest.Editor) error) {
	t.Helper()
	text, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	editor, err := manifest.NewEditor(d.Manifest, text, lineNames(d.Window))
	if err != nil {
		t.Fatal(err)
	}
	if err := change(editor); err != nil {
		t.Fatal(err)
	}
	writeTo(t, d.Manifest, editor.Bytes())
}

// remove takes the golden out of the desk's registry.
func (d *desk) remove(t *testing.T) {
	t.Helper()
	d.edit(t, d.Manifest, func(e *manifest.Editor) error { return e.Remove(d.golden.Line, d.golden.ID) })
}
