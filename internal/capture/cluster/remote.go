package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"github.com/vllm-vcr/conformance/internal/capture"
	"github.com/vllm-vcr/conformance/internal/capture/deploy"
	"github.com/vllm-vcr/conformance/internal/capture/target"
)

// A Cluster is where captures run as jobs, one for each target. [*Client] is one.
type Cluster interface {
	Preflight(ctx context.Context, queue string) error
	Submit(ctx context.Context, job *deploy.Job) (state State, created bool, err error)
	Watch(ctx context.Context, name string, budgets Budgets, tell func(State)) (State, error)
	Get(ctx context.Context, name string) (State, error)
	Fetch(ctx context.Context, pod, container, dir, file, dst string) (Fetched, error)
	Release(ctx context.Context, pod, container, dir string) error
	Delete(ctx context.Context, name string) error
}

// CaptureOptions say how captures run in a cluster.
type CaptureOptions struct {
	// Jobs are what is submitted for the targets, in their order, and Queue is the LocalQueue that all of them wait in.
	Jobs  []*deploy.Job
	Queue string
	// Dir is where recordings come to, each in LINE/ID below it. What lies there whole, of an earlier attempt at the same
	// run, is not captured again: so Dir is a folder of this run alone.
	Dir     string
	Budgets Budgets
	// Accept makes goldens of a recording; nil leaves it at the recording. It is called for one recording at a time.
	Accept func(context.Context, capture.Recording) (capture.Accepted, error)
	// KeepFailed leaves jobs whose files did not come home in the cluster, for another attempt.
	KeepFailed bool
	// FailFast gives up all targets when one fails.
	FailFast bool
	// Tell is told of progress, for people; from several goroutines, but never by two at a time. May be nil.
	Tell func(t target.Target, text string)
	// Now is the clock, [time.Now] unless given.
	Now func() time.Time
	Log *slog.Logger
}

// cleanupTime bounds what is done for one job once its capture is over, whatever way.
const cleanupTime = DeleteTime + time.Minute

// Capture captures targets in a cluster, to the end. All jobs are submitted at once, for the queue to order. As soon as
// one is ready its files are fetched, then it is deleted, so that the next can have its GPU, and only then is the
// recording looked at. A job is deleted whatever happens to its capture; only that of another run is left alone.
//
// Nothing but the cluster and Dir is needed to take up a run that somebody killed: jobs of the same name are taken as
// they are, and recordings that are at home already are not made again.
//
// There is an outcome for each target, in their order. The error is of what concerns all of them; nothing was submitted
// then.
func Capture(ctx context.Context, c Cluster, opt CaptureOptions, targets []target.Target) ([]capture.Outcome, error) {
	r := &remote{CaptureOptions: opt, cluster: c, outcomes: make([]capture.Outcome, len(targets))}
	r.withDefaults()
	if len(opt.Jobs) != len(targets) {
		return nil, fmt.Errorf("%d jobs for %d targets", len(opt.Jobs), len(targets))
	}
	if err := c.Preflight(ctx, opt.Queue); err != nil {
		return nil, err
	}
	ctx, r.cancel = context.WithCancelCause(ctx)
	defer r.cancel(nil)
	var all sync.WaitGroup
	for i := range targets {
		r.outcomes[i].Target = targets[i]
		all.Go(func() { r.run(ctx, &r.outcomes[i], opt.Jobs[i]) })
	}
	all.Wait()
	return r.outcomes, nil
}

// remote is one call of [Capture].
type remote struct {
	CaptureOptions
	cluster   Cluster
	cancel    context.CancelCauseFunc
	outcomes  []capture.Outcome
	talk      sync.Mutex // around Tell
	accepting sync.Mutex // around Accept
}

func (r *remote) withDefaults() {
	if r.Now == nil {
		r.Now = time.Now
	}
	if r.Log == nil {
		r.Log = slog.New(slog.DiscardHandler)
	}
}

func (r *remote) tell(t target.Target, format string, args ...any) {
	if r.Tell == nil {
		return
	}
	r.talk.Lock()
	defer r.talk.Unlock()
	r.Tell(t, fmt.Sprintf(format, args...))
}

// run takes one target to its end.
func (r *remote) run(ctx context.Context, o *capture.Outcome, job *deploy.Job) {
	err := r.guarded(func() (err error) {
		o.Recording, err = r.recording(ctx, o, job)
		if err == nil {
			err = r.accept(ctx, o)
		}
		return err
	})
	if err == nil {
		return
	}
	if cause := context.Cause(ctx); cause != nil && errors.Is(err, ctx.Err()) {
		err = cause
	}
	o.Err = err
	r.tell(o.Target, "%v", err)
	var failed *FailedError
	if errors.As(err, &failed) && failed.Text() != "" {
		r.tell(o.Target, "%s", strings.TrimRight(failed.Text(), "\n"))
	}
	if r.FailFast {
		r.cancel(capture.ErrGivenUp)
	}
}

// guarded makes an error of a panic, once everything that was deferred below it is done.
func (r *remote) guarded(do func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			r.Log.Error("panic", "value", p, "stack", string(debug.Stack()))
			err = fmt.Errorf("internal error: %v", p)
		}
	}()
	return do()
}

