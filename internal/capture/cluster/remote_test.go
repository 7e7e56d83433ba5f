package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/base/jsonout"
	"github.com/vllm-vcr/conformance/internal/capture"
	"github.com/vllm-vcr/conformance/internal/capture/capturetest"
	"github.com/vllm-vcr/conformance/internal/capture/deploy"
	"github.com/vllm-vcr/conformance/internal/capture/target"
	"github.com/vllm-vcr/conformance/internal/testenv"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// A fakeCaptureCluster has one GPU, which is the oldest job's until that is deleted. What a capture leaves in it are the files of
// a folder.
type fakeCaptureCluster struct {
	t *testing.T

	// Tests set these before anything runs.
	queue    error             // of Preflight
	submit   map[string]error  // by target
	watch    map[string]error  // by target, once it has the GPU
	files    map[string]string // folder by target
	fetch    func(target, file string) error
	remove   error
	atGet    func(*State) error // changes what a look after the fetch sees
	released error
	atWatch  func(target string) // called when a job has the GPU

	mu      sync.Mutex
	changed *sync.Cond
	jobs    []*deploy.Job // that are there, oldest first
	images  map[string]string
	calls   []string
}

func newCluster(t *testing.T) *fakeCaptureCluster {
	f := &fakeCaptureCluster{
		t: t, submit: map[string]error{}, watch: map[string]error{}, files: map[string]string{}, images: map[string]string{},
	}
	f.changed = sync.NewCond(&f.mu)
	return f
}

var _ Cluster = (*Client)(nil)

func (f *fakeCaptureCluster) note(format string, args ...any) {
	f.calls = append(f.calls, fmt.Sprintf(format, args...))
}

func (f *fakeCaptureCluster) Preflight(_ context.Context, queue string) error {
	f.note("preflight %s", queue)
	return f.queue
}

func (f *fakeCaptureCluster) Get(_ context.Context, name string) (State, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	state := State{Name: name, Phase: Ready, Pod: name + "-x"}
	if f.atGet != nil {
		err := f.atGet(&state)
		return state, err
	}
	return state, nil
}

func nameOf(job *deploy.Job) string { return job.Annotations[deploy.AnnotationTarget] }

func (f *fakeCaptureCluster) find(name string) *deploy.Job {
	for _, job := range f.jobs {
		if job.Name == name {
			return job
		}
	}
	return nil
}

func (f *fakeCaptureCluster) Submit(_ context.Context, job *deploy.Job) (State, bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.submit[nameOf(job)]; err != nil {
		return State{}, false, err
	}
	state := State{Name: job.Name, Phase: Queued}
	if f.find(job.Name) != nil {
		f.note("take up %s", nameOf(job))
		return state, false, nil
	}
	f.note("submit %s", nameOf(job))
	f.jobs = append(f.jobs, job)
	return state, true, nil
}

func (f *fakeCaptureCluster) Watch(ctx context.Context, name string, _ Budgets, tell func(State)) (State, error) {
	defer context.AfterFunc(ctx, f.changed.Broadcast)()
	f.mu.Lock()
	defer f.mu.Unlock()
	state := State{Name: name, Phase: Queued, Reason: "Pending", Message: "waits for quota"}
	tell(state)
	for len(f.jobs) > 0 && f.jobs[0].Name != name && ctx.Err() == nil {
		f.changed.Wait()
	}
	if ctx.Err() != nil {
		return state, ctx.Err()
	}
	job := f.find(name)
	if job == nil {
		return state, ErrNotFound
	}
	if f.atWatch != nil {
		f.atWatch(nameOf(job))
	}
	if err := ctx.Err(); err != nil {
		return state, err
	}
	if err := f.watch[nameOf(job)]; err != nil {
		return state, err
	}
	image := f.images[nameOf(job)]
	if image == "" {
		image = job.Annotations[deploy.AnnotationImages+deploy.Engine]
	}
	state = State{Name: name, Phase: Ready, Pod: name + "-x", Images: map[string]string{deploy.Engine: image}}
	tell(state)
	return state, nil
}

func (f *fakeCaptureCluster) targetOfPod(pod string) string {
	return nameOf(f.find(strings.TrimSuffix(pod, "-x")))
}

