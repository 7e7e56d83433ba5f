package main

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/base/atomicfile"
	"github.com/vllm-vcr/conformance/internal/base/safetext"
	"github.com/vllm-vcr/conformance/internal/golden"
	"github.com/vllm-vcr/conformance/internal/report"
)

// reportOptions choose what is written of a report in addition to the text on stdout.
type reportOptions struct {
	dir           string
	formats       []string
	onStdout      bool // as JSON in place of the text
	json          string
	deterministic bool
	annotations   string
	annotateFile  string
	limit         int
	githubOutput  bool

	given *pflag.FlagSet // those of the command

	opened *report.Dir // dir
	failed error       // to open it
}

// summaryLimit is how long GitHub lets the summary of a step be, in bytes, with
// some room for what else writes to it.
const summaryLimit = 1<<20 - 4<<10

// addFlags adds those of a command that makes a report.
func (opts *reportOptions) addFlags(flags *pflag.FlagSet) {
	flags.BoolVar(&opts.deterministic, "deterministic", false, "leave out of the report what differs between runs: times, host name, ports, temporary paths")
	opts.addOutputFlags(flags)
}

// addOutputFlags adds those of a command that has a report made.
func (opts *reportOptions) addOutputFlags(flags *pflag.FlagSet) {
	opts.given = flags
	flags.StringVar(&opts.dir, "report-dir", "", "`FOLDER` to write the report to, in every format of --report-format (default none)")
	flags.StringSliceVar(&opts.formats, "report-format", texts(report.Formats()), "formats of the report in --report-dir")
	flags.StringVar(&opts.json, "report-json", "", "`FILE` to write the report to as JSON (default none)")
	choices(flags, "report-format", report.Formats()...)
	needs(flags, "report-format", "report-dir")
	oneOf(flags, &opts.annotations, "annotations", "auto", "write GitHub annotations for failures to stderr: auto (in GitHub Actions), on or off", "auto", "on", "off")
	flags.IntVar(&opts.limit, "annotation-limit", report.AnnotationLimit, "maximum number of annotations of each level (error, warning)")
	least0(flags, "annotation-limit")
	flags.StringVar(&opts.annotateFile, "annotate-file", "", "`FILE` of the repository at which annotations and SARIF show failures that have no place in it (default the workflow in GitHub Actions, else compat.toml)")
	addOutputFlag(flags, &opts.githubOutput)
	grouped(flags, "Report")
}

// openDir opens the directory of the report, before anything runs that could put a link in its place. A failure is
// reported when the report is written, after all cases were judged.
func (opts *reportOptions) openDir() (closeDir func()) {
	if opts.dir == "" || opts.opened != nil || opts.failed != nil {
		return func() {}
	}
	if opts.opened, opts.failed = report.OpenDir(opts.dir); opts.failed != nil {
		return func() {}
	}
	return opts.opened.Close
}

// finishReport writes everything of a finished report: the text to stdout, and what
// the flags and the CI ask for. What cannot be written keeps neither the others from
// it nor a failed run from its exit code.
func finishReport(ctx context.Context, env *environment, d *report.Document, opts reportOptions) error {
	var said error
	if opts.onStdout {
		said = report.JSON(env.stdout, d)
	} else {
		said = report.Text(env.stdout, d, report.TextOptions{Colour: env.colours(env.stdout)})
	}
	if err := errors.Join(said, writeReports(env, d, opts)); err != nil {
		return exitError{cmp.Or(d.ExitCode, conformance.ExitInfra), fmt.Errorf("write report: %w", err)}
	}
	if ctx.Err() != nil {
		return infra(errors.New("interrupted: the report covers what ran until then"))
	}
	if d.ExitCode != conformance.ExitOK {
		return exitError{d.ExitCode, errReported}
	}
	return nil
}

