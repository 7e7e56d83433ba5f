package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	vcr "github.com/vllm-vcr/conformance"
	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/capture"
	"github.com/vllm-vcr/conformance/internal/capture/cluster"
	"github.com/vllm-vcr/conformance/internal/capture/remote"
	"github.com/vllm-vcr/conformance/internal/capture/target"
	"github.com/vllm-vcr/conformance/internal/report"
)

// runFlags are the flags of capture run.
type runFlags struct {
	remoteFlags
	local     bool
	here      localFlags
	manifest  string
	goldens   string
	upload    string
	s3        s3Flags
	failFast  bool
	admission time.Duration
}

// remoteFlags are what all commands have that are about captures in a cluster.
type remoteFlags struct {
	targets targetFlags
	cluster clusterFlags
	jobs    jobFlags
	runID   string
}

func (f *remoteFlags) addFlags(flags *pflag.FlagSet) {
	f.targets.addFlags(flags)
	f.cluster.addFlags(flags)
	f.jobs.addFlags(flags)
	flags.StringVar(&f.runID, "run-id", "", "name of the run, at most 20 letters, digits and hyphens (default $GITHUB_RUN_ID, else a new one)")
}

func addAdmissionFlag(flags *pflag.FlagSet, admission *time.Duration) {
	flags.DurationVar(admission, "admission-timeout", 6*time.Hour, "how long a Job may wait for quota")
}

// budgets are how long each stage of a Job may last. Once the frontend is ready, the engine serves.
func (f *remoteFlags) budgets(admission time.Duration) cluster.Budgets {
	return cluster.Budgets{Admission: admission, Start: f.jobs.run.Start, Load: f.jobs.run.Load}
}

func (a *app) captureRunCommand() *cobra.Command {
	var f runFlags
	cmd := &cobra.Command{
		Use:   "run TARGET…",
		Short: "Capture targets, and register what they say as goldens",
		Long: "Capture targets such as 0.33/multiturn-s7 or '0.33/*' to the end: run them, bring the recordings home, check them,\n" +
			"replay them, and register them in the manifest. With --line and no TARGET all of a line.\n\n" +
			"They run as Jobs in a Kubernetes cluster, of which Kueue admits as many as there are GPUs; each is deleted as soon\n" +
			"as its files are fetched, and whatever happens. A run that was killed is taken up by the same command with its\n" +
			"--run-id. With --local they run on this machine, one after another, with the line's engine for the CPU.\n\n" +
			"Nothing of a target is registered unless all of it is in order. The others are not held up by one that fails.",
		Example: "  vllm-vcr capture run --local --line 0.33\n  vllm-vcr capture run '0.33/*' --upload s3://bucket/prefix",
		RunE:    func(cmd *cobra.Command, args []string) error { return a.captureRun(cmd.Context(), f, args) },
	}
	flags := cmd.Flags()
	f.remoteFlags.addFlags(flags)
	f.here.addFlags(flags)
	flags.BoolVar(&f.local, "local", false, "run on this machine, without a GPU")
	flags.StringVar(&f.manifest, "manifest", "", "registry of goldens, which is edited (default $CONFORMANCE_MANIFEST, else ./"+vcr.ManifestPath+")")
	flags.StringVar(&f.goldens, "goldens-dir", vcr.GoldensPath, "directory that bucket_path is relative to")
	flags.StringVar(&f.upload, "upload", "", "where to keep the goldens instead: s3://bucket/prefix, or file:///dir")
	f.s3.addFlags(flags)
	flags.BoolVar(&f.failFast, "fail-fast", false, "give up all targets when one fails")
	addAdmissionFlag(flags, &f.admission)
	return cmd
}