func (f *fakeCaptureCluster) Fetch(_ context.Context, pod, container, dir, file, dst string) (Fetched, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	name := f.targetOfPod(pod)
	if container != deploy.Loadgen || dir != deploy.TraceDir {
		f.t.Errorf("fetch from %s of %s", dir, container)
	}
	if f.fetch != nil {
		if err := f.fetch(name, file); err != nil {
			return Fetched{}, err
		}
	}
	if _, err := os.Lstat(dst); err == nil {
		return Fetched{}, fmt.Errorf("%s exists", dst)
	}
	data, err := os.ReadFile(filepath.Join(f.files[name], file))
	if err != nil {
		return Fetched{}, err
	}
	return Fetched{Size: int64(len(data))}, os.WriteFile(dst, data, 0o644)
}

func (f *fakeCaptureCluster) Release(_ context.Context, pod, _, _ string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.note("release %s", f.targetOfPod(pod))
	return f.released
}

func (f *fakeCaptureCluster) Delete(ctx context.Context, name string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.remove != nil {
		return f.remove
	}
	if job := f.find(name); job != nil {
		f.note("delete %s", nameOf(job))
	}
	f.jobs = slices.DeleteFunc(f.jobs, func(job *deploy.Job) bool { return job.Name == name })
	f.changed.Broadcast()
	return nil
}

// digest is that of the image of all engines in these tests.
var digest = "sha256:" + strings.Repeat("5a", 32)

// onCluster gives a recording's target the images that a job needs.
func onCluster(tg target.Target) target.Target {
	tg.Images = target.Images{
		Engine:   "docker.io/vllm/vllm-openai:" + tg.Tag + "@" + digest,
		Frontend: "docker.io/vllm/vllm-openai:" + tg.Tag + "@" + digest,
		Tap:      "ghcr.io/vllm-vcr/vllm-vcr:1.0.0@" + digest,
	}
	return tg
}

// A run is everything that Remote needs, for two targets.
type run struct {
	CaptureOptions
	edited  capture.AcceptOptions
	cluster *fakeCaptureCluster
	targets []target.Target
	told    []string
}

func newRun(t *testing.T) *run {
	t.Helper()
	r := &run{edited: capturetest.ManifestCopy(t), cluster: newCluster(t)}
	for _, name := range []string{"0.33/edge-s1", "0.33/multiturn-s7"} {
		rec := capturetest.Recording(t, name)
		r.cluster.files[name] = rec.Dir
		r.targets = append(r.targets, onCluster(rec.Target))
	}
	r.CaptureOptions = CaptureOptions{
		Dir: t.TempDir(), Queue: "q",
		Tell: func(t target.Target, text string) { r.told = append(r.told, t.Name()+": "+text) },
		Accept: func(ctx context.Context, rec capture.Recording) (capture.Accepted, error) {
			return capture.Accept(ctx, r.edited, rec)
		},
		Now: func() time.Time { return time.Unix(1_760_000_000, 0) },
	}
	return r
}

// jobsOf are the jobs of targets, in a run of always the same name.
func jobsOf(t *testing.T, targets []target.Target) []*deploy.Job {
	t.Helper()
	jobs, err := deploy.Jobs(targets, deploy.Run{ID: "r1"})
	require.NoError(t, err)
	return jobs
}

func (r *run) start(ctx context.Context, t *testing.T) []capture.Outcome {
	t.Helper()
	r.Jobs = jobsOf(t, r.targets)
	outcomes, err := Capture(ctx, r.cluster, r.CaptureOptions, r.targets)
	require.NoError(t, err)
	return outcomes
}

// Two targets come to registered goldens, one after the other, and the GPU is free before either is looked at.
func TestRemote(t *testing.T) {
	r := newRun(t)
	accept := r.Accept
	r.Accept = func(ctx context.Context, rec capture.Recording) (capture.Accepted, error) {
		r.cluster.mu.Lock()
		require.True(t, slices.Contains(r.cluster.calls, "delete "+rec.Target.Name()), "%s is looked at while its job is there", rec.Target.Name())
		r.cluster.mu.Unlock()
		return accept(ctx, rec)
	}
	for _, o := range r.start(t.Context(), t) {
		require.True(t, o.Err == nil && o.Left == nil, "%s: %v, %v", o.Target.Name(), o.Err, o.Left)
		require.True(t, len(o.Accepted.Goldens) != 0 && o.Accepted.Goldens[0].Changed, "%s: %+v", o.Target.Name(), o.Accepted)
		g := capturetest.Entry(t, r.edited, "0.33", o.Target.ID)
		require.True(t, g.EngineImage == o.Target.Images.Engine && !g.CapturedAt.IsZero(), "%+v", g)
	}
	require.Equal(t, len(r.cluster.jobs), 0, "jobs are left")
	require.True(t, slices.Contains(r.told, "0.33/edge-s1: queued: Pending: waits for quota"), "told %q", r.told)
}

