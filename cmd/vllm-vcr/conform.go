package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/report"
	"github.com/vllm-vcr/conformance/manifest"
)

// conformGCPercent saves a sixth of the processor time for some 20 MB of memory.
const conformGCPercent = 400

// conformFlags are the flags of conform.
type conformFlags struct {
	in         inputs
	sel        conformance.Selection
	assertions []string
	matches    []string
	enforce    string
	store      storeFlags
	frontends  []string
	model      string
	timeouts   conformance.Timeouts
	report     reportFlags
	plan       planFlags
	subject    subjectFlags
	selfTest   bool

	given *pflag.FlagSet // those of the command
}

func (a *app) conformCommand() *cobra.Command {
	f := conformFlags{timeouts: conformance.DefaultTimeouts()}
	cmd := &cobra.Command{
		Use:   "conform",
		Short: "Check every vLLM line against the goldens of its real engine",
		Long: "Plan line × golden × assertion from compat.toml and the manifest, verify the goldens, boot the embedded\n" +
			"player as each line's engine core over real ZeroMQ connections, and assert that it says byte for byte\n" +
			"what the real engine said. Prints a table and one verdict line, and exits by it.\n\n" +
			"With --engine-command or --engine-address another engine is judged in its place, with --frontend-command or\n" +
			"--frontend-url a frontend; docs/conforming.md is the guide. With --frontend, the goldens of the line are\n" +
			"also replayed behind the real vllm-rs of that line, through its OpenAI HTTP side. --self-test injects\n" +
			"faults and demands that the checks find each.",
		Example: "  vllm-vcr conform\n" +
			"  vllm-vcr conform --line 0.33 --golden multiturn-s7 --assertion fidelity --match prefix --concurrency 16\n" +
			"  vllm-vcr conform --line 0.33 --engine-command './my-engine {handshake} {trace}' --report-dir report\n" +
			"  vllm-vcr conform --line 0.33 --suite live --engine-command './my-engine {handshake}'\n" +
			"  vllm-vcr conform --line 0.33 --frontend-command './my-frontend {handshake} {http_port}'\n" +
			"  vllm-vcr conform --line 0.33 --frontend 0.33=./vllm-rs --model ./model\n" +
			"  vllm-vcr conform --self-test",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.conform(cmd.Context(), f) },
	}
	f.addFlags(cmd.Flags())
	cmd.AddCommand(a.reportCommands()...)
	return cmd
}

func (f *conformFlags) addFlags(flags *pflag.FlagSet) {
	f.in.addFlags(flags)
	flags.StringSliceVar(&f.sel.Lines, "line", nil, "lines to check, by name or tag (default all)")
	flags.StringSliceVar(&f.sel.Goldens, "golden", nil, "goldens to check, by id (default all)")
	flags.StringSliceVar(&f.assertions, "assertion", nil, "assertions to make: integrity, line, provenance, schema, fidelity, wire, or those of --suite (default all)")
	flags.StringSliceVar(&f.matches, "match", nil, "how fidelity requests find their record: index, prefix (default both)")
	flags.IntSliceVar(&f.sel.Concurrency, "concurrency", nil, "requests in flight during fidelity (default 1,16)")
	flags.StringVar(&f.enforce, "enforce", string(conformance.EnforceValidated), "lines that decide the exit code: validated, all, none")
	flags.StringSliceVar(&f.frontends, "frontend", nil, "real vllm-rs to replay behind, as LINE=PATH; LINE may be left out when --line names one, or when the binary knows its release (0.29 and later)")
	flags.StringVar(&f.model, "model", "", "model directory for --frontend, and {model} of --frontend-command")
	flags.DurationVar(&f.timeouts.Connect, "connect-timeout", f.timeouts.Connect, "longest start of what is under test, up to READY; unless set, 10m for an engine under test and 5m for a frontend")
	flags.DurationVar(&f.timeouts.Idle, "idle-timeout", f.timeouts.Idle, "longest silence while a request is open; unless set, 2m for an engine under test")
	flags.DurationVar(&f.timeouts.Golden, "golden-timeout", f.timeouts.Golden, "longest fetch of a golden, and longest case")
	flags.BoolVar(&f.selfTest, "self-test", false, "inject faults into the player and the goldens, and demand that the checks find each")
	f.given = flags
	f.store.addFlags(flags)
	f.subject.addFlags(flags)
	f.report.addFlags(flags)
	f.plan.addFlags(flags)
}

func (a *app) conform(ctx context.Context, f conformFlags) error {
	started := time.Now()
	if _, given := a.lookupEnv("GOGC"); !given {
		// A run makes much garbage that is dead at once, and keeps little.
		defer debug.SetGCPercent(debug.SetGCPercent(conformGCPercent))
	}
	if err := f.plan.check(f.given); err != nil {
		return err
	}
	if f.plan.explain != "" {
		return a.explain(f.plan.explain)
	}
	if err := f.check(); err != nil {
		return err
	}
	if err := f.store.resolve(a, &f.in); err != nil {
		return err
	}
	window, registry, err := a.load(f.in)
	if err != nil {
		return err
	}
	sel, err := f.selection(ctx)
	if err != nil {
		return err
	}
	if f.selfTest {
		f.sel = sel
		return a.selfTest(ctx, f, window, registry, started)
	}
	return a.judge(ctx, f, sel, window, registry, started)
}

