package cluster

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/vllm-vcr/conformance/internal/base/retry"
)

const (
	watchTime  = time.Minute // that the server is asked to keep a watch for, up to twice
	watchGrace = 15 * time.Second
	maxTries   = 6 // from which on the wait between tries grows no more
)

// A follower keeps telling what there is of a kind.
type follower struct {
	client *Client
	kind   schema.GroupVersionResource
	opts   metav1.ListOptions
	keep   func(*unstructured.Unstructured) bool
	tell   func(map[types.UID]*unstructured.Unstructured) error // all that there is, at each change
	// spare is a kind that we can do without, if this account may not see it.
	spare bool
}

// run ends with the context, or with an error that time will not mend.
func (f *follower) run(ctx context.Context) error {
	reached := time.Now()
	for try := 1; ; try = min(try+1, maxTries) {
		began := time.Now()
		listed, err := f.pass(ctx)
		var final *finalError
		switch {
		case errors.As(err, &final):
			return final.error
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err == nil || listed && passing(err):
			reached = time.Now()
		case !passing(err):
			return f.client.explain("watch "+f.kind.Resource, err)
		case time.Since(reached) > f.client.opt.Outage:
			return f.client.explain("watch "+f.kind.Resource, fmt.Errorf("%w (%v): %w", ErrOutage, f.client.opt.Outage, err))
		}
		if err != nil {
			f.client.opt.Log.Info("a watch broke, listing again", "kind", f.kind.Resource, "error", err)
		}
		if listed && time.Since(began) > watchGrace {
			try = 0
			continue
		}
		if err := retry.Pause(ctx, f.client.backoff(max(try, 1))); err != nil {
			return err
		}
	}
}

// A finalError is one of the listener, which ends the following.
type finalError struct{ error }

func (f *follower) told(known map[types.UID]*unstructured.Unstructured) error {
	if err := f.tell(known); err != nil {
		return &finalError{err}
	}
	return nil
}

// pass lists, and watches from there until the watch ends.
func (f *follower) pass(ctx context.Context) (listed bool, err error) {
	api := f.client.in(f.kind)
	list, err := call(ctx, f.client, func(ctx context.Context) (*unstructured.UnstructuredList, error) {
		return api.List(ctx, f.opts)
	})
	if err != nil {
		return false, err
	}
	known := map[types.UID]*unstructured.Unstructured{}
	for i := range list.Items {
		if f.keep(&list.Items[i]) {
			known[list.Items[i].GetUID()] = &list.Items[i]
		}
	}
	if err := f.told(known); err != nil {
		return true, err
	}
	return true, f.watch(ctx, list.GetResourceVersion(), known)
}

// watch returns nil when the server has ended the watch, or should have.
func (f *follower) watch(ctx context.Context, from string, known map[types.UID]*unstructured.Unstructured) error {
	length := watchTime + rand.N(watchTime)
	ctx, cancel := context.WithTimeout(ctx, length+watchGrace)
	defer cancel()
	opts, seconds := f.opts, int64(length/time.Second)
	opts.ResourceVersion, opts.TimeoutSeconds, opts.AllowWatchBookmarks = from, &seconds, true
	changes, err := f.client.in(f.kind).Watch(ctx, opts)
	if err != nil {
		return err
	}
	defer changes.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case change, open := <-changes.ResultChan():
			if !open {
				return nil
			}
			if err := f.apply(change, known); err != nil {
				return err
			}
		}
	}
}

func (f *follower) apply(change watch.Event, known map[types.UID]*unstructured.Unstructured) error {
	if change.Type == watch.Error {
		return apierrors.FromObject(change.Object)
	}
	object, ok := change.Object.(*unstructured.Unstructured)
	if !ok || change.Type == watch.Bookmark || !f.keep(object) {
		return nil
	}
	if change.Type == watch.Deleted {
		delete(known, object.GetUID())
	} else {
		known[object.GetUID()] = object
	}
	return f.told(known)
}