func (a *app) captureRun(ctx context.Context, f runFlags, args []string) error {
	if err := f.here.enter(); err != nil {
		return err
	}
	if err := a.learnBeside(cmp.Or(f.targets.compat, vcr.CompatPath)); err != nil {
		return err
	}
	if err := f.s3.resolve(); err != nil {
		return err
	}
	targets, err := f.chosen(a, args)
	if err != nil {
		return err
	}
	accept, err := f.acceptor(a)
	if err != nil {
		return err
	}
	outcomes, err := f.outcomes(ctx, a, targets, accept)
	if err != nil {
		return err
	}
	return a.printOutcomes(ctx, outcomes)
}

// chosen are the targets of the command line, of which there must be some: all of all lines is never meant.
func (f *remoteFlags) chosen(a *app, args []string) ([]target.Target, error) {
	if len(args) == 0 && len(f.targets.lines) == 0 {
		return nil, errors.New("no target is given: want such as 0.33/multiturn-s7, or --line 0.33; `vllm-vcr capture list` shows all")
	}
	return f.targets.resolve(a, args)
}

// acceptor makes goldens of recordings, or is nil if they are not wanted.
func (f *runFlags) acceptor(a *app) (func(context.Context, capture.Recording) (capture.Accepted, error), error) {
	if f.here.noRegister {
		return nil, nil
	}
	opt := capture.AcceptOptions{
		Manifest: cmp.Or(a.orEnv(f.manifest, "CONFORMANCE_MANIFEST"), vcr.ManifestPath), Goldens: f.goldens, Upload: f.upload,
		S3: f.s3.Options, Run: a.runURL(), Log: a.log, Progress: a.progress,
		Store: conformance.NewStore(conformance.StoreOptions{Dir: f.goldens, S3: f.s3.Options, Log: a.log}),
	}
	opt.Window, _ = a.loadCompat(f.targets.compat) // its findings were told when targets were chosen
	return func(ctx context.Context, rec capture.Recording) (capture.Accepted, error) {
		if err := beginRegistry(opt.Manifest); err != nil {
			return capture.Accepted{}, err
		}
		return capture.Accept(ctx, opt, rec)
	}, nil
}

func (f *runFlags) outcomes(
	ctx context.Context, a *app, targets []target.Target, accept func(context.Context, capture.Recording) (capture.Accepted, error),
) ([]capture.Outcome, error) {
	if !f.local {
		opt := remote.Options{
			Accept: accept, FailFast: f.failFast,
			Budgets: f.budgets(f.admission),
		}
		return f.remote(ctx, a, targets, f.here.work, opt)
	}
	outcomes, err := a.runLocal(ctx, targets, f.here, f.failFast)
	if err != nil {
		return nil, err
	}
	acceptAll(ctx, outcomes, a.timed(accept), f.failFast)
	return outcomes, nil
}

// acceptAll takes the recordings of this machine.
func acceptAll(
	ctx context.Context, outcomes []capture.Outcome, accept func(context.Context, capture.Recording) (capture.Accepted, error), failFast bool,
) {
	var failed error
	for i := range outcomes {
		o := &outcomes[i]
		if o.Err == nil && failed != nil {
			o.Err = failed
		}
		if o.Err == nil && accept != nil {
			o.Accepted, o.Err = accept(ctx, o.Recording)
		}
		if o.Err != nil && failFast {
			failed = errors.New("not registered, as another target failed")
		}
	}
}

// remote captures targets in the cluster. Recordings come to a folder of the run below work.
func (f *remoteFlags) remote(
	ctx context.Context, a *app, targets []target.Target, work string, opt remote.Options,
) ([]capture.Outcome, error) {
	client, err := f.cluster.connect(a)
	if err != nil {
		return nil, err
	}
	id := f.run(a)
	if opt.Jobs, err = f.jobs.jobs(targets, id, client.Namespace()); err != nil {
		return nil, err
	}
	a.tell(fmt.Sprintf("run %s: %d targets in namespace %s of %s; if this is killed, take it up with --run-id %s",
		id, len(targets), client.Namespace(), client.Server(), id))
	opt.Queue, opt.Dir, opt.Log, opt.Tell = f.jobs.run.Queue, filepath.Join(work, id), a.log, a.tellTarget
	var c remote.Cluster = client
	if opt.KeepFailed {
		c = submitted{client}
	}
	outcomes, err := remote.Capture(ctx, c, opt, targets)
	if err != nil {
		return nil, exitError{conformance.ExitInfra, err}
	}
	return outcomes, nil
}

