package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/conformance/selftest"
	"github.com/vllm-vcr/conformance/internal/base/safetext"
	"github.com/vllm-vcr/conformance/internal/golden"
	"github.com/vllm-vcr/conformance/internal/report"
	"github.com/vllm-vcr/conformance/internal/serve"
	"github.com/vllm-vcr/conformance/manifest"
)

// runSelfTest makes the runner prove that it can fail, and reports on each fault like
// on a case; with list it only prints what it would play.
func runSelfTest(ctx context.Context, env *environment, opts *conformOptions, matrix *compat.Matrix, mf *manifest.Manifest, started time.Time) error {
	store, err := openStore(env, &opts.store)
	if err != nil {
		return err
	}
	cfg := selftest.Config{
		Matrix: matrix, Manifest: mf, Store: store, Lines: opts.sel.Lines, Run: opts.sel.Run, Skip: opts.sel.Skip,
		Log: env.log, Frontend: selfTestFrontend(env), Fleet: routerFleet(env),
	}
	if opts.plan.list {
		return listFaults(ctx, env, cfg, opts.report.onStdout)
	}
	bar, above := openBar(env, "faults", nil)
	cfg.Progress = func(r conformance.Result) {
		logResult(above, r)
		bar.add(r.Verdict.Red())
	}
	result, err := selftest.Run(ctx, cfg)
	bar.close()
	if err != nil {
		return selfTestError(ctx, err)
	}
	result.Flags = opts.repeat()
	return finishReport(ctx, env, report.New(result, newReportMeta(env, opts.report, &opts.in, started, matrix.File, mf.File)), opts.report)
}

// proveCoverage notes which of the fields that a report has are proven by a fault of the self-test.
func proveCoverage(ctx context.Context, store conformance.Store, result *conformance.Report, matrix *compat.Matrix, mf *manifest.Manifest) error {
	cfg := selftest.Config{Matrix: matrix, Manifest: mf, Store: store}
	for _, c := range result.Coverage {
		cfg.Lines = append(cfg.Lines, c.Line)
	}
	proven, err := selftest.Proven(ctx, cfg)
	if err != nil {
		return err
	}
	for i := range result.Coverage {
		result.Coverage[i].Prove(proven[result.Coverage[i].Line])
	}
	return nil
}

// listFaults prints what the self-test would play: a case a line, and what is wrong
// in it.
func listFaults(ctx context.Context, env *environment, cfg selftest.Config, asJSON bool) error {
	entries, err := selftest.List(ctx, cfg)
	if err != nil {
		return selfTestError(ctx, err)
	}
	result := casesResult(nil)
	for _, e := range entries {
		c := caseResult(e.Case)
		c.Fault = e.Says
		result.Cases = append(result.Cases, c)
	}
	return printResult(env, asJSON, result, func(w io.Writer) error {
		tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		for _, e := range entries {
			says := e.Says
			if e.Case.Skip != "" {
				says += " (skipped: " + e.Case.Skip + ")"
			}
			fmt.Fprintf(tw, "%s\t%s\n", e.Case.Name(), says)
		}
		return tw.Flush()
	})
}

// selfTestError chooses the exit code of a self-test that could not begin: a golden
// that cannot be fetched is infrastructure, anything else is wrong in the request.
func selfTestError(ctx context.Context, err error) error {
	var fetch *golden.FetchError
	var mismatch *golden.MismatchError
	if errors.As(err, &fetch) || errors.As(err, &mismatch) || ctx.Err() != nil {
		return infra(err)
	}
	return err
}

// selfTestFrontend starts the builtin frontend for a player of the self-test, in this process.
func selfTestFrontend(env *environment) func(context.Context, string) (*selftest.RunningFrontend, error) {
	return func(ctx context.Context, line string) (*selftest.RunningFrontend, error) {
		dir, err := acceptanceModel("")
		if err != nil {
			return nil, err
		}
		var addresses [2]string
		for i := range addresses {
			if addresses[i], err = unusedAddress(); err != nil {
				return nil, err
			}
		}
		running, cancel := context.WithCancel(ctx)
		ended := serveHere(running, env.silent(nil), dir, "--frontend", serve.Builtin, "--vllm-version", line, "--engine-handshake", "tcp://"+addresses[0],
			"--port", addresses[1][strings.LastIndexByte(addresses[1], ':')+1:], "--shutdown-timeout", "0", "--frontend-env", "VLLM_SERVER_DEV_MODE=1",
			"--frontend-env", "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1", "--", "--enable-prompt-tokens-details")
		return &selftest.RunningFrontend{Handshake: "tcp://" + addresses[0], URL: "http://" + addresses[1], Stop: func() { cancel(); <-ended }}, nil
	}
}

// silent is the environment of a server in this process, with some more variables.
func (env *environment) silent(variables map[string]string) *environment {
	inner := *env
	inner.stdout, inner.stderr = io.Discard, io.Discard
	inner.lookupEnv = func(name string) (string, bool) {
		value, given := variables[name]
		if !given {
			value, _ = env.lookupEnv(name)
		}
		return value, name == "GOGC" || value != "" // so serve leaves the heap of this process as it is
	}
	inner.openLog()
	return &inner
}

// serveReady runs serve in this process until stop is called, and returns what it prints with --json when it is ready.
func serveReady(ctx context.Context, env *environment, args ...string) (served servedJSON, stop func(), err error) {
	ready, line := io.Pipe()
	inner := *env
	inner.stdout = line
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() {
		err := <-serveHere(ctx, &inner, args...)
		line.Close()
		ended <- err
	}()
	text, err := bufio.NewReader(ready).ReadBytes('\n')
	go func() { _, _ = io.Copy(io.Discard, ready) }()
	if err == nil {
		if err = json.Unmarshal(text, &served); err != nil {
			err = infra(fmt.Errorf("serve printed %s", safetext.Line(strings.TrimSpace(string(text)))))
		}
	}
	if err != nil {
		cancel()
		return served, nil, cmp.Or(<-ended, err)
	}
	return served, func() { cancel(); <-ended }, nil
}

// serveHere runs serve in this process until ctx ends.
func serveHere(ctx context.Context, env *environment, args ...string) (ended <-chan error) {
	cmd := newServeCommand(env)
	cmd.SetArgs(args)
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	result := make(chan error, 1)
	go func() { result <- cmd.ExecuteContext(ctx) }()
	return result
}

// unusedAddress is an address of this machine at which nothing listens.
func unusedAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	return l.Addr().String(), nil
}