func writeReports(env *environment, d *report.Document, opts reportOptions) error {
	var failed []error
	if opts.json != "" {
		err := os.MkdirAll(filepath.Dir(opts.json), 0o755) // as --report-dir is made
		if err == nil {
			err = atomicfile.WriteFunc(opts.json, 0o644, func(w io.Writer) error { return report.JSON(w, d) })
		}
		failed = append(failed, err)
	}
	defer opts.openDir()()
	switch {
	case opts.failed != nil:
		failed = append(failed, opts.failed)
	case opts.dir != "":
		failed = append(failed, opts.opened.Write(d, as[report.Format](opts.formats)))
	}
	if path := env.getenv("GITHUB_STEP_SUMMARY"); path != "" {
		failed = append(failed, appendSummary(path, func(w io.Writer, limit int) error { return report.Markdown(w, d, limit) }))
	}
	if opts.annotations == "on" || opts.annotations == "auto" && env.getenv("GITHUB_ACTIONS") == "true" {
		failed = append(failed, report.Annotate(env.stderr, d, opts.limit))
	}
	if opts.githubOutput {
		outputs, err := reportOutputs(d, opts)
		failed = append(failed, err, setOutputs(env, outputs...))
	}
	return errors.Join(failed...)
}

// appendSummary adds to the summary of a GitHub step, within what is left of its
// limit.
func appendSummary(path string, write func(w io.Writer, limit int) error) error {
	file, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("GITHUB_STEP_SUMMARY: %w", err)
	}
	info, err := file.Stat()
	if err == nil {
		left := summaryLimit - int(min(info.Size(), summaryLimit))
		err = write(file, min(left, report.MarkdownLimit))
	}
	if err = errors.Join(err, file.Close()); err != nil {
		return fmt.Errorf("GITHUB_STEP_SUMMARY: %w", err)
	}
	return nil
}

// command is the command line that set the flags, those of the environment
// included, in the order of their names, without what must not be published.
func (opts *reportOptions) command(name ...string) []string {
	opts.given.Visit(func(flag *pflag.Flag) {
		values := []string{flag.Value.String()}
		if list, ok := flag.Value.(pflag.SliceValue); ok {
			values = list.GetSlice()
		}
		for _, value := range values {
			name = append(name, "--"+flag.Name+"="+golden.Scrub(value))
		}
	})
	return slices.Clip(name)
}

// newReportMeta is what a report has on a run that began at started. matrix is the
// compat matrix as it was loaded, others the further files that decided what was
// run; those of the binary begin with "(embedded) ".
func newReportMeta(env *environment, opts reportOptions, in *inputs, started time.Time, matrix string, others ...string) report.Meta {
	dir, _ := os.Getwd()
	host, _ := os.Hostname()
	m := report.Meta{
		Tool: report.Tool{Name: "vllm-vcr", Version: buildVersion(), Commit: buildCommit()}, Started: started,
		OS: runtime.GOOS, Arch: runtime.GOARCH, Arguments: opts.command("vllm-vcr", "conform"),
		Root: repositoryRoot(env, dir), Dir: dir, Matrix: matrix, Deterministic: opts.deterministic, TempDir: os.TempDir(), Host: host,
		Title: titleOf, AnnotateFile: cmp.Or(filepath.ToSlash(opts.annotateFile), workflowFile(env)),
	}
	if repository := env.getenv("GITHUB_REPOSITORY"); repository != "" && !opts.deterministic {
		m.Origin = &report.Origin{Repository: repository, Commit: env.getenv("GITHUB_SHA")}
		if server, run := env.getenv("GITHUB_SERVER_URL"), env.getenv("GITHUB_RUN_ID"); server != "" && run != "" {
			m.Origin.Run = server + "/" + repository + "/actions/runs/" + run
		}
	}
	for _, path := range append([]string{matrix}, others...) {
		if sum, ok := in.digest(path); ok {
			m.Inputs = append(m.Inputs, report.Input{Path: path, SHA256: sum})
		}
	}
	return m
}

