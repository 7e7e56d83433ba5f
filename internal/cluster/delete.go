package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
)

// DeleteTime is how long [Client.Delete] waits for the end of a Job's pods.
const DeleteTime = 5 * time.Minute

var errGone = errors.New("gone")

// Delete deletes a Job and returns once it and its pods are gone, so that its GPU is free. That there is no such Job is
// no error. It waits for [DeleteTime] at most.
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
	return c.awaitEnd(ctx, name, job.UID)
}

// awaitEnd waits until the Job is gone, and its pods.
func (c *Client) awaitEnd(ctx context.Context, name string, uid types.UID) error {
	limited, cancel := context.WithTimeoutCause(ctx, DeleteTime, fmt.Errorf("after %v", DeleteTime))
	defer cancel()
	var mu sync.Mutex
	left := map[string][]string{"job": {name}, "pods": {"not looked at"}}
	note := func(kind string) func(map[types.UID]*unstructured.Unstructured) error {
		return func(known map[types.UID]*unstructured.Unstructured) error {
			mu.Lock()
			defer mu.Unlock()
			left[kind] = names(known)
			if len(left["job"])+len(left["pods"]) == 0 {
				return errGone
			}
			return nil
		}
	}
	ofJob := &follower{
		client: c, kind: jobs, opts: metav1.ListOptions{FieldSelector: "metadata.name=" + name},
		keep: func(u *unstructured.Unstructured) bool { return u.GetUID() == uid }, tell: note("job"),
	}
	ofPods := &follower{
		client: c, kind: pods, opts: metav1.ListOptions{LabelSelector: jobNameLabel + "=" + name},
		keep: func(u *unstructured.Unstructured) bool { return ownedBy(u, uid) }, tell: note("pods"),
	}
	err := firstOf(limited, ofJob.run, ofPods.run)
	mu.Lock()
	defer mu.Unlock()
	if errors.Is(err, errGone) {
		return nil
	}
	if limited.Err() == nil {
		return err
	}
	if len(left["pods"]) > 0 {
		return fmt.Errorf("job %s is deleted, but still there are %s, which may hold a GPU (%w): see the node, "+
			"or kubectl delete pod --force", name, strings.Join(left["pods"], ", "), context.Cause(limited))
	}
	return fmt.Errorf("job %s is deleted, but not gone (%w): see its finalizers", name, context.Cause(limited))
}

func names(known map[types.UID]*unstructured.Unstructured) []string {
	var names []string
	for _, u := range sorted(known) {
		name := u.GetName()
		if node, _, _ := unstructured.NestedString(u.Object, "spec", "nodeName"); node != "" {
			name += " on node " + node
		}
		if phase, _, _ := unstructured.NestedString(u.Object, "status", "phase"); !ended(phase) {
			names = append(names, name)
		}
	}
	return names
}

// ended tells whether a pod of this phase holds nothing any more.
func ended(phase string) bool {
	return slices.Contains([]corev1.PodPhase{corev1.PodSucceeded, corev1.PodFailed}, corev1.PodPhase(phase))
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