// Whatever goes wrong with one target: it is said, its job is deleted, nothing of it is registered, and the other comes to
// its end.
func TestRemoteFails(t *testing.T) {
	const bad = "0.33/edge-s1"
	watch := func(reason, message string) func(*testing.T, *run) {
		return func(_ *testing.T, r *run) {
			r.cluster.watch[bad] = &FailedError{
				State: State{Name: "capture-x", Reason: reason, Message: message},
				Logs:  []Log{{Container: "engine", Tail: "no more memory\n"}},
			}
		}
	}
	afterFetch := func(happens func(*State) error) func(*testing.T, *run) {
		return func(_ *testing.T, r *run) {
			r.cluster.atGet = func(s *State) error {
				if strings.Contains(s.Name, "edge-s1") {
					return happens(s)
				}
				return nil
			}
		}
	}
	tests := []struct {
		name   string
		damage func(*testing.T, *run)
		says   string
	}{
		{"quota never granted", watch("AdmissionTimeout", "insufficient unused quota for nvidia.com/gpu"), "insufficient unused quota"},
		{"engine never healthy", watch("LoadTimeout", "the engine did not come up"), "the engine did not come up"},
		{"crash", watch("CrashLoopBackOff", "container engine was started again"), "started again"},
		{"job refused", func(_ *testing.T, r *run) { r.cluster.submit[bad] = errors.New("jobs is forbidden") }, "jobs is forbidden"},
		{
			"deleted by others", func(_ *testing.T, r *run) { r.cluster.watch[bad] = ErrNotFound },
			"no such job",
		},
		{
			"fetch breaks", func(_ *testing.T, r *run) {
				r.cluster.fetch = func(name, file string) error {
					if name == bad && file == target.FramesFile {
						return errors.New("stream ended early, five times")
					}
					return nil
				}
			}, "stream ended early",
		},
		{"started again while files are fetched", afterFetch(func(s *State) error {
			s.Restarts, s.Phase, s.Reason, s.Message = 1, Failed, "Restarted", "container tap was started again"
			return nil
		}), "may not belong together: Restarted: container tap was started again: capture the target again"},
		{"started again, and looks well", afterFetch(func(s *State) error {
			s.Restarts = 1
			return nil
		}), "may not belong together: 1 restarts"},
		{"fails while files are fetched", afterFetch(func(s *State) error {
			s.Phase, s.Reason = Failed, "Evicted"
			return nil
		}), "may not belong together: Evicted"},
		{"another pod in its place", afterFetch(func(s *State) error {
			s.Pod = "another"
			return nil
		}), "it is another, with pod another in place of capture-0-33-edge-s1-r1-x"},
		{"gone while files are fetched", afterFetch(func(*State) error { return ErrNotFound }), "no such job"},
		{
			"no such file in the pod", func(t *testing.T, r *run) {
				require.NoError(t, os.Remove(filepath.Join(r.cluster.files[bad], target.StepsFile)))
			}, "steps.jsonl.gz",
		},
		{
			"tap that recorded nothing", func(t *testing.T, r *run) {
				capturetest.Edit(t, filepath.Join(r.cluster.files[bad], target.TraceFile), func(lines []string) []string { return lines[:1] })
			}, "the recorder recorded no request",
		},
		{
			"trace of another line", func(t *testing.T, r *run) {
				capturetest.Edit(t, filepath.Join(r.cluster.files[bad], target.TraceFile), func(lines []string) []string {
					lines[0] = strings.Replace(lines[0], `"vllm_version":"0.33.0"`, `"vllm_version":"0.32.0"`, 1)
					return lines
				})
			}, `the engine said it is "0.32.0"`,
		},
		{
			"step statistics missing", func(t *testing.T, r *run) {
				capturetest.Edit(t, filepath.Join(r.cluster.files[bad], target.StepsFile), func([]string) []string { return nil })
			}, "there are no statistics in it",
		},
		{
			"another image", func(_ *testing.T, r *run) {
				r.cluster.images[bad] = "docker.io/vllm/vllm-openai@sha256:" + strings.Repeat("66", 32)
			}, "the engine ran sha256:6666",
		},
		{
			"report of no load", func(t *testing.T, r *run) {
				path := filepath.Join(r.cluster.files[bad], target.LoadFile)
				require.NoError(t, os.WriteFile(path, []byte("{}"), 0o644))
			}, `load.json: schema ""`,
		},
		{
			"upload refused", func(_ *testing.T, r *run) {
				accept := r.Accept
				r.Accept = func(ctx context.Context, rec capture.Recording) (capture.Accepted, error) {
					if rec.Target.Name() == bad {
						return capture.Accepted{}, errors.New("upload refused: access denied")
					}
					return accept(ctx, rec)
				}
			}, "access denied",
		},
		{
			"panic", func(_ *testing.T, r *run) {
				r.cluster.fetch = func(name, file string) error {
					if name == bad {
						panic("oh no")
					}
					return nil
				}
			}, "internal error: oh no",
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			r := newRun(t)
			accept := r.Accept
			r.Accept = func(ctx context.Context, rec capture.Recording) (capture.Accepted, error) {
				if rec.Target.Name() != bad {
					return capture.Accepted{}, nil // TestRemote has the whole of it
				}
				return accept(ctx, rec)
			}
			test.damage(t, r)
			before := testenv.Files(t, filepath.Dir(r.edited.Manifest))
			outcomes := r.start(t.Context(), t)
			require.ErrorContains(t, outcomes[0].Err, test.says)
			require.NoErrorf(t, outcomes[1].Err, "the other target")
			require.Equal(t, len(r.cluster.jobs), 0, "jobs are left")
			require.NoDiff(t, cmp.Diff(before, testenv.Files(t, filepath.Dir(r.edited.Manifest))), "failed, but registered")
			require.True(t, slices.ContainsFunc(r.told, func(s string) bool { return strings.Contains(s, test.says) }), "nobody was told: %q", r.told)
		})
	}
}

