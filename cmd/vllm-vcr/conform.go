package main

import (
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	vcr "github.com/vllm-vcr/conformance"
	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/base/safetext"
	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/golden"
	"github.com/vllm-vcr/conformance/internal/report"
	"github.com/vllm-vcr/conformance/manifest"
	"github.com/vllm-vcr/conformance/player"
)

// A run makes much garbage that is dead at once, and keeps 20 MB. The percentage saves a sixth of the processor time, and the
// limit keeps the process below 100 MB. Servers of the process need more: below it, half of the processor time would be spent on garbage.
const (
	conformGCPercent = 400
	conformMaxHeap   = 64 << 20
	serversMaxHeap   = 320 << 20
)

// conformOptions are the flags of conform.
type conformOptions struct {
	in         inputs
	sel        conformance.Selection
	assertions []string
	matches    []string
	levels     []string
	store      storeOptions
	frontends  []string
	frames     string
	model      string
	timeouts   conformance.Timeouts
	report     reportOptions
	plan       planOptions
	subject    subjectOptions
	selfTest   bool
	coverage   bool

	maxFailures int
	failFast    bool

	given *pflag.FlagSet // those of the command
}

func newConformCommand(env *environment) *cobra.Command {
	opts := conformOptions{timeouts: conformance.DefaultTimeouts()}
	cmd := &cobra.Command{
		Use:   "conform",
		Short: "Check engines and frontends of every vLLM line against its goldens",
		Args:  onlyCommands,
		RunE:  func(cmd *cobra.Command, _ []string) error { return runConform(cmd.Context(), env, &opts) },
	}
	opts.addFlags(cmd.Flags())
	cmd.AddCommand(newCompareCommand(env), newMergeCommand(env), newSchemaCommand(env), newConformHTTPCommand(env)) // of reports, but for the last
	return cmd
}

