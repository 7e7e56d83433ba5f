package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/vllm-vcr/conformance/internal/capture"
	"github.com/vllm-vcr/conformance/internal/capture/cpuengine"
	"github.com/vllm-vcr/conformance/internal/capture/local"
	"github.com/vllm-vcr/conformance/internal/capture/target"
	"github.com/vllm-vcr/conformance/manifest"
)

// capture captures the targets of the line that have no golden of its release yet, and tells whether the line has all of
// its goldens then. An error is about targets that failed, or about all of them.
func (run *adoption) capture(ctx context.Context) (whole bool, err error) {
	here, elsewhere, err := run.uncaptured()
	if err != nil {
		return false, err
	}
	for _, t := range elsewhere {
		run.leave("capture %s on a cluster: vllm-vcr capture run %s", t.Name(), t.Name())
	}
	if len(here) == 0 {
		return len(elsewhere) == 0, nil
	}
	if there, err := run.hasEngine(ctx); err != nil || !there {
		run.leaveCapture(len(here), err)
		return false, nil
	}
	flags := run.captureFlags()
	accept, err := flags.acceptor(run.env)
	if err != nil {
		return false, err
	}
	var outcomes []capture.Outcome
	for _, t := range here { // one after the other, so that each is registered whatever becomes of the next
		one, err := flags.outcomes(ctx, run.env, []target.Target{t}, accept)
		if err != nil {
			return false, errors.Join(err, run.take(outcomes))
		}
		outcomes = append(outcomes, one...)
	}
	return len(elsewhere) == 0, run.take(outcomes)
}

// leave leaves something to a person.
func (run *adoption) leave(format string, args ...any) {
	run.report.ToDo = append(run.report.ToDo, fmt.Sprintf(format, args...))
}

// uncaptured are the targets of the line that the registry has no golden of the release of: those of this machine, and
// those that need a cluster.
func (run *adoption) uncaptured() (here, elsewhere []target.Target, err error) {
	_, file, err := targetFlags{targets: run.tree.Targets, compat: run.tree.Compat}.load(run.env)
	if err != nil {
		return nil, nil, err
	}
	registry := &manifest.Manifest{}
	if exists(run.tree.Manifest) {
		registry, _ = manifest.Load(run.tree.Manifest) // its findings were told by the plan
	}
	for _, t := range file.Targets {
		switch {
		case t.Line != run.plan.Line || isCaptured(registry, t):
		case local.CheckTarget(t) == nil:
			here = append(here, t)
		default:
			elsewhere = append(elsewhere, t)
		}
	}
	return here, elsewhere, nil
}

// isCaptured tells whether all goldens of a target are registered, and are of its release.
func isCaptured(registry *manifest.Manifest, t target.Target) bool {
	ids := []string{t.ID}
	if t.Wire {
		ids = append(ids, t.WireID())
	}
	for _, id := range ids {
		if !slices.ContainsFunc(registry.Goldens, func(g manifest.Golden) bool {
			release, _, _ := strings.Cut(g.VLLMVersion, "+")
			return g.Line == t.Line && g.ID == id && release == t.Release()
		}) {
			return false
		}
	}
	return true
}

// hasEngine tells whether there is an engine to capture with, or is to be one.
func (run *adoption) hasEngine(ctx context.Context) (bool, error) {
	switch run.flags.engineUse {
	case engineNever:
		return false, nil
	case engineInstall:
		return true, nil
	}
	_, err := cpuengine.Find(ctx, cpuengine.Options{
		Release: run.plan.Release, Dir: run.flags.engine.dir, Index: run.flags.engine.index, Log: run.env.log,
	})
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// leaveCapture says how the targets of the line are captured, as they were not.
func (run *adoption) leaveCapture(count int, err error) {
	why := "there is no engine of it for the CPU here"
	if err != nil {
		why = err.Error()
	}
	if run.flags.engineUse == engineNever {
		why = "--engine never"
	}
	run.leave("capture %d targets of line %s (%s): vllm-vcr drift adopt %s --engine install --fidelity-validated, "+
		"or make goldens LINE=%s and then vllm-vcr compat set --line %s --validated", count, run.plan.Line, why, run.plan.Release,
		run.plan.Line, run.plan.Line)
}

// captureFlags are those of capture run --local.
func (run *adoption) captureFlags() *runFlags {
	opts := &runFlags{
		local: true, manifest: run.tree.Manifest, goldens: cmp.Or(run.flags.store.goldens, run.tree.Goldens),
		upload: run.flags.upload, s3: run.flags.store.s3,
		here: localFlags{engine: run.flags.engine, jobs: 1, bootTimeout: local.DefaultBootTimeout, work: run.flags.work},
	}
	opts.targets.compat = run.tree.Compat
	return opts
}

// take puts what became of the captures into the report.
func (run *adoption) take(outcomes []capture.Outcome) error {
	var failed []string
	for _, o := range outcomes {
		for _, w := range o.Accepted.Warnings {
			run.leave("look at %s: %s", o.Target.Name(), w)
		}
		if o.Err != nil {
			failed = append(failed, o.Err.Error())
			continue
		}
		run.report.Goldens = append(run.report.Goldens, strings.Split(outcomeText(o), "\n")...)
	}
	if len(failed) > 0 {
		return oneLine(fmt.Errorf("%d of %d targets failed: %s", len(failed), len(outcomes), strings.Join(failed, "; ")))
	}
	return nil
}
