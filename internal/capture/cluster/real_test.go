package cluster_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"github.com/vllm-vcr/conformance/internal/capture/cluster"
	"github.com/vllm-vcr/conformance/internal/capture/deploy"
	"github.com/vllm-vcr/conformance/internal/testenv"

	"k8s.io/apimachinery/pkg/api/resource"
)

const (
	targetLabel = "test/target"
	runLabel    = "test/run"
)

// programs is the folder of what runs in the pods.
var programs string

// program builds what runs in the pods, once.
var program = sync.OnceValues(func() (string, error) {
	path := filepath.Join(programs, "vllm-vcr")
	output, err := exec.Command("go", "build", "-o", path, "../../../cmd/vllm-vcr").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("go build: %w: %s", err, output)
	}
	return path, nil
})

func TestMain(m *testing.M) {
	var err error
	if programs, err = os.MkdirTemp("", "cluster-test"); err != nil {
		panic(err)
	}
	code := m.Run()
	os.RemoveAll(programs)
	os.Exit(code)
}

// realClient is one for a namespace of the test's own.
func realClient(t *testing.T, k *testenv.Cluster) (*cluster.Client, string) {
	t.Helper()
	ns := k.Namespace(t)
	return connect(t, cluster.Options{Kubeconfig: k.Kubeconfig, Namespace: ns}), ns
}

