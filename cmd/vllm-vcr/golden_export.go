package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	vcr "github.com/vllm-vcr/conformance"
	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/report"
)

// exportOptions are the flags of golden export.
type exportOptions struct {
	fetch         fetchOptions
	out, modelOut string
}

func newGoldenExportCommand(env *environment) *cobra.Command {
	var opts exportOptions
	cmd := &cobra.Command{
		Use:   "export",
		Short: "Write a golden to a file, or the model that goldens are played with",
		Long: "Write one golden, wherever it is, to a file that play takes. Its bytes are compared with the manifest before.\n\n" +
			"With --model-out also, or only, the model of the goldens is written: configuration and tokenizer, no weights.\n" +
			"It is what a frontend is started with.",
		Example: "  vllm-vcr golden export --line 0.33 --golden multiturn-s7 --out trace.jsonl.gz --model-out model\n" +
			"  vllm-vcr play --replay-tokens trace.jsonl.gz",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return runGoldenExport(cmd.Context(), env, opts) },
	}
	opts.fetch.addFlags(cmd.Flags())
	cmd.Flags().StringVar(&opts.out, "out", "", "file to write the golden to")
	cmd.Flags().StringVar(&opts.modelOut, "model-out", "", "folder to write the model to")
	return cmd
}

func runGoldenExport(ctx context.Context, env *environment, opts exportOptions) error {
	if opts.out == "" && opts.modelOut == "" {
		return errors.New("neither --out nor --model-out is given")
	}
	if opts.out == "" && len(opts.fetch.sel.Lines)+len(opts.fetch.sel.Goldens) > 0 {
		return errors.New("a golden is named, but no --out to write it to")
	}
	if opts.out != "" {
		if err := exportGolden(ctx, env, &opts); err != nil {
			return err
		}
	}
	if opts.modelOut == "" {
		return nil
	}
	if err := writeModel(opts.modelOut); err != nil {
		return exitError{conformance.ExitInfra, err}
	}
	_, err := fmt.Fprintf(env.stdout, "%s: the model\n", report.OneLine(filepath.ToSlash(opts.modelOut)))
	return err
}

func exportGolden(ctx context.Context, env *environment, opts *exportOptions) error {
	run, err := beginFetch(env, &opts.fetch)
	if err != nil {
		return err
	}
	if len(run.goldens) != 1 {
		return fmt.Errorf("%d goldens are meant: name one by --line and --golden", len(run.goldens))
	}
	g := run.goldens[0]
	data, from, err := run.store.Fetch(ctx, g)
	if err != nil {
		return exitError{worse(conformance.ExitOK, err), fmt.Errorf("golden %s/%s: %w", g.Line, g.ID, err)}
	}
	err = report.WriteFile(opts.out, func(w io.Writer) error {
		_, err := w.Write(data)
		return err
	})
	if err != nil {
		return exitError{conformance.ExitInfra, err}
	}
	_, err = fmt.Fprintf(env.stdout, "%s: %s/%s, %d bytes, from %s\n",
		report.OneLine(filepath.ToSlash(opts.out)), g.Line, g.ID, len(data), report.OneLine(from))
	return err
}

// writeModel writes the files of the model into a folder, which is made. Files of other names stay.
func writeModel(folder string) error {
	files, err := fs.Sub(vcr.Files, vcr.ModelPath)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	return fs.WalkDir(files, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		return report.WriteFile(filepath.Join(folder, filepath.FromSlash(name)), func(w io.Writer) error {
			text, err := fs.ReadFile(files, name)
			if err != nil {
				return err
			}
			_, err = w.Write(text)
			return err
		})
	})
}
