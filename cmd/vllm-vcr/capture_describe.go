package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	vcr "github.com/vllm-vcr/conformance"
	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/capture"
	"github.com/vllm-vcr/conformance/manifest"
)

// describeOptions are the flags of capture describe.
type describeOptions struct {
	line, compat      string
	manifest, goldens string
	bundle            string
	base, baseGoldens string
	s3                s3Options
	body              string
}

func newCaptureDescribeCommand(env *environment) *cobra.Command {
	var opts describeOptions
	cmd := &cobra.Command{
		Use:   "describe",
		Short: "Write the text of a pull request that changes the goldens of a line",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return runCaptureDescribe(cmd.Context(), env, opts) },
	}
	flags := cmd.Flags()
	flags.StringVar(&opts.line, "line", "", "vLLM `LINE` of the goldens, such as 0.33; required")
	flags.StringVar(&opts.compat, "compat", "", compatUsage)
	flags.StringVar(&opts.manifest, "manifest", "", "manifest `FILE` with the change (default $CONFORMANCE_MANIFEST, else ./"+vcr.ManifestPath+")")
	flags.StringVar(&opts.goldens, "goldens", vcr.GoldensPath, "`FOLDER` of the goldens with the change")
	flags.StringVar(&opts.bundle, "bundle", "", "bundle `FILE` with the changed goldens, instead of --goldens")
	flags.StringVar(&opts.base, "base", "", "manifest `FILE` without the change; required")
	flags.StringVar(&opts.baseGoldens, "base-goldens", "", "`FOLDER` of the goldens without the change (default that of --goldens)")
	flags.StringVarP(&opts.body, "output", "o", "", outputUsage)
	required(flags, "line", "base")
	grouped(flags, "Flags")
	opts.s3.addFlags(flags)
	common(flags, "line", "compat", "manifest", "goldens", "bundle", "base", "base-goldens", "output")
	return cmd
}

func runCaptureDescribe(ctx context.Context, env *environment, opts describeOptions) error {
	opt, err := opts.options(env)
	if err != nil {
		return err
	}
	d, err := capture.Describe(ctx, opt)
	if ctx.Err() != nil {
		return infra(errors.New("interrupted"))
	}
	if err != nil {
		return err
	}
	if err := writeResult(env, opts.body, writeText(d.Body)); err != nil {
		return infra(err)
	}
	switch {
	case d.Report != nil && d.Report.ExitCode != conformance.ExitOK:
		return exitError{d.Report.ExitCode, fmt.Errorf("the goldens of line %s do not pass: %s", opt.Line, d.Report.Reason)}
	case len(d.Elsewhere) > 0:
		return exitError{conformance.ExitFail, fmt.Errorf("%d goldens of other lines changed, such as %s: a capture of line %s must not change them",
			len(d.Elsewhere), d.Elsewhere[0], opt.Line)}
	}
	return nil
}

func (opts *describeOptions) options(env *environment) (opt capture.DescribeOptions, err error) {
	if err := opts.s3.resolve(); err != nil {
		return opt, err
	}
	matrix, diagnostics := loadCompat(opts.compat)
	if err := refuse(env, matrix.File, diagnostics); err != nil {
		return opt, err
	}
	selected, err := matrix.Select([]string{opts.line})
	if err != nil {
		return opt, fmt.Errorf("--line: %w", err)
	}
	opt = capture.DescribeOptions{Line: selected[0].Name, Matrix: matrix, Run: workflowRunURL(env), Log: env.log}
	if opt.New, err = manifestAt(env, opts.manifest, matrix); err != nil {
		return opt, err
	}
	if opt.Base, err = manifestAt(env, opts.base, matrix); err != nil {
		return opt, err
	}
	store := func(dir, bundle string) conformance.Store {
		return conformance.NewStore(conformance.StoreOptions{Dir: dir, Bundle: bundle, S3: opts.s3.Options, Log: env.log})
	}
	opt.NewStore, opt.BaseStore = store(opts.goldens, opts.bundle), store(cmp.Or(opts.baseGoldens, opts.goldens), "")
	return opt, nil
}

// manifestAt reads a manifest that must have no errors.
func manifestAt(env *environment, path string, matrix *compat.Matrix) (*manifest.Manifest, error) {
	mf, diagnostics := loadManifest(env, path, matrix)
	return mf, refuse(env, mf.File, diagnostics)
}
