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

// compatSetFlags are the flags of compat set.
type compatSetFlags struct {
	in                       inputs
	change                   compat.Change
	tag, rev                 string
	patchRepo, patchRevision string
	validated                bool
}

func (a *app) compatSetCommand() *cobra.Command {
	var f compatSetFlags
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
		RunE: func(cmd *cobra.Command, _ []string) error { return a.compatSet(f, cmd.Flags()) },
	}
	f.addFlags(cmd.Flags())
	return cmd
}

func (f *compatSetFlags) addFlags(flags *pflag.FlagSet) {
	f.in.addFlags(flags)
	flags.StringVar(&f.change.Line, "line", "", "name of the line: major.minor, nightly or rc")
	flags.StringVar(&f.tag, "tag", "", "the release of vLLM that stands for the line")
	flags.StringVar(&f.rev, "rev", "", "commit of vllm.git that the tag was built from")
	flags.BoolVar(&f.validated, "validated", false, "whether failing goldens of the line fail the run")
	flags.BoolVar(&f.change.Default, "default", false, "make it the default line")
	flags.StringVar(&f.patchRepo, "patch-repo", "", "URL of a fork to read the protocol from; empty removes it")
	flags.StringVar(&f.patchRevision, "patch-rev", "", "commit in that fork; empty removes it")
	flags.BoolVar(&f.change.Add, "add", false, "make the line if there is none of that name")
	flags.BoolVar(&f.change.Remove, "remove", false, "remove the line with the comments that stand directly at it")
}

// complete takes over the flags that were given.
func (f *compatSetFlags) complete(flags *pflag.FlagSet) error {
	for _, p := range []struct {
		flag     string
		value    *string
		to       **string
		canUnset bool
	}{
		{"tag", &f.tag, &f.change.Tag, false},
		{"rev", &f.rev, &f.change.Rev, false},
		{"patch-repo", &f.patchRepo, &f.change.PatchRepo, true},
		{"patch-rev", &f.patchRevision, &f.change.PatchRev, true},
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
		f.change.Validated = &f.validated
	}
	switch {
	case f.change.Line == "":
		return errors.New("--line is not given")
	case flags.Changed("default") && !f.change.Default:
		return errors.New("--default=false: there must be a default line; make another one the default")
	}
	return nil
}

func (a *app) compatSet(f compatSetFlags, flags *pflag.FlagSet) error {
	if err := f.complete(flags); err != nil {
		return err
	}
	data, window, err := compat.LoadText(cmp.Or(f.in.compat, vcr.CompatPath))
	if err != nil {
		return err
	}
	lines, err := window.Set(f.change)
	if err != nil {
		return err
	}
	changes := compat.Diff(window.Lines, lines)
	if len(changes) == 0 {
		_, err := fmt.Fprintf(a.stdout, "%s: unchanged\n", window.File)
		return err
	}
	edit := windowEdit{Matrix: window, before: data}
	if edit.after, err = compat.Rewrite(window.File, data, lines); err != nil {
		return err
	}
	if f.change.Tag != nil && f.change.Rev == nil {
		a.tell(fmt.Sprintf("vllm-vcr: warning: the tag moves and the commit does not: "+
			"give the one that %s was built from with --rev", f.tag))
	}
	if _, err := a.checkEdit(edit, f.in.manifest, false); err != nil {
		return err
	}
	if err := edit.write(); err != nil {
		return err
	}
	for _, c := range changes {
		if _, err := fmt.Fprintf(a.stdout, "%s: %s\n", window.File, report.OneLine(c.String())); err != nil {
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
	findings []tomlfile.Finding
}

// checkEdit checks an edited window with all that compat check knows, and tells what it
// finds. Errors of the window are refused, but for missing wire profiles where they may
// be; those of the manifest are left to be mended there.
func (a *app) checkEdit(edit windowEdit, manifestPath string, mayLackProfile bool) (checkedWindow, error) {
	window, findings := compat.Parse(edit.File, edit.after)
	registry, more := a.loadManifest(manifestPath, edit.Matrix)
	if tomlfile.HasErrors(more) {
		a.tellFindings(more)
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
		a.tell(f)
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