// judge plans the cases of a selection and runs them, or prints what it was asked to
// print of them.
func (a *app) judge(
	ctx context.Context, f conformFlags, sel conformance.Selection, window *compat.Matrix, registry *manifest.Manifest, started time.Time,
) error {
	cases, err := conformance.NewPlan(window, registry, sel)
	if err != nil {
		return err
	}
	all, err := conformance.EveryCase(window, registry, sel)
	if err != nil {
		return err
	}
	expected, err := a.loadExpectations(f.plan.expectations, all)
	if err != nil {
		return err
	}
	runner := conformance.Runner{Timeouts: f.timeouts, Expectations: expected, All: all}
	if err := f.subject.put(a, &runner, sel.Suite, f.model, cases); err != nil {
		return err
	}
	if f.plan.prints() {
		return a.printed(ctx, &f, &runner, cases)
	}
	result, whole, err := a.runCases(ctx, &f, &runner, cases)
	if err != nil {
		return err
	}
	if whole {
		ctx = context.WithoutCancel(ctx) // nothing is left that could be interrupted
	}
	meta := a.reportMeta(f.report, started, window.File, registry.File, expected.File)
	reported := a.finishReport(ctx, report.New(result, meta), f.report)
	return a.updated(&f.plan, result, all, reported)
}

// runCases runs the cases and shows how far they are. The report is whole when no case
// of it was interrupted: what an interrupt ends after that is only what was kept alive.
func (a *app) runCases(ctx context.Context, f *conformFlags, runner *conformance.Runner, cases []conformance.Case) (r *conformance.Report, whole bool, err error) {
	bar := a.openBar(cases) // from here on the log is written above it
	defer bar.close()
	f.store.timeout = f.timeouts.Golden
	if runner.Store, err = a.openStore(&f.store); err != nil {
		return nil, false, err
	}
	runner.Log = a.log
	f.subject.before(a)
	left := len(cases)
	runner.Progress = func(r conformance.Result) {
		a.progress(r)
		bar.add(r)
		if left--; left == 0 && ctx.Err() == nil {
			whole = true
			f.subject.after(a, len(cases))
		}
	}
	r = runner.Run(ctx, cases)
	r.Flags = f.inputFlags()
	return r, whole, nil
}

// check refuses flags that say nothing sensible together.
func (f *conformFlags) check() error {
	if err := f.checkTimeouts(); err != nil {
		return err
	}
	if err := f.report.check(); err != nil {
		return err
	}
	if !f.selfTest {
		return nil
	}
	// A self-test chooses its own goldens and is its own subject.
	for _, name := range []string{
		"golden", "assertion", "match", "concurrency", "frontend", "model", "print-plan", "expectations", "update-expectations",
		"suite", "engine-command", "engine-address", "frontend-command", "frontend-url", "frontend-handshake", "keep-alive",
		"connect-timeout", "idle-timeout", "golden-timeout", "enforce",
	} {
		if f.given.Changed(name) {
			return fmt.Errorf("--self-test has no use for --%s", name)
		}
	}
	return nil
}

// inputFlags are the flags that name the inputs of a run, whether they came from
// the command line or from the environment.
func (f *conformFlags) inputFlags() []string {
	var flags []string
	for _, flag := range []struct{ name, value, usual string }{
		{"--compat", f.in.compat, ""},
		{"--manifest", f.in.manifest, ""},
		{"--expectations", f.plan.expectations, ""},
		{"--enforce", f.enforce, string(conformance.EnforceValidated)},
	} {
		if flag.value != flag.usual {
			flags = append(flags, flag.name, flag.value)
		}
	}
	if f.model != "" && f.subject.frontendCommand != "" {
		flags = append(flags, "--model", f.model)
	}
	return slices.Concat(flags, f.store.repeat(), f.subject.flags())
}

func (f *conformFlags) checkTimeouts() error {
	for _, limit := range []struct {
		flag  string
		value time.Duration
	}{
		{"--connect-timeout", f.timeouts.Connect},
		{"--idle-timeout", f.timeouts.Idle},
		{"--golden-timeout", f.timeouts.Golden},
	} {
		if limit.value <= 0 {
			return fmt.Errorf("%s %v: want more than 0", limit.flag, limit.value)
		}
	}
	return nil
}

// writeFile creates a file and reports a failed write or close.
func writeFile(path string, write func(io.Writer) error) error {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	if err := write(file); err != nil {
		file.Close()
		return err
	}
	return file.Close()
}

func (a *app) printPlan(cases []conformance.Case) error {
	for _, c := range cases {
		note := ""
		if c.Gating {
			note = "  gating"
		}
		if c.Skip != "" {
			note = "  " + c.Skip
		}
		if _, err := fmt.Fprintf(a.stdout, "%s%s\n", c.Name(), note); err != nil {
			return err
		}
	}
	return nil
}

func (a *app) progress(r conformance.Result) {
	a.log.Info("case", "name", r.Case.Name(), "verdict", r.Verdict, "asserted", r.Asserted, "duration", r.Duration)
}
