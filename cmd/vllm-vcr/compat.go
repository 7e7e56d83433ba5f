package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	vcr "github.com/vllm-vcr/conformance"
	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/base/atomicfile"
	"github.com/vllm-vcr/conformance/internal/base/jsonout"
	"github.com/vllm-vcr/conformance/internal/base/lazyregexp"
	"github.com/vllm-vcr/conformance/internal/base/safetext"
	"github.com/vllm-vcr/conformance/internal/base/tomlfile"
	"github.com/vllm-vcr/conformance/manifest"
)

func newCompatCheckCommand(env *environment) *cobra.Command {
	var in inputs
	var targets string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Check compat.toml, the manifest and the capture targets",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			matrix, _, err := loadInputs(env, &in)
			result := &in.checked
			if err == nil {
				err = checkTargets(env, targets, matrix, result)
			}
			if asJSON && result.Schema != "" {
				if result.OK = err == nil; err != nil {
					result.ExitCode = conformance.ExitUsage
				}
				return cmp.Or(jsonout.Write(env.stdout, result), err)
			}
			if err != nil {
				return err
			}
			checked := ""
			if result.TargetsFile != "" {
				checked = fmt.Sprintf("; %s: %d targets", result.TargetsFile, result.Targets)
			}
			_, err = fmt.Fprintf(env.stdout, "%s: %d lines; %s: %d goldens%s\n", result.Compat, result.Lines, result.Manifest, result.Goldens, checked)
			return err
		},
	}
	addJSONFlag(cmd.Flags(), &asJSON)
	in.addFlags(cmd.Flags())
	cmd.Flags().StringVar(&targets, "targets", "", "`FILE` of capture targets (default ./"+vcr.TargetsPath+", if it exists)")
	return cmd
}

// checkTargets checks the targets against the compat matrix, and adds to the result. A project may capture nothing.
func checkTargets(env *environment, path string, matrix *compat.Matrix, result *checkedJSON) error {
	if path == "" && !exists(vcr.TargetsPath) {
		return nil
	}
	file, diagnostics := loadTargets(path, matrix)
	result.TargetsFile, result.Targets = file.Name, len(file.Targets)
	result.Diagnostics = append(result.Diagnostics, diagnostics...)
	return refuse(env, file.Name, diagnostics)
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
		Short: "Print the vLLM lines as the job matrix of a GitHub workflow",
		Args:  cobra.NoArgs,
		RunE:  func(*cobra.Command, []string) error { return runCompatMatrix(env, opts) },
	}
	flags := cmd.Flags()
	oneOf(flags, &opts.kind, "kind", matrixCI, "purpose of the jobs: ci, docker, release or capture", matrixCI, matrixDocker, matrixRelease, matrixCapture)
	flags.StringSliceVar(&opts.lines, "line", nil, linesUsage)
	flags.StringVar(&opts.version, "version", "", "`VERSION` of vllm-vcr in the names of images and assets, X.Y.Z (default that of the binary)")
	flags.BoolVar(&opts.pending, "pending", false, "with --kind capture, print only lines that do not gate yet")
	addOutputFlag(flags, &opts.outputs)
	grouped(flags, "Matrix")
	opts.in.addFlags(flags)
	return cmd
}

