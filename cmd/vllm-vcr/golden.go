package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	vcr "github.com/vllm-vcr/conformance"
	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/base/tomlfile"
	"github.com/vllm-vcr/conformance/internal/report"
	"github.com/vllm-vcr/conformance/manifest"
)

func (a *app) goldenCommand() *cobra.Command {
	return group(&cobra.Command{
		Use:   "golden",
		Short: "Look after the goldens: the recorded runs of real engines",
	}, a.goldenAddCommand(), a.goldenListCommand(), a.goldenPullCommand(), a.goldenVerifyCommand(), a.goldenBundleCommand(),
		a.goldenExportCommand())
}

// goldenAddFlags are the flags of golden add.
type goldenAddFlags struct {
	req    conformance.Registration
	compat string
	role   string
	seed   int64
	s3     s3Flags
}

func (a *app) goldenAddCommand() *cobra.Command {
	var f goldenAddFlags
	cmd := &cobra.Command{
		Use:   "add",
		Short: "Register what the tap recorded as a golden",
		Long: "Read a recorded trace to its end, check that a released engine of the line said it and that it tells how it\n" +
			"was captured, replay it as conform does, keep it under a name that holds its digest, and put it into the\n" +
			"manifest. A golden of the same line and id is replaced. The same trace always gives the same file, and\n" +
			"registering it again changes nothing.\n\n" +
			"With --role wire the trace is a file of raw frames (record --frames-out).",
		Example: "  vllm-vcr golden add --trace run.jsonl.gz --line 0.33 --id multiturn-s7 --scenario baseline --seed 7\n" +
			"  vllm-vcr golden add --trace run.jsonl.gz --line 0.33 --id multiturn-s7 --upload s3://bucket/prefix",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cmd.Flags().Changed("seed") {
				f.req.Seed = &f.seed
			}
			return a.goldenAdd(cmd.Context(), f)
		},
	}
	f.addFlags(cmd.Flags())
	return cmd
}

func (f *goldenAddFlags) addFlags(flags *pflag.FlagSet) {
	flags.StringVar(&f.req.Trace, "trace", "", "file that the tap wrote, .jsonl or .jsonl.gz")
	flags.StringVar(&f.req.Line, "line", "", "line of the engine, by name or tag")
	flags.StringVar(&f.req.ID, "id", "", "name of the golden in its line")
	flags.StringVar(&f.req.Workload, "workload", "", "what was asked of the engine (default the id)")
	flags.StringVar(&f.role, "role", string(manifest.Fidelity), "what the golden pins: fidelity, schema, wire")
	flags.StringVar(&f.req.Scenario, "scenario", "", "variation of the engine, such as baseline or nocache (default that of the golden it replaces)")
	flags.Int64Var(&f.seed, "seed", 0, "seed of the load generator (default that of the golden it replaces)")
	flags.StringVar(&f.compat, "compat", "", "support window (default ./"+vcr.CompatPath+", else the one in the binary)")
	flags.StringVar(&f.req.Manifest, "manifest", "", "registry of goldens, which is edited (default $CONFORMANCE_MANIFEST, else ./"+vcr.ManifestPath+")")
	flags.StringVar(&f.req.Goldens, "goldens-dir", vcr.GoldensPath, "directory that bucket_path is relative to")
	flags.StringVar(&f.req.Upload, "upload", "", "where to keep the golden instead: s3://bucket/prefix, or file:///dir")
	f.s3.addFlags(flags)
	flags.BoolVar(&f.req.AllowPatchDrift, "allow-patch-drift", false, "take a capture of another patch release than the one that stands for the line")
	flags.BoolVar(&f.req.DryRun, "dry-run", false, "check and replay, and write nothing")
}

func (a *app) goldenAdd(ctx context.Context, f goldenAddFlags) error {
	for _, needed := range []struct{ flag, value string }{{"--trace", f.req.Trace}, {"--line", f.req.Line}, {"--id", f.req.ID}} {
		if needed.value == "" {
			return fmt.Errorf("%s is not given", needed.flag)
		}
	}
	if err := f.s3.resolve(); err != nil {
		return err
	}
	f.req.S3 = f.s3.S3Options
	window, findings := a.loadCompat(f.compat)
	for _, finding := range findings {
		a.tell(finding)
	}
	if tomlfile.HasErrors(findings) {
		return fmt.Errorf("%s cannot be used as it is", window.File)
	}
	f.req.Window, f.req.Role = window, manifest.Role(f.role)
	f.req.Manifest = cmp.Or(a.orEnv(f.req.Manifest, "CONFORMANCE_MANIFEST"), vcr.ManifestPath)
	f.req.Log, f.req.Progress = a.log, a.progress
	done, err := conformance.Register(ctx, f.req)
	if err != nil {
		return a.refused(ctx, done, err)
	}
	for _, w := range done.Warnings {
		a.tell(w)
	}
	return a.printRegistered(f.req, done)
}

