package main

import (
	"cmp"
	"context"
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/base/atomicfile"
	"github.com/vllm-vcr/conformance/internal/base/safetext"
	"github.com/vllm-vcr/conformance/internal/inspect"
	"github.com/vllm-vcr/conformance/trace"
)

// inspectGCPercent saves half of the memory. It costs little, as what is kept of a large trace has hardly a pointer in it.
const inspectGCPercent = 20

// calibrateOptions are the flags of inspect calibrate.
type calibrateOptions struct {
	opt      inspect.Options
	fits     []string
	results  resultsOptions
	predicts []string
	plots    string
	samples  string
	whatIf   []string
	targets  string
	format   string
	wire     wireOptions

	caching, noCaching bool
}

func newInspectCalibrateCommand(env *environment) *cobra.Command {
	var opts calibrateOptions
	cmd := &cobra.Command{
		Use:   "calibrate",
		Short: "Measure how well a trace predicts the latencies of another",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if opts.wire.on && !cmd.Flags().Changed("runs") {
				opts.opt.Runs = 1
			}
			if opts.opt.Runs < 1 {
				return fmt.Errorf("--runs %d: want at least 1", opts.opt.Runs)
			}
			return runInspectCalibrate(cmd.Context(), env, opts)
		},
	}
	flags := cmd.Flags()
	flags.StringArrayVar(&opts.fits, "latency-trace", nil, "trace `FILE` to learn step times from; may be repeated")
	opts.results.add(flags)
	flags.IntVar(&opts.opt.Holdout, "holdout", 0, "do not learn from the last `N` requests of each --latency-results by arrival, but predict and judge them (default 0)")
	flags.StringArrayVar(&opts.predicts, "predict", nil, "trace, or results of requests, to predict: a `FILE`; may be repeated, and all are judged together")
	flags.Uint64Var(&opts.opt.Seed, "seed", 1, "seed for the random times of the model")
	flags.IntVar(&opts.opt.Runs, "runs", inspect.DefaultRuns, "number of times that the requests are answered, with other random times each; the prediction is all of them together")
	addPlotsFlag(flags, &opts.plots)
	flags.StringVar(&opts.samples, "dump-samples", "", "`FILE` to write all recorded and predicted times to, as JSON (default none)")
	flags.StringArrayVar(&opts.whatIf, "what-if", nil, "also predict with another engine or load: a list of `KEY=VALUE` separated by commas; keys are max_num_seqs, max_num_batched_tokens, block_size, "+
		"num_gpu_blocks_override, enable_prefix_caching, rate (2: requests come twice as fast), replicas, and router (least-loaded, round-robin, random or prefix-aware); may be repeated, and changes no verdict")
	flags.StringVar(&opts.targets, "target", "", "find how many replicas meet these `LIMITS`, such as ttft.p99=2s,tpot.mean=50ms, for the predicted load and for each --what-if (default none)")
	formatFlag(flags, &opts.format, formText, "output format: text, json or markdown", formText, formJSON, formMarkdown)
	opts.wire.add(flags)
	grouped(flags, "Prediction")
	flags.Float64Var(&opts.opt.Band, "band", inspect.DefaultBand, "lower bound of the slow band, as a multiple of the median inter-token latency of all recorded requests")
	flags.Float64Var(&opts.opt.MedianTolerance, "median-tolerance", inspect.DefaultMedianTolerance, "maximum relative error of a median: 0.1 is 10 percent")
	flags.Float64Var(&opts.opt.BandTolerance, "band-tolerance", inspect.DefaultBandTolerance, "maximum error of the share of the slow band, in percentage points")
	grouped(flags, "Verdict")
	flags.IntVar(&opts.opt.Engine.MaxNumSeqs, "max-num-seqs", 0, "maximum number of requests that run at the same time (default that of the trace, else 128)")
	flags.IntVar(&opts.opt.Engine.MaxNumBatchedTokens, "max-num-batched-tokens", 0, "maximum number of tokens that one step computes (default that in engine_config of the trace, else 8192)")
	flags.IntVar(&opts.opt.Engine.BlockSize, "block-size", 0, "tokens in a KV cache block (default that in engine_config of the trace, else 16)")
	flags.IntVar(&opts.opt.Engine.Blocks, "num-gpu-blocks-override", 0, "number of KV cache blocks (default as many as are needed)")
	flags.BoolVar(&opts.caching, "enable-prefix-caching", false, "turn on prefix caching (default that in engine_config of the trace, else on)")
	flags.BoolVar(&opts.noCaching, "no-enable-prefix-caching", false, "turn off prefix caching")
	exclusive(flags, "enable-prefix-caching", "no-enable-prefix-caching")
	exclusive(flags, "latency-trace", "latency-results")
	least0(flags, "holdout", "max-num-seqs", "max-num-batched-tokens", "block-size", "num-gpu-blocks-override")
	grouped(flags, "Engine of --predict")
	return cmd
}

