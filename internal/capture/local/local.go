package local

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/vllm-vcr/conformance/internal/capture"
	"github.com/vllm-vcr/conformance/internal/capture/load"
	"github.com/vllm-vcr/conformance/internal/capture/target"
	"github.com/vllm-vcr/conformance/internal/frontends/vllmrs"
)

// DefaultBootTimeout is the default of Options.BootTimeout. An engine takes 20 s on a quiet machine.
const DefaultBootTimeout = 10 * time.Minute

// Options configure captures on this machine.
type Options struct {
	// Dir is where each target has its folder, DIR/LINE/ID: recordings, reports and the logs of all programs.
	Dir string
	// Engines are the engines of the targets, by release.
	Engines map[string]Engine
	// Models are the folders of the targets' models, by key. A model without one is loaded by its name.
	Models map[string]string
	// Packages are the folders of what sessions need besides the engines' own packages, by the lines that ask for it.
	Packages map[string]string
	// VCR is the path of vllm-vcr, which records.
	VCR string
	// Profiles is an absolute folder of wire profiles that VCR needs besides its own; may be empty.
	Profiles string
	// Jobs is how many engines run at a time, default 1: engines that share two cores hold up each other's outputs, and
	// the times in the goldens are theirs. Each takes 2 GB of memory.
	Jobs int
	// FailFast gives up all targets when one fails.
	FailFast bool
	// BootTimeout is how long an engine may take until it serves.
	BootTimeout time.Duration
	// Log may be nil. Progress is called with what is being done, by several goroutines; may be nil.
	Log      *slog.Logger
	Progress func(t target.Target, step string)

	reserve func() (vllmrs.Port, error) // tests have ports that are taken
}

func (o Options) withDefaults() Options {
	o.Jobs = max(o.Jobs, 1)
	if o.BootTimeout <= 0 {
		o.BootTimeout = DefaultBootTimeout
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Progress == nil {
		o.Progress = func(target.Target, string) {}
	}
	if o.reserve == nil {
		o.reserve = vllmrs.Reserve
	}
	return o
}

// CheckTarget returns why a target cannot be captured on this machine.
func CheckTarget(t target.Target) error {
	switch {
	case !t.Model.OnCPU():
		return fmt.Errorf("%s: its engine needs a GPU, %s: capture it on a cluster", t.Name(), t.Model.GPU)
	case t.Release() == "nightly":
		return fmt.Errorf("%s: there is no released engine of nightly for a CPU", t.Name())
	}
	return nil
}

// CaptureAll captures targets on this machine, and returns what became of each, in their order, with nothing accepted yet.
// An error is about all of them.
func CaptureAll(ctx context.Context, opt Options, targets []target.Target) ([]capture.Outcome, error) {
	opt = opt.withDefaults()
	unlock, err := opt.lock(targets)
	if err != nil {
		return nil, err
	}
	defer unlock()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	outcomes := make([]capture.Outcome, len(targets))
	free := make(chan struct{}, opt.Jobs)
	var running sync.WaitGroup
	for i, t := range targets {
		free <- struct{}{}
		running.Go(func() {
			defer func() { <-free }()
			outcomes[i] = capture.Outcome{Target: t, Err: context.Cause(ctx)}
			if ctx.Err() == nil {
				outcomes[i].Recording, outcomes[i].Err = Capture(ctx, opt, t)
			}
			if outcomes[i].Err != nil && opt.FailFast {
				cancel(capture.ErrGivenUp)
			}
		})
	}
	running.Wait()
	return outcomes, nil
}

// lock makes sure that no other process captures the lines of the targets into the same folders.
func (o Options) lock(targets []target.Target) (unlock func(), err error) {
	var unlocks []func()
	unlock = func() {
		for _, u := range unlocks {
			u()
		}
	}
	var lines []string
	for _, t := range targets {
		if !slices.Contains(lines, t.Line) {
			lines = append(lines, t.Line)
		}
	}
	slices.Sort(lines)
	for _, line := range lines {
		dir := filepath.Join(o.Dir, line)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			unlock()
			return nil, err
		}
		u, ok, err := lockFile(filepath.Join(dir, "lock"))
		if err == nil && !ok {
			err = fmt.Errorf("line %s is being captured already: its files are in %s", line, dir)
		}
		if err != nil {
			unlock()
			return nil, err
		}
		unlocks = append(unlocks, u)
	}
	return unlock, nil
}

