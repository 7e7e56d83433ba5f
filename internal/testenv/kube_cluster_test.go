package testenv

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/remotecommand"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// A kubeEvent is one of a watch: what became of an object.
type kubeEvent struct {
	Type   string
	Object kubeObject
}

type kubeObject struct {
	Metadata struct{ Name, UID string }
	Reason   string // of an event
	Spec     struct {
		NodeName string
		Suspend  bool
	}
	InvolvedObject struct{ Name string }
	Status         struct {
		Phase, Reason         string
		Conditions            []kubeCondition
		ContainerStatuses     []kubeContainer
		InitContainerStatuses []kubeContainer
	}
}

type kubeCondition struct{ Type, Status, Reason string }

type kubeContainer struct {
	Name         string
	ImageID      string
	Ready        bool
	RestartCount int
	State        map[string]struct {
		Reason   string
		ExitCode int
	}
}

func (o kubeObject) is(condition string) bool {
	return slices.ContainsFunc(o.Status.Conditions, func(c kubeCondition) bool {
		return c.Type == condition && c.Status == "True"
	})
}

// watch follows a collection from its beginning, for two minutes at most.
func (k *Kube) watch(t *testing.T, path string) *json.Decoder {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	response, err := k.send(ctx, k.Token, http.MethodGet, path+"?watch=true", "", "")
	require.NoError(t, err)
	t.Cleanup(func() { response.Body.Close() })
	return json.NewDecoder(response.Body)
}

// until reads events until one will do, and returns its object.
func until(t *testing.T, events *json.Decoder, will func(kubeEvent) bool) kubeObject {
	t.Helper()
	for {
		var event kubeEvent
		if err := events.Decode(&event); err != nil {
			t.Fatalf("the watch ended: %v", err)
		}
		if will(event) {
			return event.Object
		}
	}
}

const jobOf2 = `apiVersion: batch/v1
kind: Job
metadata:
  name: %[1]s
  labels: {kueue.x-k8s.io/queue-name: gpu}
spec:
  suspend: true
  backoffLimit: 0
  template:
    metadata: {annotations: {%[2]s: %[3]s}}
    spec:
      restartPolicy: Never
      nodeSelector: {nvidia.com/gpu.product: NVIDIA-L4}
      initContainers:
      - {name: tap, image: tap, restartPolicy: Always}
      containers:
      - name: loadgen
        image: loadgen
        readinessProbe: {exec: {command: ["true"]}}
        resources: {limits: {nvidia.com/gpu: "1", cpu: "1", memory: 1Gi}}
`

func (c *Cluster) job(t *testing.T, ns, name, behaviour string) {
	t.Helper()
	c.Create(t, "/apis/batch/v1/namespaces/"+ns+"/jobs", fmt.Sprintf(jobOf2, name, BehaviourAnnotation, behaviour))
}

// TestRealClusterQueuesJobs has two Jobs want the one GPU of a queue.
func TestRealClusterQueuesJobs(t *testing.T) {
	c := KubeCluster(t)
	ns := c.Namespace(t)
	c.Queue(t, ns, "gpu", 1)
	pods := c.watch(t, "/api/v1/namespaces/"+ns+"/pods")
	workloads := c.watch(t, kueuePath+"/namespaces/"+ns+"/workloads")
	c.job(t, ns, "one", PodReady)
	first := until(t, pods, func(e kubeEvent) bool { return e.Object.is("Ready") })
	c.job(t, ns, "two", PodReady)
	until(t, workloads, func(e kubeEvent) bool {
		return strings.HasPrefix(e.Object.Metadata.Name, "job-two") && slices.ContainsFunc(e.Object.Status.Conditions,
			func(c kubeCondition) bool {
				return c.Type == "QuotaReserved" && c.Status == "False" && c.Reason == "Pending"
			})
	})
	var second kubeObject
	c.Get(t, "/apis/batch/v1/namespaces/"+ns+"/jobs/two", &second)
	if !second.Spec.Suspend {
		t.Error("the second job runs beside the first")
	}
	c.Behave(t, ns, first.Metadata.Name, PodComplete)
	next := until(t, pods, func(e kubeEvent) bool {
		return strings.HasPrefix(e.Object.Metadata.Name, "two-") && e.Object.is("Ready")
	})
	c.Behave(t, ns, next.Metadata.Name, PodComplete)
	jobs := c.watch(t, "/apis/batch/v1/namespaces/"+ns+"/jobs")
	until(t, jobs, func(e kubeEvent) bool { return e.Object.Metadata.Name == "two" && e.Object.is("Complete") })
	want := []string{"CreatedWorkload", "Suspended", "QuotaReserved", "Admitted", "Started", "FinishedWorkload"}
	seen := map[string]bool{}
	until(t, c.watch(t, "/api/v1/namespaces/"+ns+"/events"), func(e kubeEvent) bool {
		if strings.Contains(e.Object.InvolvedObject.Name, "two") {
			seen[e.Object.Reason] = true
		}
		return !slices.ContainsFunc(want, func(reason string) bool { return !seen[reason] })
	})
}

