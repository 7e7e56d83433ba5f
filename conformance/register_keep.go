package conformance

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/internal/base/tomlfile"
	"github.com/vllm-vcr/conformance/internal/golden"
	"github.com/vllm-vcr/conformance/manifest"
	"github.com/vllm-vcr/conformance/trace"
)

// ErrEdited is among the problems of a registration whose manifest was edited by
// somebody else meanwhile. To register again is all that is to be done.
var ErrEdited = errors.New("register again")

// plan makes the new text of the manifest, before anything takes long.
func (rs registrars) plan() error {
	path := rs[0].Manifest
	before, err := os.ReadFile(path)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			err = fmt.Errorf("%w: create an empty file for the first golden, or name another manifest", err)
		}
		return refuse(ExitUsage, fmt.Errorf("manifest: %w", err))
	}
	text := before
	for _, r := range rs {
		if r.Manifest != path {
			return refuse(ExitUsage, fmt.Errorf("manifests %s and %s: goldens that are registered together need one manifest", path, r.Manifest))
		}
		if text, err = r.plan(text); err != nil {
			return err
		}
	}
	for _, r := range rs {
		r.before, r.after = before, text
	}
	return nil
}

// plan puts the golden into the text of the manifest.
func (r *registrar) plan(text []byte) ([]byte, error) {
	editor, err := manifest.NewEditor(r.Manifest, text, lineNames(r.Matrix))
	if err != nil {
		return nil, refuse(ExitUsage, err)
	}
	mf := editor.Manifest()
	r.inherit(mf)
	known := CheckInputs(r.Matrix, mf)
	if err := editor.Put(r.result.Golden); err != nil {
		return nil, refuse(ExitUsage, err)
	}
	r.result.Changed = !bytes.Equal(text, editor.Bytes())
	var problems []error
	for _, f := range CheckInputs(r.Matrix, editor.Manifest()) {
		switch {
		case slices.ContainsFunc(known, func(k manifest.Diagnostic) bool { return k.Code == f.Code && k.Message == f.Message }):
		case f.Severity == tomlfile.Error:
			problems = append(problems, errors.New(f.String()))
		default:
			r.result.Warnings = append(r.result.Warnings, f)
		}
	}
	if len(problems) > 0 {
		return nil, refuse(ExitUsage, problems...)
	}
	return editor.Bytes(), nil
}

func lineNames(matrix *compat.Matrix) []string {
	var names []string
	for _, l := range matrix.Lines {
		names = append(names, l.Name)
	}
	return names
}

// inherit takes from the golden that is replaced what is still true.
func (r *registrar) inherit(mf *manifest.Manifest) {
	at := slices.IndexFunc(mf.Goldens, func(g manifest.Golden) bool { return g.Line == r.line.Name && g.ID == r.ID })
	if at < 0 {
		return
	}
	r.result.Replaced = true
	r.replaced = mf.Goldens[at]
	old, g := r.replaced, &r.result.Golden
	g.Scenario = cmp.Or(g.Scenario, old.Scenario)
	g.Visibility, g.License = old.Visibility, old.License
	if g.Seed == nil {
		g.Seed = old.Seed
	}
	if g.SHA256 == old.SHA256 { // it is the same capture
		g.VersionID, g.Mirrors, g.Notes = old.VersionID, old.Mirrors, old.Notes
		g.EngineImage = cmp.Or(old.EngineImage, g.EngineImage)
		g.EngineBuild = cmp.Or(old.EngineBuild, g.EngineBuild)
		g.CaptureRun = cmp.Or(old.CaptureRun, g.CaptureRun)
		g.RecorderVersion = cmp.Or(g.RecorderVersion, old.RecorderVersion)
		if !old.CapturedAt.IsZero() {
			g.CapturedAt = old.CapturedAt
		}
	}
}

// memory is the store of a golden that is not stored yet.
type memory struct {
	data     []byte
	location string
}

func (m memory) Fetch(context.Context, manifest.Golden) ([]byte, string, error) {
	return m.data, m.location, nil
}

