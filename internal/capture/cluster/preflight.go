package cluster

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

const applyQueues = "kubectl apply -k deploy/"

// A right is something that a capture must be allowed to do.
type right struct{ group, resource, part, verb string }

// rights are checked before a GPU is asked for. A file is fetched over a WebSocket, which is a get, or over SPDY, which
// is a create; newer servers want both for the first.
var rights = []right{
	{"batch", "jobs", "", "create"},
	{"batch", "jobs", "", "list"},
	{"batch", "jobs", "", "delete"},
	{"", "pods", "", "list"},
	{"", "pods", "log", "get"},
	{"", "pods", "exec", "get"},
	{"", "pods", "exec", "create"},
	{kueueGroup, "workloads", "", "list"},
	{kueueGroup, "localqueues", "", "get"},
}

// Preflight checks all that can be known before a Job is submitted: that the API server is there and knows us, that we
// may do what a capture needs, that the namespace exists, and that the LocalQueue and its ClusterQueue take Jobs.
func (c *Client) Preflight(ctx context.Context, queue string) error {
	if err := c.checkNamespace(ctx); err != nil {
		return err
	}
	var missing []error
	for _, r := range rights {
		allowed, err := c.may(ctx, r)
		if err != nil {
			return c.explain("ask what this account may do", err)
		}
		if !allowed {
			missing = append(missing, fmt.Errorf("may not %s in namespace %s of %s", r, c.namespace, c.host))
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("%w: bind this account to the role in deploy/ (%s)", errors.Join(missing...), applyQueues)
	}
	return c.checkQueue(ctx, queue)
}

func (r right) String() string {
	text := r.verb + " " + r.resource
	if r.part != "" {
		text += "/" + r.part
	}
	return text
}

// may asks the server about ourselves, which everybody may.
func (c *Client) may(ctx context.Context, r right) (bool, error) {
	question := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
		"spec": map[string]any{"resourceAttributes": map[string]any{
			"namespace": c.namespace, "group": r.group, "resource": r.resource, "subresource": r.part, "verb": r.verb,
		}},
	}}
	answer, err := call(ctx, c, func(ctx context.Context) (*unstructured.Unstructured, error) {
		return c.objects.Resource(reviews).Create(ctx, question, metav1.CreateOptions{})
	})
	if err != nil {
		return false, err
	}
	allowed, _, err := unstructured.NestedBool(answer.Object, "status", "allowed")
	return allowed, err
}

// checkNamespace is the first request, so it also finds a server that is not there. Who may not see namespaces goes on.
func (c *Client) checkNamespace(ctx context.Context) error {
	_, err := call(ctx, c, func(ctx context.Context) (*unstructured.Unstructured, error) {
		return c.objects.Resource(namespaces).Get(ctx, c.namespace, metav1.GetOptions{})
	})
	switch {
	case err == nil || apierrors.IsForbidden(err):
		return nil
	case apierrors.IsNotFound(err):
		return fmt.Errorf("no namespace %s at %s: give another with --namespace, or create it with the queue: %s",
			c.namespace, c.host, applyQueues)
	}
	return c.explain("reach the cluster", err)
}

func (c *Client) checkQueue(ctx context.Context, name string) error {
	local, err := c.queue(ctx, name)
	if err != nil {
		return err
	}
	what := fmt.Sprintf("LocalQueue %s in namespace %s", name, c.namespace)
	found, err := c.clusterQueue(ctx, local)
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	if found != nil {
		shared, err := decode[queue](found)
		if err != nil {
			return err
		}
		if wrong := queueFault([]queue{*shared}); wrong != "" {
			return fmt.Errorf("ClusterQueue %s of %s %s", shared.Name, what, wrong)
		}
	}
	if wrong := queueFault([]queue{*local}); wrong != "" {
		return fmt.Errorf("%s %s", what, wrong)
	}
	return nil
}

// clusterQueue fetches that of a LocalQueue; nil if this account may not see it. It belongs to the whole cluster, and not
// everybody may; the LocalQueue says what counts.
func (c *Client) clusterQueue(ctx context.Context, local *queue) (*unstructured.Unstructured, error) {
	found, err := call(ctx, c, func(ctx context.Context) (*unstructured.Unstructured, error) {
		return c.objects.Resource(clusterQueues).Get(ctx, local.Spec.ClusterQueue, metav1.GetOptions{})
	})
	switch {
	case apierrors.IsForbidden(err):
		return nil, nil
	case apierrors.IsNotFound(err):
		return nil, fmt.Errorf("its ClusterQueue %s is not there: %s", local.Spec.ClusterQueue, applyQueues)
	case err != nil:
		return nil, c.explain("get ClusterQueue "+local.Spec.ClusterQueue, err)
	}
	return found, nil
}

// queue fetches a LocalQueue.
func (c *Client) queue(ctx context.Context, name string) (*queue, error) {
	found, err := call(ctx, c, func(ctx context.Context) (*unstructured.Unstructured, error) {
		return c.in(localQueues).Get(ctx, name, metav1.GetOptions{})
	})
	if apierrors.IsNotFound(err) {
		if _, listed := c.list(ctx, localQueues, metav1.ListOptions{}); apierrors.IsNotFound(listed) {
			return nil, fmt.Errorf("%s serves no %s/%s: install Kueue 0.15 or newer", c.host, kueueGroup, kueueVersion)
		}
		return nil, fmt.Errorf("no LocalQueue %s in namespace %s of %s: %s", name, c.namespace, c.host, applyQueues)
	}
	if err != nil {
		return nil, c.explain("get LocalQueue "+name, err)
	}
	return decode[queue](found)
}