// TestRealClusterPodsBehave looks at what each behaviour makes of a pod with a sidecar.
func TestRealClusterPodsBehave(t *testing.T) {
	c := KubeCluster(t)
	ns := c.Namespace(t)
	container := func(name string, ready bool, restarts int, state, reason string, code int) kubeContainer {
		images := map[string]string{"tap": "tap@sha256:" + strings.Repeat("0", 63) + "1", "loadgen": "loadgen@sha256:" + pinned}
		return kubeContainer{Name: name, ImageID: images[name], Ready: ready, RestartCount: restarts, State: map[string]struct {
			Reason   string
			ExitCode int
		}{state: {Reason: reason, ExitCode: code}}}
	}
	both := func(restarts int, state, reason string, code int) []kubeContainer {
		return []kubeContainer{container("tap", false, restarts, state, reason, code), container("loadgen", false, restarts, state, reason, code)}
	}
	tests := []struct {
		name, behaviour string
		phase, reason   string
		want            []kubeContainer
	}{
		{name: "none", phase: "Running", want: []kubeContainer{
			container("tap", true, 0, "running", "", 0), container("loadgen", false, 0, "running", "", 0),
		}},
		{name: "ready", behaviour: PodReady, phase: "Running", want: []kubeContainer{
			container("tap", true, 0, "running", "", 0), container("loadgen", true, 0, "running", "", 0),
		}},
		{name: "complete", behaviour: PodComplete, phase: "Succeeded", want: both(0, "terminated", "Completed", 0)},
		{name: "fail", behaviour: PodFail, phase: "Failed", want: both(0, "terminated", "Error", 1)},
		{name: "crash", behaviour: PodCrash, phase: "Running", want: both(1, "waiting", "CrashLoopBackOff", 0)},
		{name: "oom", behaviour: PodOOM, phase: "Failed", want: both(0, "terminated", "OOMKilled", 137)},
		{name: "evict", behaviour: PodEvict, phase: "Failed", reason: "Evicted", want: both(0, "terminated", "Error", 137)},
		{name: "noimage", behaviour: PodNoImage, phase: "Pending", want: both(0, "waiting", "ImagePullBackOff", 0)},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			events := c.watch(t, "/api/v1/namespaces/"+ns+"/pods")
			c.pod(t, ns, test.name, test.behaviour)
			var got []kubeContainer
			pod := until(t, events, func(e kubeEvent) bool {
				got = append(e.Object.Status.InitContainerStatuses, e.Object.Status.ContainerStatuses...)
				return e.Object.Metadata.Name == test.name && e.Object.Status.Phase == test.phase && cmp.Equal(got, test.want)
			})
			if pod.Status.Reason != test.reason {
				t.Errorf("reason %q, want %q", pod.Status.Reason, test.reason)
			}
		})
	}
}