func (opts *conformOptions) addFlags(flags *pflag.FlagSet) {
	opts.given = flags
	flags.StringSliceVar(&opts.sel.Lines, "line", nil, linesUsage)
	flags.StringSliceVar(&opts.sel.Goldens, "golden", nil, "goldens to replay, by id (default all)")
	flags.StringSliceVar(&opts.assertions, "assertion", nil, "checks to make: "+strings.Join(texts(conformance.Assertions()), ", ")+", or those of --suite (default all)")
	flags.StringSliceVar(&opts.matches, "match", nil, "how fidelity requests find their record: index (by arrival order), prefix (by prompt) (default both)")
	choices(flags, "match", player.MatchIndex, player.MatchPrefix)
	flags.IntSliceVar(&opts.sel.Concurrency, "concurrency", nil, "number of requests that run at the same time in fidelity; several numbers make several cases (default 1,16)")
	above0(flags, "concurrency")
	opts.plan.addFlags(flags)
	grouped(flags, "What is checked")
	opts.subject.addFlags(flags)
	flags.StringSliceVar(&opts.frontends, "frontend", nil, "also replay behind this released vllm-rs, `LINE=PATH`; without LINE=, the line is that of --line or of the binary (0.29 and later)")
	flags.StringVar(&opts.frames, "frames", "", "`FILE` of a session that record --frames-out wrote: judge the messages of each side, without goldens; --line says of which line (default that of the engine in it)")
	flags.StringVar(&opts.model, "model", "", "`FOLDER` of the model (config.json, tokenizer.json), for --frontend and for {model} in --frontend-command (default the tiny model in the binary)")
	grouped(flags, "Under test")
	flags.DurationVar(&opts.timeouts.Connect, "start-timeout", opts.timeouts.Connect, "maximum time until the engine or frontend under test is ready (default "+shortDuration(opts.timeouts.Connect.String())+"; for an engine under test 1m, with --suite live 10m, but 1m if its processes use no processor time and write nothing; for a frontend 5m)")
	flags.DurationVar(&opts.timeouts.Idle, "idle-timeout", opts.timeouts.Idle, "maximum time without output while a request runs (default "+shortDuration(opts.timeouts.Idle.String())+"; for an engine under test 1m, with --suite live 2m)")
	flags.DurationVar(&opts.timeouts.Golden, "golden-timeout", opts.timeouts.Golden, "maximum time to fetch a golden, and to run a case")
	flags.IntVar(&opts.maxFailures, "max-failures", 0, "end the run after this number of failed cases and errors, and skip the other cases (default 0: no limit)")
	flags.BoolVar(&opts.failFast, "fail-fast", false, "end the run after the first failed case or error, as --max-failures 1")
	exclusive(flags, "fail-fast", "max-failures")
	above0(flags, "start-timeout", "idle-timeout", "golden-timeout")
	least0(flags, "max-failures")
	grouped(flags, "Timeouts and limits")
	oneOf(flags, (*string)(&opts.sel.Enforce), "enforce", conformance.EnforceValidated, "lines that decide the exit code: validated (those with fidelity_validated in compat.toml), all or none",
		conformance.EnforceValidated, conformance.EnforceAll, conformance.EnforceNone)
	flags.StringSliceVar(&opts.levels, "level", nil, "levels that decide the exit code: "+strings.Join(texts(conformance.Levels()), ", ")+" (default the levels in the file of --expectations, else all)")
	choices(flags, "level", conformance.Levels()...)
	flags.StringVar(&opts.plan.expectations, "expectations", "", "`FILE` of claimed levels, claimed lines and known failures (default ./"+vcr.ExpectationsPath+", else the one in the binary)")
	flags.BoolVar(&opts.plan.update, "update-expectations", false, "after the run, add new failures to the file of --expectations, which is created if it does not exist, and remove entries that no longer fail")
	grouped(flags, "Verdict")
	flags.BoolVar(&opts.selfTest, "self-test", false, "inject faults into the player and the goldens, and check that each fault is found")
	flags.BoolVar(&opts.coverage, "coverage", false, "list in the report every field, method and message kind of the wire: whether the goldens have it, and what the checks compare of it")
	flags.BoolVar(&opts.plan.list, "list", false, "print the selected cases as a table, and run nothing")
	flags.StringVar(&opts.plan.printPlan, "print-plan", "", "print the names of the selected `cases`, or with =requests the requests of each fidelity case, and run nothing")
	flags.Lookup("print-plan").NoOptDefVal = planCases
	choices(flags, "print-plan", planCases, planRequests)
	flags.StringVar(&opts.plan.explain, "explain", "", "print what the `CODE` of a failure means, such as F001, and run nothing")
	grouped(flags, "Other actions")
	// A self-test chooses its own goldens and is its own subject.
	for _, name := range []string{"golden", "assertion", "match", "concurrency", "print-plan"} {
		exclusive(flags, "self-test", name)
	}
	inOrder(flags, func(f *pflag.Flag) {
		if slices.Contains([]string{"Under test", "Timeouts and limits", "Verdict"}, f.Annotations[noteGroup][0]) {
			exclusive(flags, "self-test", f.Name)
		}
	})
	opts.report.addFlags(flags)
	flags.BoolVar(&opts.report.onStdout, "json", false, "print the report, or the cases of --list, as one JSON value instead of text; docs/json.md has its keys")
	grouped(flags, "Report")
	exclusive(flags, "list", "print-plan", "explain")
	for _, name := range []string{"report-json", "report-dir", "update-expectations", "keep-alive"} { // they need a run
		exclusive(flags, "list", name)
		exclusive(flags, "print-plan", name)
		exclusive(flags, "explain", name)
	}
	opts.in.addFlags(flags)
	opts.store.addFlags(flags)
	for _, name := range []string{"golden", "assertion", "match", "concurrency", "suite", "engine-command", "engine-handshake", "frontend-command", "frontend-url", "router-command", "router-url", "frontend", "manifest"} {
		exclusive(flags, "frames", name)
	}
	common(flags, "line", "golden", "assertion", "run", "suite", "engine-command", "engine-handshake", "frontend-command", "frontend-url", "frontend-handshake", "consumer-command", "router-command", "router-url",
		"frontend", "frames", "model", "start-timeout", "idle-timeout", "golden-timeout", "fail-fast", "expectations", "self-test", "list", "explain", "report-dir", "report-json", "compat", "manifest", "goldens")
}

