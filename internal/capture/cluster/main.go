package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/base/jsonout"
	base "github.com/vllm-vcr/conformance/internal/base/process"
	"github.com/vllm-vcr/conformance/internal/base/safetext"
	"github.com/vllm-vcr/conformance/internal/base/tomlfile"
	"github.com/vllm-vcr/conformance/internal/capture"
	"github.com/vllm-vcr/conformance/internal/capture/deploy"
	"github.com/vllm-vcr/conformance/internal/capture/target"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// Main is vllm-vcr-cluster: it carries out the request of vllm-vcr and returns the exit code. version is that which the
// linker set, if it did.
func Main(version string) int {
	ctx, finish := base.NotifyContext(context.Background(), conformance.ExitInfra)
	defer finish()
	if len(os.Args) > 1 && os.Args[1] == "version" {
		fmt.Println(base.Version(version))
		return conformance.ExitOK
	}
	p := process{stdout: os.Stdout, stderr: os.Stderr}
	err := p.run(ctx)
	if err == nil {
		return conformance.ExitOK
	}
	p.print(fmt.Sprintf("vllm-vcr: error: %v", err))
	var coded codeError
	if errors.As(err, &coded) {
		return coded.code
	}
	return conformance.ExitUsage
}

// A codeError is an error with an exit code other than that of wrong usage.
type codeError struct {
	error
	code int
}

func (e codeError) Unwrap() error { return e.error }

// infra is an error of what is outside this program.
func infra(err error) error { return codeError{err, conformance.ExitInfra} }

// A process carries out one request.
type process struct {
	deploy.HelperRequest
	stdout, stderr io.Writer
	log            *slog.Logger
	client         *Client
}

// print writes lines to stderr that have text of others in them.
func (p *process) print(text string) {
	_ = safetext.Fprint(p.stderr, text) // there is no other place to report it
}

func (p *process) run(ctx context.Context) (err error) {
	if p.HelperRequest, err = deploy.Receive(); err != nil {
		return err
	}
	p.log = safetext.NewLog(p.stderr, p.Verbose, p.LogFormat)
	p.client, err = Connect(Options{
		Kubeconfig: p.Cluster.Kubeconfig, Context: p.Cluster.Context, Namespace: p.Cluster.Namespace,
		Server: p.Cluster.Server, CAFile: p.Cluster.CAFile, TokenAudience: p.Cluster.TokenAudience,
		Credential:   []string{p.HelperRequest.Program, "capture", "credential"},
		TargetLabels: []string{deploy.LabelLine, deploy.LabelTarget}, RunLabel: deploy.LabelRun, Log: p.log,
	})
	if err != nil {
		return err
	}
	switch p.Command {
	case deploy.Submit:
		return p.submit(ctx)
	case deploy.Status:
		return p.status(ctx)
	case deploy.Clean:
		return p.clean(ctx)
	case deploy.Fetch, deploy.RunTargets:
		return p.capture(ctx)
	}
	return fmt.Errorf("%w (command %q)", deploy.ErrNoRequest, p.Command)
}

// jobs renders the Jobs of the targets, in the client's namespace.
func (p *process) jobs() ([]*deploy.Job, error) {
	p.Jobs.ID, p.Jobs.Namespace = p.RunID, p.client.Namespace()
	return deploy.Jobs(p.Targets, p.Jobs)
}

// submit leaves the Jobs of all targets in the cluster.
func (p *process) submit(ctx context.Context) error {
	jobs, err := p.jobs()
	if err != nil {
		return err
	}
	if err := p.client.Preflight(ctx, p.Jobs.Queue); err != nil {
		return infra(err)
	}
	failed := 0
	for i, job := range jobs {
		state, created, err := p.client.Submit(ctx, job)
		text := fmt.Sprintf("submitted: job %s of run %s", job.Name, p.RunID)
		switch {
		case err != nil:
			failed++
			text = fmt.Sprintf("failed: %v", err)
		case !created:
			text = fmt.Sprintf("there already: job %s of run %s is %s", job.Name, p.RunID, state.Phase)
		}
		if _, err := fmt.Fprintln(p.stdout, safetext.Line(p.Targets[i].Name()+": "+text)); err != nil {
			return err
		}
	}
	if failed > 0 {
		return infra(fmt.Errorf("%d of %d targets were not submitted", failed, len(jobs)))
	}
	return nil
}

