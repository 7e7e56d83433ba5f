package main

import (
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/report"
)

func newCompareCommand(env *environment) *cobra.Command {
	var format string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "compare OLD NEW",
		Short: "Compare two JSON reports",
		Args:  cobra.ExactArgs(2),
		RunE: func(_ *cobra.Command, args []string) error {
			return runCompare(env, args[0], args[1], format, asJSON)
		},
	}
	oneOf(cmd.Flags(), &format, "format", formText, "output format: text or markdown", formText, formMarkdown)
	addJSONFlag(cmd.Flags(), &asJSON)
	return cmd
}

func runCompare(env *environment, before, after, format string, asJSON bool) error {
	documents, err := readReports(before, after)
	if err != nil {
		return err
	}
	difference := report.Compare(documents[0].Document, documents[1].Document)
	result := compareJSON{Schema: schemaOf("conform-compare"), Worse: difference.Worse(), Difference: difference, OldFile: before, NewFile: after}
	if result.Worse {
		result.ExitCode = conformance.ExitFail
	}
	err = printResult(env, asJSON, result, func(w io.Writer) error {
		if format == formMarkdown {
			return difference.Markdown(w, report.MarkdownLimit)
		}
		return difference.Text(w)
	})
	if err != nil {
		return infra(fmt.Errorf("write comparison: %w", err))
	}
	if difference.Worse() {
		return exitError{conformance.ExitFail, errReported}
	}
	return nil
}

func newMergeCommand(env *environment) *cobra.Command {
	var opts reportOptions
	cmd := &cobra.Command{
		Use:   "merge FILE...",
		Short: "Merge the JSON reports of several jobs into one",
		Args:  cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			documents, err := readReports(args...)
			if err != nil {
				return err
			}
			merged, err := report.Merge(documents)
			if err != nil {
				return err
			}
			return finishReport(cmd.Context(), env, merged, opts)
		},
	}
	opts.addOutputFlags(cmd.Flags())
	return cmd
}

// readReports reads documents. What cannot be read is an error of usage: it is no
// report of this version.
func readReports(paths ...string) ([]report.Named, error) {
	var documents []report.Named
	for _, path := range paths {
		file, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		d, err := report.Read(path, file)
		file.Close()
		if err != nil {
			return nil, err
		}
		documents = append(documents, report.Named{Name: path, Document: d})
	}
	return documents, nil
}

func newSchemaCommand(env *environment) *cobra.Command {
	return &cobra.Command{
		Use:   "schema",
		Short: "Print the JSON Schema of the JSON report",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			_, err := env.stdout.Write(report.Schema)
			return err
		},
	}
}