// The capture of another run is not ours to delete, even if its job has the name of ours.
func TestRemoteTwoCaptures(t *testing.T) {
	r := newRun(t)
	r.targets = r.targets[:1]
	r.cluster.jobs = jobsOf(t, r.targets)
	r.cluster.submit["0.33/edge-s1"] = fmt.Errorf("%w: job capture-0-33-edge-s1-r1 is of run r0", ErrTwoCaptures)
	outcomes := r.start(t.Context(), t)
	if !errors.Is(outcomes[0].Err, ErrTwoCaptures) {
		t.Error(outcomes[0].Err)
	}
	require.Equal(t, len(r.cluster.jobs), 1, "calls %q", r.cluster.calls)
}

// Nothing is submitted to a queue that is not there.
func TestRemoteWithoutQueue(t *testing.T) {
	r := newRun(t)
	r.cluster.queue = errors.New("no LocalQueue conformance-queue: kubectl apply -k deploy/")
	r.Jobs = jobsOf(t, r.targets)
	_, err := Capture(t.Context(), r.cluster, r.CaptureOptions, r.targets)
	require.ErrorIs(t, err, r.cluster.queue)
	if want := []string{"preflight q"}; !slices.Equal(r.cluster.calls, want) {
		t.Errorf("calls %q", r.cluster.calls)
	}
}

// Who only fetches can try again.
func TestRemoteKeepsFailed(t *testing.T) {
	r := newRun(t)
	r.KeepFailed, r.Accept = true, nil
	r.cluster.fetch = func(name, _ string) error {
		if name == "0.33/edge-s1" {
			return errors.New("broken")
		}
		return nil
	}
	r.targets = r.targets[:1]
	if o := r.start(t.Context(), t); o[0].Err == nil || len(r.cluster.jobs) != 1 {
		t.Errorf("%v, %d jobs", o[0].Err, len(r.cluster.jobs))
	}
	r.cluster.fetch = nil
	if o := r.start(t.Context(), t); o[0].Err != nil || len(r.cluster.jobs) != 0 {
		t.Errorf("%v, %d jobs", o[0].Err, len(r.cluster.jobs))
	}
}

// With FailFast the first failure is the end of all, and nothing is left of them.
func TestRemoteFailFast(t *testing.T) {
	r := newRun(t)
	r.FailFast = true
	r.cluster.watch["0.33/edge-s1"] = errors.New("broken")
	r.cluster.jobs = jobsOf(t, r.targets) // so that the one that fails gets the GPU first
	outcomes := r.start(t.Context(), t)
	if outcomes[0].Err == nil || !errors.Is(outcomes[1].Err, capture.ErrGivenUp) {
		t.Errorf("%v, %v", outcomes[0].Err, outcomes[1].Err)
	}
	require.Equal(t, len(r.cluster.jobs), 0, "jobs are left")
}