func runConform(ctx context.Context, env *environment, opts *conformOptions) error {
	started := env.now()
	limit := int64(conformMaxHeap)
	if opts.selfTest || opts.subject.hasRouter() {
		limit = serversMaxHeap
	}
	defer env.growHeap(conformGCPercent, limit)()
	if opts.plan.explain != "" {
		return runExplain(env, opts.plan.explain)
	}
	if err := opts.store.resolve(env, &opts.in); err != nil {
		return err
	}
	matrix, mf, err := loadInputs(env, &opts.in)
	if err != nil {
		return err
	}
	sel, err := opts.selection(ctx)
	if err != nil {
		return err
	}
	if opts.selfTest {
		opts.sel = sel
		return runSelfTest(ctx, env, opts, matrix, mf, started)
	}
	if opts.frames != "" {
		if mf, err = opts.selectFrames(matrix, &sel); err != nil {
			return err
		}
	}
	return judgeCases(ctx, env, opts, sel, matrix, mf, started)
}

// selectFrames returns a manifest of the session alone, and selects it.
func (opts *conformOptions) selectFrames(matrix *compat.Matrix, sel *conformance.Selection) (*manifest.Manifest, error) {
	path, err := filepath.Abs(opts.frames)
	if err != nil {
		return nil, err
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("--frames: %w", err)
	}
	meta, _, err := check.ReadFrames(data, opts.frames)
	if err != nil {
		return nil, exitError{conformance.ExitFail, err}
	}
	if len(sel.Lines) == 0 {
		version, err := compat.ParseVersion(*meta.VLLMVersion)
		if err != nil {
			return nil, fmt.Errorf("%s: the engine says that it is %q: give the line with --line", opts.frames, *meta.VLLMVersion)
		}
		sel.Lines = []string{version.Line()}
	}
	lines, err := matrix.Select(sel.Lines)
	if err != nil {
		return nil, err
	}
	id, _, _ := strings.Cut(filepath.Base(path), ".")
	mf := &manifest.Manifest{File: opts.frames}
	for _, line := range lines {
		mf.Goldens = append(mf.Goldens, manifest.Golden{
			Line: line.Name, ID: id, BucketPath: "file://" + filepath.ToSlash(path), SHA256: fmt.Sprintf("%x", sha256.Sum256(data)), Role: manifest.Frames,
			Size: int64(len(data)), VLLMVersion: *meta.VLLMVersion,
		})
	}
	sel.Assertions, sel.BySide = []conformance.Assertion{conformance.Frames}, true
	return mf, nil
}

// judgeCases plans the cases of a selection and runs them, or prints what it was asked to
// print of them.
func judgeCases(
	ctx context.Context, env *environment, opts *conformOptions, sel conformance.Selection, matrix *compat.Matrix, mf *manifest.Manifest, started time.Time,
) error {
	all, expected, err := expectations(env, opts.plan.expectations, opts.plan.update, matrix, mf, sel)
	if err != nil {
		return err
	}
	if len(sel.Lines) == 0 {
		sel.Lines = expected.Lines
	}
	cases, err := conformance.NewPlan(matrix, mf, sel)
	if err != nil {
		return err
	}
	levels := as[conformance.Level](opts.levels)
	if len(levels) == 0 {
		levels = expected.Levels
	}
	runner := conformance.Runner{Timeouts: opts.timeouts, Levels: levels, Expectations: expected, All: all, Coverage: opts.coverage, MaxFailures: opts.maxFailures}
	model, err := opts.modelDir()
	if err != nil {
		return err
	}
	if opts.failFast {
		runner.MaxFailures = 1
	}
	if err := opts.subject.configure(env, &runner, sel.Suite, model, cases); err != nil {
		return err
	}
	if opts.plan.list || opts.plan.printPlan != "" {
		return printPlanned(ctx, env, opts, &runner, cases)
	}
	if opts.subject.engineCommand != "" && len(opts.matches) == 0 && slices.Equal(sel.Matches, []player.Match{player.MatchIndex}) &&
		(len(sel.Assertions) == 0 || slices.Contains(sel.Assertions, conformance.Fidelity)) {
		env.printErr("note: fidelity with prompts instead of ids is not checked: --engine-command has no {match}")
	}
	// What the goldens cover is not what another suite has exercised.
	runner.NoCoverage = !opts.coverage && sel.Suite != conformance.SuiteReplay
	defer opts.report.openDir()()
	result, whole, err := runCases(ctx, env, opts, &runner, cases)
	if err != nil {
		return err
	}
	if whole {
		ctx = context.WithoutCancel(ctx) // nothing is left that could be interrupted
	}
	if opts.coverage {
		if err := proveCoverage(ctx, runner.Store, result, matrix, mf); err != nil {
			return selfTestError(ctx, err)
		}
	}
	meta := newReportMeta(env, opts.report, &opts.in, started, matrix.File, mf.File, expected.File)
	reported := finishReport(ctx, env, report.New(result, meta), opts.report)
	return updateAfterRun(env, &opts.plan, result, all, reported)
}

