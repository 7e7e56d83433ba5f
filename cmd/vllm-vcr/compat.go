package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	vcr "github.com/vllm-vcr/conformance"
	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/base/atomicfile"
	"github.com/vllm-vcr/conformance/internal/base/lazyregexp"
	"github.com/vllm-vcr/conformance/internal/base/safetext"
	"github.com/vllm-vcr/conformance/internal/base/tomlfile"
	"github.com/vllm-vcr/conformance/internal/capture/target"
	"github.com/vllm-vcr/conformance/manifest"
)

func newCompatCommand(env *environment) *cobra.Command {
	return group(&cobra.Command{
		Use:   "compat",
		Short: "Look after the support window and the registry of goldens",
	}, newCompatCheckCommand(env), newCompatMatrixCommand(env), newCompatSetCommand(env), newCompatWatchCommand(env))
}

// codes names the first and the last of some rules.
func codes(rules []tomlfile.Rule) string {
	return rules[0].Code + " to " + rules[len(rules)-1].Code
}

func newCompatCheckCommand(env *environment) *cobra.Command {
	var in inputs
	var targets string
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Check compat.toml, the manifest and the targets, alone and against each other",
		Long: "Check compat.toml (rules " + codes(compat.Rules()) + ") and the manifest (" + codes(manifest.Rules()) + "), alone and\n" +
			"against each other, and the targets (" + codes(target.Rules()) + ") if there is a file of them.\n" +
			"Findings go to stderr, one a line, as file:line: CODE severity: message.",
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			matrix, registry, err := loadInputs(env, &in)
			if err != nil {
				return err
			}
			checked, err := checkTargets(env, targets, matrix)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(env.stdout, "%s: %d lines; %s: %d goldens%s\n",
				matrix.File, len(matrix.Lines), registry.File, len(registry.Goldens), checked)
			return err
		},
	}
	in.addFlags(cmd.Flags())
	cmd.Flags().StringVar(&targets, "targets", "", "what is captured (default ./"+vcr.TargetsPath+" if there is one)")
	return cmd
}

// checkTargets checks the targets against the compat matrix, and returns the words that say so. A project may capture nothing.
func checkTargets(env *environment, path string, matrix *compat.Matrix) (string, error) {
	if path == "" && !exists(vcr.TargetsPath) {
		return "", nil
	}
	file, diagnostics := loadTargets(path, matrix)
	printDiagnostics(env, diagnostics)
	if tomlfile.HasErrors(diagnostics) {
		return "", fmt.Errorf("%s cannot be used as it is", file.Name)
	}
	return fmt.Sprintf("; %s: %d targets", file.Name, len(file.Targets)), nil
}

// The kinds of a matrix.
const (
	matrixCI      = "ci"
	matrixDocker  = "docker"
	matrixRelease = "release"
	matrixCapture = "capture"
)

// compatMatrixOptions are the flags of compat matrix.
type compatMatrixOptions struct {
	in      inputs
	kind    string
	lines   []string
	version string
	pending bool
	outputs bool
}

func newCompatMatrixCommand(env *environment) *cobra.Command {
	var opts compatMatrixOptions
	cmd := &cobra.Command{
		Use:   "matrix",
		Short: "Print the lines as the matrix of a workflow",
		Long: "Print one line of JSON: an array with an object for each job of a matrix.\n\n" +
			"ci       line, tag, protocol_rev, fidelity_validated, default, has_goldens, gating, goldens (their number)\n" +
			"docker   the same and patch_repo, patch_rev, image_tags: VERSION-vllmLINE, vllmLINE, and latest for the\n" +
			"         default line. All are tags of one image, which speaks every line\n" +
			"release  os, arch, runner, asset: a platform that the binary is released for\n" +
			"capture  the fields of ci and version, the release of vLLM to install; stable lines only\n\n" +
			"compat.toml and the manifest are checked as compat check does. A matrix without a job is an error: the\n" +
			"workflow would be green and have done nothing. Only with --pending it may be empty, as then there is\n" +
			"nothing left to do.",
		Example: "  vllm-vcr compat matrix --kind ci --github-output\n" +
			"  vllm-vcr compat matrix --kind capture --line 0.33",
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error { return runCompatMatrix(env, opts) },
	}
	flags := cmd.Flags()
	opts.in.addFlags(flags)
	flags.StringVar(&opts.kind, "kind", matrixCI, "what the jobs are for: ci, docker, release, capture")
	flags.StringSliceVar(&opts.lines, "line", nil, "only these lines, by name or tag (default all)")
	flags.StringVar(&opts.version, "version", "", "version of this project in names, X.Y.Z (default the binary's)")
	flags.BoolVar(&opts.pending, "pending", false, "of capture, only lines that do not gate yet")
	addOutputFlag(flags, &opts.outputs)
	return cmd
}

