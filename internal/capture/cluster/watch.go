package cluster

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"sync"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// Budgets are how long each stage may last, counted from when it was first seen. 0 is without end.
type Budgets struct {
	Admission time.Duration // until the queue admits the Job
	Start     time.Duration // from there until all containers run and the sidecars are ready
	Load      time.Duration // from there until the main containers are ready
}

// Watch waits until the Job is ready or complete, and calls seen, which may be nil, for each state on the way that
// differs from the one before. It returns a [FailedError] as soon as the Job cannot come to a good end, or a budget is
// used up; an error that wraps [ErrNotFound] if there is no such Job; one that wraps [ErrOutage] if the API server was
// out of reach for too long.
func (c *Client) Watch(ctx context.Context, name string, budgets Budgets, seen func(State)) (State, error) {
	job, err := c.job(ctx, name)
	if err != nil {
		return State{}, err
	}
	w := &watcher{client: c, budgets: budgets, seen: seen, uid: job.UID, now: objects{job: job}}
	return w.run(ctx)
}

// job fetches one Job.
func (c *Client) job(ctx context.Context, name string) (*batchv1.Job, error) {
	found, err := call(ctx, c, func(ctx context.Context) (*unstructured.Unstructured, error) {
		return c.in(jobs).Get(ctx, name, metav1.GetOptions{})
	})
	if apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("%w: %s in namespace %s of %s", ErrNotFound, name, c.namespace, c.host)
	}
	if err != nil {
		return nil, c.explain("get job "+name, err)
	}
	return decode[batchv1.Job](found)
}

// A watcher follows one Job.
type watcher struct {
	client  *Client
	budgets Budgets
	seen    func(State)

	uid      types.UID // of the Job
	now      objects
	last     State     // that was told
	pod      types.UID // that was seen, if any
	stage    int
	stageEnd *time.Timer
	causeEnd *time.Timer // runs while a fault waits for its cause
	waits    bool
}

// causeTime is how long a fault may wait for its cause: the controller of Jobs deletes a pod before it says why.
const causeTime = 3 * time.Second

// A change replaces a part of what is known.
type change struct {
	kind  schema.GroupVersionResource
	apply func(*objects)
}

func (w *watcher) run(ctx context.Context) (State, error) {
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	changes, broken := make(chan change), make(chan error, 8)
	followers := w.followers(ctx, changes)
	for _, f := range followers {
		running.Go(func() { w.follow(ctx, f, changes, broken) })
	}
	w.stageEnd, w.causeEnd = stoppedTimer(), stoppedTimer()
	defer w.stageEnd.Stop()
	defer w.causeEnd.Stop()
	told := map[schema.GroupVersionResource]bool{}
	for {
		select {
		case <-ctx.Done():
			return w.last, context.Cause(ctx)
		case err := <-broken:
			if ctx.Err() != nil {
				return w.last, context.Cause(ctx)
			}
			return w.last, fmt.Errorf("job %s: %w", w.now.name(w.last), err)
		case <-w.stageEnd.C:
			if state, over, err := w.lookAgain(ctx, w.outOfTime(), true); over {
				return state, err
			}
		case <-w.causeEnd.C:
			if f := w.diagnose(w.now); f == nil {
				w.waits = false
			} else if state, over, err := w.lookAgain(ctx, f, false); over {
				return state, err
			}
		case next := <-changes:
			next.apply(&w.now)
			told[next.kind] = true
			if len(told) < len(followers) {
				continue // nothing is missing before each of them was read
			}
			if state, over, err := w.judge(ctx); over {
				return state, err
			}
		}
	}
}

func stoppedTimer() *time.Timer {
	timer := time.NewTimer(time.Hour)
	timer.Stop()
	return timer
}

// follow runs one follower to its end.
func (w *watcher) follow(ctx context.Context, f *follower, changes chan<- change, broken chan<- error) {
	err := f.run(ctx)
	if f.spare && apierrors.IsForbidden(err) {
		w.client.opt.Log.Info("not watched, as this account may not", "kind", f.kind.Resource, "error", err)
		err = send(ctx, changes, change{f.kind, func(*objects) {}})
		<-ctx.Done()
	}
	broken <- err
}

func (o objects) name(last State) string {
	if o.job != nil {
		return o.job.Name
	}
	return last.Name
}

// judge looks at what there is, and reports whether that is the end.
func (w *watcher) judge(ctx context.Context) (State, bool, error) {
	if f := w.diagnose(w.now); f != nil && f.Effect {
		if !w.waits {
			w.waits = true
			w.causeEnd.Reset(causeTime)
		}
		return w.last, false, nil
	} else if f != nil {
		return w.lookAgain(ctx, f, false)
	}
	return w.goOn()
}

