package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/vllm-vcr/conformance/internal/inspect"
)

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
