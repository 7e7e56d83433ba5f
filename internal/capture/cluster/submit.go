package cluster

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/vllm-vcr/conformance/internal/capture/deploy"
)

// Submit creates a Job. One of the same name, run and annotations is taken up instead, with created false. If another
// run captures the same target, the error wraps [ErrTwoCaptures] and names its Job, and nothing is left of ours.
func (c *Client) Submit(ctx context.Context, job *deploy.Job) (state State, created bool, err error) {
	if job.Namespace != "" && job.Namespace != c.namespace {
		return State{}, false, fmt.Errorf("job %s is for namespace %s, not %s", job.Name, job.Namespace, c.namespace)
	}
	if err := c.alone(ctx, job, nil); err != nil {
		return State{}, false, err
	}
	ours, err := c.create(ctx, job)
	if apierrors.IsAlreadyExists(err) {
		state, err := c.takeUp(ctx, job)
		return state, false, err
	}
	if err != nil {
		return State{}, false, c.explain("create job "+job.Name, err)
	}
	// Another may have been submitted since we looked. The younger sees the older one now, and goes.
	if err := c.alone(ctx, job, ours); err != nil {
		return State{}, false, cmp.Or(c.Delete(context.WithoutCancel(ctx), job.Name), err)
	}
	return stateOf(objects{job: ours}), true, nil
}

func (c *Client) create(ctx context.Context, job *deploy.Job) (*batchv1.Job, error) {
	text, err := json.Marshal(job)
	if err != nil {
		return nil, err
	}
	object := new(unstructured.Unstructured)
	if err := object.UnmarshalJSON(text); err != nil {
		return nil, err
	}
	object.SetNamespace(c.namespace)
	made, err := call(ctx, c, func(ctx context.Context) (*unstructured.Unstructured, error) {
		return c.in(jobs).Create(ctx, object, metav1.CreateOptions{FieldValidation: metav1.FieldValidationStrict})
	})
	if err != nil {
		return nil, err
	}
	return decode[batchv1.Job](made)
}

// takeUp is for a Job that is there already.
func (c *Client) takeUp(ctx context.Context, job *deploy.Job) (State, error) {
	state, err := c.Get(ctx, job.Name)
	if err != nil {
		return State{}, err
	}
	if run := c.opt.RunLabel; run != "" && state.Labels[run] != job.Labels[run] {
		return state, fmt.Errorf("%w: job %s is of run %q, this is run %q: wait for it or clean it up",
			ErrTwoCaptures, job.Name, state.Labels[run], job.Labels[run])
	}
	for key, want := range job.Annotations {
		if have := state.Annotations[key]; have != want {
			return state, fmt.Errorf("job %s was submitted with %s %q, now it would be %q: clean it up, or use another run id",
				job.Name, key, have, want)
		}
	}
	return state, nil
}

// alone looks for another run's capture of the same target. Once ours exists, only an older one counts.
func (c *Client) alone(ctx context.Context, job *deploy.Job, ours *batchv1.Job) error {
	target := labels.Set{}
	for _, label := range c.opt.TargetLabels {
		target[label] = job.Labels[label]
	}
	if len(target) == 0 {
		return nil
	}
	found, err := c.list(ctx, jobs, metav1.ListOptions{LabelSelector: target.String()})
	if err != nil {
		return err
	}
	all, err := decodeAll[batchv1.Job](found)
	if err != nil {
		return err
	}
	other := slices.IndexFunc(all, func(other batchv1.Job) bool {
		finished := jobCondition(&other, batchv1.JobComplete, batchv1.JobFailed) != nil
		return other.Name != job.Name && !finished && (ours == nil || mayBeOlder(&other, ours))
	})
	if other < 0 {
		return nil
	}
	return fmt.Errorf("%w: job %s captures the same for run %q since %s: wait for it, or clean it up (capture clean)",
		ErrTwoCaptures, all[other].Name, all[other].Labels[c.opt.RunLabel],
		all[other].CreationTimestamp.UTC().Format("2006-01-02 15:04:05 MST"))
}

// mayBeOlder reports whether another Job may have been created before ours. Its run may then have looked before ours was
// there, and go on. Times have whole seconds. Within one, versions tell: those of an object that was not changed since are
// of its creation. One that was changed counts as older: two runs then may both give way, but never both go on.
func mayBeOlder(other, ours *batchv1.Job) bool {
	if c := other.CreationTimestamp.Compare(ours.CreationTimestamp.Time); c != 0 {
		return c < 0
	}
	theirs, err := strconv.ParseUint(other.ResourceVersion, 10, 64)
	own, err2 := strconv.ParseUint(ours.ResourceVersion, 10, 64)
	return err != nil || err2 != nil || theirs < own || len(other.ManagedFields) > 1
}

// Get reads the state of one Job. The error wraps [ErrNotFound] if there is none.
func (c *Client) Get(ctx context.Context, name string) (State, error) {
	o, err := c.gather(ctx, name)
	if err != nil {
		return State{}, err
	}
	return stateOf(o), nil
}

// List reads the states of all Jobs that a label selector selects, by name.
func (c *Client) List(ctx context.Context, selector string) ([]State, error) {
	if _, err := labels.Parse(selector); err != nil {
		return nil, fmt.Errorf("label selector %q: %w", selector, err)
	}
	found, err := c.list(ctx, jobs, metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		return nil, err
	}
	all, err := decodeAll[batchv1.Job](found)
	if err != nil || len(all) == 0 {
		return nil, err
	}
	existing, err := c.list(ctx, pods, metav1.ListOptions{LabelSelector: jobNameLabel})
	if err != nil {
		return nil, err
	}
	var queued []*unstructured.Unstructured
	if slices.ContainsFunc(all, func(j batchv1.Job) bool { return j.Labels[QueueLabel] != "" }) {
		if queued, err = c.list(ctx, workloads, metav1.ListOptions{}); err != nil {
			return nil, err
		}
	}
	var states []State
	for _, job := range all {
		o := objects{job: &job}
		if o.pods, err = ofJob[corev1.Pod](existing, job.UID); err != nil {
			return nil, err
		}
		if o.workloads, err = ofJob[workload](queued, job.UID); err != nil {
			return nil, err
		}
		states = append(states, stateOf(o))
	}
	slices.SortFunc(states, func(a, b State) int { return cmp.Compare(a.Name, b.Name) })
	return states, nil
}
