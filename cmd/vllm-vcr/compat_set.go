package main

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	vcr "github.com/vllm-vcr/conformance"
	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/base/tomlfile"
	"github.com/vllm-vcr/conformance/internal/report"
	"github.com/vllm-vcr/conformance/manifest"
)

// compatSetOptions are the flags of compat set.
type compatSetOptions struct {
	in                       inputs
	change                   compat.Change
	tag, rev                 string
	patchRepo, patchRevision string
	validated                bool
}

func newCompatSetCommand(env *environment) *cobra.Command {
	var opts compatSetOptions
	cmd := &cobra.Command{
		Use:   "set",
		Short: "Change a line of compat.toml",
		Long: "Change one line of compat.toml in its place, and keep every comment and all else in the file. The result is\n" +
			"checked as compat check does before the file is replaced; what a rule calls an error is refused.\n\n" +
			"When its tag or commit moves, a line is not validated any more, unless --validated is given too: its goldens\n" +
			"were captured from another engine. --default takes the flag from the line that has it.\n" +
			"Setting what is set already says so and leaves the file alone.",
		Example: "  vllm-vcr compat set --line 0.33 --tag v0.33.1 --rev 0123456789abcdef0123456789abcdef01234567\n" +
			"  vllm-vcr compat set --line 0.33 --validated\n" +
			"  vllm-vcr compat set --line 0.34 --add --tag v0.34.0 --rev 0123456789ab --default\n" +
			"  vllm-vcr compat set --line 0.25 --remove",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return runCompatSet(env, opts, cmd.Flags()) },
	}
	opts.addFlags(cmd.Flags())
	return cmd
}

func (opts *compatSetOptions) addFlags(flags *pflag.FlagSet) {
	opts.in.addFlags(flags)
	flags.StringVar(&opts.change.Line, "line", "", "name of the line: major.minor, nightly or rc")
	flags.StringVar(&opts.tag, "tag", "", "the release of vLLM that stands for the line")
	flags.StringVar(&opts.rev, "rev", "", "commit of vllm.git that the tag was built from")
	flags.BoolVar(&opts.validated, "validated", false, "whether failing goldens of the line fail the run")
	flags.BoolVar(&opts.change.Default, "default", false, "make it the default line")
	flags.StringVar(&opts.patchRepo, "patch-repo", "", "URL of a fork to read the protocol from; empty removes it")
	flags.StringVar(&opts.patchRevision, "patch-rev", "", "commit in that fork; empty removes it")
	flags.BoolVar(&opts.change.Add, "add", false, "make the line if there is none of that name")
	flags.BoolVar(&opts.change.Remove, "remove", false, "remove the line with the comments that stand directly at it")
}

// complete takes over the flags that were given.
func (opts *compatSetOptions) complete(flags *pflag.FlagSet) error {
	for _, p := range []struct {
		flag     string
		value    *string
		to       **string
		canUnset bool
	}{
		{"tag", &opts.tag, &opts.change.Tag, false},
		{"rev", &opts.rev, &opts.change.Rev, false},
		{"patch-repo", &opts.patchRepo, &opts.change.PatchRepo, true},
		{"patch-rev", &opts.patchRevision, &opts.change.PatchRev, true},
	} {
		if !flags.Changed(p.flag) {
			continue
		}
		if *p.value == "" && !p.canUnset {
			return fmt.Errorf("--%s is empty", p.flag)
		}
		*p.to = p.value
	}
	if flags.Changed("validated") {
		opts.change.Validated = &opts.validated
	}
	switch {
	case opts.change.Line == "":
		return errors.New("--line is not given")
	case flags.Changed("default") && !opts.change.Default:
		return errors.New("--default=false: there must be a default line; make another one the default")
	}
	return nil
}

func runCompatSet(env *environment, opts compatSetOptions, flags *pflag.FlagSet) error {
	if err := opts.complete(flags); err != nil {
		return err
	}
	data, window, err := compat.LoadText(cmp.Or(opts.in.compat, vcr.CompatPath))
	if err != nil {
		return err
	}
	lines, err := window.Set(opts.change)
	if err != nil {
		return err
	}
	changes := compat.Diff(window.Lines, lines)
	if len(changes) == 0 {
		_, err := fmt.Fprintf(env.stdout, "%s: unchanged\n", window.File)
		return err
	}
	edit := windowEdit{Matrix: window, before: data}
	if edit.after, err = compat.Rewrite(window.File, data, lines); err != nil {
		return err
	}
	if opts.change.Tag != nil && opts.change.Rev == nil {
		env.printErr(fmt.Sprintf("vllm-vcr: warning: the tag moves and the commit does not: "+
			"give the one that %s was built from with --rev", opts.tag))
	}
	if _, err := checkEdit(env, edit, opts.in.manifest, false); err != nil {
		return err
	}
	if err := edit.write(); err != nil {
		return err
	}
	for _, c := range changes {
		if _, err := fmt.Fprintf(env.stdout, "%s: %s\n", window.File, report.OneLine(c.String())); err != nil {
			return err
		}
	}
	return nil
}

// windowEdit is a window, and the text of its file before and after an edit.
type windowEdit struct {
	*compat.Matrix
	before, after []byte
}

// checkedWindow is an edited window with what it was checked against.
type checkedWindow struct {
	window   *compat.Matrix
	registry *manifest.Manifest
	findings []tomlfile.Diagnostic
}

// checkEdit checks an edited window with all that compat check knows, and tells what it
// finds. Errors of the window are refused, but for missing wire profiles where they may
// be; those of the manifest are left to be mended there.
func checkEdit(env *environment, edit windowEdit, manifestPath string, mayLackProfile bool) (checkedWindow, error) {
	window, findings := compat.Parse(edit.File, edit.after)
	registry, more := loadManifest(env, manifestPath, edit.Matrix)
	if tomlfile.HasErrors(more) {
		printDiagnostics(env, more)
		return checkedWindow{}, fmt.Errorf("%s cannot be used as it is", registry.File)
	}
	findings = slices.Concat(findings, more, conformance.CheckInputs(window, registry))
	tomlfile.Sort(findings)
	var refused error
	for _, f := range findings {
		isLeft := f.File != edit.File || mayLackProfile && f.Code == compat.CodeNoProfile
		if f.Severity == tomlfile.Error && !isLeft {
			refused = cmp.Or(refused, fmt.Errorf("the change would break a rule: %s", f))
			continue
		}
		env.printErr(f)
	}
	return checkedWindow{window, registry, findings}, refused
}

// write puts the edited text in the place of the file, unless somebody else has changed
// that since it was read.
func (e windowEdit) write() error {
	now, err := os.ReadFile(e.File)
	if err != nil {
		return err
	}
	if !bytes.Equal(now, e.before) {
		return fmt.Errorf("%s was changed by somebody else in the meantime: run this again", e.File)
	}
	return tomlfile.Replace(e.File, e.after)
}
