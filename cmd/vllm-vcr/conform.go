package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	vcr "github.com/vllm-vcr/conformance"
	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/protocol"
	"github.com/vllm-vcr/conformance/internal/report"
	"github.com/vllm-vcr/conformance/internal/vllmrs"
	"github.com/vllm-vcr/conformance/player"
)

// conformFlags are the flags of conform.
type conformFlags struct {
	in         inputs
	sel        conformance.Selection
	assertions []string
	matches    []string
	enforce    string
	goldens    string
	bucket     string
	frontends  []string
	model      string
	timeouts   conformance.Timeouts
	jsonPath   string
	printPlan  bool
}

func (a *app) conformCommand() *cobra.Command {
	f := conformFlags{timeouts: conformance.DefaultTimeouts()}
	cmd := &cobra.Command{
		Use:   "conform",
		Short: "Check every vLLM line against the goldens of its real engine",
		Long: "Plan line × golden × assertion from compat.toml and the manifest, verify the goldens, boot the embedded\n" +
			"player as each line's engine core over real ZeroMQ connections, and assert that it says byte for byte\n" +
			"what the real engine said. Prints a table and one verdict line, and exits by it.\n\n" +
			"With --frontend, the goldens of the line are also replayed behind the real vllm-rs of that line, through\n" +
			"its OpenAI HTTP side.",
		Example: "  vllm-vcr conform\n" +
			"  vllm-vcr conform --line 0.33 --golden multiturn-s7 --assertion fidelity --match prefix --concurrency 16\n" +
			"  vllm-vcr conform --line 0.33 --frontend 0.33=./vllm-rs --model ./model",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.conform(cmd.Context(), f) },
	}
	f.addFlags(cmd.Flags())
	return cmd
}

func (f *conformFlags) addFlags(flags *pflag.FlagSet) {
	f.in.addFlags(flags)
	flags.StringSliceVar(&f.sel.Lines, "line", nil, "lines to check, by name or tag (default all)")
	flags.StringSliceVar(&f.sel.Goldens, "golden", nil, "goldens to check, by id (default all)")
	flags.StringSliceVar(&f.assertions, "assertion", nil, "assertions to make: integrity, line, provenance, schema, fidelity (default all)")
	flags.StringSliceVar(&f.matches, "match", nil, "how fidelity requests find their record: index, prefix (default both)")
	flags.IntSliceVar(&f.sel.Concurrency, "concurrency", nil, "requests in flight during fidelity (default 1,16)")
	flags.StringVar(&f.enforce, "enforce", string(conformance.EnforceValidated), "lines that decide the exit code: validated, all, none")
	flags.StringVar(&f.goldens, "goldens", "", "directory that bucket_path is relative to (default ./"+vcr.GoldensPath+", else those in the binary)")
	flags.StringVar(&f.bucket, "bucket", "", "bucket that bucket_path is a key in, s3://name/prefix (default $CONFORMANCE_BUCKET)")
	flags.StringSliceVar(&f.frontends, "frontend", nil, "real vllm-rs to replay behind, as LINE=PATH; LINE may be left out when --line names one, or when the binary knows its release (0.29 and later)")
	flags.StringVar(&f.model, "model", "", "model directory for --frontend")
	flags.DurationVar(&f.timeouts.Connect, "connect-timeout", f.timeouts.Connect, "longest start of the engine under test, up to READY")
	flags.DurationVar(&f.timeouts.Idle, "idle-timeout", f.timeouts.Idle, "longest silence while a request is open")
	flags.DurationVar(&f.timeouts.Golden, "golden-timeout", f.timeouts.Golden, "longest fetch of a golden, and longest case")
	flags.StringVar(&f.jsonPath, "json", "", "write the whole report as JSON to this file")
	flags.BoolVar(&f.printPlan, "print-plan", false, "print the cases that would run, and end")
}

func (a *app) conform(ctx context.Context, f conformFlags) error {
	if err := f.checkTimeouts(); err != nil {
		return err
	}
	if f.goldens != "" && f.bucket != "" {
		return fmt.Errorf("--goldens %s and --bucket %s: want one of the two", f.goldens, f.bucket)
	}
	f.in.manifest = a.orEnv(f.in.manifest, "CONFORMANCE_MANIFEST")
	if f.goldens == "" {
		f.bucket = a.orEnv(f.bucket, "CONFORMANCE_BUCKET")
	}
	window, registry, err := a.load(f.in)
	if err != nil {
		return err
	}
	sel, err := f.selection(ctx)
	if err != nil {
		return err
	}
	cases, err := conformance.NewPlan(window, registry, sel)
	if err != nil {
		return err
	}
	if f.printPlan {
		return a.printPlan(cases)
	}
	store, err := a.store(f.bucket, f.goldens)
	if err != nil {
		return err
	}
	runner := conformance.Runner{Store: store, Timeouts: f.timeouts, Log: a.log, Progress: a.progress}
	result := runner.Run(ctx, cases)
	result.Flags = f.inputFlags()
	return a.finishConform(ctx, result, f.jsonPath)
}

