package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/base/atomicfile"
	"github.com/vllm-vcr/conformance/internal/base/jsonout"
	"github.com/vllm-vcr/conformance/internal/inspect"
)

// inspectCompareOptions are the flags of inspect compare.
type inspectCompareOptions struct {
	opt       inspect.CompareOptions
	limits    map[string]string
	format    string
	html      string
	plots     string
	baselines []string
	together  bool
}

func newInspectCompareCommand(env *environment) *cobra.Command {
	var opts inspectCompareOptions
	cmd := &cobra.Command{
		Use:   "compare BASELINE TRACE...",
		Short: "Compare the latencies of traces with those of a baseline",
		Args:  cobra.MinimumNArgs(2),
		RunE: func(_ *cobra.Command, args []string) error {
			return runInspectCompare(env, args, opts)
		},
	}
	flags := cmd.Flags()
	flags.Float64Var(&opts.opt.Tolerance, "tolerance", inspect.DefaultTolerance, "how much larger a figure may be, as a part of the baseline: 0.1 is 10 percent")
	flags.StringToStringVar(&opts.limits, "limits", nil, "other tolerances for single figures, as `FIGURE=PART`, such as ttft.p99=0.3,itl.p50=0.05 (default none)")
	flags.StringArrayVar(&opts.baselines, "baseline", nil, "another take of the baseline, a trace `FILE`; may be repeated (default none)")
	flags.BoolVar(&opts.together, "together", false, "all TRACEs are takes of the same change: compare them together, not one by one")
	flags.BoolVar(&opts.opt.ByConcurrency, "by-concurrency", false, "also compare the medians for each number of requests in flight when a request came")
	flags.Uint64Var(&opts.opt.Seed, "seed", 1, "seed of the random drawings: the same seed gives the same result")
	grouped(flags, "Verdict")
	formatFlag(flags, &opts.format, formText, "output format: text, json or markdown", formText, formJSON, formMarkdown)
	flags.StringVar(&opts.html, "html", "", "also write the comparison with plots as an HTML page to this `FILE`")
	addPlotsFlag(flags, &opts.plots)
	return cmd
}

func runInspectCompare(env *environment, paths []string, opts inspectCompareOptions) error {
	opts.opt.Limits = map[string]float64{}
	for name, text := range opts.limits {
		var err error
		if opts.opt.Limits[name], err = strconv.ParseFloat(text, 64); err != nil {
			return fmt.Errorf("--limits %s=%s: want a number, such as 0.1 for 10 %%", name, text)
		}
	}
	sides := [][]string{append(paths[:1:1], opts.baselines...)}
	if opts.together {
		sides = append(sides, paths[1:])
	} else {
		for _, path := range paths[1:] {
			sides = append(sides, []string{path})
		}
	}
	var all []*inspect.Compared
	for _, side := range sides {
		var takes []*inspect.Compared
		for _, path := range side {
			one, err := readAt(env, path, inspect.ReadCompared)
			if err != nil {
				return err
			}
			takes = append(takes, one)
		}
		all = append(all, inspect.Together(takes))
	}
	result, err := inspect.Compare(all, opts.opt)
	if err != nil {
		return err
	}
	result.Schema = schemaOf("inspect-compare")
	write := map[string]func(io.Writer) error{
		formText: result.Text, formMarkdown: result.Markdown, formJSON: func(w io.Writer) error { return jsonout.Write(w, result) },
	}
	if err := write[opts.format](env.stdout); err != nil {
		return infra(fmt.Errorf("write comparison: %w", err))
	}
	if opts.html != "" {
		if err := atomicfile.WriteFunc(opts.html, 0o644, result.HTML); err != nil {
			return infra(fmt.Errorf("write comparison: %w", err))
		}
	}
	if err := writePlots(opts.plots, result.Plots()); err != nil {
		return err
	}
	switch {
	case result.Judged == 0:
		return exitError{conformance.ExitVacuous, errReported}
	case !result.Pass:
		return exitError{conformance.ExitFail, errReported}
	}
	return nil
}

// addPlotsFlag adds the flag of commands that draw plots.
func addPlotsFlag(flags *pflag.FlagSet, folder *string) {
	flags.StringVar(folder, "plots", "", "`FOLDER` to write plots to, as SVG: distributions and quantiles (default none)")
}

// writePlots writes the pictures, if a folder is given.
func writePlots(folder string, plots []inspect.Plot) error {
	if folder == "" {
		return nil
	}
	err := os.MkdirAll(folder, 0o755)
	for _, plot := range plots {
		err = errors.Join(err, atomicfile.WriteFunc(filepath.Join(folder, plot.Name+".svg"), 0o644, plot.Write))
	}
	if err != nil {
		return infra(fmt.Errorf("write plots: %w", err))
	}
	return nil
}
