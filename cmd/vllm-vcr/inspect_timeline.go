package main

import (
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/vllm-vcr/conformance/internal/base/atomicfile"
	"github.com/vllm-vcr/conformance/internal/inspect"
	"github.com/vllm-vcr/conformance/trace"
)

// timelineOptions are the flags of inspect timeline.
type timelineOptions struct {
	from, limit        int
	svg                string
	html, perfetto     string
	steps              string
	perRequest, asJSON bool
}

func newInspectTimelineCommand(env *environment) *cobra.Command {
	var opts timelineOptions
	cmd := &cobra.Command{
		Use:   "timeline TRACE",
		Short: "Show when each request of a trace waited and produced output",
		Args:  cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			return runInspectTimeline(env, args[0], opts)
		},
	}
	flags := cmd.Flags()
	flags.IntVar(&opts.from, "from", 0, "first request to show, counted from 0 in order of arrival (default 0)")
	flags.IntVar(&opts.limit, "requests", 0, "number of requests to show (default all)")
	flags.StringVar(&opts.svg, "svg", "", "write the timeline as an SVG image to this `FILE`, instead of text to stdout")
	flags.StringVar(&opts.html, "html", "", "write the timeline as an HTML page to this `FILE`, instead of text to stdout")
	flags.StringVar(&opts.perfetto, "perfetto", "", "write the timeline as Chrome trace JSON to this `FILE`, instead of text to stdout")
	flags.StringVar(&opts.steps, "step-stats", "", "`FILE` that record --step-stats-out wrote with the trace: its steps and counters go into the file of --perfetto (default steps that are inferred from the trace)")
	flags.BoolVar(&opts.perRequest, "track-per-request", false, "in the file of --perfetto, give each request a track of its own instead of a slot")
	least0(flags, "from", "requests")
	needs(flags, "step-stats", "perfetto")
	needs(flags, "track-per-request", "perfetto")
	addJSONFlag(flags, &opts.asJSON)
	return cmd
}

func runInspectTimeline(env *environment, path string, opts timelineOptions) error {
	defer env.growHeap(inspectGCPercent, 0)()
	timeline, err := readAt(env, path, func(r *trace.Reader) (*inspect.Timeline, error) {
		return inspect.ReadTimeline(r, inspect.TimelineOptions{Skip: opts.from, Limit: opts.limit, Turns: opts.html != "" || opts.perfetto != ""})
	})
	if err != nil {
		return err
	}
	for _, note := range timeline.Notes {
		env.printErr("note: " + path + ": " + note)
	}
	if opts.svg != "" {
		if err := timeline.CheckPicture(); err != nil {
			return err
		}
	}
	perfetto := inspect.PerfettoOptions{PerRequest: opts.perRequest}
	if opts.steps != "" {
		if perfetto.Steps, err = openStepsAt(env, opts.steps); err != nil {
			return err
		}
		defer perfetto.Steps.Close()
	}
	wrote := false
	for _, file := range []struct {
		path  string
		write func(io.Writer) error
	}{
		{opts.svg, timeline.Picture},
		{opts.html, timeline.HTML},
		{opts.perfetto, func(w io.Writer) error { return timeline.Perfetto(w, perfetto) }},
	} {
		if file.path == "" {
			continue
		}
		wrote = true
		if err := atomicfile.WriteFunc(file.path, 0o644, file.write); errors.As(err, new(*trace.Error)) {
			return err
		} else if err != nil {
			return infra(fmt.Errorf("write timeline: %w", err))
		}
	}
	if perfetto.Steps != nil {
		printWarnings(env, perfetto.Steps.Warnings())
	}
	switch {
	case wrote:
	case opts.asJSON:
		err = timeline.JSON(env.stdout, schemaOf("inspect-timeline"))
	default:
		err = timeline.Text(env.stdout)
	}
	if err != nil {
		return infra(fmt.Errorf("write timeline: %w", err))
	}
	return nil
}
