package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/base/safetext"
	"github.com/vllm-vcr/conformance/internal/inspect"
	"github.com/vllm-vcr/conformance/trace"
)

func newInspectCommand(env *environment) *cobra.Command {
	return group(&cobra.Command{
		Use:   "inspect",
		Short: "Look into recordings",
	}, newInspectCalibrateCommand(env), newInspectSummaryCommand(env), newInspectTimelineCommand(env))
}

func newInspectSummaryCommand(env *environment) *cobra.Command {
	asJSON := false
	cmd := &cobra.Command{
		Use:   "summary TRACE",
		Short: "Tell what a recording holds",
		Long: "Tell how many requests a recording holds, how long their prompts and answers are, how many ran beside each other,\n" +
			"what part of the prompts was found in the prefix cache, and the times to the first token and between two tokens.",
		Example: "  vllm-vcr inspect summary run.jsonl.gz",
		Args:    cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			t, err := readRecording(env, args[0])
			if err != nil {
				return err
			}
			summary := inspect.Summarize(t)
			if asJSON {
				err = summary.JSON(env.stdout)
			} else {
				err = summary.Text(env.stdout, safetext.Line)
			}
			if err != nil {
				return fmt.Errorf("write summary: %w", err)
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the summary as JSON")
	return cmd
}

// readRecording reads a recording, and tells what is odd about it.
func readRecording(env *environment, path string) (*trace.Trace, error) {
	t, err := trace.Read(path, trace.Options{})
	if err != nil {
		return nil, err
	}
	for _, warning := range t.Warnings {
		env.printErr(warning)
	}
	return t, nil
}

func newInspectTimelineCommand(env *environment) *cobra.Command {
	var from, most int
	var svg string
	cmd := &cobra.Command{
		Use:   "timeline TRACE",
		Short: "Show when each request of a recording came, waited and answered",
		Long: "Show when each request of a recording came, how long it waited for its first token and how long it spoke, a line each\n" +
			"in the order of arrival.",
		Example: "  vllm-vcr inspect timeline run.jsonl.gz --requests 40 --svg run.svg",
		Args:    cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			t, err := readRecording(env, args[0])
			if err != nil {
				return err
			}
			timeline, err := inspect.TimelineOf(t, from, most)
			if err != nil {
				return err
			}
			if svg != "" {
				if err := writeFile(svg, timeline.SVG); err != nil {
					return infra(fmt.Errorf("write timeline: %w", err))
				}
				return nil
			}
			if err := timeline.Text(env.stdout); err != nil {
				return fmt.Errorf("write timeline: %w", err)
			}
			return nil
		},
	}
	cmd.Flags().IntVar(&from, "from", 0, "requests from this one on, counted from 0 in the order of arrival")
	cmd.Flags().IntVar(&most, "requests", 0, "how many requests (default all)")
	cmd.Flags().StringVar(&svg, "svg", "", "write a picture to this file instead")
	return cmd
}

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
		err = result.Text(env.stdout, safetext.Line)
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