// Capture captures a target on this machine: frontend, tap and engine serve one workload, once. Nothing runs any more when
// it returns. An error has the end of each program's log.
func Capture(ctx context.Context, opt Options, t target.Target) (capture.Recording, error) {
	opt = opt.withDefaults()
	rec, err := opt.prepare(t)
	if err != nil {
		return rec, err
	}
	opt.Progress(t, "start frontend, tap and engine")
	started := time.Now()
	s, err := boot(ctx, opt, t, rec.Dir)
	if err != nil {
		return rec, err
	}
	defer s.stop(ctx)
	booted := time.Now()
	opt.Progress(t, fmt.Sprintf("engine up in %.1f s; play %s seed %d", booted.Sub(started).Seconds(), t.Workload.Name, t.Seed))
	if t.Session != nil {
		rec.Load, err = s.playSession(ctx, rec)
	} else {
		rec.Load, err = s.play(rec)
	}
	if err != nil {
		return rec, s.broken(err)
	}
	played := time.Now()
	if err := s.finish(ctx); err != nil {
		return rec, err
	}
	whole := []string{rec.Trace, rec.Steps, rec.Frames}
	if t.Session != nil {
		whole = whole[2:] // some sessions finish no request, or do not let steps be counted
	}
	for _, path := range whole {
		if err := wholeGzip(path); err != nil {
			return rec, s.failed(fmt.Errorf("the recorder left no complete recording: %w", err))
		}
	}
	opt.Progress(t, fmt.Sprintf("%d requests, %d tokens in %.1f s; files closed in %.1f s", rec.Load.Requests, rec.Load.Tokens,
		played.Sub(booted).Seconds(), time.Since(played).Seconds()))
	return rec, nil
}

// prepare says where the recording of a target will be.
func (o Options) prepare(t target.Target) (capture.Recording, error) {
	if err := CheckTarget(t); err != nil {
		return capture.Recording{}, err
	}
	engine, ok := o.Engines[t.Release()]
	if !ok {
		return capture.Recording{}, fmt.Errorf("no engine of release %s", t.Release())
	}
	dir, err := filepath.Abs(filepath.Join(o.Dir, t.Line, t.ID))
	if err != nil {
		return capture.Recording{}, err
	}
	rec := capture.Recording{
		Target: t, EngineImage: "CPU engine: " + engine.Origin, EngineBuild: engine.Origin, CapturedAt: time.Now().UTC(), Where: "this machine",
	}
	rec.Files(dir)
	return rec, nil
}

// play plays the workload of the target, until it is done or a program ends, and writes what the client saw.
func (s *stack) play(rec capture.Recording) (load.Report, error) {
	records, err := os.Create(rec.Requests)
	if err != nil {
		return load.Report{}, err
	}
	defer records.Close()
	w := load.NewRecordWriter(records, true)
	t := s.target
	report, err := load.Run(s.alive, load.Config{
		URL: s.url(), Model: t.AskedModel(), Workload: t.Workload.Kind, Shape: t.Workload.Shape, Seed: t.Seed, Each: w.Write,
		Log: s.opt.Log,
	})
	if cause := context.Cause(s.alive); cause != nil && err == nil {
		err = cause
	}
	return report, errors.Join(err, w.Close(), records.Close(), writeReport(filepath.Join(rec.Dir, target.LoadFile), report))
}

// playSession sends the requests of a session, and writes what became of each.
func (s *stack) playSession(ctx context.Context, rec capture.Recording) (load.Report, error) {
	asked := s.target.Session
	if !asked.MayDie {
		ctx = s.alive
	}
	answers, err := load.RunSession(ctx, asked, load.SessionConfig{URL: s.url(), Peer: s.peerURL(), Dir: s.addresses.Material})
	if cause := context.Cause(ctx); cause != nil && err == nil {
		err = cause
	}
	var lines bytes.Buffer
	report := load.Report{Requests: len(answers), Seed: s.target.Seed, Model: s.target.Model.Served}
	for _, a := range answers {
		if a.Status/100 == 2 {
			report.Completed++
		}
		line, jsonErr := json.Marshal(a)
		err = errors.Join(err, jsonErr)
		lines.Write(append(line, '\n'))
	}
	return report, errors.Join(err, os.WriteFile(filepath.Join(rec.Dir, answersFile), lines.Bytes(), 0o644),
		writeReport(filepath.Join(rec.Dir, target.LoadFile), report))
}

// answersFile has what became of each request of a session.
const answersFile = "answers.jsonl"

func writeReport(path string, report load.Report) error {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	return errors.Join(report.JSON(file), file.Close())
}

// wholeGzip reads a compressed file to its end.
func wholeGzip(path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	r, err := gzip.NewReader(file)
	var n int64
	if err == nil {
		n, err = io.Copy(io.Discard, r)
	}
	switch {
	case err != nil:
		return fmt.Errorf("%s: %w", path, err)
	case n == 0:
		return fmt.Errorf("%s is empty", path)
	}
	return nil
}
