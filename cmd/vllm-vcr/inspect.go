package main

import (
	"cmp"
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/vllm-vcr/conformance/conformance"
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
	predicts []string
	plots    string
	samples  string
	whatIf   []string
	asJSON   bool
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
			return runInspectCalibrate(cmd.Context(), env, opts)
		},
	}
	flags := cmd.Flags()
	flags.StringArrayVar(&opts.fits, "latency-trace", nil, "trace `FILE` to learn step times from; required; may be repeated")
	flags.StringArrayVar(&opts.predicts, "predict", nil, "trace `FILE` to predict; required; may be repeated, and all are judged together")
	flags.Uint64Var(&opts.opt.Seed, "seed", 1, "seed for the random times of the model")
	flags.IntVar(&opts.opt.Runs, "runs", inspect.DefaultRuns, "number of times that the requests are answered, with other random times each; the prediction is all of them together")
	addPlotsFlag(flags, &opts.plots)
	flags.StringVar(&opts.samples, "dump-samples", "", "`FILE` to write all recorded and predicted times to, as JSON (default none)")
	flags.StringArrayVar(&opts.whatIf, "what-if", nil, "also predict with another engine or load: a list of `KEY=VALUE` separated by commas; keys are max_num_seqs, max_num_batched_tokens, block_size, "+
		"num_gpu_blocks_override, enable_prefix_caching, and rate (2: requests come twice as fast); may be repeated, and changes no verdict")
	flags.BoolVar(&opts.asJSON, "json", false, "print the report as JSON")
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
	required(flags, "latency-trace", "predict")
	least0(flags, "max-num-seqs", "max-num-batched-tokens", "block-size", "num-gpu-blocks-override")
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
	if opts.asJSON {
		err = result.JSON(env.stdout)
	} else {
		err = cmp.Or(result.Text(env.stdout, safetext.Line), result.WhatIfText(env.stdout, safetext.Line))
	}
	if err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	if opts.samples != "" {
		if err := writeFile(opts.samples, result.WriteSamples); err != nil {
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
	for _, text := range opts.whatIf {
		what, err := inspect.ParseWhatIf(text)
		if err != nil {
			return fmt.Errorf("--what-if %s: %w", text, err)
		}
		opts.opt.WhatIf = append(opts.opt.WhatIf, what)
	}
	for _, recordings := range []struct {
		paths []string
		to    *[]*trace.Trace
	}{{opts.fits, &opts.opt.Fit}, {opts.predicts, &opts.opt.Predict}} {
		for _, path := range recordings.paths {
			t, err := readAt(env, path, (*trace.Reader).ReadAll)
			if err != nil {
				return err
			}
			*recordings.to = append(*recordings.to, t)
		}
	}
	return nil
}