// inputFlags are the flags that name the inputs of a run, whether they came from
// the command line or from the environment.
func (f *conformFlags) inputFlags() []string {
	var flags []string
	for _, flag := range []struct{ name, value, usual string }{
		{"--compat", f.in.compat, ""},
		{"--manifest", f.in.manifest, ""},
		{"--goldens", f.goldens, ""},
		{"--bucket", f.bucket, ""},
		{"--enforce", f.enforce, string(conformance.EnforceValidated)},
	} {
		if flag.value != flag.usual {
			flags = append(flags, flag.name, flag.value)
		}
	}
	return flags
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

func (a *app) finishConform(ctx context.Context, r *conformance.Report, jsonPath string) error {
	if err := report.Text(a.stdout, r); err != nil {
		return exitError{conformance.ExitInfra, fmt.Errorf("write report: %w", err)}
	}
	if jsonPath != "" {
		if err := writeFile(jsonPath, func(w io.Writer) error { return report.JSON(w, r) }); err != nil {
			// A report that is missing must not hide what it would have said.
			return exitError{cmp.Or(r.ExitCode, conformance.ExitInfra), fmt.Errorf("write report: %w", err)}
		}
	}
	if ctx.Err() != nil {
		return exitError{conformance.ExitInfra, fmt.Errorf("interrupted: the report covers what ran until then")}
	}
	if r.ExitCode != conformance.ExitOK {
		return exitError{r.ExitCode, errReported}
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

// realFrontends reads --frontend LINE=PATH.
func (f *conformFlags) realFrontends(ctx context.Context) (map[string]conformance.RealFrontend, error) {
	if f.model != "" && len(f.frontends) == 0 {
		return nil, fmt.Errorf("--model is for --frontend, which is not given")
	}
	frontends := map[string]conformance.RealFrontend{}
	for _, value := range f.frontends {
		line, path, named := strings.Cut(value, "=")
		if !named {
			line, path = "", value
		}
		if f.model == "" {
			return nil, fmt.Errorf("--frontend needs --model, a directory with config.json and tokenizer.json")
		}
		if _, err := os.Stat(path); err != nil {
			return nil, fmt.Errorf("--frontend: %w", err)
		}
		if filepath.Base(path) == path {
			path = "." + string(filepath.Separator) + path // the file that is there, not one of $PATH
		}
		var err error
		if !named {
			if line, err = f.frontendLine(ctx, path); err != nil {
				return nil, err
			}
		}
		if _, twice := frontends[line]; twice {
			return nil, fmt.Errorf("--frontend: line %s has two", line)
		}
		frontends[line] = conformance.RealFrontend{Binary: path, ModelDir: f.model}
	}
	return frontends, nil
}

// frontendLine finds the line of a binary that is given without one: the line
// that --line names, else that of the release which the binary says it is.
func (f *conformFlags) frontendLine(ctx context.Context, path string) (string, error) {
	if len(f.sel.Lines) == 1 {
		return f.sel.Lines[0], nil
	}
	version, err := vllmrs.Version(ctx, path)
	if err != nil {
		return "", fmt.Errorf("--frontend: %w; its line can be named: LINE=PATH", err)
	}
	return protocol.LineOf(version), nil
}

func (f *conformFlags) selection(ctx context.Context) (sel conformance.Selection, err error) {
	sel = f.sel
	if sel.Frontends, err = f.realFrontends(ctx); err != nil {
		return sel, err
	}
	if sel.Assertions, err = choose("--assertion", f.assertions, conformance.Assertions()...); err != nil {
		return sel, err
	}
	if sel.Matches, err = choose("--match", f.matches, player.MatchIndex, player.MatchPrefix); err != nil {
		return sel, err
	}
	for _, n := range sel.Concurrency {
		if n < 1 {
			return sel, fmt.Errorf("--concurrency %d: want at least 1", n)
		}
	}
	sel.Enforce, err = chooseOne("--enforce", conformance.Enforce(f.enforce),
		conformance.EnforceValidated, conformance.EnforceAll, conformance.EnforceNone)
	return sel, err
}

// choose converts words and refuses those that are not among the known ones.
func choose[T ~string](flag string, words []string, known ...T) ([]T, error) {
	var chosen []T
	for _, word := range words {
		one, err := chooseOne(flag, T(word), known...)
		if err != nil {
			return nil, err
		}
		chosen = append(chosen, one)
	}
	return chosen, nil
}

func chooseOne[T ~string](flag string, word T, known ...T) (T, error) {
	if !slices.Contains(known, word) {
		return "", fmt.Errorf("%s %q: want one of %v", flag, word, known)
	}
	return word, nil
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