func runCompatMatrix(env *environment, opts compatMatrixOptions) error {
	matrix, mf, err := loadInputs(env, &opts.in)
	if err != nil {
		return err
	}
	if opts.pending && opts.kind != matrixCapture {
		return fmt.Errorf("--pending needs --kind %s", matrixCapture)
	}
	lines, err := matrix.Select(opts.lines)
	if err != nil {
		return err
	}
	var rows any
	switch goldens := countGoldens(mf); opts.kind {
	case matrixCI:
		rows = compat.CIRows(lines, goldens)
	case matrixDocker:
		if opts.version, err = releaseVersion(opts.version); err == nil {
			rows = compat.DockerRows(lines, goldens, opts.version)
		}
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

func countGoldens(mf *manifest.Manifest) map[string]int {
	count := map[string]int{}
	for _, g := range mf.Goldens {
		count[g.Line]++
	}
	return count
}

func captureRows(lines []compat.Line, goldens map[string]int, pending bool) ([]compat.CaptureRow, error) {
	rows := compat.CaptureRows(lines, goldens)
	if pending {
		return slices.DeleteFunc(rows, func(r compat.CaptureRow) bool { return r.FidelityValidated }), nil
	}
	if len(rows) == 0 {
		return nil, fmt.Errorf("--line: no stable line is selected, and a tracker such as nightly has no release to capture")
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
		return nil, fmt.Errorf("--line and --kind %s: give only one of them, as a release supports every line", matrixRelease)
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

// releaseVersion is a version as in the names of assets and images.
func releaseVersion(given string) (string, error) {
	source, version := "--version", given
	if given == "" {
		source, version = "this binary is not a release, so --version is needed", buildVersion()
	}
	bare := strings.TrimPrefix(version, "v")
	if len(bare) > 64 || !releasePattern().MatchString(bare) {
		return "", fmt.Errorf("%s: %q is not a version such as 1.0.0", source, version)
	}
	return bare, nil
}

// compatSetOptions are the flags of compat set.
type compatSetOptions struct {
	in        inputs
	change    compat.Change
	validated bool
	json      bool
}

func newCompatSetCommand(env *environment) *cobra.Command {
	var opts compatSetOptions
	cmd := &cobra.Command{
		Use:   "set",
		Short: "Change a line of compat.toml",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return runCompatSet(env, opts, cmd.Flags()) },
	}
	flags := cmd.Flags()
	given := func(to **string, mayBeEmpty bool) func(string) error {
		return func(value string) error {
			if *to = &value; value == "" && !mayBeEmpty {
				return errors.New("it is empty")
			}
			return nil
		}
	}
	flags.StringVar(&opts.change.Line, "line", "", "vLLM `LINE` to change, such as 0.33, nightly or rc; required")
	flags.Func("tag", "release `TAG` of vLLM that represents the line, such as v0.33.0", given(&opts.change.Tag, false))
	flags.Func("rev", "`COMMIT` of the vLLM repository that the tag was built from", given(&opts.change.Rev, false))
	flags.BoolVar(&opts.validated, "fidelity-validated", false, "let failures of the line fail the run, or with =false not")
	flags.BoolVar(&opts.change.Default, "default", false, "make the line the default line")
	flags.Func("patch-repo", "`URL` of a fork to read the protocol from; an empty value removes it", given(&opts.change.PatchRepo, true))
	flags.Func("patch-rev", "`COMMIT` in that fork; an empty value removes it", given(&opts.change.PatchRev, true))
	flags.BoolVar(&opts.change.Add, "add", false, "add the line if it does not exist")
	flags.BoolVar(&opts.change.Remove, "remove", false, "remove the line, with the comments directly above it")
	grouped(flags, "Change")
	opts.in.addFlags(flags)
	addJSONFlag(flags, &opts.json)
	required(flags, "line")
	return cmd
}

func runCompatSet(env *environment, opts compatSetOptions, flags *pflag.FlagSet) error {
	if flags.Changed("fidelity-validated") {
		opts.change.Validated = &opts.validated
	}
	if flags.Changed("default") && !opts.change.Default {
		return errors.New("--default=false: a default line is required: give --default with another line")
	}
	data, matrix, err := compat.LoadText(cmp.Or(opts.in.compat, vcr.CompatPath))
	if err != nil {
		return err
	}
	if _, ok := matrix.Lookup(opts.change.Line); ok {
		known, err := matrix.Select([]string{opts.change.Line})
		if err != nil {
			return err
		}
		opts.change.Line = known[0].Name
	} else if v, err := compat.ParseVersion(opts.change.Line); err == nil {
		opts.change.Line = v.Line()
	} else {
		opts.change.Line = tagOf(opts.change.Line)
	}
	if opts.change.Tag != nil {
		*opts.change.Tag = tagOf(*opts.change.Tag)
	}
	lines, err := matrix.Set(opts.change)
	if err != nil {
		return err
	}
	changes := compat.Diff(matrix.Lines, lines)
	result := changedJSON{Schema: schemaOf("compat-set"), File: matrix.File, Changed: len(changes) > 0, Changes: []lineChangeJSON{}, Diagnostics: []tomlfile.Diagnostic{}}
	for _, c := range changes {
		result.Changes = append(result.Changes, lineChangeJSON{c.Line(), c.String()})
	}
	if !result.Changed {
		return printResult(env, opts.json, result, func(w io.Writer) error {
			_, err := fmt.Fprintf(w, "%s: unchanged\n", matrix.File)
			return err
		})
	}
	edit := &matrixEdit{Matrix: matrix, before: data}
	if edit.after, err = compat.Rewrite(matrix.File, data, lines); err != nil {
		return err
	}
	if opts.change.Tag != nil && opts.change.Rev == nil {
		env.printErr(fmt.Sprintf("vllm-vcr: warning: the tag changes and the commit does not: "+
			"give the commit that %s was built from with --rev", *opts.change.Tag))
	}
	if err := edit.check(env, opts.in.manifest, false); err != nil {
		return err
	}
	if err := edit.write(); err != nil {
		return err
	}
	result.Diagnostics = diagnosticsResult(edit.diagnostics)
	return printResult(env, opts.json, result, func(w io.Writer) error {
		for _, c := range result.Changes {
			if _, err := fmt.Fprintf(w, "%s: %s\n", matrix.File, safetext.Line(c.Text)); err != nil {
				return err
			}
		}
		return nil
	})
}

// matrixEdit is a compat matrix, the text of its file before and after an edit, and what the edited one was checked against.
type matrixEdit struct {
	*compat.Matrix
	before, after []byte

	edited      *compat.Matrix
	mf          *manifest.Manifest
	diagnostics []tomlfile.Diagnostic
}

// check checks the edited compat matrix as compat check does, and prints the diagnostics. Errors of the compat matrix are refused, but for
// missing wire profiles where they may be missing; those of the manifest are left to be corrected there.
func (e *matrixEdit) check(env *environment, manifestPath string, mayLackProfile bool) (refused error) {
	e.edited, e.diagnostics = compat.Parse(e.File, e.after)
	mf, more := loadManifest(env, manifestPath, e.Matrix)
	if tomlfile.HasErrors(more) {
		return refuse(env, mf.File, more)
	}
	e.mf, e.diagnostics = mf, slices.Concat(e.diagnostics, more, conformance.CheckInputs(e.edited, mf))
	tomlfile.Sort(e.diagnostics)
	for _, d := range e.diagnostics {
		isLeft := d.File != e.File || mayLackProfile && d.Code == compat.CodeNoProfile
		if d.Severity == tomlfile.Error && !isLeft {
			refused = cmp.Or(refused, fmt.Errorf("the change would break a rule: %s", d))
			continue
		}
		env.printErr(d)
	}
	return refused
}

// write puts the edited text in the place of the file, unless somebody else has changed
// that since it was read.
func (e *matrixEdit) write() error {
	now, err := os.ReadFile(e.File)
	if err != nil {
		return err
	}
	if !bytes.Equal(now, e.before) {
		return fmt.Errorf("%s was changed by another process in the meantime: run the command again", e.File)
	}
	return atomicfile.Replace(e.File, e.after)
}
