package drift

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/base/atomicfile"
	"github.com/vllm-vcr/conformance/internal/base/process"
	"github.com/vllm-vcr/conformance/internal/base/safetext"
	"github.com/vllm-vcr/conformance/internal/capture"
	"github.com/vllm-vcr/conformance/internal/capture/load"
	"github.com/vllm-vcr/conformance/internal/capture/local"
	"github.com/vllm-vcr/conformance/internal/capture/target"
	"github.com/vllm-vcr/conformance/internal/check/live"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// EngineMode is where the layers engine and python take what they run from.
type EngineMode string

// Modes. Anything else is the path of an environment, or of its interpreter.
const (
	EngineAuto    EngineMode = "auto"    // one that is installed
	EngineInstall EngineMode = "install" // one that is installed, or is installed now
	EngineNever   EngineMode = "never"
)

// errAbsent is in the error of an engine that is not there, which says nothing about the release.
var errAbsent = errors.New("no CPU engine")

// Engines finds the engine of a release.
type Engines struct {
	Mode EngineMode
	// Options of the installer; Release is that of the build that is looked for.
	Options local.EngineOptions
	// Frontend is the vllm-rs of the release, for an environment that has none.
	Frontend string
}

// find returns the engine of a build; without one the error is errAbsent and says why.
func (e Engines) find(ctx context.Context, build compat.Build) (local.Engine, error) {
	opt := e.Options
	opt.Release = build.String()
	switch {
	case e.Mode == EngineNever:
		return local.Engine{}, fmt.Errorf("%w was wanted", errAbsent)
	case e.Mode != EngineAuto && e.Mode != EngineInstall:
		// An environment that was named, by its folder or by its interpreter.
		path, err := filepath.Abs(string(e.Mode))
		if err != nil {
			return local.Engine{}, err
		}
		if info, err := os.Stat(path); err == nil && info.IsDir() {
			path = filepath.Join(path, "bin", "python")
		}
		if _, err := os.Stat(path); err != nil {
			return local.Engine{}, fmt.Errorf("--engine: %w", err)
		}
		return local.Engine{
			Release: opt.Release, Home: filepath.Dir(filepath.Dir(path)), Python: path, VLLMRS: e.Frontend, Origin: path,
		}, nil
	case runtime.GOOS != "linux":
		return local.Engine{}, fmt.Errorf("%w: there is none for %s", errAbsent, runtime.GOOS)
	case !build.IsRelease() || build.IsCandidate():
		return local.Engine{}, fmt.Errorf("%w of %s: they are made of stable releases only", errAbsent, build)
	case e.Mode == EngineInstall:
		return local.Ensure(ctx, opt)
	}
	engine, err := local.Find(ctx, opt)
	if errors.Is(err, fs.ErrNotExist) {
		return engine, fmt.Errorf("%w of %s here: vllm-vcr capture engine %s installs it", errAbsent, build, build)
	}
	return engine, err
}

// engine is the layer of a release's engine for the CPU: it gets the live suite from our frontend, and then it serves a
// small load behind our tap, with its own vllm-rs in front.
func (r *running) engine(ctx context.Context) Layer {
	engine, err := r.Engines.find(ctx, r.Build)
	if errors.Is(err, errAbsent) {
		return notLooked(EngineLayer, "%v", err)
	}
	if err != nil {
		return Unjudged(EngineLayer, err)
	}
	suite, err := r.engineSuite(ctx, engine)
	if err != nil {
		return Unjudged(EngineLayer, err)
	}
	layer := judge(EngineLayer, suite)
	layer.Compared = "its CPU engine with what line " + r.Live.Line + " demands: " + asserted(suite)
	handshake := conformance.Result{Verdict: conformance.Error} // all other cases need it, and the tap too
	if at := slices.IndexFunc(suite.Results, func(r conformance.Result) bool { return r.Case.Assertion == live.Handshake }); at >= 0 {
		handshake = suite.Results[at]
	}
	switch {
	case handshake.Verdict == conformance.Error:
		// Nothing could be asserted. An environment without torch looks the same.
		layer.Verdict, layer.Vacuous, layer.Reason = Unknown, false, "it does not register: "+describe(handshake)
	case !handshake.Verdict.Red():
		// An engine serves one frontend in its life, so this one is another. Both at a time would share the cores, and
		// a capture gives way to everybody.
		layer.judgeCases([]LayerCase{r.tap(ctx, engine)})
	}
	return layer
}

// engineGrace is how long an engine may take to end: it stops threads and frees its memory.
const engineGrace = time.Minute

// engineSuite runs the live suite on the engine.
func (r *running) engineSuite(ctx context.Context, engine local.Engine) (*conformance.Report, error) {
	command := conformance.CommandEngine{Template: r.engineCommand(engine), Grace: engineGrace}
	sel := conformance.Selection{Suite: conformance.SuiteLive}
	r.step(EngineLayer, "start it for the live suite")
	report, err := r.Live.run(ctx, sel, func(runner *conformance.Runner, _ []conformance.Case) error {
		runner.Engine, runner.Timeouts = command.Engine, conformance.EngineTimeouts()
		runner.Timeouts.Connect = cmp.Or(r.BootTimeout, runner.Timeouts.Connect)
		runner.Subject = conformance.Description{Kind: "engine", Command: command.Template}
		runner.Progress = func(result conformance.Result) {
			r.step(EngineLayer, fmt.Sprintf("%s: %s", result.Case.Check(), result.Verdict))
			if r.Live.Progress != nil {
				r.Live.Progress(result)
			}
		}
		return command.Check(conformance.SuiteLive)
	})
	if err != nil {
		return nil, err
	}
	report.Flags = []string{"--suite", string(conformance.SuiteLive), "--engine-command", command.Template}
	return report, nil
}

