package main

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/vllm-vcr/conformance/internal/base/safetext"
	"github.com/vllm-vcr/conformance/internal/inspect"
)

// summaryOptions are the flags of inspect summary.
type summaryOptions struct {
	format string
	steps  []string
}

func newInspectSummaryCommand(env *environment) *cobra.Command {
	var opts summaryOptions
	cmd := &cobra.Command{
		Use:   "summary TRACE...",
		Short: "Print statistics of traces",
		Args:  cobra.MinimumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			return runInspectSummary(env, args, opts)
		},
	}
	flags := cmd.Flags()
	formatFlag(flags, &opts.format, formText, "output format: text, json, markdown or csv", formText, formJSON, formMarkdown, formCSV)
	flags.StringArrayVar(&opts.steps, "step-stats", nil, "`FILE` that record --step-stats-out wrote with the trace; may be repeated, once for each trace in the same order")
	return cmd
}

func runInspectSummary(env *environment, paths []string, opts summaryOptions) error {
	if n := len(opts.steps); n > 0 && n != len(paths) {
		return fmt.Errorf("--step-stats is given %d times for %s: want it once for each trace, in the same order", n, safetext.Count(len(paths), "trace"))
	}
	defer env.growHeap(inspectGCPercent, 0)()
	var all inspect.Summaries
	for i, path := range paths {
		summary, err := readAt(env, path, inspect.SummarizeReader)
		if err != nil {
			return err
		}
		if len(opts.steps) > 0 {
			if summary.Steps, err = summarizeSteps(env, opts.steps[i]); err != nil {
				return err
			}
		}
		all = append(all, summary)
	}
	write := map[string]func(io.Writer) error{formText: all.Text, formJSON: func(w io.Writer) error { return all.JSON(w, schemaOf("inspect-summary")) }, formMarkdown: all.Markdown, formCSV: all.CSV}
	if err := write[opts.format](env.stdout); err != nil {
		return infra(fmt.Errorf("write summary: %w", err))
	}
	return nil
}

// summarizeSteps reads step statistics, and prints what is odd about them.
func summarizeSteps(env *environment, path string) (*inspect.StepSummary, error) {
	r, err := openStepsAt(env, path)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	steps, err := inspect.SummarizeSteps(r)
	if err != nil {
		return nil, err
	}
	printWarnings(env, r.Warnings())
	return steps, nil
}
