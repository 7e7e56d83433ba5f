package main

import (
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/vllm-vcr/conformance/internal/base/safetext"
	"github.com/vllm-vcr/conformance/internal/base/tomlfile"
	"github.com/vllm-vcr/conformance/manifest"
)

func newGoldenShowCommand(env *environment) *cobra.Command {
	var path string
	cmd := &cobra.Command{
		Use:   "show LINE/ID",
		Short: "Print what the manifest has of a golden",
		Long: "Print the keys and values of a golden in the manifest: its file and digests, and how it was captured: engine, " +
			"time, and version of the recorder.",
		Example: "  vllm-vcr golden show 0.33/multiturn-s7",
		Args:    cobra.ExactArgs(1),
		RunE:    func(_ *cobra.Command, args []string) error { return runGoldenShow(env, path, args[0]) },
	}
	cmd.Flags().StringVar(&path, "manifest", "", manifestUsage)
	return cmd
}

func runGoldenShow(env *environment, path, name string) error {
	matrix, _ := loadCompat("") // only to leave lines out of the embedded manifest
	mf, err := manifestAt(env, path, matrix)
	if err != nil {
		return err
	}
	var names []string
	for _, g := range mf.Goldens {
		if names = append(names, g.Line+"/"+g.ID); names[len(names)-1] == name {
			return printGolden(env.stdout, g)
		}
	}
	return fmt.Errorf("%s has no golden %q%s", mf.File, name, tomlfile.DidYouMean(name, names, "see vllm-vcr golden list"))
}

func printGolden(w io.Writer, g manifest.Golden) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, p := range g.Pairs() {
		value := p.Value
		if at, ok := value.(time.Time); ok {
			value = at.Format(time.RFC3339)
		}
		if value != nil {
			fmt.Fprintf(tw, "%s\t%s\n", p.Key, safetext.Line(fmt.Sprint(value)))
		}
	}
	return tw.Flush()
}
