package cluster

import (
	"context"
	"errors"
	"fmt"
	"strings"
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

// DeleteTime is how long [Client.Delete] waits for the end of a Job's pods.
const DeleteTime = 5 * time.Minute

var errGone = errors.New("gone")

// Delete deletes a Job and returns once it, its pods and Kueue's view of it are gone, so that its GPU and its quota are
// free. That there is no such Job is not an error. It waits for [DeleteTime] at most.
func (c *Client) Delete(ctx context.Context, name string) error {
	job, err := c.job(ctx, name)
	if errors.Is(err, ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	foreground := metav1.DeletePropagationForeground
	_, err = call(ctx, c, func(ctx context.Context) (any, error) {
		return nil, c.in(jobs).Delete(ctx, name, metav1.DeleteOptions{
			PropagationPolicy: &foreground, Preconditions: &metav1.Preconditions{UID: &job.UID},
		})
	})
	// Another of the same name took its place: ours is gone.
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return c.explain("delete job "+name, err)
	}
	return c.awaitEnd(ctx, name, job)
}

// awaitEnd waits until the Job is gone, and what belongs to it.
func (c *Client) awaitEnd(ctx context.Context, name string, job *batchv1.Job) error {
	limited, cancel := context.WithTimeoutCause(ctx, DeleteTime, fmt.Errorf("after %v", DeleteTime))
	defer cancel()
	left := &remains{left: map[schema.GroupVersionResource][]string{jobs: {name}, pods: {"not looked at"}}}
	owned := func(u *unstructured.Unstructured) bool { return ownedBy(u, job.UID) }
	follow := func(kind schema.GroupVersionResource, opts metav1.ListOptions, keep func(*unstructured.Unstructured) bool) *follower {
		return &follower{client: c, kind: kind, opts: opts, keep: keep, tell: left.noting(kind)}
	}
	run := []func(context.Context) error{
		follow(jobs, metav1.ListOptions{FieldSelector: "metadata.name=" + name},
			func(u *unstructured.Unstructured) bool { return u.GetUID() == job.UID }).run,
		follow(pods, metav1.ListOptions{LabelSelector: jobNameLabel + "=" + name}, owned).run,
	}
	if job.Labels[QueueLabel] != "" {
		left.left[workloads] = []string{"not looked at"}
		queued := follow(workloads, metav1.ListOptions{LabelSelector: jobUIDLabel + "=" + string(job.UID)}, owned)
		run = append(run, queued.runIfAllowed)
	}
	err := firstOf(limited, run...)
	if errors.Is(err, errGone) {
		return nil
	}
	if limited.Err() == nil {
		return err
	}
	return left.explain(name, context.Cause(limited))
}

// remains are what is left of a Job that is deleted: names by kind.
type remains struct {
	mu   sync.Mutex
	left map[schema.GroupVersionResource][]string
}

// noting returns a listener of a kind, which ends with errGone once nothing is left of any.
func (r *remains) noting(kind schema.GroupVersionResource) func(map[types.UID]*unstructured.Unstructured) error {
	return func(known map[types.UID]*unstructured.Unstructured) error {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.left[kind] = names(known)
		for _, names := range r.left {
			if len(names) > 0 {
				return nil
			}
		}
		return errGone
	}
}

// explain says what does not go, once it has had its time.
func (r *remains) explain(name string, cause error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case len(r.left[pods]) > 0:
		return fmt.Errorf("job %s was deleted, but %s still exist, which may hold a GPU (%w): see the node, "+
			"or kubectl delete pod --force", name, strings.Join(r.left[pods], ", "), cause)
	case len(r.left[jobs]) > 0:
		return fmt.Errorf("job %s was deleted, but still exists (%w): see its finalizers", name, cause)
	}
	return fmt.Errorf("job %s was deleted, but the Workload %s still exists, which may hold quota (%w): see that Kueue runs",
		name, strings.Join(r.left[workloads], ", "), cause)
}

// runIfAllowed is run for what this account need not see: it is taken for gone then.
func (f *follower) runIfAllowed(ctx context.Context) error {
	err := f.run(ctx)
	if !apierrors.IsForbidden(err) {
		return err
	}
	if err := f.tell(nil); err != nil {
		return err
	}
	<-ctx.Done()
	return context.Cause(ctx)
}

func names(known map[types.UID]*unstructured.Unstructured) []string {
	var names []string
	for _, u := range sorted(known) {
		name := u.GetName()
		if node, _, _ := unstructured.NestedString(u.Object, "spec", "nodeName"); node != "" {
			name += " on node " + node
		}
		phase, _, _ := unstructured.NestedString(u.Object, "status", "phase")
		if ended := phase == string(corev1.PodSucceeded) || phase == string(corev1.PodFailed); !ended {
			names = append(names, name)
		}
	}
	return names
}

// firstOf runs functions until the first ends, and returns its error once all have.
func firstOf(ctx context.Context, run ...func(context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	first := make(chan error, len(run))
	var running sync.WaitGroup
	for _, one := range run {
		running.Go(func() { first <- one(ctx) })
	}
	err := <-first
	cancel()
	running.Wait()
	return err
}
