package cluster

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// TestDeleteWaits has what belongs to a Job go later than the Job itself, or never.
func TestDeleteWaits(t *testing.T) {
	after := func(d time.Duration, remove func()) { time.AfterFunc(d, remove) }
	tests := []struct {
		name   string
		change func(*fakeCluster)
		after  time.Duration
		want   string // of the error
	}{
		{name: "the quota is freed later", after: time.Minute, change: func(f *fakeCluster) {
			after(2*time.Second, func() { f.remove(pods, "p") })
			after(time.Minute, func() { f.remove(workloads, "w") })
		}},
		{name: "the pod ends later", after: time.Minute, change: func(f *fakeCluster) {
			after(time.Minute, func() { f.remove(pods, "p") })
			after(2*time.Second, func() { f.remove(workloads, "w") })
		}},
		{name: "nobody may see the quota", after: 2 * time.Second, change: func(f *fakeCluster) {
			after(2*time.Second, func() { f.remove(pods, "p") })
			f.api.PrependReactor("list", "workloads", func(a clienttesting.Action) (bool, runtime.Object, error) {
				return true, nil, apierrors.NewForbidden(a.GetResource().GroupResource(), "", errors.New("no role"))
			})
		}},
		{
			name: "the quota is never freed", after: DeleteTime,
			change: func(f *fakeCluster) { after(time.Second, func() { f.remove(pods, "p") }) },
			want:   "job j was deleted, but the Workload w still exists, which may hold quota (after 5m0s): see that Kueue runs",
		},
		{
			name: "the pod never ends", after: DeleteTime,
			change: func(f *fakeCluster) { after(time.Second, func() { f.remove(workloads, "w") }) },
			want:   "job j was deleted, but p on node node-1 still exist, which may hold a GPU (after 5m0s)",
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake(t)
				f.running()
				w := &unstructured.Unstructured{Object: map[string]any{"metadata": map[string]any{
					"name": "w", "uid": "w", "namespace": "default", "labels": map[string]any{jobUIDLabel: "job-1"},
					"ownerReferences": []any{map[string]any{"uid": "job-1"}},
				}}}
				w.SetAPIVersion(kueueGroup + "/" + kueueVersion)
				w.SetKind("Workload")
				require.NoError(t, f.api.Tracker().Create(workloads, w, "default"))
				test.change(f)
				began := time.Now()
				err := f.client.Delete(t.Context(), "j")
				require.True(t, (err == nil) == (test.want == "") && (err == nil || strings.Contains(err.Error(), test.want)), "got %v, want %q", err, test.want)
				if got := time.Since(began); got < test.after || got > test.after+pollTime {
					t.Errorf("after %v, want %v", got, test.after)
				}
			})
		})
	}
}
