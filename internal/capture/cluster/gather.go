package cluster

import (
	"context"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

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

func (o *objects) setQueue(found []*unstructured.Unstructured) error {
	queues, err := decodeAll[queue](found)
	o.queues = queues
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
