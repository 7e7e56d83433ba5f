package main

import (
	"context"
	"errors"
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/conformance/selftest"
	"github.com/vllm-vcr/conformance/internal/golden"
	"github.com/vllm-vcr/conformance/internal/report"
	"github.com/vllm-vcr/conformance/manifest"
)

// runSelfTest makes the runner prove that it can fail, and reports on each fault like
// on a case; with list it only prints what it would play.
func runSelfTest(ctx context.Context, env *environment, opts conformOptions, window *compat.Matrix, registry *manifest.Manifest, started time.Time) error {
	store, err := openStore(env, &opts.store)
	if err != nil {
		return err
	}
	cfg := selftest.Config{
		Window: window, Registry: registry, Store: store, Lines: opts.sel.Lines, Run: opts.sel.Run, Skip: opts.sel.Skip,
		Log: env.log, Progress: func(r conformance.Result) { logResult(env, r) },
	}
	if opts.plan.list {
		return listFaults(ctx, env, cfg)
	}
	result, err := selftest.Run(ctx, cfg)
	if err != nil {
		return selfTestError(ctx, err)
	}
	result.Flags = opts.inputFlags()
	return finishReport(ctx, env, report.New(result, newReportMeta(env, opts.report, started, window.File, registry.File)), opts.report)
}

// listFaults prints what the self-test would play: a case a line, and what is wrong
// in it.
func listFaults(ctx context.Context, env *environment, cfg selftest.Config) error {
	entries, err := selftest.List(ctx, cfg)
	if err != nil {
		return selfTestError(ctx, err)
	}
	tw := tabwriter.NewWriter(env.stdout, 0, 0, 2, ' ', 0)
	for _, e := range entries {
		says := e.Says
		if e.Case.Skip != "" {
			says += " (skipped: " + e.Case.Skip + ")"
		}
		fmt.Fprintf(tw, "%s\t%s\n", e.Case.Name(), says)
	}
	return tw.Flush()
}

// selfTestError chooses the exit code of a self-test that could not begin: a golden
// that cannot be had lies around the runner, anything else in what was asked for.
func selfTestError(ctx context.Context, err error) error {
	var fetch *golden.FetchError
	var mismatch *golden.MismatchError
	if errors.As(err, &fetch) || errors.As(err, &mismatch) || ctx.Err() != nil {
		return exitError{conformance.ExitInfra, err}
	}
	return err
}
