package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	vcr "github.com/vllm-vcr/conformance"
	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/base/tomlfile"
	"github.com/vllm-vcr/conformance/internal/capture"
	"github.com/vllm-vcr/conformance/manifest"
)

// describeFlags are the flags of capture describe.
type describeFlags struct {
	line, compat      string
	manifest, goldens string
	base, baseGoldens string
	s3                s3Flags
	body              string
}

func (a *app) captureDescribeCommand() *cobra.Command {
	var f describeFlags
	cmd := &cobra.Command{
		Use:   "describe",
		Short: "Write the text of a pull request with the goldens of a line",
		Long: "Compare the goldens of a line with what they were, and write what differs as Markdown: where they come from, how\n" +
			"much they have, their digests and times, then and now, the verdict of replaying them, and what is unlike. All of\n" +
			"it is of the goldens' bytes; nothing that the registry or a capture says of them is taken for true.\n\n" +
			"The exit code is 1 when a golden does not hold, or when goldens of other lines differ too; the text is written\n" +
			"then as well.",
		Example: "  vllm-vcr capture describe --line 0.33 --base /tmp/base/conformance/manifest.toml \\\n" +
			"      --base-goldens /tmp/base/testdata/goldens --body body.md",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.captureDescribe(cmd.Context(), f) },
	}
	flags := cmd.Flags()
	flags.StringVar(&f.line, "line", "", "line of the goldens, by name or tag")
	flags.StringVar(&f.compat, "compat", "", "support window (default ./"+vcr.CompatPath+", else the one in the binary)")
	flags.StringVar(&f.manifest, "manifest", "", "registry with the change (default $CONFORMANCE_MANIFEST, else ./"+vcr.ManifestPath+")")
	flags.StringVar(&f.goldens, "goldens", vcr.GoldensPath, "directory that its bucket_path is relative to")
	flags.StringVar(&f.base, "base", "", "registry without the change")
	flags.StringVar(&f.baseGoldens, "base-goldens", "", "directory that bucket_path of --base is relative to (default that of --goldens)")
	flags.StringVar(&f.body, "body", "", "file to write (default standard output)")
	f.s3.addFlags(flags)
	return cmd
}

func (a *app) captureDescribe(ctx context.Context, f describeFlags) error {
	opt, err := f.options(a)
	if err != nil {
		return err
	}
	d, err := capture.Describe(ctx, opt)
	if ctx.Err() != nil {
		return exitError{conformance.ExitInfra, errors.New("interrupted")}
	}
	if err != nil {
		return err
	}
	if err := a.writeBody(f.body, d.Body); err != nil {
		return exitError{conformance.ExitInfra, err}
	}
	switch {
	case d.Report != nil && d.Report.ExitCode != conformance.ExitOK:
		return exitError{d.Report.ExitCode, fmt.Errorf("the goldens of line %s do not hold: %s", opt.Line, d.Report.Reason)}
	case len(d.Elsewhere) > 0:
		return exitError{conformance.ExitFail, fmt.Errorf("%d goldens of other lines differ, %s among them: a capture of line %s never does that",
			len(d.Elsewhere), d.Elsewhere[0], opt.Line)}
	}
	return nil
}

func (a *app) writeBody(path, body string) error {
	if path == "" {
		_, err := io.WriteString(a.stdout, body)
		return err
	}
	return writeFile(path, func(w io.Writer) error {
		_, err := io.WriteString(w, body)
		return err
	})
}

func (f *describeFlags) options(a *app) (opt capture.DescribeOptions, err error) {
	for _, needed := range []struct{ flag, value string }{{"--line", f.line}, {"--base", f.base}} {
		if needed.value == "" {
			return opt, fmt.Errorf("%s is not given", needed.flag)
		}
	}
	if err := f.s3.resolve(); err != nil {
		return opt, err
	}
	window, findings := a.loadCompat(f.compat)
	a.tellFindings(findings)
	if tomlfile.HasErrors(findings) {
		return opt, fmt.Errorf("%s cannot be used as it is", window.File)
	}
	line, ok := window.Lookup(f.line)
	if !ok {
		return opt, fmt.Errorf("--line %s: %s has no such line%s", f.line, window.File, nearText(f.line, lineNames(window)))
	}
	opt = capture.DescribeOptions{Line: line.Name, Window: window, Run: a.runURL(), Log: a.log}
	if opt.New, err = a.registryAt(f.manifest, window); err != nil {
		return opt, err
	}
	if opt.Base, err = a.registryAt(f.base, window); err != nil {
		return opt, err
	}
	store := func(dir string) conformance.Store {
		return conformance.NewStore(conformance.StoreOptions{Dir: dir, S3: f.s3.Options, Log: a.log})
	}
	opt.NewStore, opt.BaseStore = store(f.goldens), store(f.goldens)
	if f.baseGoldens != "" {
		opt.BaseStore = store(f.baseGoldens)
	}
	return opt, nil
}

// registryAt reads a registry that must have no errors.
func (a *app) registryAt(path string, window *compat.Matrix) (*manifest.Manifest, error) {
	registry, findings := a.loadManifest(path, window)
	a.tellFindings(findings)
	if tomlfile.HasErrors(findings) {
		return nil, fmt.Errorf("%s cannot be used as it is", registry.File)
	}
	return registry, nil
}