func runInspectCalibrate(ctx context.Context, env *environment, opts calibrateOptions) error {
	if err := opts.read(env); err != nil {
		return err
	}
	if opts.wire.on {
		closeWire, err := opts.wire.open(ctx, env, &opts.opt)
		if err != nil {
			return err
		}
		defer closeWire()
	}
	result, err := inspect.Calibrate(opts.opt)
	if err != nil {
		return err
	}
	switch opts.format {
	case formJSON:
		err = result.JSON(env.stdout)
	case formMarkdown:
		err = result.Markdown(env.stdout)
	default:
		err = cmp.Or(result.Text(env.stdout, safetext.Line), result.WhatIfText(env.stdout))
	}
	if err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	if opts.samples != "" {
		if err := atomicfile.WriteFunc(opts.samples, 0o644, result.WriteSamples); err != nil {
			return infra(fmt.Errorf("write samples: %w", err))
		}
	}
	if err := writePlots(opts.plots, result.Plots()); err != nil {
		return err
	}
	if !result.Pass {
		return exitError{conformance.ExitFail, errReported}
	}
	return nil
}

// read reads the recordings.
func (opts *calibrateOptions) read(env *environment) error {
	if opts.caching || opts.noCaching {
		opts.opt.Engine.Caching = &opts.caching
	}
	if opts.targets != "" {
		var err error
		if opts.opt.Targets, err = inspect.ParseTargets(opts.targets); err != nil {
			return fmt.Errorf("--target: %w", err)
		}
	}
	for _, text := range opts.whatIf {
		what, err := inspect.ParseWhatIf(text)
		if err != nil {
			return fmt.Errorf("--what-if %s: %w", text, err)
		}
		opts.opt.WhatIf = append(opts.opt.WhatIf, what)
	}
	if err := opts.results.config(&opts.opt.Engine); err != nil {
		return err
	}
	for _, recordings := range []struct {
		paths []string
		to    *[]*trace.Trace
		read  func(*environment, string) (*trace.Trace, error)
	}{{opts.fits, &opts.opt.Fit, readTrace}, {opts.results.paths, &opts.opt.Results, opts.results.read}, {opts.predicts, &opts.opt.Predict, opts.results.read}} {
		for _, path := range recordings.paths {
			t, err := recordings.read(env, path)
			if err != nil {
				return err
			}
			*recordings.to = append(*recordings.to, t)
		}
	}
	return nil
}

func readTrace(env *environment, path string) (*trace.Trace, error) {
	return readAt(env, path, (*trace.Reader).ReadAll)
}

// resultsOptions are the flags of results of requests that are learned from.
type resultsOptions struct {
	paths   []string
	columns string
	engine  string
}

func (opts *resultsOptions) add(flags *pflag.FlagSet) {
	flags.StringArrayVar(&opts.paths, "latency-results", nil, "results of requests to learn step times from: a `FILE` of vllm bench serve, guidellm, inference-perf, a trace, or a table in CSV or JSON lines; may be repeated")
	flags.StringVar(&opts.columns, "columns", "", "columns of a table of requests: a `LIST` of VALUE=COLUMN, or VALUE=COLUMN:UNIT, with the values arrival, prompt, output, first, end, ttft, latency, queued, scheduled and engine, "+
		"and the units s, ms, us and ns (default the names of vLLM's statistics and other usual names, in seconds)")
	flags.StringVar(&opts.engine, "engine-args", "", "JSON `FILE` with arguments of the engine, such as max_num_seqs and num_gpu_blocks, at any depth; flags go before it (default none)")
}

// config adds what --engine-args has to what flags set.
func (opts *resultsOptions) config(engine *inspect.Override) error {
	if opts.engine == "" {
		return nil
	}
	data, err := os.ReadFile(opts.engine)
	if err != nil {
		return fmt.Errorf("--engine-args: %w", err)
	}
	if err := engine.Read(data); err != nil {
		return fmt.Errorf("--engine-args %s: %w", safetext.Line(opts.engine), err)
	}
	return nil
}

// read reads a file of any format as a trace.
func (opts *resultsOptions) read(env *environment, path string) (*trace.Trace, error) {
	var columns inspect.Columns
	if opts.columns != "" {
		var err error
		if columns, err = inspect.ParseColumns(opts.columns); err != nil {
			return nil, fmt.Errorf("--columns: %w", err)
		}
	}
	from, r, closeInput, err := openBytes(env, path)
	if err != nil {
		return nil, err
	}
	defer closeInput()
	t, in, err := inspect.ReadInput(safetext.Line(from.name), r, columns)
	if err == nil {
		printWarnings(env, in.Skipped())
	}
	return t, err
}