func (c *Cluster) pod(t *testing.T, ns, name, behaviour string) {
	t.Helper()
	c.Create(t, "/api/v1/namespaces/"+ns+"/pods", fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: %s, annotations: {%s: %q}}
spec:
  initContainers: [{name: tap, image: tap, restartPolicy: Always}]
  containers: [{name: loadgen, image: "loadgen@sha256:%s", readinessProbe: {exec: {command: ["true"]}}}]
`, name, BehaviourAnnotation, behaviour, pinned))
}

const pinned = "2222222222222222222222222222222222222222222222222222222222222222"

// running creates a pod and returns when it runs.
func (c *Cluster) running(t *testing.T, ns, name string) kubeObject {
	t.Helper()
	events := c.watch(t, "/api/v1/namespaces/"+ns+"/pods")
	c.pod(t, ns, name, "")
	return until(t, events, func(e kubeEvent) bool {
		return e.Object.Metadata.Name == name && e.Object.Status.Phase == "Running"
	})
}

func (c *Cluster) exec(t *testing.T, ns, pod string, stdout, stderr io.Writer, command ...string) error {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", c.Kubeconfig)
	require.NoError(t, err)
	query := url.Values{"container": {"loadgen"}, "command": command, "stdout": {"true"}, "stderr": {"true"}}
	address := c.URL + podPath(ns, pod) + "/exec?" + query.Encode()
	executor, err := remotecommand.NewWebSocketExecutor(config, http.MethodGet, address)
	require.NoError(t, err)
	return executor.StreamWithContext(t.Context(), remotecommand.StreamOptions{Stdout: stdout, Stderr: stderr})
}

// TestRealClusterExecutes streams 100 MB through the API server out of a program of this machine.
func TestRealClusterExecutes(t *testing.T) {
	c := KubeCluster(t)
	ns := c.Namespace(t)
	c.running(t, ns, "pod")
	cat, err := exec.LookPath("cat")
	require.NoError(t, err)
	c.Install(t, "testenv-cat", cat, "/trace")
	require.NoError(t, os.Mkdir(filepath.Join(c.Root(ns), "trace"), 0o755))
	want := writeNoise(t, filepath.Join(c.Root(ns), "trace", "noise"), 100_000_000)
	for _, program := range []string{"testenv-cat", "/usr/local/bin/testenv-cat"} {
		var stderr strings.Builder
		got := sha256.New()
		if err := c.exec(t, ns, "pod", got, &stderr, program, "/trace/noise"); err != nil {
			t.Fatalf("%v: %s", err, stderr.String())
		}
		if sum := fmt.Sprintf("%x", got.Sum(nil)); sum != want {
			t.Errorf("%s: got SHA-256 %s, want %s", program, sum, want)
		}
	}
	var stderr strings.Builder
	err = c.exec(t, ns, "pod", io.Discard, &stderr, "testenv-cat", "/trace/nothing")
	said := stderr.String()
	if err == nil || !strings.Contains(err.Error(), "exit status 1") || !strings.Contains(said, "No such file") {
		t.Errorf("got %v and %q, want exit status 1 and what the program says", err, said)
	}
}

// writeNoise writes size bytes and returns their SHA-256.
func writeNoise(t *testing.T, path string, size int64) (sum string) {
	t.Helper()
	file, err := os.Create(path)
	require.NoError(t, err)
	defer file.Close()
	hash := sha256.New()
	noise := rand.NewChaCha8([32]byte{})
	if _, err := io.CopyN(io.MultiWriter(file, hash), noise, size); err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%x", hash.Sum(nil))
}

func TestRealClusterLogs(t *testing.T) {
	c := KubeCluster(t)
	ns := c.Namespace(t)
	c.running(t, ns, "pod")
	c.Log(t, ns, "loadgen", "first", "second")
	c.Log(t, ns, "tap", "of the tap")
	log := podPath(ns, "pod") + "/log?container=loadgen&follow=true&tailLines=1"
	response, err := c.send(t.Context(), c.Token, http.MethodGet, log, "", "")
	require.NoError(t, err)
	defer response.Body.Close()
	lines := bufio.NewReader(response.Body)
	for _, want := range []string{"second\n", "third\n"} {
		if line, err := lines.ReadString('\n'); line != want {
			t.Fatalf("got %q and %v, want %q", line, err, want)
		}
		c.Log(t, ns, "loadgen", "third")
	}
	status, text := c.Do(t, http.MethodGet, podPath(ns, "pod")+"/log?container=tap", "", "")
	if status != http.StatusOK || string(text) != "of the tap\n" {
		t.Errorf("the tap's log: status %d: %q", status, text)
	}
}

func deletionOf(o kubeObject) func(kubeEvent) bool {
	return func(e kubeEvent) bool { return e.Type == "DELETED" && e.Object.Metadata.UID == o.Metadata.UID }
}

func TestRealClusterEvicts(t *testing.T) {
	c := KubeCluster(t)
	ns := c.Namespace(t)
	pod := c.running(t, ns, "pod")
	pods := c.watch(t, "/api/v1/namespaces/"+ns+"/pods")
	c.Evict(t, ns, "pod")
	gone := until(t, pods, deletionOf(pod))
	if !gone.is("DisruptionTarget") {
		t.Errorf("the pod was not disrupted: %+v", gone.Status.Conditions)
	}
}

// TestRealClusterSurvivesARestart of its API server: what was held is there, and what runs a Job goes on.
func TestRealClusterSurvivesARestart(t *testing.T) {
	c := KubeCluster(t)
	ns := c.Namespace(t)
	c.Queue(t, ns, "gpu", 1)
	broken := c.watch(t, "/apis/batch/v1/namespaces/"+ns+"/jobs")
	c.job(t, ns, "job", PodComplete)
	until(t, broken, func(e kubeEvent) bool { return e.Object.is("Suspended") || !e.Object.Spec.Suspend })
	c.Restart(t)
	for {
		var event kubeEvent
		if err := broken.Decode(&event); err != nil {
			break
		}
	}
	jobs := c.watch(t, "/apis/batch/v1/namespaces/"+ns+"/jobs")
	until(t, jobs, func(e kubeEvent) bool { return e.Object.is("Complete") })
}
