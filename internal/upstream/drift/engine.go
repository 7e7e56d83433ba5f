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
	"strings"
	"time"

	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/base/atomicfile"
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

// Engine is the layer of a release's engine for the CPU: it gets the live suite from our frontend, and then it serves a
// small load behind our tap, with its own vllm-rs in front.
type Engine struct {
	Live    // the line that it is judged as, and what runs it; the frontend is that of the engine
	Build   compat.Build
	Engines Engines
	// Own: Line is the line of the release. Else Taught: the process knows a profile of its line. Without
	// either, what the tap records cannot be read.
	Own, Taught bool
	// VCR is the path of vllm-vcr, which records.
	VCR string
	// Dir is an empty folder for what is recorded.
	Dir string
	// BootTimeout is how long the engine may take until it serves; default that of a capture.
	BootTimeout time.Duration
	// Step gets what is being done, from several goroutines; may be nil.
	Step func(step string)
}

// Run looks for the engine and, if there is one, at it.
func (e Engine) Run(ctx context.Context) Layer {
	engine, err := e.Engines.find(ctx, e.Build)
	if errors.Is(err, errAbsent) {
		return notLooked(EngineLayer, "%v", err)
	}
	if err != nil {
		return Unjudged(EngineLayer, err)
	}
	suite, err := e.liveSuite(ctx, engine)
	if err != nil {
		return Unjudged(EngineLayer, err)
	}
	layer := judge(EngineLayer, suite)
	layer.Compared = "its CPU engine with what line " + e.Line + " demands: " + asserted(suite)
	handshake := conformance.Result{Verdict: conformance.Error} // all other cases need it, and the tap too
	for _, r := range suite.Results {
		if r.Case.Assertion == live.Handshake {
			handshake = r
			break
		}
	}
	switch {
	case handshake.Verdict == conformance.Error:
		// Nothing could be asserted. An environment without torch looks the same.
		layer.Verdict, layer.Vacuous, layer.Reason = Unknown, false, "it does not register: "+describe(handshake)
	case !handshake.Verdict.Red():
		// An engine serves one frontend in its life, so this one is another. Both at a time would share the cores, and
		// a capture gives way to everybody.
		layer.judgeCases([]LayerCase{e.tap(ctx, engine)})
	}
	return layer
}

// engineGrace is how long an engine may take to end: it stops threads and frees its memory.
const engineGrace = time.Minute

// liveSuite runs the live suite on the engine.
func (e Engine) liveSuite(ctx context.Context, engine local.Engine) (*conformance.Report, error) {
	command := conformance.CommandEngine{Template: e.command(engine), Grace: engineGrace}
	sel := conformance.Selection{Suite: conformance.SuiteLive}
	e.step("start it for the live suite")
	report, err := e.run(ctx, sel, func(r *conformance.Runner, _ []conformance.Case) error {
		r.Engine, r.Timeouts = command.Engine, conformance.EngineTimeouts()
		r.Timeouts.Connect = cmp.Or(e.BootTimeout, r.Timeouts.Connect)
		r.Subject = conformance.Description{Kind: "engine", Command: command.Template}
		r.Progress = func(result conformance.Result) {
			e.step(fmt.Sprintf("%s: %s", result.Case.Check(), result.Verdict))
			if e.Progress != nil {
				e.Progress(result)
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

// command starts the engine as a capture does, with the places of the handshake left open.
func (e Engine) command(engine local.Engine) string {
	t := e.target(compat.Line{Name: e.Line, Tag: "v" + e.Build.String()})
	args := append([]string{engine.Python, "-m", "vllm.entrypoints.cli.main"}, t.EngineArgs(target.Addresses{Model: e.Model})...)
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

// target returns what the engine serves: the small model that goldens are captured from, configured as for them.
func (e Engine) target(line compat.Line) target.Target {
	return target.Target{
		Line: line.Name, Tag: line.Tag, ID: "drift", Scenario: target.Baseline, Seed: 1,
		Model: target.Model{Key: modelKey, Source: e.Model, Served: modelKey, GPU: "cpu", Engine: map[string]string{
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
func (e Engine) tap(ctx context.Context, engine local.Engine) LayerCase {
	c := LayerCase{Name: "tap", Verdict: Unknown}
	switch {
	case engine.VLLMRS == "":
		c.Verdict, c.Message = Skipped, "there is no vllm-rs of the release to put before it"
		return c
	case !e.Own && !e.Taught:
		c.Verdict, c.Message = Skipped, "no profile of line "+e.Build.Line()+" to read a recording by"
		return c
	}
	line := compat.Line{Name: e.Build.Line(), Tag: "v" + e.Build.String()}
	var err error
	if c.Message, err = e.recordAndReplay(ctx, engine, line); err == nil {
		c.Verdict = None
		return c
	}
	var refused *capture.RefusedError
	var unregistered *conformance.RegistrationError
	if errors.As(err, &refused) || errors.As(err, &unregistered) && unregistered.ExitCode == conformance.ExitFail {
		c.Verdict = Found
	}
	c.Message = firstLine(strings.ReplaceAll(err.Error(), e.Dir, ""))
	return c
}

// loadTime is how long the load and its replay may take. On a quiet machine that is seconds.
const loadTime = 5 * time.Minute

// recordAndReplay has frontend, tap and engine serve a small load, compares the trace with what the client saw, and
// replays it as if it were to be registered. It returns what was recorded, in a sentence.
func (e Engine) recordAndReplay(ctx context.Context, engine local.Engine, line compat.Line) (recorded string, err error) {
	limit := cmp.Or(e.BootTimeout, local.DefaultBootTimeout) + loadTime
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("its load did not end within %v", limit))
	defer cancel()
	profiles, err := e.profiles(line)
	if err != nil {
		return "", err
	}
	log := e.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	t := e.target(line)
	rec, err := local.Capture(ctx, local.Options{
		Dir: e.Dir, Engines: map[string]local.Engine{t.Release(): engine}, Models: map[string]string{modelKey: e.Model},
		VCR: e.VCR, Profiles: profiles, BootTimeout: e.BootTimeout, Log: log,
		Progress: func(_ target.Target, step string) { e.step("tap: " + step) },
	}, t)
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	if err != nil {
		return "", err
	}
	goldens := filepath.Join(e.Dir, "manifest.toml")
	if err := os.WriteFile(goldens, nil, 0o644); err != nil {
		return "", err
	}
	accepted, err := capture.Accept(ctx, capture.AcceptOptions{
		Matrix: &compat.Matrix{File: e.Matrix.File, Lines: []compat.Line{line}}, Manifest: goldens, Goldens: e.Dir, DryRun: true,
		Log: log,
	}, rec)
	if err != nil {
		return "", err
	}
	g := accepted.Goldens[0].Golden
	return fmt.Sprintf("%s recorded and replayed, %d tokens", safetext.Count(g.Records, "request"), g.Tokens), nil
}

// profiles writes the line's profile into a folder, as this process knows it: what records is a process of its own, and
// may not know the line.
func (e Engine) profiles(line compat.Line) (dir string, err error) {
	p, err := protocol.LoadProfile(line.Name)
	if err != nil {
		return "", err
	}
	dir = filepath.Join(e.Dir, "profiles")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	path := filepath.Join(dir, p.Line+".json")
	return dir, atomicfile.WriteFunc(path, 0o644, func(w io.Writer) error { return protocol.WriteProfile(w, p) })
}

func (e Engine) step(step string) {
	if e.Step != nil {
		e.Step(step)
	}
}
