package cluster

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/capture"
	"github.com/vllm-vcr/conformance/internal/capture/capturetest"
	"github.com/vllm-vcr/conformance/internal/capture/deploy"
	"github.com/vllm-vcr/conformance/internal/capture/target"
	"github.com/vllm-vcr/conformance/internal/testenv"
)

// A kubeRun is a run in a real cluster: API server, controllers, scheduler and Kueue, whose quota is of one
// capture at a time. The pods start no
// containers; what they would have recorded is laid into them when they run, and is fetched by the real commands, executed
// through the API server.
type kubeRun struct {
	*run
	kube      *testenv.Cluster
	namespace string
	client    *Client
	// onRunning is asked what a pod does once it runs, after its files are there; testenv.PodReady unless given.
	onRunning func(target.Target) string
}

func kubeClient(t testing.TB, kubeconfig, namespace string) *Client {
	t.Helper()
	c, err := Connect(Options{
		Kubeconfig: kubeconfig, Namespace: namespace, Program: "vllm-vcr",
		TargetLabels: []string{deploy.LabelLine, deploy.LabelTarget}, RunLabel: deploy.LabelRun,
	})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func newKubeRun(t *testing.T) *kubeRun {
	t.Helper()
	if testing.Short() {
		t.Skip("starts a cluster")
	}
	k := &kubeRun{kube: testenv.KubeCluster(t), run: newRun(t)}
	k.namespace = k.kube.Namespace(t)
	k.kube.Queue(t, k.namespace, deploy.DefaultQueue, 0)
	// Two pods of 7 cores each do not fit at a time.
	k.kube.Patch(t, "/apis/kueue.x-k8s.io/v1beta2/clusterqueues/"+k.namespace, `{"spec":{"resourceGroups":[{
		"coveredResources":["cpu","memory","ephemeral-storage"],"flavors":[{"name":"testenv","resources":[
		{"name":"cpu","nominalQuota":"8"},{"name":"memory","nominalQuota":"128Gi"},{"name":"ephemeral-storage","nominalQuota":"500Gi"}]}]}]}}`)
	k.kube.Install(t, "vllm-vcr", testenv.VCR(t), "/trace")
	k.client = kubeClient(t, k.kube.Kubeconfig, k.namespace)
	for i := range k.targets {
		k.targets[i] = forKube(k.targets[i])
	}
	k.Queue = deploy.DefaultQueue
	k.Tell = func(tg target.Target, text string) {
		k.told = append(k.told, tg.Name()+": "+text)
		if text == string(Running) {
			k.behave(t, tg)
		}
	}
	return k
}

// forKube has a target want most of the quota, and the image whose digest the nodes say that they run.
func forKube(tg target.Target) target.Target {
	tg.Model.CPU = "1"
	image := "docker.io/vllm/vllm-openai:" + tg.Tag + fmt.Sprintf("@sha256:%064d", 1)
	tg.Images.Engine, tg.Images.Frontend = image, image
	return tg
}

// behave lets the pod of a target do what it does.
func (k *kubeRun) behave(t *testing.T, tg target.Target) {
	pod := k.pod(t, tg)
	trace := filepath.Join(k.kube.Root(k.namespace), "trace")
	if err := os.RemoveAll(trace); err != nil {
		t.Error(err)
	}
	if err := os.CopyFS(trace, os.DirFS(k.cluster.files[tg.Name()])); err != nil {
		t.Error(err)
	}
	// The load generator says so in the volume when all is there.
	if err := os.WriteFile(filepath.Join(trace, "ready"), nil, 0o644); err != nil {
		t.Error(err)
	}
	does := testenv.PodReady
	if k.onRunning != nil {
		does = k.onRunning(tg)
	}
	k.kube.Behave(t, k.namespace, pod, does)
}

func (k *kubeRun) pod(t *testing.T, tg target.Target) string {
	var pods struct {
		Items []struct{ Metadata struct{ Name string } }
	}
	name := jobsOf(t, []target.Target{tg})[0].Name
	k.kube.Get(t, "/api/v1/namespaces/"+k.namespace+"/pods?labelSelector=batch.kubernetes.io/job-name="+name, &pods)
	if len(pods.Items) != 1 {
		t.Fatalf("%s has %d pods", name, len(pods.Items))
	}
	return pods.Items[0].Metadata.Name
}

func (k *kubeRun) start(ctx context.Context, t *testing.T) []capture.Outcome {
	t.Helper()
	k.Jobs = jobsOf(t, k.targets)
	outcomes, err := Capture(ctx, k.client, k.CaptureOptions, k.targets)
	if err != nil {
		t.Fatal(err)
	}
	return outcomes
}

// nothingLeft checks that no Job is there any more.
func (k *kubeRun) nothingLeft(t *testing.T) {
	t.Helper()
	states, err := k.client.List(t.Context(), deploy.LabelRun)
	if err != nil || len(states) > 0 {
		t.Errorf("left: %+v, %v", states, err)
	}
}

// Two targets go from submit through Kueue, one after the other, to registered goldens.
func TestRealKubeRun(t *testing.T) {
	k := newKubeRun(t)
	for _, o := range k.start(t.Context(), t) {
		if o.Err != nil || o.Left != nil || len(o.Accepted.Goldens) == 0 {
			t.Errorf("%s: %v, %v, %d goldens", o.Target.Name(), o.Err, o.Left, len(o.Accepted.Goldens))
			continue
		}
		if g := capturetest.Entry(t, k.edited, "0.33", o.Target.ID); g.EngineImage != o.Target.Images.Engine {
			t.Errorf("%s: engine image %q", o.Target.Name(), g.EngineImage)
		}
	}
	k.nothingLeft(t)
	waited := func(s string) bool {
		return strings.Contains(s, ": queued: Pending: ") && strings.Contains(s, "insufficient unused quota for cpu")
	}
	if !slices.ContainsFunc(k.told, waited) {
		t.Errorf("nobody waited for quota: %q", k.told)
	}
}

// A capture that fails in the cluster is told with its log, frees its GPU for the other, and registers nothing.
func TestRealKubeRunFails(t *testing.T) {
	tests := []struct {
		name, does, says string
	}{
		{"crash", testenv.PodCrash, "was started again"},
		{"eviction", testenv.PodEvict, "vict"},
		{"out of memory", testenv.PodOOM, "OOM"},
		{"exit", testenv.PodFail, "exit code 1"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			const bad = "0.33/edge-s1"
			k := newKubeRun(t)
			k.kube.Log(t, k.namespace, "frontend", "its last words")
			k.onRunning = func(tg target.Target) string {
				if tg.Name() == bad {
					return test.does
				}
				return testenv.PodReady
			}
			accept := k.Accept
			k.Accept = func(ctx context.Context, rec capture.Recording) (capture.Accepted, error) {
				if rec.Target.Name() == bad {
					return accept(ctx, rec)
				}
				return capture.Accepted{}, nil
			}
			before := testenv.Files(t, filepath.Dir(k.edited.Manifest))
			outcomes := k.start(t.Context(), t)
			if err := outcomes[0].Err; err == nil || !strings.Contains(err.Error(), test.says) {
				t.Errorf("got %v, want it to say %q", err, test.says)
			}
			if outcomes[1].Err != nil || outcomes[1].Recording.Trace == "" {
				t.Errorf("the other: %v", outcomes[1].Err)
			}
			if diff := cmp.Diff(before, testenv.Files(t, filepath.Dir(k.edited.Manifest))); diff != "" {
				t.Errorf("failed, but registered:\n%s", diff)
			}
			if test.does == testenv.PodCrash && !slices.Contains(k.told, bad+": frontend | its last words") {
				t.Errorf("the log was not told: %q", k.told)
			}
			k.nothingLeft(t)
		})
	}
}