func runCompatMatrix(env *environment, opts compatMatrixOptions) error {
	kind, err := chooseOne("--kind", opts.kind, matrixCI, matrixDocker, matrixRelease, matrixCapture)
	if err != nil {
		return err
	}
	matrix, registry, err := loadInputs(env, &opts.in)
	if err != nil {
		return err
	}
	if opts.pending && kind != matrixCapture {
		return fmt.Errorf("--pending is for --kind %s", matrixCapture)
	}
	lines, err := matrix.Select(opts.lines)
	if err != nil {
		return err
	}
	var rows any
	switch goldens := countGoldens(registry); kind {
	case matrixCI:
		rows = compat.CIRows(lines, goldens)
	case matrixDocker:
		rows, err = dockerRows(lines, goldens, opts.version)
	case matrixRelease:
		rows, err = releaseRows(opts)
	case matrixCapture:
		rows, err = captureRows(lines, goldens, opts.pending)
	}
	if err != nil {
		return err
	}
	return printMatrix(env, rows, opts.outputs)
}

// printMatrix writes the array on one line, as it can be put into an expression.
func printMatrix(env *environment, rows any, outputs bool) error {
	var text bytes.Buffer
	enc := json.NewEncoder(&text)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(rows); err != nil {
		return err
	}
	if outputs {
		if err := setOutputs(env, output{"matrix", strings.TrimSpace(text.String())}); err != nil {
			return err
		}
	}
	_, err := env.stdout.Write(text.Bytes())
	return err
}

func countGoldens(registry *manifest.Manifest) map[string]int {
	count := map[string]int{}
	for _, g := range registry.Goldens {
		count[g.Line]++
	}
	return count
}

func dockerRows(lines []compat.Line, goldens map[string]int, version string) ([]compat.DockerRow, error) {
	version, err := releaseVersion(version)
	if err != nil {
		return nil, err
	}
	return compat.DockerRows(lines, goldens, version), nil
}

func captureRows(lines []compat.Line, goldens map[string]int, pending bool) ([]compat.CaptureRow, error) {
	rows := compat.CaptureRows(lines, goldens)
	if pending {
		return slices.DeleteFunc(rows, func(r compat.CaptureRow) bool { return r.FidelityValidated }), nil
	}
	if len(rows) == 0 {
		return nil, fmt.Errorf("--line: no stable line is selected, and of a tracker there is no release to capture")
	}
	return rows, nil
}

// releaseRow is a platform that the binary is released for.
type releaseRow struct {
	OS     string `json:"os"`
	Arch   string `json:"arch"`
	Runner string `json:"runner"` // of GitHub, of that platform
	Asset  string `json:"asset"`  // the archive's name
}

// platforms are those that the binary is released for. All lines are in the one binary.
var platforms = []releaseRow{
	{OS: "linux", Arch: "amd64", Runner: "ubuntu-latest"},
	{OS: "linux", Arch: "arm64", Runner: "ubuntu-24.04-arm"},
	{OS: "darwin", Arch: "amd64", Runner: "macos-15-intel"},
	{OS: "darwin", Arch: "arm64", Runner: "macos-latest"},
	{OS: "windows", Arch: "amd64", Runner: "windows-latest"},
	{OS: "windows", Arch: "arm64", Runner: "windows-11-arm"},
}

