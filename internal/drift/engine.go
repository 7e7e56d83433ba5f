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
	"github.com/vllm-vcr/conformance/internal/capture"
	"github.com/vllm-vcr/conformance/internal/cpuengine"
	"github.com/vllm-vcr/conformance/internal/load"
	"github.com/vllm-vcr/conformance/internal/protocol"
	"github.com/vllm-vcr/conformance/internal/target"
)

// EngineMode is where the layers engine and python take what they run from.
type EngineMode string

// Modes. Anything else is the path of an environment, or of its interpreter.
const (
	EngineAuto    EngineMode = "auto"    // one that is installed
	EngineInstall EngineMode = "install" // one that is installed, or is installed now
	EngineNever   EngineMode = "never"
)

// errAbsent is that there is no engine, which says nothing about the release.
var errAbsent = errors.New("no CPU engine")

// Engines finds the engine of a release.
type Engines struct {
	Mode EngineMode
	// Options of the installer; Release is that of the build that is looked for.
	Options cpuengine.Options
	// Frontend is the vllm-rs of the release, for an environment that has none.
	Frontend string
}

// find returns the engine of a build; errAbsent tells that there is none, and why.
func (e Engines) find(ctx context.Context, build compat.Build) (cpuengine.Engine, error) {
	opt := e.Options
	opt.Release = build.String()
	switch {
	case e.Mode == EngineNever:
		return cpuengine.Engine{}, fmt.Errorf("%w was wanted", errAbsent)
	case e.Mode != EngineAuto && e.Mode != EngineInstall:
		return e.at(string(e.Mode), build)
	case runtime.GOOS != "linux":
		return cpuengine.Engine{}, fmt.Errorf("%w: there is none for %s", errAbsent, runtime.GOOS)
	case !build.IsRelease() || build.IsCandidate():
		return cpuengine.Engine{}, fmt.Errorf("%w of %s: they are made of stable releases only", errAbsent, build)
	case e.Mode == EngineInstall:
		return cpuengine.Ensure(ctx, opt)
	}
	engine, err := cpuengine.Find(ctx, opt)
	if errors.Is(err, fs.ErrNotExist) {
		return engine, fmt.Errorf("%w of %s here: vllm-vcr capture engine %s installs it", errAbsent, build, build)
	}
	return engine, err
}

// at is the environment that somebody named, by its folder or by its interpreter.
func (e Engines) at(path string, build compat.Build) (cpuengine.Engine, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return cpuengine.Engine{}, err
	}
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		path = filepath.Join(path, "bin", "python")
	}
	if _, err := os.Stat(path); err != nil {
		return cpuengine.Engine{}, fmt.Errorf("--engine: %w", err)
	}
	return cpuengine.Engine{
		Release: build.String(), Home: filepath.Dir(filepath.Dir(path)), Python: path, VLLMRS: e.Frontend, Origin: path,
	}, nil
}

// Engine is the layer of a release's engine for the CPU: our frontend asks it what conform asks of an engine, and then
// it serves a small load behind our tap, with its own vllm-rs in front.
type Engine struct {
	Live    // the line that it is judged as, and what runs it; the frontend is that of the engine
	Build   compat.Build
	Engines Engines
	// Own tells that Line is the line of the release; else Taught that the process knows a profile of its line. Without
	// either, what the tap records cannot be read.
	Own, Taught bool
	// VCR is the path of vllm-vcr, which records.
	VCR string
	// Dir is an empty folder for what is recorded.
	Dir string
	// BootTimeout is how long the engine may take until it serves; default that of a capture.
	BootTimeout time.Duration
	// Tell is told what is being done, by several goroutines; may be nil.
	Tell func(step string)
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
	suite, err := e.ask(ctx, engine)
	if err != nil {
		return Unjudged(EngineLayer, err)
	}
	layer := judge(EngineLayer, suite)
	layer.Compared = "its CPU engine with what line " + e.Line + " demands: " + asserted(suite)
	switch handshake := handshakeOf(suite); {
	case handshake.Verdict == conformance.Error:
		// It could not be asked anything. An environment without torch looks the same.
		layer.Verdict, layer.Vacuous, layer.Reason = Unknown, false, "it does not register: "+describe(handshake)
	case !handshake.Verdict.Red():
		// An engine serves one frontend in its life, so this one is another. Both at a time would share the cores, and a
		// capture gives way to everybody.
		layer.judgeCases([]LayerCase{e.tap(ctx, engine)})
	}
	return layer
}