// goOn is for a Job that nothing is wrong with.
func (w *watcher) goOn() (State, bool, error) {
	w.waits = false
	state := stateOf(w.now)
	if pod := w.now.pod(); pod != nil {
		w.pod = pod.UID
	}
	w.report(state)
	w.keepTime(state.Phase)
	return state, state.Phase == Ready || state.Phase == Complete, nil
}

// diagnose is the same as for any Job, and knows that there was a pod.
func (w *watcher) diagnose(o objects) *fault {
	if o.job != nil && jobCondition(o.job, batchv1.JobComplete) != nil {
		return nil
	}
	if w.pod != "" && !slices.ContainsFunc(o.pods, func(p corev1.Pod) bool { return p.UID == w.pod }) {
		o.lost = w.last.Pod
	}
	return diagnose(o)
}

func (w *watcher) report(state State) {
	if w.seen != nil && !reflect.DeepEqual(state, w.last) {
		w.seen(state)
	}
	w.last = state
}

// keepTime begins the budget of a stage. A Job that falls back gets no more time.
func (w *watcher) keepTime(phase Phase) {
	stage, budget := 1, w.budgets.Admission
	switch phase {
	case Admitted, Scheduled, Starting:
		stage, budget = 2, w.budgets.Start
	case Running:
		stage, budget = 3, w.budgets.Load
	}
	if stage <= w.stage {
		return
	}
	w.stage = stage
	w.stageEnd.Stop()
	if budget > 0 {
		w.stageEnd.Reset(budget)
	}
}

// outOfTime is the fault of a stage that lasted too long.
func (w *watcher) outOfTime() *fault {
	because := ""
	if text := cmp.Or(w.last.Message, w.last.Reason); text != "" {
		because = ": " + text
	}
	switch w.stage {
	case 1:
		return &fault{
			Reason: "NotAdmitted", Message: fmt.Sprintf("no quota after %v%s", w.budgets.Admission, because),
			Hint: "see what else is in the queue, or give it more time",
		}
	case 2:
		reason := "NotStarted"
		if w.last.Phase == Admitted {
			reason = "NotScheduled"
		}
		return &fault{
			Reason: reason, Message: fmt.Sprintf("%s for %v after it was admitted%s", w.last.Phase, w.budgets.Start, because),
			Hint: "see its logs and nodes, or give it more time",
		}
	}
	return &fault{
		Reason: "NotReady", Message: fmt.Sprintf("the load has not ended after %v", w.budgets.Load),
		Hint: "see the logs, or give it more time",
	}
}

// lookAgain reads everything once more: what causes a fault may be told after what follows from it, and a fault may be
// over, or a Job ready in the last moment.
func (w *watcher) lookAgain(ctx context.Context, f *fault, late bool) (State, bool, error) {
	fresh, err := w.client.gather(ctx, w.now.name(w.last))
	if err == nil && fresh.job.UID == w.uid {
		fresh.warning, fresh.queues, fresh.queueKnown = w.now.warning, w.now.queues, w.now.queueKnown
		cause := w.diagnose(fresh)
		phase := stateOf(fresh).Phase
		if cause == nil && (!late || phase == Ready || phase == Complete) {
			w.now = fresh
			return w.goOn()
		}
		if len(fresh.pods) == 0 {
			fresh.pods = w.now.pods // of which there may still be a log
		}
		w.now, f = fresh, cmp.Or(cause, f)
	}
	state := w.last
	if w.now.job != nil {
		state = stateOf(w.now)
	}
	failed := w.client.fail(ctx, w.now, state, f)
	w.report(failed.State)
	return failed.State, true, failed
}

// followers are one for each kind of object that has a say.
func (w *watcher) followers(ctx context.Context, changes chan<- change) []*follower {
	job := w.now.job
	mine := func(u *unstructured.Unstructured) bool { return u.GetUID() == job.UID }
	owned := func(u *unstructured.Unstructured) bool { return ownedBy(u, job.UID) }
	about := func(u *unstructured.Unstructured) bool { return aboutUID(u) == string(job.UID) }
	list := []*follower{
		w.follower(ctx, changes, jobs, "metadata.name="+job.Name, "", mine, (*objects).setJob),
		w.follower(ctx, changes, pods, "", jobNameLabel+"="+job.Name, owned, (*objects).setPods),
		w.follower(ctx, changes, events, "involvedObject.uid="+string(job.UID), "", about, (*objects).setWarning),
	}
	if name := job.Labels[QueueLabel]; name != "" {
		named := func(u *unstructured.Unstructured) bool { return u.GetName() == name }
		list = append(list,
			w.follower(ctx, changes, workloads, "", jobUIDLabel+"="+string(job.UID), owned, (*objects).setWorkloads),
			w.follower(ctx, changes, localQueues, "metadata.name="+name, "", named, (*objects).setQueue))
	}
	return list
}