// engineCommand starts the engine as a capture does, with the places of the handshake left open.
func (r *running) engineCommand(engine local.Engine) string {
	t := r.engineTarget(r.Live.Line)
	args := append([]string{engine.Python, "-m", "vllm.entrypoints.cli.main"}, t.EngineArgs(target.Addresses{Model: r.Live.Model})...)
	for i, word := range args[:len(args)-1] {
		switch word {
		case "--data-parallel-address":
			args[i+1] = "{handshake_host}"
		case "--data-parallel-rpc-port":
			args[i+1] = "{handshake_port}"
		}
	}
	return commandLine(append(t.EngineEnv(), "HF_HUB_OFFLINE=1", "VLLM_CACHE_ROOT="+engine.Cache()), args)
}

// engineTarget returns what the engine serves: the small model that goldens are captured from, configured as for them.
func (r *running) engineTarget(line string) target.Target {
	return target.Target{
		Line: line, Tag: "v" + r.Build.String(), ID: "drift", Scenario: target.Baseline, Seed: 1,
		Model: target.Model{Key: modelKey, Source: r.Live.Model, Served: modelKey, GPU: "cpu", Engine: map[string]string{
			"block_size": "128", "dtype": "float32", "enforce_eager": "true", "load_format": "dummy", "max_model_len": "4096",
			"max_num_seqs": "64",
		}},
		Workload: target.Workload{Name: string(load.Concurrency), Kind: load.Concurrency, Shape: load.Shape{
			Concurrency: 4, Requests: 12, PromptTokens: 40, OutputTokens: 24,
		}},
	}
}

// modelKey names the model of a load.
const modelKey = "tiny"

// tap puts recorder and vllm-rs before the engine. The trace must be whole, and replay.
func (r *running) tap(ctx context.Context, engine local.Engine) LayerCase {
	c := LayerCase{Name: "tap", Verdict: Unknown}
	switch {
	case engine.VLLMRS == "":
		c.Verdict, c.Message = Skipped, "there is no vllm-rs of the release to put before it"
		return c
	case !r.Own && !r.taught:
		c.Verdict, c.Message = Skipped, "no profile of line "+r.Build.Line()+" to read a recording by"
		return c
	}
	dir, remove, err := process.MkdirTemp("vllm-vcr-drift-")
	if err != nil {
		c.Message = firstLine(err.Error())
		return c
	}
	defer remove()
	if c.Message, err = r.recordAndReplay(ctx, engine, dir); err == nil {
		c.Verdict = None
		return c
	}
	var refused *capture.RefusedError
	var unregistered *conformance.RegistrationError
	if errors.As(err, &refused) || errors.As(err, &unregistered) && unregistered.ExitCode == conformance.ExitFail {
		c.Verdict = Found
	}
	c.Message = firstLine(strings.ReplaceAll(err.Error(), dir, ""))
	return c
}

// loadTime is how long the load and its replay may take. On a quiet machine that is seconds.
const loadTime = 5 * time.Minute

// recordAndReplay has frontend, tap and engine serve a small load, compares the trace with what the client saw, and
// replays it as if it were to be registered. It returns what was recorded, in a sentence. dir is empty.
func (r *running) recordAndReplay(ctx context.Context, engine local.Engine, dir string) (recorded string, err error) {
	limit := cmp.Or(r.BootTimeout, local.DefaultBootTimeout) + loadTime
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("its load did not end within %v", limit))
	defer cancel()
	t := r.engineTarget(r.Build.Line())
	profiles, err := writeProfile(dir, t.Line)
	if err != nil {
		return "", err
	}
	log := cmp.Or(r.Live.Log, slog.New(slog.DiscardHandler))
	rec, err := local.Capture(ctx, local.Options{
		Dir: dir, Engines: map[string]local.Engine{t.Release(): engine}, Models: map[string]string{modelKey: r.Live.Model},
		VCR: r.VCR, Profiles: profiles, BootTimeout: r.BootTimeout, Log: log,
		Progress: func(_ target.Target, step string) { r.step(EngineLayer, "tap: "+step) },
	}, t)
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	if err != nil {
		return "", err
	}
	goldens := filepath.Join(dir, "manifest.toml")
	if err := os.WriteFile(goldens, nil, 0o644); err != nil {
		return "", err
	}
	accepted, err := capture.Accept(ctx, capture.AcceptOptions{
		Matrix: &compat.Matrix{File: r.Live.Matrix.File, Lines: []compat.Line{{Name: t.Line, Tag: t.Tag}}}, Manifest: goldens, Goldens: dir, DryRun: true,
		Log: log,
	}, rec)
	if err != nil {
		return "", err
	}
	g := accepted.Goldens[0].Golden
	return fmt.Sprintf("%s recorded and replayed, %d tokens", safetext.Count(g.Records, "request"), g.Tokens), nil
}

// writeProfile writes the profile of a line into a folder below dir, as this process knows it: what records is a process of its own,
// and may not know the line.
func writeProfile(dir, line string) (string, error) {
	p, err := protocol.LoadProfile(line)
	if err != nil {
		return "", err
	}
	dir = filepath.Join(dir, "profiles")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	path := filepath.Join(dir, p.Line+".json")
	return dir, atomicfile.WriteFunc(path, 0o644, func(w io.Writer) error { return protocol.WriteProfile(w, p) })
}