// submitted is a cluster that takes no more Jobs.
type submitted struct{ *Client }

func (s submitted) Submit(ctx context.Context, job *deploy.Job) (State, bool, error) {
	state, err := s.Get(ctx, job.Name)
	if err == nil {
		return state, false, nil
	}
	return state, false, fmt.Errorf("%w: submit the target, or give the --run-id under which it was submitted", err)
}

// capture captures the targets to the end, or of fetch from where they were submitted. Recordings come to a folder of the
// run below that for all.
func (p *process) capture(ctx context.Context) error {
	jobs, err := p.jobs()
	if err != nil {
		return err
	}
	opt := CaptureOptions{
		Jobs: jobs, Queue: p.Jobs.Queue, Dir: filepath.Join(p.Work, p.RunID), FailFast: p.FailFast, Log: p.log,
		// Once the frontend is ready, the engine serves.
		Budgets: Budgets{Admission: p.Admission, Start: p.Jobs.Start, Load: p.Jobs.Load},
		Tell:    func(t target.Target, text string) { capture.PrintAbout(p.stderr, t, text) },
	}
	if p.Accept != nil {
		if opt.Accept, err = p.acceptor(); err != nil {
			return err
		}
	}
	var c Cluster = p.client
	if p.Command == deploy.Fetch {
		opt.KeepFailed, c = true, submitted{p.client}
	}
	p.print(fmt.Sprintf("run %s: %d targets in namespace %s of %s; if this is killed, take it up with --run-id %s",
		p.RunID, len(p.Targets), p.client.Namespace(), p.client.Server(), p.RunID))
	outcomes, err := Capture(ctx, c, opt, p.Targets)
	if err != nil {
		return infra(err)
	}
	stdout := p.stdout
	if p.JSON && p.Command == deploy.Fetch {
		if err := jsonout.Write(p.stdout, p.fetchResult(outcomes)); err != nil {
			return err
		}
		stdout = io.Discard
	}
	code, err := capture.Report(stdout, p.stderr, outcomes)
	if ctx.Err() != nil {
		return infra(errors.New("interrupted"))
	}
	if err != nil {
		return codeError{err, code}
	}
	return nil
}

// acceptor registers the goldens of recordings.
func (p *process) acceptor() (func(context.Context, capture.Recording) (capture.Accepted, error), error) {
	if dir := p.Accept.Profiles; dir != "" {
		files := os.DirFS(dir)
		if !p.Accept.AllProfiles {
			files = protocol.LineFiles(files)
		}
		if err := protocol.LearnAll(files); err != nil {
			return nil, fmt.Errorf("%s: %w", dir, err)
		}
	}
	matrix, diagnostics := compat.Parse(p.Accept.CompatFile, p.Accept.Compat)
	if tomlfile.HasErrors(diagnostics) {
		return nil, fmt.Errorf("%s cannot be used as it is", matrix.File)
	}
	opt := capture.AcceptOptions{
		Matrix: matrix, Manifest: p.Accept.Manifest, NewManifest: true, Goldens: p.Accept.Goldens, Upload: p.Accept.Upload,
		S3: p.Accept.S3, Run: p.Accept.RunURL, Log: p.log, Progress: func(r conformance.Result) {
			p.log.Info("case", "name", r.Case.Name(), "verdict", r.Verdict, "asserted", r.Asserted, "duration", r.Duration)
		},
		Store: conformance.NewStore(conformance.StoreOptions{Dir: p.Accept.Goldens, S3: p.Accept.S3, Log: p.log}),
	}
	return func(ctx context.Context, rec capture.Recording) (capture.Accepted, error) {
		return capture.Accept(ctx, opt, rec)
	}, nil
}

// status prints the Jobs of captures as a table.
func (p *process) status(ctx context.Context) error {
	states, err := p.list(ctx)
	if err != nil {
		return err
	}
	if p.JSON {
		return jsonout.Write(p.stdout, statusResult(states))
	}
	tw := tabwriter.NewWriter(p.stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "TARGET\tRUN\tPHASE\tSINCE\tNODE\tWHY")
	for _, s := range states {
		since := "-"
		if !s.Since.IsZero() {
			since = s.Since.UTC().Format(time.RFC3339)
		}
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%s\t%s\n", safetext.Line(s.Annotations[deploy.AnnotationTarget]),
			safetext.Line(s.Labels[deploy.LabelRun]), s.Phase, since, safetext.Line(cmp.Or(s.Node, "-")), safetext.Line(s.Why()))
	}
	return tw.Flush()
}

