package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"text/tabwriter"
	"time"

	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/conformance/selftest"
	"github.com/vllm-vcr/conformance/internal/engine/tokenizer"
	"github.com/vllm-vcr/conformance/internal/golden"
	"github.com/vllm-vcr/conformance/internal/report"
	"github.com/vllm-vcr/conformance/internal/serve"
	"github.com/vllm-vcr/conformance/internal/serve/builtin"
	"github.com/vllm-vcr/conformance/internal/serve/remote"
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
		Log: env.log, Frontend: selfTestFrontend(env),
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
// that cannot be had lies around the runner, anything else in what was asked for.
func selfTestError(ctx context.Context, err error) error {
	var fetch *golden.FetchError
	var mismatch *golden.MismatchError
	if errors.As(err, &fetch) || errors.As(err, &mismatch) || ctx.Err() != nil {
		return exitError{conformance.ExitInfra, err}
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
		model, err := serve.FindModel(dir, env.getenv)
		if err != nil {
			return nil, err
		}
		words, err := tokenizer.Load(dir)
		if err != nil {
			return nil, err
		}
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		flags, err := builtin.ParseFlags([]string{"--enable-prompt-tokens-details"})
		if err != nil {
			return nil, err
		}
		handshake := make(chan string, 1)
		log := slog.New(slog.DiscardHandler)
		server, err := serve.New(serve.Config{
			Model: model, Frontend: serve.FrontendOptions{Wanted: serve.Builtin, Log: log}, Listeners: []net.Listener{listener},
			Builtin: builtin.Options{Tokenizer: words, Flags: flags},
			Env:     []string{"VLLM_SERVER_DEV_MODE=1", "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1"}, Output: io.Discard, Log: log, Ready: func(serve.Started) {},
			Engines: func(ctx context.Context, _ string, _ int) (*serve.Engines, error) {
				address, err := unusedAddress()
				if err != nil {
					return nil, err
				}
				handshake <- address
				engine, err := remote.Accept(ctx, remote.Options{Address: address, Line: line, Log: log})
				if err != nil {
					return nil, err
				}
				return &serve.Engines{
					Group: engine, Count: 1, LoRA: engine.Engines()[0].MaxLoRAs != 0, Tasks: engine.PoolingTasks(), TextOnly: true, Close: func() {},
				}, nil
			},
		})
		if err != nil {
			listener.Close()
			return nil, err
		}
		running, cancel := context.WithCancel(ctx)
		ended := make(chan error, 1)
		go func() { ended <- server.Run(running) }()
		stop := func() {
			cancel()
			<-ended
		}
		select {
		case address := <-handshake:
			return &selftest.RunningFrontend{Handshake: address, URL: "http://" + listener.Addr().String(), Stop: stop}, nil
		case err := <-ended:
			ended <- err
			stop()
			return nil, fmt.Errorf("the builtin frontend: %w", err)
		}
	}
}

// unusedAddress is an address of this machine at which nothing listens.
func unusedAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	return "tcp://" + l.Addr().String(), nil
}
