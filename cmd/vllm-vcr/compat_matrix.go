package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/manifest"
)

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
	window, registry, err := loadInputs(env, opts.in)
	if err != nil {
		return err
	}
	if opts.pending && kind != matrixCapture {
		return fmt.Errorf("--pending is for --kind %s", matrixCapture)
	}
	lines, err := window.Select(opts.lines)
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

var releasePattern = regexp.MustCompile(`^[0-9]+\.[0-9]+\.[0-9]+(-[0-9A-Za-z.-]+)?$`)

// releaseVersion is a version as it stands in the names of assets and images.
func releaseVersion(given string) (string, error) {
	source, version := "--version", given
	if given == "" {
		source, version = "this build is no release, so that --version is needed", buildVersion()
	}
	bare := strings.TrimPrefix(version, "v")
	if len(bare) > 64 || !releasePattern.MatchString(bare) {
		return "", fmt.Errorf("%s: %q is not a version of the form 1.0.0", source, version)
	}
	return bare, nil
}