// An interrupt leaves no job behind, and registers nothing.
func TestRemoteInterrupted(t *testing.T) {
	r := newRun(t)
	before := testenv.Files(t, filepath.Dir(r.edited.Manifest))
	ctx, cancel := context.WithCancel(t.Context())
	r.cluster.atWatch = func(string) { cancel() }
	for _, o := range r.start(ctx, t) {
		require.True(t, errors.Is(o.Err, context.Canceled), "%s: %v", o.Target.Name(), o.Err)
	}
	require.Equal(t, len(r.cluster.jobs), 0, "jobs are left")
	require.NoDiff(t, cmp.Diff(before, testenv.Files(t, filepath.Dir(r.edited.Manifest))), "interrupted, but changed")
}

// A run that was killed is taken up: the jobs that it left, and the recordings that it had brought home.
func TestRemoteResumes(t *testing.T) {
	r := newRun(t)
	r.Accept = nil
	r.targets = r.targets[:1]
	if o := r.start(t.Context(), t); o[0].Err != nil || o[0].Recording.Trace == "" {
		t.Fatalf("%+v", o[0])
	}
	rest := newRun(t)
	rest.Dir, rest.cluster = r.Dir, r.cluster
	name := rest.targets[1].Name()
	rec := capturetest.Recording(t, name)
	r.cluster.files[name] = rec.Dir
	delete(r.cluster.files, rest.targets[0].Name()) // it cannot be fetched any more
	r.cluster.jobs = jobsOf(t, rest.targets)        // the first was fetched, and not yet deleted
	r.cluster.calls = nil
	for _, o := range rest.start(t.Context(), t) {
		require.True(t, o.Err == nil && len(o.Accepted.Goldens) != 0, "%s: %v", o.Target.Name(), o.Err)
	}
	require.Equal(t, len(r.cluster.jobs), 0, "jobs are left")
	if !slices.Contains(r.cluster.calls, "take up "+name) || slices.ContainsFunc(r.cluster.calls, func(s string) bool { return strings.HasPrefix(s, "submit") }) {
		t.Errorf("calls %q", r.cluster.calls)
	}
}

// A recording of other options than those that are asked for now is not taken for it.
func TestRemoteResumesOfAnother(t *testing.T) {
	r := newRun(t)
	r.Accept = nil
	r.start(t.Context(), t)
	other := newRun(t)
	other.Dir = r.Dir
	other.targets[0].Scenario = target.NoCache
	if o := other.start(t.Context(), t); o[0].Err == nil || !strings.Contains(o[0].Err.Error(), "not of the target as it is now") {
		t.Errorf("%+v", o[0].Err)
	}
}

// A job that cannot be deleted does not lose its recording, but is told of.
func TestRemoteLeavesAJob(t *testing.T) {
	r := newRun(t)
	r.targets = r.targets[:1]
	r.cluster.remove = errors.New("its pod does not end")
	r.cluster.released = errors.New("container not found")
	o := r.start(t.Context(), t)
	if o[0].Err != nil || o[0].Left == nil || !strings.Contains(o[0].Left.Error(), "may still be there: its pod does not end") {
		t.Errorf("%v, %v", o[0].Err, o[0].Left)
	}
}

func TestRanImage(t *testing.T) {
	tg := target.Target{Images: target.Images{Engine: "host/engine:v1@sha256:00"}}
	for id, want := range map[string]string{
		"host/engine@sha256:aa": "host/engine:v1@sha256:aa", "sha256:aa": "host/engine:v1@sha256:aa", "docker-pullable://host/engine@sha256:aa": "host/engine:v1@sha256:aa", "": "", "host/engine:v1": "",
	} {
		require.Equal(t, ranImage(tg, id), want, "%q became", id)
	}
}

// TestResultsAsJSON: what status and fetch print has the documented keys.
func TestResultsAsJSON(t *testing.T) {
	one := target.Target{Line: "0.33", ID: "a"}
	p := process{HelperRequest: deploy.HelperRequest{RunID: "17", Work: "work"}}
	for command, result := range map[string]any{
		"capture status": statusResult([]State{
			{Name: "job", Labels: map[string]string{deploy.LabelRun: "17"}, Annotations: map[string]string{deploy.AnnotationTarget: "0.33/a"}, Phase: Ready, Since: time.Unix(1, 0), Pod: "pod", Node: "node", Reason: "why"},
			{Name: "bare"},
		}),
		"capture fetch": p.fetchResult([]capture.Outcome{{Target: one}, {Target: one, Err: errors.New("gone"), Left: errors.New("job")}}),
	} {
		text, err := jsonout.Bytes(result)
		require.NoError(t, err)
		require.NoError(t, testenv.CheckJSON("../../../docs/json.md", command, text))
	}
}