// follower sends a change whenever one of the objects does, of a kind, that keep keeps.
func (w *watcher) follower(
	ctx context.Context, changes chan<- change, kind schema.GroupVersionResource, fields, labels string,
	keep func(*unstructured.Unstructured) bool, set func(*objects, []*unstructured.Unstructured) error,
) *follower {
	tell := func(known map[types.UID]*unstructured.Unstructured) error {
		var part objects
		if err := set(&part, sorted(known)); err != nil {
			return err
		}
		return send(ctx, changes, change{kind, part.replacing(kind)})
	}
	return &follower{
		client: w.client, kind: kind, opts: metav1.ListOptions{FieldSelector: fields, LabelSelector: labels},
		keep: keep, tell: tell, spare: kind == events || kind == localQueues,
	}
}

func send(ctx context.Context, changes chan<- change, c change) error {
	select {
	case changes <- c:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func sorted(known map[types.UID]*unstructured.Unstructured) []*unstructured.Unstructured {
	return slices.SortedFunc(maps.Values(known), func(a, b *unstructured.Unstructured) int {
		return cmp.Or(cmp.Compare(a.GetName(), b.GetName()), cmp.Compare(a.GetUID(), b.GetUID()))
	})
}

// Each of these sets one part from what the server has of a kind.

func (o *objects) setJob(found []*unstructured.Unstructured) (err error) {
	o.job = nil
	if len(found) > 0 {
		o.job, err = decode[batchv1.Job](found[0])
	}
	return err
}

func (o *objects) setPods(found []*unstructured.Unstructured) (err error) {
	o.pods, err = decodeAll[corev1.Pod](found)
	return err
}

func (o *objects) setWorkloads(found []*unstructured.Unstructured) (err error) {
	o.workloads, err = decodeAll[workload](found)
	return err
}

func (o *objects) setQueue(found []*unstructured.Unstructured) (err error) {
	o.queues, err = decodeAll[queue](found)
	return err
}

// setWarning takes the last of them: the names of events end in the time that they were first seen at.
func (o *objects) setWarning(found []*unstructured.Unstructured) error {
	for _, event := range found {
		if kind, _, _ := unstructured.NestedString(event.Object, "type"); kind == corev1.EventTypeWarning {
			o.warning, _, _ = unstructured.NestedString(event.Object, "message")
		}
	}
	return nil
}

// replacing puts the part of a kind of o into another.
func (o objects) replacing(kind schema.GroupVersionResource) func(*objects) {
	return func(into *objects) {
		switch kind {
		case jobs:
			into.job = o.job
		case pods:
			into.pods = o.pods
		case workloads:
			into.workloads = o.workloads
		case localQueues:
			into.queues, into.queueKnown = o.queues, true
		case events:
			into.warning = o.warning
		}
	}
}

func aboutUID(event *unstructured.Unstructured) string {
	uid, _, _ := unstructured.NestedString(event.Object, "involvedObject", "uid")
	return uid
}

func decodeAll[T any](found []*unstructured.Unstructured) ([]T, error) {
	var all []T
	for _, one := range found {
		typed, err := decode[T](one)
		if err != nil {
			return nil, err
		}
		all = append(all, *typed)
	}
	return all, nil
}

// gather reads what there is of a Job at this moment.
func (c *Client) gather(ctx context.Context, name string) (objects, error) {
	job, err := c.job(ctx, name)
	if err != nil {
		return objects{}, err
	}
	o := objects{job: job}
	found, err := c.owned(ctx, pods, jobNameLabel+"="+name, job.UID)
	if err == nil {
		err = o.setPods(found)
	}
	if err != nil || job.Labels[QueueLabel] == "" {
		return o, err
	}
	if found, err = c.owned(ctx, workloads, jobUIDLabel+"="+string(job.UID), job.UID); err == nil {
		err = o.setWorkloads(found)
	}
	return o, err
}

// owned lists what belongs to a Job.
func (c *Client) owned(
	ctx context.Context, kind schema.GroupVersionResource, selector string, uid types.UID,
) ([]*unstructured.Unstructured, error) {
	all, err := c.list(ctx, kind, selector)
	var mine []*unstructured.Unstructured
	for _, one := range all {
		if ownedBy(one, uid) {
			mine = append(mine, one)
		}
	}
	return mine, err
}

func (c *Client) list(
	ctx context.Context, kind schema.GroupVersionResource, selector string,
) ([]*unstructured.Unstructured, error) {
	list, err := call(ctx, c, func(ctx context.Context) (*unstructured.UnstructuredList, error) {
		return c.in(kind).List(ctx, metav1.ListOptions{LabelSelector: selector})
	})
	if err != nil {
		return nil, c.explain("list "+kind.Resource, err)
	}
	var all []*unstructured.Unstructured
	for i := range list.Items {
		all = append(all, &list.Items[i])
	}
	return all, nil
}