// refused tells why nothing was registered: each problem is a line.
func (a *app) refused(ctx context.Context, done conformance.Registered, err error) error {
	var refusal *conformance.RegistrationError
	if !errors.As(err, &refusal) {
		return err
	}
	if done.Report != nil && done.Report.ExitCode != conformance.ExitOK {
		for _, r := range done.Report.Results {
			for _, failure := range r.Failures {
				fmt.Fprintf(a.stdout, "%s %s: %s\n", strings.ToUpper(string(r.Verdict)), r.Case.Name(), report.OneLine(failure.Message))
			}
		}
		fmt.Fprintln(a.stdout, report.Verdict(report.New(done.Report, report.Meta{})))
	}
	for _, p := range refusal.Problems {
		fmt.Fprintf(a.stderr, "vllm-vcr: error: %s\n", report.OneLine(p.Error()))
	}
	if ctx.Err() != nil {
		return exitError{conformance.ExitInfra, errors.New("interrupted: nothing was registered")}
	}
	return exitError{refusal.ExitCode, errReported}
}

// printRegistered says what was checked and what was written.
func (a *app) printRegistered(req conformance.Registration, done conformance.Registered) error {
	g := done.Golden
	stored, edited := "is there already", "has it already"
	switch {
	case req.DryRun:
		stored = "not stored: dry run"
	case done.Stored:
		stored = "stored"
	}
	switch {
	case done.Changed && req.DryRun:
		edited = "not edited: dry run"
	case done.Changed && done.Replaced:
		edited = "golden replaced"
	case done.Changed:
		edited = "golden added"
	}
	content := fmt.Sprintf("%d records, %d streams, %d tokens", g.Records, g.Streams, g.Tokens)
	if g.Role == manifest.Wire {
		content = fmt.Sprintf("%d messages", done.Messages)
	}
	lines := []string{
		fmt.Sprintf("golden %s/%s: %s of vLLM %s on %s, %s", g.Line, g.ID, g.Role, g.VLLMVersion, g.GPU, g.Model),
		fmt.Sprintf("checked: %s: %s", req.Trace, content),
		"conform: " + report.Verdict(report.New(done.Report, report.Meta{})),
		fmt.Sprintf("%s: %s, %d bytes, sha256 %s", done.Location, stored, g.Size, g.SHA256),
		fmt.Sprintf("%s: %s", req.Manifest, edited),
	}
	if done.Removed != "" {
		lines = append(lines, done.Removed+": removed")
	}
	for _, line := range lines {
		if _, err := fmt.Fprintln(a.stdout, report.OneLine(line)); err != nil {
			return err
		}
	}
	return nil
}

func (a *app) goldenListCommand() *cobra.Command {
	var path string
	cmd := &cobra.Command{
		Use:   "list",
		Short: "Print the goldens of the manifest",
		Long: "Print the goldens of the manifest as a table: line, id, role, requests, output tokens, bytes as stored, and\n" +
			"where the bytes are.",
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error { return a.goldenList(path) },
	}
	cmd.Flags().StringVar(&path, "manifest", "", "registry of goldens (default $CONFORMANCE_MANIFEST, ./"+vcr.ManifestPath+", else the one in the binary)")
	return cmd
}

func (a *app) goldenList(path string) error {
	window, _ := a.loadCompat("") // only tells what to leave out of the embedded registry
	registry, findings := a.loadManifest(path, window)
	a.tellFindings(findings)
	if tomlfile.HasErrors(findings) {
		return fmt.Errorf("%s cannot be used as it is", registry.File)
	}
	return a.printGoldens(registry.Goldens)
}

func (a *app) printGoldens(goldens []manifest.Golden) error {
	tw := tabwriter.NewWriter(a.stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "LINE\tID\tROLE\tRECORDS\tTOKENS\tSIZE\tPATH")
	for _, g := range goldens {
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", g.Line, g.ID, g.Role,
			orDash(int64(g.Records)), orDash(int64(g.Tokens)), orDash(g.Size), g.BucketPath)
	}
	return tw.Flush()
}

// orDash is a count that the manifest may not have.
func orDash(n int64) string {
	if n == 0 {
		return "-"
	}
	return fmt.Sprint(n)
}
