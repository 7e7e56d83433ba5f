package cluster_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	"sigs.k8s.io/yaml"

	"github.com/vllm-vcr/conformance/internal/capture/cluster"
	"github.com/vllm-vcr/conformance/internal/capture/deploy"
	"github.com/vllm-vcr/conformance/internal/testenv"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

const (
	targetLabel = "test/target"
	runLabel    = "test/run"
)

// realClient connects to a namespace of the test's own.
func realClient(t *testing.T, k *testenv.Kube) (*cluster.Client, string) {
	t.Helper()
	ns := k.Namespace(t)
	return connect(t, cluster.Options{Kubeconfig: k.Kubeconfig, Namespace: ns}), ns
}

func connect(t *testing.T, opt cluster.Options) *cluster.Client {
	t.Helper()
	opt.TargetLabels, opt.RunLabel, opt.Program = []string{targetLabel}, runLabel, "vllm-vcr"
	client, err := cluster.Connect(opt)
	require.NoError(t, err)
	return client
}

// jobOf is a Job of a target and a run that asks for a GPU.
func jobOf(t *testing.T, target, run string, edit ...string) *deploy.Job {
	t.Helper()
	text, err := os.ReadFile("testdata/job.yaml")
	require.NoError(t, err)
	var job deploy.Job
	replace := strings.NewReplacer(append(edit, "TARGET", target, "RUN", run)...)
	require.NoError(t, yaml.UnmarshalStrict([]byte(replace.Replace(string(text))), &job))
	return &job
}

func submit(t *testing.T, c *cluster.Client, job *deploy.Job) cluster.State {
	t.Helper()
	state, created, err := c.Submit(t.Context(), job)
	if err != nil || !created {
		t.Fatalf("created %v, %v", created, err)
	}
	return state
}

// TestRealSubmit is about Jobs that are there already.
func TestRealSubmit(t *testing.T) {
	k := testenv.KubeAPI(t)
	c, _ := realClient(t, k)
	submit(t, c, jobOf(t, "one", "r1"))
	state, created, err := c.Submit(t.Context(), jobOf(t, "one", "r1"))
	require.True(t, err == nil && !created && state.Name == "one-r1", "the same again: %+v, %v, %v", state, created, err)
	other := jobOf(t, "one", "r1")
	other.Annotations["test/hash"] = "another"
	if _, _, err := c.Submit(t.Context(), other); err == nil || !strings.Contains(err.Error(), `test/hash "same"`) {
		t.Errorf("another configuration: %v", err)
	}
	_, _, err = c.Submit(t.Context(), jobOf(t, "one", "r2"))
	require.True(t, errors.Is(err, cluster.ErrTwoCaptures) && strings.Contains(err.Error(), "job one-r1"), "another run: %v", err)
	wrong := jobOf(t, "two", "r1", "restartPolicy: Never", "restartPolicy: Sometimes")
	if _, _, err := c.Submit(t.Context(), wrong); err == nil || !strings.Contains(err.Error(), "restartPolicy") {
		t.Errorf("an invalid job: %v", err)
	}
	states, err := c.List(t.Context(), targetLabel)
	require.True(t, err == nil && len(states) == 1, "%+v, %v: want one job", states, err)
}

// TestRealSubmitAtOnce has two runs want the same target at the same time: one gets it, and nothing is left of the other.
func TestRealSubmitAtOnce(t *testing.T) {
	k := testenv.KubeAPI(t)
	c, ns := realClient(t, k)
	var all, collector sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	collector.Go(func() { collectGarbage(ctx, t, k, ns) })
	errs := make([]error, 4)
	for i := range errs {
		job := jobOf(t, "one", fmt.Sprint("r", i))
		all.Go(func() { _, _, errs[i] = c.Submit(t.Context(), job) })
	}
	all.Wait()
	cancel()
	collector.Wait()
	won := 0
	for _, err := range errs {
		if err == nil {
			won++
		} else if !errors.Is(err, cluster.ErrTwoCaptures) {
			t.Error(err)
		}
	}
	states, err := c.List(t.Context(), targetLabel)
	require.True(t, won == 1 && err == nil && len(states) == 1, "%d won, %d jobs, %v: want one", won, len(states), err)
}