// workflowFile is the file of the workflow that runs this, below the root of its repository; "" outside GitHub Actions.
// GITHUB_WORKFLOW_REF is "owner/name/.github/workflows/ci.yml@refs/heads/main".
func workflowFile(env *environment) string {
	file, _, _ := strings.Cut(env.getenv("GITHUB_WORKFLOW_REF"), "@")
	file, ours := strings.CutPrefix(file, env.getenv("GITHUB_REPOSITORY")+"/")
	if !ours || !filepath.IsLocal(file) {
		return ""
	}
	return file
}

// digest is the sha256 of a file. What cannot be read any more has none.
func (in *inputs) digest(path string) (sum string, ok bool) {
	data, err := in.read(path)
	if err != nil {
		return "", false
	}
	digest := sha256.Sum256(data)
	return hex.EncodeToString(digest[:]), true
}

// repositoryRoot is the top directory of the repository that a directory is in: the
// next one that Git keeps, else GitHub's workspace, else the directory itself.
func repositoryRoot(env *environment, dir string) string {
	for up := dir; up != ""; up = filepath.Dir(up) {
		if _, err := os.Stat(filepath.Join(up, ".git")); err == nil {
			return up
		}
		if up == filepath.Dir(up) {
			break
		}
	}
	if workspace := env.getenv("GITHUB_WORKSPACE"); workspace != "" {
		if below, err := filepath.Rel(workspace, dir); err == nil && filepath.IsLocal(below) {
			return workspace
		}
	}
	return dir
}

// buildCommit is the commit that the binary was built from, "" when it is unknown.
func buildCommit() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			return s.Value
		}
	}
	return ""
}

// lineOutput is a line in the output "lines".
type lineOutput struct {
	Line    string              `json:"line"`
	Tag     string              `json:"tag"`
	Gating  bool                `json:"gating"`
	Verdict conformance.Verdict `json:"verdict"`
}

// reportOutputs are the outputs of a workflow step: the verdict, how many cases
// have which, and the complete paths of the files.
func reportOutputs(d *report.Document, opts reportOptions) ([]output, error) {
	lines := []lineOutput{}
	for _, l := range d.Lines {
		lines = append(lines, lineOutput{l.Line, l.Tag, l.Gating, l.Verdict})
	}
	text, err := json.Marshal(lines)
	if err != nil {
		return nil, err
	}
	outputs := []output{
		{"verdict", string(d.Verdict)},
		{"exit-code", strconv.Itoa(d.ExitCode)},
		{"reason", safetext.Line(d.Reason)},
		{"passed", countOutput(d, conformance.Pass)},
		{"failed", countOutput(d, conformance.Fail, conformance.XPass)},
		{"errors", countOutput(d, conformance.Error)},
		{"expected", countOutput(d, conformance.XFail, conformance.Flaky)},
		{"skipped", countOutput(d, conformance.Skip)},
		{"tokens", strconv.Itoa(d.Tokens)},
		{"lines", string(text)},
	}
	paths, err := opts.pathOutputs()
	return append(outputs, paths...), err
}

func countOutput(d *report.Document, verdicts ...conformance.Verdict) string {
	n := 0
	for _, v := range verdicts {
		n += d.Counts[v]
	}
	return strconv.Itoa(n)
}

// pathOutputs name the directory of the report and its files: "report-junit" and so on.
func (opts reportOptions) pathOutputs() ([]output, error) {
	if opts.dir == "" {
		return nil, nil
	}
	dir, err := filepath.Abs(opts.dir)
	if err != nil {
		return nil, err
	}
	outputs := []output{{"report-dir", dir}}
	for _, format := range report.Formats() {
		if slices.Contains(opts.formats, string(format)) {
			outputs = append(outputs, output{"report-" + string(format), filepath.Join(dir, format.FileName())})
		}
	}
	return outputs, nil
}