// recording brings the files of a target home, unless they are.
func (r *remote) recording(ctx context.Context, o *capture.Outcome, job *deploy.Job) (capture.Recording, error) {
	dir := filepath.Join(r.Dir, o.Target.Line, o.Target.ID)
	rec, err := capture.LoadRecording(dir, o.Target)
	if err != nil {
		return capture.Recording{}, err
	}
	if rec != nil {
		r.tell(o.Target, "captured already: %s", dir)
		o.Left = r.remove(ctx, o.Target, job.Name) // the process that fetched it may not have come to that
		return *rec, nil
	}
	return r.capture(ctx, o, job, dir)
}

// capture runs the job of a target.
func (r *remote) capture(ctx context.Context, o *capture.Outcome, job *deploy.Job, dir string) (rec capture.Recording, err error) {
	state, created, err := r.cluster.Submit(ctx, job)
	if errors.Is(err, ErrTwoCaptures) {
		return capture.Recording{}, err // it is not ours to delete
	}
	home := false
	defer func() { // also of a panic
		if home || !r.KeepFailed {
			o.Left = r.remove(ctx, o.Target, job.Name)
		}
	}()
	if err != nil {
		return capture.Recording{}, err
	}
	if created {
		r.tell(o.Target, "submitted: job %s", job.Name)
	} else {
		r.tell(o.Target, "taken up: job %s is %s", job.Name, state.Phase)
	}
	state, err = r.cluster.Watch(ctx, job.Name, r.Budgets, r.watcher(o.Target))
	if err != nil {
		return capture.Recording{}, err
	}
	if state.Phase != Ready {
		return capture.Recording{}, fmt.Errorf("job %s has ended (%s) before its files were fetched: capture the target again", job.Name, state.Phase)
	}
	rec, err = r.fetch(ctx, o.Target, state, dir)
	home = err == nil
	return rec, err
}

// watcher reports each phase once, and of each reason that it lasts.
func (r *remote) watcher(t target.Target) func(State) {
	var last string
	return func(s State) {
		text := string(s.Phase)
		if why := s.Why(); why != "" {
			text += ": " + why
		}
		if text != last {
			last = text
			r.tell(t, "%s", text)
		}
	}
}

// fetch brings the files of a job that is ready home and lets it end.
func (r *remote) fetch(ctx context.Context, t target.Target, state State, dir string) (capture.Recording, error) {
	if err := emptied(dir); err != nil {
		return capture.Recording{}, err
	}
	var bytes int64
	for _, file := range capture.RecordingFiles {
		got, err := r.cluster.Fetch(ctx, state.Pod, deploy.Loadgen, deploy.TraceDir, file, filepath.Join(dir, file))
		if err != nil {
			return capture.Recording{}, err
		}
		bytes += got.Size
	}
	if err := r.sameStill(ctx, state); err != nil {
		return capture.Recording{}, err
	}
	rec := capture.Recording{
		Target: t, EngineImage: ranImage(t, state.Images[deploy.Engine]), CapturedAt: r.Now().UTC().Truncate(time.Second),
		Where: "job " + state.Name,
	}
	if err := rec.Save(dir); err != nil {
		return capture.Recording{}, err
	}
	if err := r.cluster.Release(ctx, state.Pod, deploy.Loadgen, deploy.TraceDir); err != nil {
		r.Log.Info("not released, so it is only deleted", "job", state.Name, "error", err)
	}
	r.tell(t, "fetched %d bytes to %s", bytes, dir)
	return rec, nil
}

// sameStill demands that nothing was started again, or went wrong, while files were fetched: there is no watch then, and a
// tap that is started again begins its files anew.
func (r *remote) sameStill(ctx context.Context, before State) error {
	now, err := r.cluster.Get(ctx, before.Name)
	if err != nil {
		return fmt.Errorf("check the job again after its files were downloaded: %w", err)
	}
	if now.UID == before.UID && now.Pod == before.Pod && now.Restarts == before.Restarts && now.Phase != Failed {
		return nil
	}
	why := now.Why()
	switch {
	case why != "":
	case now.Restarts != before.Restarts:
		why = fmt.Sprintf("%d restarts", now.Restarts)
	default:
		why = fmt.Sprintf("it is another, with pod %s in place of %s", now.Pod, before.Pod)
	}
	return fmt.Errorf("job %s: it changed while its files were downloaded, so they may not belong together: %s: "+
		"capture the target again", before.Name, why)
}

// emptied makes a folder that has nothing of an earlier attempt in it.
func emptied(dir string) error {
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	return os.MkdirAll(dir, 0o755)
}

// remove deletes the job of a target, also when the capture was given up.
func (r *remote) remove(ctx context.Context, t target.Target, name string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTime)
	defer cancel()
	err := r.cluster.Delete(ctx, name)
	if err == nil {
		return nil
	}
	err = fmt.Errorf("job %s may still be there: %w", name, err)
	r.tell(t, "%v", err)
	return err
}

// accept registers a recording. The replay and the manifest are for one at a time.
func (r *remote) accept(ctx context.Context, o *capture.Outcome) error {
	if r.Accept == nil {
		return nil
	}
	r.accepting.Lock()
	defer r.accepting.Unlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	var err error
	o.Accepted, err = r.Accept(ctx, o.Recording)
	return err
}

// ranImage is the engine's image under the name that the target has for it, with the digest of what ran: runtimes give
// an id such as "docker.io/vllm/vllm-openai@sha256:…", or the digest alone.
func ranImage(t target.Target, id string) string {
	at := strings.LastIndex(id, "sha256:")
	if at < 0 {
		return ""
	}
	name, _, _ := strings.Cut(t.Images.Engine, "@")
	return name + "@" + id[at:]
}