// run is the name of the run.
func (f *remoteFlags) run(a *app) string {
	id := cmp.Or(f.runID, a.orEnv("", "GITHUB_RUN_ID"))
	if id == "" {
		var random [3]byte
		_, _ = rand.Read(random[:]) // never fails
		id = time.Now().UTC().Format("20060102") + "-" + hex.EncodeToString(random[:])
	}
	return id
}

// tellTarget tells of progress with one target, in lines of whoever wrote them.
func (a *app) tellTarget(t target.Target, text string) {
	prefix := t.Name() + ": "
	for line := range strings.SplitSeq(text, "\n") {
		a.tell(prefix + strings.TrimPrefix(line, prefix))
	}
}

// printOutcomes says what became of each target, and chooses the exit code.
func (a *app) printOutcomes(ctx context.Context, outcomes []capture.Outcome) error {
	failed, code := 0, conformance.ExitOK
	for _, o := range outcomes {
		for _, w := range o.Accepted.Warnings {
			a.tellTarget(o.Target, "warning: "+w)
		}
		for line := range strings.SplitSeq(outcomeText(o), "\n") {
			if _, err := fmt.Fprintln(a.stdout, report.OneLine(line)); err != nil {
				return err
			}
		}
		if o.Err != nil {
			failed++
			code = worseFailure(code, exitCodeOf(o.Err))
		}
	}
	switch {
	case ctx.Err() != nil:
		return exitError{conformance.ExitInfra, errors.New("interrupted")}
	case failed > 0:
		return exitError{code, fmt.Errorf("%d of %d targets failed", failed, len(outcomes))}
	}
	return nil
}

// outcomeText is the result of one target.
func outcomeText(o capture.Outcome) string {
	name := o.Target.Name()
	if o.Err != nil {
		prefix := name + ": "
		lines := strings.Split(o.Err.Error(), "\n")
		for i, line := range lines {
			lines[i] = prefix + "failed: " + strings.TrimPrefix(line, prefix)
		}
		return strings.Join(lines, "\n")
	}
	if len(o.Accepted.Goldens) == 0 {
		return name + ": captured: " + o.Recording.Dir
	}
	var goldens []string
	for _, done := range o.Accepted.Goldens {
		g := done.Golden
		what := "registered already"
		if done.Changed {
			what = "registered"
		}
		content := fmt.Sprintf("%d messages", done.Messages)
		if done.Messages == 0 {
			content = fmt.Sprintf("%d requests, %d tokens", g.Records, g.Tokens)
			if o.Accepted.Before != "" {
				content += ", " + o.Accepted.Before + " answers as before"
			}
		}
		goldens = append(goldens, fmt.Sprintf("%s: %s %s: %s, sha256 %s, %s", name, what, g.ID, content, g.SHA256, done.Location))
	}
	return strings.Join(goldens, "\n")
}

// exitCodeOf is the code of a target that failed.
func exitCodeOf(err error) int {
	var refused *capture.RefusedError
	var registration *conformance.RegistrationError
	switch {
	case errors.As(err, &refused):
		return conformance.ExitFail
	case errors.As(err, &registration):
		return registration.ExitCode
	}
	return conformance.ExitInfra
}

// worseFailure is the code of two failures: what says least about the engine wins, so that 1 means that all of them are about it.
func worseFailure(a, b int) int {
	if a == conformance.ExitOK || a == conformance.ExitFail {
		return b
	}
	return a
}