// handshakeOf is what came of the first case of the live suite, which all others need, and the tap too.
func handshakeOf(suite *conformance.Report) conformance.Result {
	at := slices.IndexFunc(suite.Results, func(r conformance.Result) bool { return r.Case.Assertion == conformance.Handshake })
	if at < 0 {
		return conformance.Result{Verdict: conformance.Error}
	}
	return suite.Results[at]
}

// engineGrace is how long an engine may take to end: it stops threads and frees its memory.
const engineGrace = time.Minute

// ask runs the live suite on the engine.
func (e Engine) ask(ctx context.Context, engine cpuengine.Engine) (*conformance.Report, error) {
	command := conformance.CommandEngine{Template: e.command(engine), Grace: engineGrace}
	sel := conformance.Selection{Suite: conformance.SuiteLive}
	e.tell("start it for the live suite")
	report, err := e.run(ctx, sel, func(r *conformance.Runner, _ []conformance.Case) error {
		r.Engine, r.Timeouts = command.Engine, conformance.EngineTimeouts()
		r.Timeouts.Connect = cmp.Or(e.BootTimeout, r.Timeouts.Connect)
		r.Subject = conformance.Description{Kind: "engine", Command: command.Template}
		r.Progress = e.progress
		return command.Check(conformance.SuiteLive)
	})
	if err != nil {
		return nil, err
	}
	report.Flags = []string{"--suite", string(conformance.SuiteLive), "--engine-command", command.Template}
	return report, nil
}

// command starts the engine as a capture does, with the places of the handshake left open.
func (e Engine) command(engine cpuengine.Engine) string {
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

// target is what the engine serves: the small model that goldens are captured from, and as it is configured for them.
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

// tap puts recorder and vllm-rs before the engine, and wants the recording to be whole, and to replay.
func (e Engine) tap(ctx context.Context, engine cpuengine.Engine) LayerCase {
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
	if c.Message, err = e.replayed(ctx, engine, line); err == nil {
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

// replayed has frontend, tap and engine serve a small load, holds the recording against what the client saw, and replays
// it as if it were to be registered. It says what was recorded.
func (e Engine) replayed(ctx context.Context, engine cpuengine.Engine, line compat.Line) (said string, err error) {
	limit := cmp.Or(e.BootTimeout, capture.DefaultBootTimeout) + loadTime
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("its load did not end within %v", limit))
	defer cancel()
	profiles, err := e.profiles(line)
	if err != nil {
		return "", err
	}
	t := e.target(line)
	rec, err := capture.Local(ctx, capture.LocalOptions{
		Dir: e.Dir, Engines: map[string]cpuengine.Engine{t.Release(): engine}, Models: map[string]string{modelKey: e.Model},
		VCR: e.VCR, Profiles: profiles, BootTimeout: e.BootTimeout, Log: e.log(),
		Progress: func(_ target.Target, step string) { e.tell("tap: " + step) },
	}, t)
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	if err != nil {
		return "", err
	}
	registry := filepath.Join(e.Dir, "manifest.toml")
	if err := os.WriteFile(registry, nil, 0o644); err != nil {
		return "", err
	}
	accepted, err := capture.Accept(ctx, capture.AcceptOptions{
		Window: &compat.Matrix{File: e.Window.File, Lines: []compat.Line{line}}, Manifest: registry, Goldens: e.Dir, DryRun: true,
		Log: e.log(),
	}, rec)
	if err != nil {
		return "", err
	}
	g := accepted.Goldens[0].Golden
	return fmt.Sprintf("%s recorded and replayed, %d tokens", counted(g.Records, "request"), g.Tokens), nil
}

// profiles is a folder with the line's profile as this process knows it: what records is a process of its own, and may
// never have heard of the line.
func (e Engine) profiles(line compat.Line) (dir string, err error) {
	p, err := protocol.LoadProfile(line.Name)
	if err != nil {
		return "", err
	}
	dir = filepath.Join(e.Dir, "profiles")
	return dir, replace(filepath.Join(dir, p.Line+".json"), 0o644, func(w io.Writer) error { return protocol.WriteProfile(w, p) })
}

// progress tells the results of the live suite.
func (e Engine) progress(r conformance.Result) {
	e.tell(fmt.Sprintf("%s: %s", r.Case.Check(), r.Verdict))
	if e.Progress != nil {
		e.Progress(r)
	}
}

func (e Engine) tell(step string) {
	if e.Tell != nil {
		e.Tell(step)
	}
}

func (e Engine) log() *slog.Logger {
	if e.Log != nil {
		return e.Log
	}
	return slog.New(slog.DiscardHandler)
}
