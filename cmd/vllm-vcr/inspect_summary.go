package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/vllm-vcr/conformance/internal/inspect"
	"github.com/vllm-vcr/conformance/internal/report"
	"github.com/vllm-vcr/conformance/trace"
)

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
				err = summary.Text(env.stdout, report.OneLine)
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
