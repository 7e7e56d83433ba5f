package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/vllm-vcr/conformance/internal/base/retry"
)

// Budgets are how long each stage may last, counted from when it was first seen. 0 is without end.
type Budgets struct {
	Admission time.Duration // until the queue admits the Job
	Start     time.Duration // from there until all containers run and the sidecars are ready
	Load      time.Duration // from there until the main containers are ready
}

const (
	// pollTime is how often a Job is looked at. Each of its stages lasts minutes.
	pollTime = 2 * time.Second
	// causeTime is how long a fault may wait for its cause: the controller of Jobs deletes a pod before it says why.
	causeTime = 4 * time.Second
)

// Watch waits until the Job is ready or complete, and calls seen, which may be nil, for each state on the way that
// differs from the one before. It returns a [FailedError] as soon as the Job cannot come to a good end, or a budget is
// used up; an error that wraps [ErrNotFound] if there is no such Job; one that wraps [ErrOutage] if the API server was
// out of reach for too long.
func (c *Client) Watch(ctx context.Context, name string, budgets Budgets, seen func(State)) (State, error) {
	job, err := c.job(ctx, name)
	if err != nil {
		return State{}, err
	}
	w := &watcher{client: c, name: name, budgets: budgets, seen: seen, uid: job.UID, reached: time.Now()}
	for {
		over, err := w.look(ctx)
		if over || err != nil {
			return w.last, err
		}
		if err := retry.Pause(ctx, pollTime); err != nil {
			return w.last, err
		}
	}
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

// A watcher looks at one Job again and again.
type watcher struct {
	client  *Client
	name    string // of the Job
	uid     types.UID
	budgets Budgets
	seen    func(State)

	reached    time.Time // when the server last answered
	last       State     // that was reported
	pods       []corev1.Pod
	stage      int
	stageBegan time.Time
	effect     time.Time // when a fault was first seen that has no cause yet; zero without one
}

// look reads what there is of the Job, reports it, and returns whether that is the end.
func (w *watcher) look(ctx context.Context) (over bool, err error) {
	now, err := w.client.gather(ctx, w.name)
	switch {
	case ctx.Err() != nil:
		return false, context.Cause(ctx)
	case errors.Is(err, ErrNotFound), err == nil && now.job.UID != w.uid:
		now = objects{}
	case err != nil && !passing(err):
		return false, err
	case err != nil && time.Since(w.reached) > w.client.opt.Outage:
		return false, fmt.Errorf("job %s: %w (%v): %w", w.name, ErrOutage, w.client.opt.Outage, err)
	case err != nil:
		w.client.opt.Log.Info("the API server does not answer, trying again", "job", w.name, "error", err)
		return false, nil
	}
	w.reached = time.Now()
	if f := w.diagnose(now); f != nil {
		if f.Effect && w.effect.IsZero() {
			w.effect = time.Now()
		}
		if f.Effect && time.Since(w.effect) < causeTime {
			return false, nil
		}
		return true, w.fail(ctx, now, f)
	}
	w.effect = time.Time{}
	w.pods = now.pods
	state := stateOf(now)
	w.report(state)
	if state.Phase == Ready || state.Phase == Complete {
		return true, nil
	}
	if f := w.outOfTime(state); f != nil {
		return true, w.fail(ctx, now, f)
	}
	return false, nil
}

// diagnose is the same as for any Job, and knows that there was a pod.
func (w *watcher) diagnose(o objects) *fault {
	if o.job != nil && jobCondition(o.job, batchv1.JobComplete) != nil {
		return nil
	}
	if before := (objects{pods: w.pods}).pod(); before != nil && !slices.ContainsFunc(o.pods, func(p corev1.Pod) bool { return p.UID == before.UID }) {
		o.lost = before.Name
	}
	return diagnose(o)
}

// fail is the end of a Job that has a fault.
func (w *watcher) fail(ctx context.Context, now objects, f *fault) error {
	state := w.last
	if now.job != nil {
		state = stateOf(now)
	}
	if len(now.pods) == 0 {
		now.pods = w.pods // of which there may still be a log
	}
	failed := w.client.fail(ctx, now, state, f)
	w.report(failed.State)
	return failed
}

func (w *watcher) report(state State) {
	if w.seen != nil && !reflect.DeepEqual(state, w.last) {
		w.seen(state)
	}
	w.last = state
}

// outOfTime is the fault of a stage that lasts too long, nil if it does not. A Job that falls back gets no more time.
func (w *watcher) outOfTime(state State) *fault {
	stage := 1
	switch state.Phase {
	case Admitted, Scheduled, Starting:
		stage = 2
	case Running:
		stage = 3
	}
	if stage > w.stage {
		w.stage, w.stageBegan = stage, time.Now()
	}
	budget := []time.Duration{w.budgets.Admission, w.budgets.Start, w.budgets.Load}[w.stage-1]
	if budget == 0 || time.Since(w.stageBegan) < budget {
		return nil
	}
	because := ""
	if text := cmp.Or(state.Message, state.Reason); text != "" {
		because = ": " + text
	}
	switch w.stage {
	case 1:
		return &fault{
			Reason: "NotAdmitted", Message: fmt.Sprintf("no quota after %v%s", budget, because),
			Hint: "see what else is in the queue, or give it more time",
		}
	case 2:
		reason := "NotStarted"
		if state.Phase == Admitted {
			reason = "NotScheduled"
		}
		return &fault{
			Reason: reason, Message: fmt.Sprintf("%s for %v after it was admitted%s", state.Phase, budget, because),
			Hint: "see its logs and nodes, or give it more time",
		}
	}
	return &fault{
		Reason: "NotReady", Message: fmt.Sprintf("the load has not ended after %v", budget),
		Hint: "see the logs, or give it more time",
	}
}

// gather reads what there is of a Job at this moment. Its queue and the events about it, which this account need not be allowed
// to see, are read only where they say why it does not advance.
func (c *Client) gather(ctx context.Context, name string) (o objects, err error) {
	if o.job, err = c.job(ctx, name); err != nil {
		return objects{}, err
	}
	if o.pods, err = owned[corev1.Pod](ctx, c, pods, jobNameLabel+"="+name, o.job.UID); err != nil {
		return o, err
	}
	queue := o.job.Labels[QueueLabel]
	if queue != "" {
		if o.workloads, err = owned[workload](ctx, c, workloads, jobUIDLabel+"="+string(o.job.UID), o.job.UID); err != nil {
			return o, err
		}
	}
	switch {
	case len(o.pods) > 0:
	case !o.waiting():
		err = c.gatherWarning(ctx, &o)
	case queue != "":
		err = c.gatherQueue(ctx, queue, &o)
	}
	if apierrors.IsForbidden(err) {
		err = nil
	}
	return o, err
}

// gatherWarning takes the last of the events that warn: their names end in the time that they were first seen at.
func (c *Client) gatherWarning(ctx context.Context, o *objects) error {
	found, err := c.list(ctx, events, metav1.ListOptions{FieldSelector: "involvedObject.uid=" + string(o.job.UID)})
	slices.SortFunc(found, func(a, b *unstructured.Unstructured) int { return cmp.Compare(a.GetName(), b.GetName()) })
	for _, event := range found {
		about, _, _ := unstructured.NestedString(event.Object, "involvedObject", "uid")
		if kind, _, _ := unstructured.NestedString(event.Object, "type"); kind == corev1.EventTypeWarning && about == string(o.job.UID) {
			o.warning, _, _ = unstructured.NestedString(event.Object, "message")
		}
	}
	return err
}

func (c *Client) gatherQueue(ctx context.Context, name string, o *objects) error {
	found, err := call(ctx, c, func(ctx context.Context) (*unstructured.Unstructured, error) {
		return c.in(localQueues).Get(ctx, name, metav1.GetOptions{})
	})
	switch o.queueKnown = err == nil || apierrors.IsNotFound(err); {
	case !o.queueKnown:
		return c.explain("get LocalQueue "+name, err)
	case err != nil:
		return nil
	}
	o.queues, err = decodeAll[queue]([]*unstructured.Unstructured{found})
	return err
}

// owned lists what belongs to a Job, by name.
func owned[T any](ctx context.Context, c *Client, kind schema.GroupVersionResource, selector string, uid types.UID) ([]T, error) {
	all, err := c.list(ctx, kind, metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		return nil, err
	}
	return ofJob[T](all, uid)
}

// ofJob are those of a list that belong to a Job, by name.
func ofJob[T any](all []*unstructured.Unstructured, uid types.UID) ([]T, error) {
	mine := slices.DeleteFunc(slices.Clone(all), func(u *unstructured.Unstructured) bool { return !ownedBy(u, uid) })
	slices.SortFunc(mine, func(a, b *unstructured.Unstructured) int {
		return cmp.Or(cmp.Compare(a.GetName(), b.GetName()), cmp.Compare(a.GetUID(), b.GetUID()))
	})
	return decodeAll[T](mine)
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

func (c *Client) list(ctx context.Context, kind schema.GroupVersionResource, opts metav1.ListOptions) ([]*unstructured.Unstructured, error) {
	list, err := call(ctx, c, func(ctx context.Context) (*unstructured.UnstructuredList, error) {
		return c.in(kind).List(ctx, opts)
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
