package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/inspect"
	"github.com/vllm-vcr/conformance/internal/report"
	"github.com/vllm-vcr/conformance/trace"
)

// calibrateOptions are the flags of inspect calibrate.
type calibrateOptions struct {
	opt      inspect.Options
	fits     []string
	predicts []string
	plots    string
	asJSON   bool
	caching  string
}

func newInspectCalibrateCommand(env *environment) *cobra.Command {
	var opts calibrateOptions
	cmd := &cobra.Command{
		Use:   "calibrate",
		Short: "Learn times from recordings, and predict others",
		Long: "Learn how long steps of an engine take from the recordings of --fit, let a scheduler and a KV cache like the\n" +
			"engine's answer the requests of --predict in virtual time, and compare what clients would have seen with\n" +
			"what was recorded: the times to the first token and between two tokens. Of --predict only the requests are\n" +
			"used: when they came, how long prompts and answers were, which of them wait for the answer to an earlier one,\n" +
			"and how long after it they came. A recording is never learned from and predicted: records in both are an\n" +
			"error.\n\n" +
			"Beside it stands what knobs can say at their best: a mean and a deviation, set to those of --predict itself.\n\n" +
			"Gaps above --band times the recorded median are the slow band: steps that computed prompts too. The prediction\n" +
			"holds if both medians are within --median-tolerance, and the part of gaps in the band is within\n" +
			"--band-tolerance points of a hundred. Else the exit code is 1.\n\n" +
			"Of several --predict each is answered by an engine of its own, and what was recorded in all of them is compared\n" +
			"with what was predicted for all of them. By how much each is off alone is shown as well, and decides nothing.",
		Example: "  vllm-vcr inspect calibrate --fit sweep.jsonl.gz --fit warm.jsonl.gz --predict cold.jsonl.gz --plots plots",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return runInspectCalibrate(env, opts)
		},
	}
	opts.addFlags(cmd.Flags())
	return cmd
}

func (opts *calibrateOptions) addFlags(flags *pflag.FlagSet) {
	flags.StringArrayVar(&opts.fits, "fit", nil, "recording to learn from; may be repeated")
	flags.StringArrayVar(&opts.predicts, "predict", nil, "recording to predict; may be repeated: they are judged together")
	flags.Uint64Var(&opts.opt.Seed, "seed", 1, "seed of what the model draws")
	flags.IntVar(&opts.opt.Runs, "runs", inspect.DefaultRuns, "how often the requests are answered, each time with other draws: the prediction is all of them together")
	flags.Float64Var(&opts.opt.Band, "band", inspect.DefaultBand, "where the slow band of gaps begins, as a multiple of the median gap of all that was recorded")
	flags.Float64Var(&opts.opt.MedianTolerance, "median-tolerance", inspect.DefaultMedianTolerance, "by what part of itself a median may be off")
	flags.Float64Var(&opts.opt.BandTolerance, "band-tolerance", inspect.DefaultBandTolerance, "by how many points of a hundred the part of gaps in the slow band may be off")
	flags.IntVar(&opts.opt.Engine.MaxNumSeqs, "max-num-seqs", 0, "requests that every engine of --predict runs at once (default what the recording says, else 128)")
	flags.IntVar(&opts.opt.Engine.MaxNumBatchedTokens, "max-num-batched-tokens", 0, "tokens that it computes in a step (default what the recording's engine_config says, else 8192)")
	flags.IntVar(&opts.opt.Engine.BlockSize, "kv-block-size", 0, "tokens of a block of its KV cache (default what the recording's engine_config says, else 16)")
	flags.IntVar(&opts.opt.Engine.Blocks, "kv-blocks", 0, "blocks of its KV cache (default as many as are needed)")
	flags.StringVar(&opts.caching, "prefix-caching", "auto", "whether prompts find the blocks of earlier ones: auto (what the recording's engine_config says, else yes), true, false")
	flags.StringVar(&opts.plots, "plots", "", "folder to write plots into, as SVG: how many times were longer, and quantiles")
	flags.BoolVar(&opts.asJSON, "json", false, "print the report as JSON")
}

func runInspectCalibrate(env *environment, opts calibrateOptions) error {
	if err := opts.read(env); err != nil {
		return err
	}
	result, err := inspect.Calibrate(opts.opt)
	if err != nil {
		return err
	}
	if opts.asJSON {
		err = result.JSON(env.stdout)
	} else {
		err = result.Text(env.stdout, report.OneLine)
	}
	if err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	if opts.plots != "" {
		if err := writePlots(opts.plots, result); err != nil {
			return infra(err)
		}
	}
	if !result.Pass {
		return exitError{conformance.ExitFail, errReported}
	}
	return nil
}

// read reads the recordings.
func (opts *calibrateOptions) read(env *environment) error {
	switch {
	case len(opts.fits) == 0:
		return errors.New("--fit is not given: name a recording to learn from")
	case len(opts.predicts) == 0:
		return errors.New("--predict is not given: name a recording to predict")
	}
	if err := opts.readEngine(); err != nil {
		return err
	}
	for _, recordings := range []struct {
		paths []string
		to    *[]*trace.Trace
	}{{opts.fits, &opts.opt.Fit}, {opts.predicts, &opts.opt.Predict}} {
		for _, path := range recordings.paths {
			t, err := readRecording(env, path)
			if err != nil {
				return err
			}
			*recordings.to = append(*recordings.to, t)
		}
	}
	return nil
}

// readEngine checks what the flags say of the engines.
func (opts *calibrateOptions) readEngine() error {
	for _, limit := range []struct {
		flag  string
		value int
	}{
		{"max-num-seqs", opts.opt.Engine.MaxNumSeqs},
		{"max-num-batched-tokens", opts.opt.Engine.MaxNumBatchedTokens},
		{"kv-block-size", opts.opt.Engine.BlockSize},
		{"kv-blocks", opts.opt.Engine.Blocks},
	} {
		if limit.value < 0 {
			return fmt.Errorf("--%s %d: want a number above 0", limit.flag, limit.value)
		}
	}
	switch opts.caching {
	case "auto":
	case "true", "false":
		caching := opts.caching == "true"
		opts.opt.Engine.Caching = &caching
	default:
		return fmt.Errorf("--prefix-caching %q: want auto, true or false", opts.caching)
	}
	return nil
}

func writePlots(dir string, result *inspect.Report) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("write plots: %w", err)
	}
	for _, plot := range result.Plots() {
		if err := writeFile(filepath.Join(dir, plot.Name), plot.Write); err != nil {
			return fmt.Errorf("write plots: %w", err)
		}
	}
	return nil
}