// collectGarbage lets Jobs go that were deleted with what depends on them, until ctx ends: an API server alone has no
// garbage collector.
func collectGarbage(ctx context.Context, t *testing.T, k *testenv.Kube, ns string) {
	path := "/apis/batch/v1/namespaces/" + ns + "/jobs"
	for ctx.Err() == nil {
		var jobs batchv1.JobList
		k.Get(t, path, &jobs)
		for _, job := range jobs.Items {
			if job.DeletionTimestamp != nil {
				k.Do(t, http.MethodPatch, path+"/"+job.Name, "application/merge-patch+json", `{"metadata":{"finalizers":null}}`)
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// TestRealPreflight asks a server that is there, and one that is not, about rights and queues.
func TestRealPreflight(t *testing.T) {
	k := testenv.KubeAPI(t)
	ns := k.Namespace(t)
	createQueue(t, k, ns, "queue", ns)
	createQueue(t, k, ns, "orphan", "nowhere")
	k.Create(t, kueuePath+"/clusterqueues", "{apiVersion: kueue.x-k8s.io/v1beta2, kind: ClusterQueue, metadata: {name: "+ns+"}, spec: {}}")
	t.Cleanup(func() { k.Delete(t, kueuePath+"/clusterqueues/"+ns) })
	markActive(t, k, "/clusterqueues/"+ns)
	other := filepath.Join(t.TempDir(), "kubeconfig")
	config, err := os.ReadFile(k.Kubeconfig)
	require.NoError(t, err)
	write := func(edit ...string) string {
		t.Helper()
		text := strings.NewReplacer(edit...).Replace(string(config))
		require.NoError(t, os.WriteFile(other, []byte(text), 0o600))
		return other
	}
	tests := []struct {
		name, queue string
		opt         cluster.Options
		want        []string
	}{
		{name: "all is well", queue: "queue", opt: cluster.Options{Kubeconfig: k.Kubeconfig, Namespace: ns}},
		{
			name: "no queue", queue: "none", opt: cluster.Options{Kubeconfig: k.Kubeconfig, Namespace: ns},
			want: []string{"no LocalQueue none in namespace " + ns, "kubectl apply -k deploy/"},
		},
		{
			name: "no cluster queue", queue: "orphan", opt: cluster.Options{Kubeconfig: k.Kubeconfig, Namespace: ns},
			want: []string{"ClusterQueue nowhere is not there"},
		},
		{
			name: "no namespace", queue: "queue", opt: cluster.Options{Kubeconfig: k.Kubeconfig, Namespace: "nowhere"},
			want: []string{"no namespace nowhere at " + k.URL, "--namespace"},
		},
		{
			name: "no rights", queue: "queue", opt: cluster.Options{Kubeconfig: k.RestrictedKubeconfig, Namespace: ns},
			want: []string{"may not create jobs in namespace " + ns, "may not create pods/exec", "deploy/"},
		},
		{
			name: "bad token", queue: "queue", opt: cluster.Options{Kubeconfig: write(k.Token, "expired"), Namespace: ns},
			want: []string{"does not take our credentials"},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			err := connect(t, test.opt).Preflight(t.Context(), test.queue)
			checkError(t, err, test.want...)
			require.True(t, err == nil || !strings.Contains(err.Error(), k.Token), "a secret: %v", err)
		})
	}
}

// checkError demands an error with all the parts, or none without parts.
func checkError(t *testing.T, err error, parts ...string) {
	t.Helper()
	require.True(t, len(parts) != 0 || err == nil, "got %v, want no error", err)
	for _, part := range parts {
		require.ErrorContains(t, err, part)
	}
}

const kueuePath = "/apis/kueue.x-k8s.io/v1beta2"

func createQueue(t *testing.T, k *testenv.Kube, ns, name, shared string) {
	t.Helper()
	const object = "{apiVersion: kueue.x-k8s.io/v1beta2, kind: LocalQueue, metadata: {name: %s}, spec: {clusterQueue: %s}}"
	k.Create(t, kueuePath+"/namespaces/"+ns+"/localqueues", fmt.Sprintf(object, name, shared))
	markActive(t, k, "/namespaces/"+ns+"/localqueues/"+name)
}

// markActive sets the condition that Kueue, which does not run here, would set.
func markActive(t *testing.T, k *testenv.Kube, path string) {
	t.Helper()
	k.Patch(t, kueuePath+path+"/status", `{"status":{"conditions":[{"type":"Active","status":"True","reason":"Ready","message":"",
		"lastTransitionTime":"2026-01-02T03:04:05Z"}]}}`)
}

// TestRealWatchOutlivesServer restarts the API server under a watch: a Job that is deleted afterwards ends the watch.
func TestRealWatchOutlivesServer(t *testing.T) {
	k := testenv.KubeAPI(t)
	c, ns := realClient(t, k)
	createQueue(t, k, ns, "queue", ns)
	submit(t, c, jobOf(t, "one", "r1"))
	restarted := false
	_, err := c.Watch(t.Context(), "one-r1", cluster.Budgets{}, func(s cluster.State) {
		if s.Phase == cluster.Queued && !restarted {
			restarted = true
			k.Restart(t)
			k.Delete(t, "/apis/batch/v1/namespaces/"+ns+"/jobs/one-r1?propagationPolicy=Background")
		}
	})
	var failed *cluster.FailedError
	require.True(t, restarted && errors.As(err, &failed) && failed.State.Reason == "Deleted", "restarted: %t, got %v", restarted, err)
}