// runCases runs the cases and shows how far they are. The report is whole when no case
// of it was interrupted: what an interrupt ends after that is only what was kept alive.
func runCases(ctx context.Context, env *environment, opts *conformOptions, runner *conformance.Runner, cases []conformance.Case) (r *conformance.Report, whole bool, err error) {
	bar, env := openBar(env, "cases", caseNames(cases))
	defer bar.close()
	opts.store.Timeout = opts.timeouts.Golden
	if runner.Store, err = openStore(env, &opts.store); err != nil {
		return nil, false, err
	}
	runner.Log = env.log
	if address := opts.subject.engineAddress; address != "" {
		fmt.Fprintf(env.stderr, "waiting for an engine at %s\n", address)
	}
	runner.Step = bar.show
	left := len(cases)
	runner.Progress = func(r conformance.Result) {
		logResult(env, r)
		bar.add(r.Verdict.Red())
		if left--; left == 0 && ctx.Err() == nil {
			whole = true
			if opts.subject.keepAlive {
				fmt.Fprintf(env.stderr, "%s ended: interrupt (^C) to stop what is kept alive and to get the report\n", safetext.Count(len(cases), "case"))
			}
		}
	}
	r = runner.Run(ctx, cases)
	r.Flags = opts.repeat()
	return r, whole, nil
}

// repeated are those of some flags that do not have their defaults, as arguments.
func repeated(flags *pflag.FlagSet, names ...string) (args []string) {
	for _, name := range names {
		f := mustLookup(flags, name)
		values := []string{f.Value.String()}
		if list, isList := f.Value.(pflag.SliceValue); isList {
			values = list.GetSlice()
		} else if !f.Changed && f.Value.String() == f.DefValue {
			continue
		}
		for _, value := range values {
			if f.Value.Type() == "bool" {
				args = append(args, "--"+name)
			} else {
				args = append(args, "--"+name, golden.Scrub(value))
			}
		}
	}
	return args
}

// repeat are the flags that judge the same subject by the same inputs again, whether they came from the command line or from the
// environment.
func (opts *conformOptions) repeat() []string {
	flags := repeated(opts.given, "compat", "manifest", "expectations", "level", "enforce", "start-timeout", "idle-timeout", "golden-timeout")
	if opts.subject.frontendCommand != "" {
		flags = append(flags, repeated(opts.given, "model")...)
	}
	return slices.Concat(flags, repeated(opts.given, storeFlags...), repeated(opts.given, "frames", "suite", "generate", "seed", "clients", "session", "engine-command", "engine-handshake", "frontend-command",
		"frontend-url", "frontend-handshake", "consumer-command", "engine-grace", "logprobs-mode", "engine-env", "frontend-env", "consumer-env",
		"router-command", "router-url", "router-config", "router-header", "router-backends", "router-engines", "router-env"))
}

func caseNames(cases []conformance.Case) []string {
	var names []string
	for _, c := range cases {
		names = append(names, c.Name())
	}
	return names
}

func logResult(env *environment, r conformance.Result) {
	env.log.Info("case", "name", r.Case.Name(), "verdict", r.Verdict, "asserted", r.Asserted, "duration", r.Duration)
}