func releaseRows(opts compatMatrixOptions) ([]releaseRow, error) {
	if len(opts.lines) > 0 {
		return nil, fmt.Errorf("--line: a release has every line, so --kind %s takes none", matrixRelease)
	}
	version, err := releaseVersion(opts.version)
	if err != nil {
		return nil, err
	}
	rows := make([]releaseRow, len(platforms))
	for i, p := range platforms {
		p.Asset = fmt.Sprintf("vllm-vcr_%s_%s_%s.tar.gz", version, p.OS, p.Arch)
		rows[i] = p
	}
	return rows, nil
}

var releasePattern = lazyregexp.New(`^[0-9]+\.[0-9]+\.[0-9]+(-[0-9A-Za-z.-]+)?$`)

// releaseVersion is a version as it stands in the names of assets and images.
func releaseVersion(given string) (string, error) {
	source, version := "--version", given
	if given == "" {
		source, version = "this build is no release, so that --version is needed", buildVersion()
	}
	bare := strings.TrimPrefix(version, "v")
	if len(bare) > 64 || !releasePattern().MatchString(bare) {
		return "", fmt.Errorf("%s: %q is not a version of the form 1.0.0", source, version)
	}
	return bare, nil
}

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
	data, matrix, err := compat.LoadText(cmp.Or(opts.in.compat, vcr.CompatPath))
	if err != nil {
		return err
	}
	lines, err := matrix.Set(opts.change)
	if err != nil {
		return err
	}
	changes := compat.Diff(matrix.Lines, lines)
	if len(changes) == 0 {
		_, err := fmt.Fprintf(env.stdout, "%s: unchanged\n", matrix.File)
		return err
	}
	edit := matrixEdit{Matrix: matrix, before: data}
	if edit.after, err = compat.Rewrite(matrix.File, data, lines); err != nil {
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
		if _, err := fmt.Fprintf(env.stdout, "%s: %s\n", matrix.File, safetext.Line(c.String())); err != nil {
			return err
		}
	}
	return nil
}

// matrixEdit is a compat matrix, and the text of its file before and after an edit.
type matrixEdit struct {
	*compat.Matrix
	before, after []byte
}

// checkedMatrix is an edited compat matrix with what it was checked against.
type checkedMatrix struct {
	matrix      *compat.Matrix
	registry    *manifest.Manifest
	diagnostics []tomlfile.Diagnostic
}

// checkEdit checks an edited compat matrix with all that compat check knows, and tells what it
// finds. Errors of the compat matrix are refused, but for missing wire profiles where they may
// be; those of the manifest are left to be mended there.
func checkEdit(env *environment, edit matrixEdit, manifestPath string, mayLackProfile bool) (checkedMatrix, error) {
	matrix, diagnostics := compat.Parse(edit.File, edit.after)
	registry, more := loadManifest(env, manifestPath, edit.Matrix)
	if tomlfile.HasErrors(more) {
		printDiagnostics(env, more)
		return checkedMatrix{}, fmt.Errorf("%s cannot be used as it is", registry.File)
	}
	diagnostics = slices.Concat(diagnostics, more, conformance.CheckInputs(matrix, registry))
	tomlfile.Sort(diagnostics)
	var refused error
	for _, f := range diagnostics {
		isLeft := f.File != edit.File || mayLackProfile && f.Code == compat.CodeNoProfile
		if f.Severity == tomlfile.Error && !isLeft {
			refused = cmp.Or(refused, fmt.Errorf("the change would break a rule: %s", f))
			continue
		}
		env.printErr(f)
	}
	return checkedMatrix{matrix, registry, diagnostics}, refused
}

// write puts the edited text in the place of the file, unless somebody else has changed
// that since it was read.
func (e matrixEdit) write() error {
	now, err := os.ReadFile(e.File)
	if err != nil {
		return err
	}
	if !bytes.Equal(now, e.before) {
		return fmt.Errorf("%s was changed by somebody else in the meantime: run this again", e.File)
	}
	return atomicfile.Replace(e.File, e.after)
}