const envHelper = "VLLM_VCR_TEST_CAPTURE"

// TestKubeHelper is the run of TestRealKubeRunResumes that is killed. It gets kubeconfig, namespace and folder.
func TestKubeHelper(t *testing.T) {
	where := strings.Split(os.Getenv(envHelper), "\n")
	if len(where) != 3 {
		t.Skip("only for another test")
	}
	var targets []target.Target
	for _, name := range []string{"0.33/edge-s1", "0.33/multiturn-s7"} {
		targets = append(targets, forKube(onCluster(capturetest.Target(t, name))))
	}
	_, err := Capture(t.Context(), kubeClient(t, where[0], where[1]), CaptureOptions{
		Dir: where[2], Queue: deploy.DefaultQueue, Jobs: jobsOf(t, targets),
		Tell: func(tg target.Target, text string) { fmt.Printf("%s: %s\n", tg.Name(), text) },
	}, targets)
	t.Fatalf("it came to an end: %v", err)
}

// A run that is killed without a word leaves its jobs, and whoever takes it up brings it to its end.
func TestRealKubeRunResumes(t *testing.T) {
	k := newKubeRun(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, "-test.run=^TestKubeHelper$", "-test.v")
	cmd.Env = append(os.Environ(), envHelper+"="+strings.Join([]string{k.kube.Kubeconfig, k.namespace, k.Dir}, "\n"))
	output, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var said []string
	submitted, running := 0, false
	for lines := bufio.NewScanner(output); (submitted < 2 || !running) && lines.Scan(); {
		said = append(said, lines.Text())
		if strings.Contains(lines.Text(), ": submitted: ") {
			submitted++
		}
		running = running || strings.HasSuffix(lines.Text(), ": running")
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Error(err)
	}
	_ = cmd.Wait() // it was killed
	if !running {
		t.Fatalf("it never ran: %q", said)
	}
	for _, o := range k.start(t.Context(), t) {
		if o.Err != nil || len(o.Accepted.Goldens) == 0 {
			t.Errorf("%s: %v", o.Target.Name(), o.Err)
		}
	}
	taken := 0
	for _, text := range k.told {
		if strings.Contains(text, ": taken up: ") {
			taken++
		}
	}
	if taken != 2 {
		t.Errorf("%d jobs were taken up: %q", taken, k.told)
	}
	k.nothingLeft(t)
}

// Another run of the same target is refused, and what it found goes on.
func TestRealKubeTwoRuns(t *testing.T) {
	k := newKubeRun(t)
	k.targets = k.targets[1:]
	other, err := deploy.Jobs(k.targets, deploy.Run{ID: "r0"})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := k.client.Submit(t.Context(), other[0]); err != nil {
		t.Fatal(err)
	}
	o := k.start(t.Context(), t)
	if o[0].Err == nil || !strings.Contains(o[0].Err.Error(), "two captures at once") || !strings.Contains(o[0].Err.Error(), other[0].Name) {
		t.Errorf("got %v", o[0].Err)
	}
	if _, err := k.client.Get(t.Context(), other[0].Name); err != nil {
		t.Errorf("the other: %v", err)
	}
	if err := k.client.Delete(t.Context(), other[0].Name); err != nil {
		t.Error(err)
	}
}