// statusJSON is what status prints as JSON.
type statusJSON struct {
	Schema   string        `json:"schema"`
	Captures []captureJSON `json:"captures"`
}

type captureJSON struct {
	Target string `json:"target"`
	Run    string `json:"run_id"`
	Job    string `json:"job"`
	Phase  string `json:"phase"`
	Since  string `json:"since,omitempty"` // RFC 3339
	Pod    string `json:"pod,omitempty"`
	Node   string `json:"node,omitempty"`
	Why    string `json:"why,omitempty"`
}

func statusResult(states []State) statusJSON {
	result := statusJSON{Schema: "vllm-vcr/capture-status/1", Captures: make([]captureJSON, len(states))}
	for i, s := range states {
		c := captureJSON{s.Annotations[deploy.AnnotationTarget], s.Labels[deploy.LabelRun], s.Name, string(s.Phase), "", s.Pod, s.Node, s.Why()}
		if !s.Since.IsZero() {
			c.Since = s.Since.UTC().Format(time.RFC3339)
		}
		result.Captures[i] = c
	}
	return result
}

// fetchJSON is what fetch prints as JSON.
type fetchJSON struct {
	Schema  string        `json:"schema"`
	Run     string        `json:"run_id"`
	OK      bool          `json:"ok"`
	Targets []fetchedJSON `json:"targets"`
}

type fetchedJSON struct {
	Target string `json:"target"`
	OK     bool   `json:"ok"`
	Folder string `json:"folder,omitempty"`
	Error  string `json:"error,omitempty"`
	Left   string `json:"left,omitempty"` // what could not be cleaned up
}

func (p *process) fetchResult(outcomes []capture.Outcome) fetchJSON {
	result := fetchJSON{Schema: "vllm-vcr/capture-fetch/1", Run: p.RunID, OK: true, Targets: make([]fetchedJSON, len(outcomes))}
	for i, o := range outcomes {
		one := fetchedJSON{Target: o.Target.Name(), OK: o.Err == nil}
		if o.Err == nil {
			one.Folder = filepath.Join(p.Work, p.RunID, o.Target.Line, o.Target.ID)
		} else {
			one.Error, result.OK = o.Err.Error(), false
		}
		if o.Left != nil {
			one.Left = o.Left.Error()
		}
		result.Targets[i] = one
	}
	return result
}

// clean deletes the Jobs of captures.
func (p *process) clean(ctx context.Context) error {
	states, err := p.list(ctx)
	if err != nil {
		return err
	}
	failed := 0
	for _, s := range states {
		text := fmt.Sprintf("%s: job %s of run %s deleted", s.Annotations[deploy.AnnotationTarget], s.Name, s.Labels[deploy.LabelRun])
		if err := p.client.Delete(ctx, s.Name); err != nil {
			failed++
			text = fmt.Sprintf("%s: %v", s.Annotations[deploy.AnnotationTarget], err)
		}
		if _, err := fmt.Fprintln(p.stdout, safetext.Line(text)); err != nil {
			return err
		}
	}
	if failed > 0 {
		return infra(fmt.Errorf("%d of %d jobs could not be deleted", failed, len(states)))
	}
	return nil
}

// list returns the Jobs of captures in the namespace: those of the run, unless it has no name, and of targets that the
// patterns select, unless there are none.
func (p *process) list(ctx context.Context) ([]State, error) {
	var wanted []conformance.Pattern
	for _, text := range p.Patterns {
		pattern, err := conformance.ParsePattern(text)
		if err != nil {
			return nil, err
		}
		wanted = append(wanted, pattern)
	}
	selector := "app.kubernetes.io/managed-by=vllm-vcr," + deploy.LabelRun
	if p.RunID != "" {
		selector += "=" + p.RunID
	}
	states, err := p.client.List(ctx, selector)
	if err != nil {
		return nil, infra(err)
	}
	return slices.DeleteFunc(states, func(s State) bool {
		name := s.Annotations[deploy.AnnotationTarget]
		matches := func(pattern conformance.Pattern) bool { return pattern.Match(name) }
		return name == "" || len(wanted) > 0 && !slices.ContainsFunc(wanted, matches)
	}), nil
}