func connect(t *testing.T, opt cluster.Options) *cluster.Client {
	t.Helper()
	opt.TargetLabels, opt.RunLabel, opt.Program = []string{targetLabel}, runLabel, "vllm-vcr"
	client, err := cluster.Connect(opt)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// jobOf is a Job of a target and a run that wants a GPU, whose pod behaves.
func jobOf(t *testing.T, target, run, behaviour string) *deploy.Job {
	t.Helper()
	text, err := os.ReadFile("testdata/job.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var job deploy.Job
	replace := strings.NewReplacer("TARGET", target, "RUN", run, "BEHAVIOUR", behaviour)
	if err := yaml.UnmarshalStrict([]byte(replace.Replace(string(text))), &job); err != nil {
		t.Fatal(err)
	}
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

// TestRealCapturesOneAfterTheOther takes two Jobs through a queue with one GPU.
func TestRealCapturesOneAfterTheOther(t *testing.T) {
	k := testenv.KubeCluster(t)
	c, ns := realClient(t, k)
	k.Queue(t, ns, "queue", 1)
	if err := c.Preflight(t.Context(), "queue"); err != nil {
		t.Fatal(err)
	}
	submit(t, c, jobOf(t, "one", "r1", testenv.PodReady))
	first, err := c.Watch(t.Context(), "one-r1", cluster.Budgets{}, nil)
	if err != nil || first.Phase != cluster.Ready || first.Pod == "" || first.Node == "" || first.Since.IsZero() {
		t.Fatalf("%+v, %v", first, err)
	}
	want := map[string]string{}
	for _, name := range []string{"tap", "loadgen"} {
		want[name] = fmt.Sprintf("%s@sha256:%064d", name, 1)
	}
	if diff := cmp.Diff(want, first.Images); diff != "" {
		t.Errorf("images (-want +got):\n%s", diff)
	}
	submit(t, c, jobOf(t, "two", "r1", testenv.PodReady))
	freed := false
	var phases []cluster.Phase
	second, err := c.Watch(t.Context(), "two-r1", cluster.Budgets{}, func(s cluster.State) {
		phases = append(phases, s.Phase)
		if !freed && s.Reason == "Pending" {
			if !strings.Contains(s.Message, "nvidia.com/gpu") {
				t.Errorf("message %q, want Kueue's, on the GPU", s.Message)
			}
			freed = true
			k.Behave(t, ns, first.Pod, testenv.PodComplete)
		}
	})
	if err != nil || second.Phase != cluster.Ready || !freed {
		t.Fatalf("%+v, %v, after %v", second, err, phases)
	}
	if phases[0] != cluster.Queued || !slices.Contains(phases, cluster.Admitted) && !slices.Contains(phases, cluster.Scheduled) {
		t.Errorf("phases %v", phases)
	}
	if err := c.Delete(t.Context(), "one-r1"); err != nil {
		t.Error(err)
	}
	k.Behave(t, ns, second.Pod, testenv.PodComplete)
	for s := second; s.Phase != cluster.Complete; {
		if s, err = c.Watch(t.Context(), "two-r1", cluster.Budgets{}, nil); err != nil {
			t.Fatal(err)
		}
	}
	states, err := c.List(t.Context(), runLabel+"=r1")
	if err != nil || len(states) != 1 || states[0].Name != "two-r1" || states[0].Phase != cluster.Complete {
		t.Errorf("%+v, %v", states, err)
	}
	for range 2 {
		if err := c.Delete(t.Context(), "two-r1"); err != nil {
			t.Error(err)
		}
	}
	if _, err := c.Get(t.Context(), "two-r1"); !errors.Is(err, cluster.ErrNotFound) {
		t.Errorf("got %v, want that it is gone", err)
	}
}

// TestRealFailures has everything go wrong that a cluster can be made to do.
func TestRealFailures(t *testing.T) {
	k := testenv.KubeCluster(t)
	jobPath := func(ns string) string { return "/apis/batch/v1/namespaces/" + ns + "/jobs/one-r1" }
	queuePath := func(ns string) string { return "/apis/kueue.x-k8s.io/v1beta2/namespaces/" + ns + "/localqueues/queue" }
	tests := []struct {
		name, behaviour string
		gpus            int
		change          func(t *testing.T, ns string, s cluster.State) // once the Job runs, or waits
		reason          string
		message         string // a part
		log             bool
	}{
		{name: "crash", behaviour: testenv.PodCrash, reason: "Restarted", message: "container tap was started again", log: true},
		{name: "out of memory", behaviour: testenv.PodOOM, reason: "OOMKilled", message: "container loadgen ended with exit code 137"},
		{name: "the load fails", behaviour: testenv.PodFail, reason: "Error", message: "container loadgen ended with exit code 1", log: true},
		{name: "kubelet evicts", behaviour: testenv.PodEvict, reason: "Evicted"},
		{name: "no image", behaviour: testenv.PodNoImage, reason: "ImagePullBackOff", message: "not found"},
		{
			name: "pod deleted", reason: "PodDeleted",
			change: func(t *testing.T, ns string, s cluster.State) {
				k.Delete(t, "/api/v1/namespaces/"+ns+"/pods/"+s.Pod)
			},
		},
		{
			name: "drained", reason: "EvictionByEvictionAPI",
			change: func(t *testing.T, ns string, s cluster.State) { k.Evict(t, ns, s.Pod) },
		},
		{
			name: "job deleted", reason: "Deleted",
			change: func(t *testing.T, ns string, _ cluster.State) { k.Delete(t, jobPath(ns)) },
		},
		{
			name: "workload deactivated", reason: "Deactivated",
			change: func(t *testing.T, ns string, _ cluster.State) {
				var list struct {
					Items []struct{ Metadata struct{ Name string } }
				}
				k.Get(t, "/apis/kueue.x-k8s.io/v1beta2/namespaces/"+ns+"/workloads", &list)
				k.Patch(t, "/apis/kueue.x-k8s.io/v1beta2/namespaces/"+ns+"/workloads/"+list.Items[0].Metadata.Name,
					`{"spec":{"active":false}}`)
			},
		},
		{
			name: "deadline", reason: "DeadlineExceeded",
			change: func(t *testing.T, ns string, _ cluster.State) {
				k.Patch(t, jobPath(ns), `{"spec":{"activeDeadlineSeconds":1}}`)
			},
		},
		{
			name: "more than the quota", gpus: -1, reason: "NeverAdmitted", message: "nvidia.com/gpu",
		},
		{
			name: "the queue goes", gpus: -2, reason: "NoQueue",
			change: func(t *testing.T, ns string, _ cluster.State) { k.Delete(t, queuePath(ns)) },
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			c, ns := realClient(t, k)
			k.Log(t, ns, "tap", "the tap speaks")
			k.Log(t, ns, "loadgen", "the load speaks")
			k.Queue(t, ns, "queue", 1)
			if test.gpus == -2 { // somebody else has it
				submit(t, c, jobOf(t, "first", "r1", ""))
			}
			job := jobOf(t, "one", "r1", test.behaviour)
			if test.gpus == -1 {
				two := job.Spec.Template.Spec.Containers[0].Resources.Limits
				two["nvidia.com/gpu"] = resource.MustParse("2")
			}
			submit(t, c, job)
			changed := false
			_, err := c.Watch(t.Context(), "one-r1", cluster.Budgets{}, func(s cluster.State) {
				at := s.Phase == cluster.Running
				if test.gpus == -2 {
					at = s.Reason == "Pending"
				}
				if test.change != nil && at && !changed {
					changed = true
					test.change(t, ns, s)
				}
			})
			var failed *cluster.FailedError
			if !errors.As(err, &failed) {
				t.Fatalf("got %v, want a failure", err)
			}
			if failed.State.Reason != test.reason || !strings.Contains(failed.State.Message, test.message) || failed.Hint == "" {
				t.Errorf("got %v, want %s, %s", err, test.reason, test.message)
			}
			if got := strings.Contains(failed.Text(), " speaks\n"); test.log && !got {
				t.Errorf("logs %q", failed.Text())
			}
			if err := c.Delete(t.Context(), "one-r1"); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestRealSubmit is about Jobs that are there already.
func TestRealSubmit(t *testing.T) {
	k := testenv.KubeCluster(t)
	c, ns := realClient(t, k)
	k.Queue(t, ns, "queue", 1)
	submit(t, c, jobOf(t, "one", "r1", testenv.PodReady))
	state, created, err := c.Submit(t.Context(), jobOf(t, "one", "r1", testenv.PodReady))
	if err != nil || created || state.Name != "one-r1" {
		t.Errorf("the same again: %+v, %v, %v", state, created, err)
	}
	other := jobOf(t, "one", "r1", testenv.PodReady)
	other.Annotations["test/hash"] = "another"
	if _, _, err := c.Submit(t.Context(), other); err == nil || !strings.Contains(err.Error(), `test/hash "same"`) {
		t.Errorf("another configuration: %v", err)
	}
	_, _, err = c.Submit(t.Context(), jobOf(t, "one", "r2", testenv.PodReady))
	if !errors.Is(err, cluster.ErrTwoCaptures) || !strings.Contains(err.Error(), "job one-r1") {
		t.Errorf("another run: %v", err)
	}
	wrong := jobOf(t, "two", "r1", testenv.PodReady)
	wrong.Spec.Template.Spec.RestartPolicy = "Sometimes"
	if _, _, err := c.Submit(t.Context(), wrong); err == nil || !strings.Contains(err.Error(), "restartPolicy") {
		t.Errorf("an invalid job: %v", err)
	}
	states, err := c.List(t.Context(), targetLabel)
	if err != nil || len(states) != 1 {
		t.Errorf("%+v, %v: want one job", states, err)
	}
}

// TestRealSubmitAtOnce has two runs want the same target at the same time: one gets it, and nothing is left of the other.
func TestRealSubmitAtOnce(t *testing.T) {
	k := testenv.KubeCluster(t)
	c, ns := realClient(t, k)
	k.Queue(t, ns, "queue", 1)
	var all sync.WaitGroup
	errs := make([]error, 4)
	for i := range errs {
		job := jobOf(t, "one", fmt.Sprint("r", i), testenv.PodReady)
		all.Go(func() { _, _, errs[i] = c.Submit(t.Context(), job) })
	}
	all.Wait()
	won := 0
	for _, err := range errs {
		if err == nil {
			won++
		} else if !errors.Is(err, cluster.ErrTwoCaptures) {
			t.Error(err)
		}
	}
	states, err := c.List(t.Context(), targetLabel)
	if won != 1 || err != nil || len(states) != 1 {
		t.Errorf("%d won, %d jobs, %v: want one", won, len(states), err)
	}
}

// TestRealPreflight asks a server that is there, and one that is not, about rights and queues.
func TestRealPreflight(t *testing.T) {
	k := testenv.KubeCluster(t)
	ns := k.Namespace(t)
	k.Queue(t, ns, "queue", 1)
	k.Create(t, "/apis/kueue.x-k8s.io/v1beta2/namespaces/"+ns+"/localqueues",
		"{apiVersion: kueue.x-k8s.io/v1beta2, kind: LocalQueue, metadata: {name: orphan}, spec: {clusterQueue: nowhere}}")
	other := filepath.Join(t.TempDir(), "kubeconfig")
	config, err := os.ReadFile(k.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	write := func(edit ...string) string {
		t.Helper()
		text := strings.NewReplacer(edit...).Replace(string(config))
		if err := os.WriteFile(other, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
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
			if err != nil && strings.Contains(err.Error(), k.Token) {
				t.Errorf("a secret: %v", err)
			}
		})
	}
}

// checkError demands an error with all the parts, or none without parts.
func checkError(t *testing.T, err error, parts ...string) {
	t.Helper()
	if len(parts) == 0 && err != nil {
		t.Errorf("got %v, want no error", err)
	}
	for _, part := range parts {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("got %v, want it to contain %q", err, part)
		}
	}
}

// TestRealWatchOutlivesServer restarts the API server under a watch: what happens afterwards is seen.
func TestRealWatchOutlivesServer(t *testing.T) {
	k := testenv.KubeCluster(t)
	c, ns := realClient(t, k)
	k.Queue(t, ns, "queue", 1)
	submit(t, c, jobOf(t, "one", "r1", ""))
	restarted := false
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	state, err := c.Watch(ctx, "one-r1", cluster.Budgets{}, func(s cluster.State) {
		if s.Phase == cluster.Running && !restarted {
			restarted = true
			k.Restart(t)
			status, reply := k.Do(t, http.MethodGet, "/readyz", "", "")
			if status != http.StatusOK {
				t.Errorf("%d %s", status, reply)
			}
			k.Behave(t, ns, s.Pod, testenv.PodReady)
		}
	})
	if err != nil || state.Phase != cluster.Ready || !restarted {
		t.Errorf("%+v, %v", state, err)
	}
}
