package capture

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/capture/target"
	"github.com/vllm-vcr/conformance/internal/golden"
	"github.com/vllm-vcr/conformance/manifest"
)

// AcceptOptions say where goldens are registered.
type AcceptOptions struct {
	Window   *compat.Matrix
	Manifest string // path of the registry, which is edited
	// NewManifest makes an empty manifest where there is none, so that the first golden has a place.
	NewManifest bool
	Goldens     string // directory that bucket paths are relative to
	// Upload, if not empty, is where the bytes go instead: s3://bucket/prefix or file:///dir. S3 writes to s3:// locations.
	Upload string
	S3     golden.Connector
	// Run is the URL of the run that captured, for the registry; may be empty.
	Run string
	// Store has the goldens that are registered, to compare with; nil compares with none.
	Store conformance.Store
	// DryRun checks everything, replays, and writes nothing.
	DryRun bool

	Timeouts conformance.Timeouts
	Log      *slog.Logger
	// Progress is told each result of the replay; may be nil.
	Progress func(conformance.Result)
}

// Accepted is what became of a recording.
type Accepted struct {
	// Goldens are those that were registered, or were already: that of the cassette, and that of the raw frames if the
	// target asks for it.
	Goldens []conformance.Registered
	// Before says how much of what the golden of the same id said before is said again; empty if there was none.
	Before string
	// Warnings are what somebody should look at, a sentence each.
	Warnings []string
}

// A RefusedError says what keeps a recording from being registered. Nothing was registered then.
type RefusedError struct {
	Target   string
	Findings []string // a sentence each, with its place
}

func (e *RefusedError) Error() string {
	return e.Target + ": " + strings.Join(e.Findings, "\n"+e.Target+": ")
}

// registrations is how often a registry is tried that others edit at the same time.
const registrations = 5

// Accept holds a recording to its target, replays it, and registers its goldens: all of them, or none. What is against
// it is told at once, as a [*RefusedError] or, where the replay or the registry is in the way, a
// [*conformance.RegistrationError]. A recording that is registered already changes nothing.
func Accept(ctx context.Context, opt AcceptOptions, rec Recording) (Accepted, error) {
	m, findings := check(rec)
	if err := ctx.Err(); err != nil {
		return Accepted{}, err
	}
	if len(findings) > 0 {
		return Accepted{}, &RefusedError{rec.Target.Name(), findings}
	}
	if opt.NewManifest {
		if err := createManifest(opt.Manifest); err != nil {
			return Accepted{}, err
		}
	}
	var accepted Accepted
	opt.screen(ctx, rec.Target, m, &accepted)
	for try := 1; ; try++ {
		var err error
		accepted.Goldens, err = conformance.RegisterAll(ctx, opt.registrations(rec)...)
		if err == nil {
			break
		}
		if !errors.Is(err, conformance.ErrEdited) || try == registrations {
			return Accepted{Goldens: accepted.Goldens}, fmt.Errorf("%s: %w", rec.Target.Name(), err)
		}
	}
	for _, g := range accepted.Goldens {
		for _, f := range g.Warnings {
			accepted.Warnings = append(accepted.Warnings, f.String())
		}
	}
	return accepted, nil
}

// createManifest writes an empty manifest unless there is one.
func createManifest(path string) error {
	if _, err := os.Stat(path); err == nil {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, nil, 0o644)
}

// registrations are the goldens that a recording becomes.
func (opt AcceptOptions) registrations(rec Recording) []conformance.Registration {
	t := rec.Target
	seed := int64(t.Seed)
	cassette := conformance.Registration{
		Trace: rec.Trace, Line: t.Line, ID: t.ID, Workload: t.ID, Role: manifest.Fidelity,
		Scenario: string(t.Scenario), Seed: &seed, CapturedAt: rec.CapturedAt.UTC().Truncate(time.Second), CaptureRun: opt.Run,
		Window: opt.Window, Manifest: opt.Manifest, Goldens: opt.Goldens, Upload: opt.Upload, S3: opt.S3,
		DryRun: opt.DryRun, Timeouts: opt.Timeouts, Log: opt.Log, Progress: opt.Progress,
	}
	if t.Fit {
		cassette.Role = manifest.Schema // pins how an engine registers, and leaves what it says to whoever fits
	}
	if image, digest := splitDigest(rec.EngineImage); digest != "" {
		cassette.EngineImage = image + "@" + digest
	}
	if !t.Wire {
		return []conformance.Registration{cassette}
	}
	wire := cassette
	wire.Trace, wire.ID, wire.Role = rec.Frames, t.WireID(), manifest.Wire
	return []conformance.Registration{cassette, wire}
}

// splitDigest takes an image and its digest apart: "docker.io/vllm/vllm-openai:v0.33.0", "sha256:…". A CPU engine out of
// wheels has no digest.
func splitDigest(image string) (name, digest string) {
	name, digest, ok := strings.Cut(image, "@")
	if !ok || !strings.HasPrefix(digest, "sha256:") {
		return image, ""
	}
	return name, digest
}

// screen compares a capture with what should be much like it: the golden before it, and those of the same engine and
// workload with other seeds.
func (opt AcceptOptions) screen(ctx context.Context, t target.Target, m measure, into *Accepted) {
	if opt.Store == nil {
		return
	}
	registry, findings := manifest.Load(opt.Manifest)
	if registry == nil || slices.ContainsFunc(findings, func(f manifest.Diagnostic) bool { return f.Code == "M002" }) {
		return // Register says what is wrong with it
	}
	for _, g := range registry.Goldens {
		if g.Line != t.Line || g.Role == manifest.Wire || !akin(g, t.ID, orEmpty(m.Meta.ConfigHash)) {
			continue
		}
		other, err := measureGolden(ctx, opt.Store, g)
		switch {
		case err != nil:
			into.Warnings = append(into.Warnings, fmt.Sprintf("not compared with %s/%s: %v", g.Line, g.ID, err))
		case g.ID == t.ID:
			into.Before = m.again(other)
			into.Warnings = append(into.Warnings, m.unlike(other, "the golden that is replaced")...)
		default:
			into.Warnings = append(into.Warnings, m.unlike(other, g.ID)...)
		}
	}
}

// akin tells whether a golden has this id, or is a sibling: the same configuration under the same workload with another
// seed.
func akin(g manifest.Golden, id, configHash string) bool {
	if g.ID == id {
		return true
	}
	return g.ConfigHash == configHash && family(g.ID) == family(id) && family(id) != id
}

// family is the id of a golden without its seed.
func family(id string) string {
	at := strings.LastIndex(id, "-s")
	if at < 0 || at+2 == len(id) || strings.Trim(id[at+2:], "0123456789") != "" {
		return id
	}
	return id[:at]
}
