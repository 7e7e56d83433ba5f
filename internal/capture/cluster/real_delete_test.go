package cluster_test

import (
	"testing"
	"time"

	"github.com/vllm-vcr/conformance/internal/capture/cluster"
	"github.com/vllm-vcr/conformance/internal/testenv"
)

// TestRealDeleteFreesQuota deletes the Job that has the only GPU. Once that is done the quota is free: the Job that waits
// for it is admitted, and nothing of the first is left, not even Kueue's view of it.
func TestRealDeleteFreesQuota(t *testing.T) {
	k := testenv.KubeCluster(t)
	c, ns := realClient(t, k)
	k.Queue(t, ns, "queue", 1)
	submit(t, c, jobOf(t, "one", "r1", testenv.PodReady))
	if _, err := c.Watch(t.Context(), "one-r1", cluster.Budgets{}, nil); err != nil {
		t.Fatal(err)
	}
	submit(t, c, jobOf(t, "two", "r1", testenv.PodReady))
	var began, deleted time.Time
	second, err := c.Watch(t.Context(), "two-r1", cluster.Budgets{}, func(s cluster.State) {
		if !began.IsZero() || s.Reason != "Pending" {
			return
		}
		began = time.Now()
		if err := c.Delete(t.Context(), "one-r1"); err != nil {
			t.Error(err)
		}
		deleted = time.Now()
		var left struct {
			Items []struct {
				Metadata struct {
					Name            string
					OwnerReferences []struct{ Name string }
				}
			}
		}
		k.Get(t, "/apis/kueue.x-k8s.io/v1beta2/namespaces/"+ns+"/workloads", &left)
		for _, w := range left.Items {
			if w.Metadata.OwnerReferences[0].Name == "one-r1" {
				t.Errorf("the workload %s is left", w.Metadata.Name)
			}
		}
	})
	if err != nil || second.Phase != cluster.Ready || began.IsZero() {
		t.Fatalf("%+v, %v", second, err)
	}
	t.Logf("deleted in %v, and the next is ready %v later", deleted.Sub(began), time.Since(deleted))
}
