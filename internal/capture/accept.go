package capture

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/capture/load"
	"github.com/vllm-vcr/conformance/internal/capture/target"
	"github.com/vllm-vcr/conformance/internal/golden"
	"github.com/vllm-vcr/conformance/manifest"
	"github.com/vllm-vcr/conformance/trace"
)

// AcceptOptions say where goldens are registered.
type AcceptOptions struct {
	Matrix   *compat.Matrix
	Manifest string // path of the manifest, which is edited
	// NewManifest makes an empty manifest where there is none, so that the first golden has a place.
	NewManifest bool
	Goldens     string // directory that bucket paths are relative to
	// Upload, if not empty, is where the bytes go instead: s3://bucket/prefix or file:///dir. S3 writes to s3:// locations.
	Upload string
	S3     golden.Connector
	// Run is the URL of the run that captured, for the manifest; may be empty.
	Run string
	// Store has the goldens that are registered, to compare with; nil compares with none.
	Store conformance.Store
	// DryRun checks everything, replays, and writes nothing.
	DryRun bool

	Log *slog.Logger
	// Progress is called with each result of the replay; may be nil.
	Progress func(conformance.Result)
}

// Accepted is what became of a recording.
type Accepted struct {
	// Goldens are those that were registered, or were already: that of the trace, and that of the raw frames if the
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

// registrations is how often a manifest is tried that others edit at the same time.
const registrations = 5

// Accept holds a recording to its target, replays it, and registers its goldens: all of them, or none. What is against
// it is reported at once, as a [*RefusedError] or, where the replay or the manifest is in the way, a
// [*conformance.RegistrationError]. A recording that is registered already changes nothing.
func Accept(ctx context.Context, opt AcceptOptions, rec Recording) (Accepted, error) {
	m, findings := check(rec)
	if rec.Target.Session != nil {
		m, findings = measure{}, checkSession(rec)
	}
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
	if rec.Target.Session == nil {
		opt.screen(ctx, rec.Target, m, &accepted)
	}
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
		if version := g.Golden.RecorderVersion; version == "" || version == "(devel)" {
			accepted.Warnings = append(accepted.Warnings, fmt.Sprintf("%s/%s: recorder_version %q names no commit: build vllm-vcr by `go build` in a checkout, "+
				"or take a released one", g.Golden.Line, g.Golden.ID, version))
		}
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
	base := conformance.Registration{
		Trace: rec.Trace, Line: t.Line, ID: t.ID, Workload: t.ID, Role: manifest.Fidelity,
		Scenario: string(t.Scenario), Seed: &seed, CapturedAt: rec.CapturedAt.UTC().Truncate(time.Second), CaptureRun: opt.Run,
		EngineBuild: rec.EngineBuild,
		Matrix:      opt.Matrix, Manifest: opt.Manifest, Goldens: opt.Goldens, Upload: opt.Upload, S3: opt.S3,
		DryRun: opt.DryRun, Log: opt.Log, Progress: opt.Progress,
	}
	if t.Session != nil {
		frames := base
		frames.Trace, frames.Others, frames.Role = rec.Frames, rec.others(), manifest.Frames
		return []conformance.Registration{frames}
	}
	if t.Fit {
		base.Role = manifest.Schema // pins how an engine registers, and leaves what it says to others
	}
	if image, digest := splitDigest(rec.EngineImage); digest != "" {
		base.EngineImage = image + "@" + digest
	}
	if !t.Wire {
		return []conformance.Registration{base}
	}
	wire := base
	wire.Trace, wire.ID, wire.Role = rec.Frames, t.WireID(), manifest.Wire
	return []conformance.Registration{base, wire}
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
	mf, findings := manifest.Load(opt.Manifest)
	if mf == nil || slices.ContainsFunc(findings, func(f manifest.Diagnostic) bool { return f.Code == "M002" }) {
		return // Register says what is wrong with it
	}
	for _, g := range mf.Goldens {
		if g.Line != t.Line || g.Role.Raw() || !akin(g, t.ID, orEmpty(m.Meta.ConfigHash)) {
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

// akin reports whether a golden has this id, or is a sibling: the same configuration under the same workload with another
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

// checkSession returns what is against the recording of a session: its engines come once each, and answered.
func checkSession(rec Recording) []string {
	c := checker{rec: rec}
	c.checkImage()
	if c.rec.Load.Completed == 0 {
		c.fail("%s: no request was completed", filepath.Join(rec.Dir, target.LoadFile))
	}
	files := append([]string{rec.Frames}, rec.others()...)
	if want := rec.Target.Session.Ranks; len(files) != want {
		c.fail("%s: there are raw frames of %d engines, want %d", rec.Dir, len(files), want)
	}
	for _, path := range files {
		switch hellos, ranks, err := countHellos(path); {
		case err != nil:
			c.fail("%v", err)
		case hellos != 1 || ranks != 1:
			c.fail("%s: %d engines registered %d times: want one engine that registers once", path, ranks, hellos)
		}
	}
	return c.findings
}

// check returns what a recording's trace comes to, and everything that is against the recording apart from its
// replay.
func check(rec Recording) (measure, []string) {
	c := checker{rec: rec}
	c.checkLoad()
	c.checkImage()
	c.checkFolder()
	c.checkTrace()
	c.checkSteps()
	c.checkFrames()
	c.checkClient()
	return c.trace, c.findings
}

// A checker gathers what is against a recording.
type checker struct {
	rec      Recording
	trace    measure
	whole    bool // the trace could be read to its end
	findings []string
}

func (c *checker) fail(format string, args ...any) {
	c.findings = append(c.findings, fmt.Sprintf(format, args...))
}

// checkLoad wants a client that was answered all that it asked, and that asked what the target says.
func (c *checker) checkLoad() {
	t, l := c.rec.Target, c.rec.Load
	where := filepath.Join(c.rec.Dir, target.LoadFile)
	if l.Workload != t.Workload.Kind || l.Seed != t.Seed {
		c.fail("%s: %s with seed %d was played, but the target asks for %s with seed %d", where, l.Workload, l.Seed, t.Workload.Kind, t.Seed)
	}
	if l.Failed > 0 || l.Unfinished > 0 {
		c.fail("%s: %d requests failed and %d were not finished: a golden has only requests that completed", where, l.Failed, l.Unfinished)
	}
	if l.Completed == 0 {
		c.fail("%s: no request was completed", where)
	}
}

// checkImage wants the engine that ran to be the one that the target names.
func (c *checker) checkImage() {
	_, wanted := splitDigest(c.rec.Target.Images.Engine)
	image, ran := splitDigest(c.rec.EngineImage)
	switch {
	case ran == "" && strings.Contains(image, "@"):
		c.fail("engine image %q: want one with its digest", image)
	case wanted != "" && image == "":
		c.fail("the image that the engine ran is not known: the target asks for %s", wanted)
	case wanted != "" && ran != "" && wanted != ran:
		c.fail("the engine ran %s, but the target asks for %s: the image registry has other bytes under this name", ran, wanted)
	}
}

// checkFolder looks for traces of a second engine, or of a tap that did not finish.
func (c *checker) checkFolder() {
	entries, err := os.ReadDir(c.rec.Dir)
	if err != nil {
		c.fail("%v", err)
		return
	}
	for _, e := range entries {
		name := e.Name()
		switch {
		case strings.Contains(name, ".partial-"):
			c.fail("%s: the recorder did not finish it", filepath.Join(c.rec.Dir, name))
		case strings.Contains(name, ".rank"):
			c.fail("%s: a second engine was recorded: want one", filepath.Join(c.rec.Dir, name))
		}
	}
}

// checkTrace wants the trace to be of the target's engine, and to have every answer with its tokens.
func (c *checker) checkTrace() {
	path, t := c.rec.Trace, c.rec.Target
	m, err := measureTrace(path)
	c.trace = m
	if err != nil {
		c.fail("%v", err)
		return
	}
	c.whole = true
	release, _, _ := strings.Cut(orEmpty(m.Meta.VLLMVersion), "+") // 0.33.0+cpu is a build of 0.33.0
	if nightly := t.Release() == "nightly"; release != t.Release() && !nightly {
		c.fail("%s: the engine said it is %q, but the target is of vLLM %s", path, orEmpty(m.Meta.VLLMVersion), t.Release())
	}
	if got, want := orEmpty(m.Meta.ConfigHash), t.ConfigHash(); got != want {
		c.fail("%s: meta.config_hash is %q, but the configuration of the target gives %s (recorded engine_config %q, wanted %q)",
			path, got, want, orEmpty(m.Meta.EngineConfig), t.EngineConfig())
	}
	switch {
	case m.Records == 0:
		c.fail("%s: the recorder recorded no request: was the client connected to the frontend behind it?", path)
	case m.Bare > 0:
		c.fail("%s:%d: a request that was aborted, or has no tokens: record with --record-tokens and without aborted ones", path, m.Bare)
	}
	// Of edge cases some requests do not reach the engine.
	if done := c.rec.Load.Completed; t.Workload.Kind != load.Edge && m.Records > 0 && m.Records < done {
		c.fail("%s: has %d requests, but the client completed %d", path, m.Records, done)
	}
}

// stepSlack is how far the last statistics may be before the end of the last answer, in ms: both are of the same message,
// or of the one behind it.
const stepSlack = 1000

// checkSteps wants the statistics of the same engine's steps, over all of the trace's time.
func (c *checker) checkSteps() {
	if c.rec.Steps == "" {
		c.fail("%s: there are no statistics of steps: record with --step-stats-out", c.rec.Dir)
		return
	}
	lines, busy, last, err := readSteps(c.rec.Steps)
	switch {
	case err != nil:
		c.fail("%v", err)
	case lines == 0:
		c.fail("%s: there are no statistics in it: does the engine run with --disable-log-stats?", c.rec.Steps)
	case !c.whole || c.trace.Records == 0:
	case busy == 0:
		c.fail("%s: no request was running in any of %d steps, but the trace has %d requests: the statistics are of another engine",
			c.rec.Steps, lines, c.trace.Records)
	case last+stepSlack < c.trace.Ends:
		c.fail("%s: ends at %s ms, but the last answer at %s ms: they are of another engine, or cut off",
			c.rec.Steps, ms(last), ms(c.trace.Ends))
	}
}

// readSteps counts the statistics of a sidecar, and those with a running request, and returns the time of the last.
func readSteps(path string) (lines, busy int, last float64, err error) {
	r, err := trace.OpenSteps(path, trace.Options{Strict: true})
	if err != nil {
		return 0, 0, 0, err
	}
	defer r.Close()
	var s trace.StepStats
	for {
		err := r.Next(&s)
		if errors.Is(err, io.EOF) {
			return lines, busy, last, nil
		}
		if err != nil {
			return lines, busy, last, err
		}
		lines++
		last = s.TsMs
		if s.Scheduler.Running > 0 {
			busy++
		}
	}
}

// checkFrames wants one life of one engine: it says HELLO once.
func (c *checker) checkFrames() {
	if c.rec.Frames == "" {
		c.fail("%s: there are no raw frames: record with --frames-out", c.rec.Dir)
		return
	}
	hellos, ranks, err := countHellos(c.rec.Frames)
	switch {
	case err != nil:
		c.fail("%v", err)
	case hellos != 1 || ranks != 1:
		c.fail("%s: %d engines registered %d times: a golden is the recording of one engine that registers once", c.rec.Frames, ranks, hellos)
	}
}

func countHellos(path string) (hellos, ranks int, err error) {
	r, err := trace.OpenFrames(path, trace.Options{Strict: true})
	if err != nil {
		return 0, 0, err
	}
	defer r.Close()
	seen := map[int]bool{}
	var m trace.Message
	for {
		err := r.Next(&m)
		if errors.Is(err, io.EOF) {
			return hellos, len(seen), nil
		}
		if err != nil {
			return hellos, len(seen), err
		}
		isHello := func(frame []byte) bool { return bytes.Contains(frame, []byte("HELLO")) }
		if m.Channel == "handshake" && m.Direction == trace.EngineToFrontend && slices.ContainsFunc(m.Frames, isHello) {
			hellos++
			seen[m.Rank] = true
		}
	}
}

// checkClient holds what the client saw against what the tap recorded.
func (c *checker) checkClient() {
	if c.rec.Requests == "" || !c.whole {
		return
	}
	records, err := load.ReadRecords(c.rec.Requests)
	if err != nil {
		c.fail("%v", err)
		return
	}
	tap, err := trace.Open(c.rec.Trace, trace.Options{Strict: true, KeepExtra: true})
	if err != nil {
		c.fail("%v", err)
		return
	}
	defer tap.Close()
	findings, err := load.Compare(records, tap)
	if err != nil {
		c.fail("%v", err)
	}
	for _, finding := range findings {
		c.fail("%s: %s", c.rec.Requests, finding)
	}
}

func orEmpty(text *string) string { return trace.Or(text, "") }