// replay makes every assertion that a run would make of the golden.
func (r *registrar) replay(ctx context.Context) error {
	mf := &manifest.Manifest{File: r.Manifest, Goldens: []manifest.Golden{r.result.Golden}}
	cases, err := NewPlan(r.Matrix, mf, Selection{Lines: []string{r.line.Name}, Enforce: EnforceAll})
	if err != nil {
		return refuse(ExitUsage, err)
	}
	for i := range cases {
		cases[i].Entry = "" // it is not there yet
	}
	location := r.Trace
	if !trace.IsGzip(location) {
		location += ".gz" // as it will be
	}
	runner := Runner{Store: memory{r.data, location}, Timeouts: r.Timeouts, Log: r.Log, Progress: r.Progress, Engine: r.engine}
	r.result.Report = runner.Run(ctx, cases)
	if r.result.Report.ExitCode == ExitOK {
		return nil
	}
	code := r.result.Report.ExitCode
	if code == ExitVacuous {
		code = ExitFail
	}
	return refuse(code, fmt.Errorf("%s: its replay is not green, so it is not registered: %s", r.Trace, r.result.Report.Reason))
}

// keep stores the bytes.
func (r *registrar) keep(ctx context.Context) error {
	if r.DryRun {
		return nil
	}
	if err := r.unedited(); err != nil {
		return err
	}
	temp, err := os.CreateTemp("", "golden-*.jsonl.gz")
	if err != nil {
		return refuse(ExitInfra, err)
	}
	defer os.Remove(temp.Name())
	_, err = temp.Write(r.data)
	if err := errors.Join(err, temp.Close()); err != nil {
		return refuse(ExitInfra, err)
	}
	published, err := (&golden.Store{S3: r.S3, Log: r.Log}).Publish(ctx, r.result.Location, temp.Name())
	if err != nil {
		return refuse(ExitInfra, err)
	}
	r.result.Stored = !published.Existed
	if r.result.Stored && r.Upload == "" {
		r.created = func() error { return os.Remove(r.result.Location) }
	}
	return nil
}

// unedited checks that the manifest is still what the new text was made of.
func (r *registrar) unedited() error {
	now, err := os.ReadFile(r.Manifest)
	if err != nil {
		return refuse(ExitInfra, fmt.Errorf("manifest: %w", err))
	}
	if !bytes.Equal(now, r.before) {
		return refuse(ExitInfra, fmt.Errorf("%s was edited while the capture was checked, so it was left as it is: %w", r.Manifest, ErrEdited))
	}
	return nil
}

// edit writes the manifest.
func (rs registrars) edit() error {
	r := rs[0]
	if r.DryRun || bytes.Equal(r.before, r.after) {
		return nil
	}
	if err := r.unedited(); err != nil {
		return err
	}
	if err := r.write(r.Manifest, r.after); err != nil {
		return refuse(ExitInfra, fmt.Errorf("write the manifest: %w", err))
	}
	return nil
}

// undo takes away what was stored here for a registration that failed.
func (rs registrars) undo(failed error) error {
	var refusal *RegistrationError
	if !errors.As(failed, &refusal) {
		return failed
	}
	problems := refusal.Problems
	for _, r := range rs {
		if r.created == nil {
			continue
		}
		r.result.Stored = false
		if err := r.created(); err != nil {
			problems = append(problems, fmt.Errorf("and what was stored for it stays: %w", err))
		}
	}
	return refuse(refusal.ExitCode, problems...)
}

// removeReplaced removes the file of the golden that was replaced, unless another
// still is that file. Nothing outside of the directory of goldens is touched.
func (r *registrar) removeReplaced(context.Context) error {
	old := r.replaced.BucketPath
	if r.DryRun || old == "" || old == r.result.Golden.BucketPath || strings.Contains(old, "://") {
		return nil
	}
	mf, _ := manifest.Parse(r.Manifest, r.after)
	if slices.ContainsFunc(mf.Goldens, func(g manifest.Golden) bool { return g.BucketPath == old }) {
		return nil
	}
	root, err := os.OpenRoot(r.Goldens)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // all goldens are elsewhere
	}
	if err == nil {
		defer root.Close()
		err = root.Remove(filepath.FromSlash(old))
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return refuse(ExitInfra, fmt.Errorf("the golden is registered, but the file of the one before it stays: %w", err))
	}
	r.result.Removed = filepath.Join(r.Goldens, filepath.FromSlash(old))
	return nil
}
