package cluster

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/vllm-vcr/conformance/internal/base/retry"
)

// DeleteTime is how long [Client.Delete] waits for the end of a Job's pods.
const DeleteTime = 5 * time.Minute

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
	left := remains{job: true}
	for {
		now, err := c.remains(limited, name, job)
		switch {
		case err == nil && !now.job && len(now.pods)+len(now.workloads) == 0:
			return nil
		case err == nil:
			left = now
		case limited.Err() == nil && !passing(err):
			return err
		}
		if err := retry.Pause(limited, pollTime); err != nil && ctx.Err() != nil {
			return err
		} else if err != nil {
			return left.explain(name, err)
		}
	}
}

// remains are what is left of a Job that is deleted, with the names of the rest.
type remains struct {
	job             bool
	pods, workloads []string
}

// remains looks for what is left. Workloads, which this account need not see, are taken for gone then.
func (c *Client) remains(ctx context.Context, name string, job *batchv1.Job) (left remains, err error) {
	now, err := c.job(ctx, name)
	if left.job = err == nil && now.UID == job.UID; err != nil && !errors.Is(err, ErrNotFound) {
		return left, err
	}
	running, err := owned[corev1.Pod](ctx, c, pods, jobNameLabel+"="+name, job.UID)
	if err != nil {
		return left, err
	}
	for _, p := range running {
		if p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
			continue
		}
		text := p.Name
		if p.Spec.NodeName != "" {
			text += " on node " + p.Spec.NodeName
		}
		left.pods = append(left.pods, text)
	}
	if job.Labels[QueueLabel] == "" {
		return left, nil
	}
	queued, err := owned[workload](ctx, c, workloads, jobUIDLabel+"="+string(job.UID), job.UID)
	for _, w := range queued {
		left.workloads = append(left.workloads, w.Name)
	}
	if apierrors.IsForbidden(err) {
		err = nil
	}
	return left, err
}

// explain says what does not go, once it has had its time.
func (r remains) explain(name string, cause error) error {
	switch {
	case len(r.pods) > 0:
		return fmt.Errorf("job %s was deleted, but %s still exist, which may hold a GPU (%w): see the node, "+
			"or kubectl delete pod --force", name, strings.Join(r.pods, ", "), cause)
	case r.job:
		return fmt.Errorf("job %s was deleted, but still exists (%w): see its finalizers", name, cause)
	}
	return fmt.Errorf("job %s was deleted, but the Workload %s still exists, which may hold quota (%w): see that Kueue runs",
		name, strings.Join(r.workloads, ", "), cause)
}
