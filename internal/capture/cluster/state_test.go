package cluster

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// What the statuses of a Job and its objects look like, as YAML.
const (
	tapRuns    = "{name: tap, ready: true, started: true, imageID: 'tap@sha256:1', state: {running: {startedAt: '2026-01-02T03:04:05Z'}}}"
	tapWaits   = "{name: tap, state: {waiting: {reason: PodInitializing}}}"
	loadRuns   = "{name: loadgen, started: true, state: {running: {startedAt: '2026-01-02T03:04:06Z'}}}"
	loadReady  = "{name: loadgen, started: true, ready: true, state: {running: {startedAt: '2026-01-02T03:04:06Z'}}}"
	loadWaits  = "{name: loadgen, state: {waiting: {reason: PodInitializing}}}"
	loadEnded  = "{name: loadgen, state: {terminated: {exitCode: 0, reason: Completed}}}"
	noQuota    = "{type: QuotaReserved, status: 'False', reason: Pending, message: 'insufficient unused quota for nvidia.com/gpu'}"
	tooMuch    = "{type: QuotaReserved, status: 'False', reason: Pending, message: 'request 2 > maximum capacity (1)'}"
	wrongQueue = "{type: QuotaReserved, status: 'False', reason: Inadmissible, message: 'ClusterQueue q is stopped'}"
)

func pod(inits, mains, rest string) string {
	return fmt.Sprintf("{initContainerStatuses: [%s], containerStatuses: [%s], %s}", inits, mains, rest)
}

func crashed(name, reason string, code int) string {
	return fmt.Sprintf("{name: %s, restartCount: 1, state: {running: {}}, lastState: {terminated: {reason: %s, exitCode: %d}}}", name, reason, code)
}

func waits(name, reason string) string {
	return fmt.Sprintf("{name: %s, image: img, state: {waiting: {reason: %s, message: 'says the kubelet'}}}", name, reason)
}

type stateTest struct {
	name                         string
	job, pod, workload, deletion string // statuses, a condition, and the kind of what is being deleted
	unbound, suspended, inactive bool
	phase                        Phase
	reason, message              string // the message, or a part of it
	container                    string
}

func (test stateTest) objects(t *testing.T) objects {
	t.Helper()
	o := objects{job: testJob()}
	parse(t, test.job, &o.job.Status)
	*o.job.Spec.Suspend = test.suspended
	if test.deletion == "Job" {
		o.job.DeletionTimestamp = &o.job.CreationTimestamp
	}
	if test.workload != "" {
		var w workload
		parse(t, "{conditions: ["+test.workload+"]}", &w.Status)
		if test.inactive {
			w.Spec.Active = new(bool)
		}
		o.workloads = append(o.workloads, w)
	}
	if test.pod == "" {
		return o
	}
	p := testPod()
	parse(t, test.pod, &p.Status)
	if test.unbound {
		p.Spec.NodeName = ""
	}
	if test.deletion == "Pod" {
		p.DeletionTimestamp = &p.CreationTimestamp
	}
	o.pods = append(o.pods, *p)
	return o
}

func TestStateOf(t *testing.T) {
	tests := []stateTest{
		{name: "not seen by Kueue", suspended: true, phase: Queued, message: "Kueue has not seen the job yet"},
		{name: "no quota", suspended: true, workload: noQuota, phase: Queued, reason: "Pending", message: "nvidia.com/gpu"},
		{name: "never any quota", suspended: true, workload: tooMuch, phase: Failed, reason: "NeverAdmitted", message: "maximum"},
		{name: "queue stopped", suspended: true, workload: wrongQueue, phase: Failed, reason: "Inadmissible", message: "stopped"},
		{name: "deactivated", suspended: true, inactive: true, workload: noQuota, phase: Failed, reason: "Deactivated", message: "in Kueue"},
		{name: "no pod", phase: Admitted, message: "no pod yet"},
		{
			name: "no node", unbound: true, phase: Admitted, reason: "Unschedulable", message: "0/4 nodes",
			pod: "{conditions: [{type: PodScheduled, status: 'False', reason: Unschedulable, message: '0/4 nodes are available'}]}",
		},
		{name: "bound", pod: "{phase: Pending}", phase: Scheduled, message: "waiting for tap, loadgen"},
		{name: "images", pod: pod(tapWaits, loadWaits, ""), phase: Scheduled, message: "waiting for tap (PodInitializing), loadgen (PodInitializing)"},
		{name: "the first runs", pod: pod(tapRuns, loadWaits, ""), phase: Starting, message: "waiting for loadgen (PodInitializing)"},
		{
			name: "a sidecar is not ready", pod: pod("{name: tap, state: {running: {}}}", loadRuns, ""),
			phase: Starting, message: "waiting for tap",
		},
		{name: "all run", pod: pod(tapRuns, loadRuns, ""), phase: Running},
		{name: "ready", pod: pod(tapRuns, loadReady, ""), phase: Ready},
		{name: "complete", job: "{conditions: [{type: Complete, status: 'True'}]}", pod: pod("", loadEnded, ""), phase: Complete},
		{
			name: "sidecars end after the load", phase: Running, message: "its containers have ended",
			pod: pod("{name: tap, state: {terminated: {exitCode: 143}}}", loadEnded, ""),
		},
		{
			name: "restart", pod: pod(crashed("tap", "Error", 2), loadRuns, ""), phase: Failed, container: "tap",
			reason: "Restarted", message: "container tap was started again after it ended with exit code 2 (Error)",
		},
		{
			name: "restart for memory", pod: pod(crashed("tap", "OOMKilled", 137), loadReady, ""), phase: Failed,
			reason: "OOMKilled", message: "exit code 137", container: "tap",
		},
		{
			name: "sidecar ended", pod: pod("{name: tap, state: {terminated: {exitCode: 0}}}", loadRuns, ""), phase: Failed,
			reason: "Error", message: "container tap ended with exit code 0", container: "tap",
		},
		{
			name: "sidecar ended well beside one that crashed", phase: Failed, container: "tap",
			pod:    pod("{name: engine, restartCount: 1, state: {running: {}}, lastState: {terminated: {exitCode: 0}}}, "+crashed("tap", "Error", 137), loadRuns, ""),
			reason: "Restarted", message: "container tap was started again after it ended with exit code 137 (Error)",
		},
		{
			name: "resource that the queue lacks", suspended: true, phase: Failed, reason: "NeverAdmitted", message: "unavailable",
			workload: "{type: QuotaReserved, status: 'False', reason: Pending, message: 'resource nvidia.com/gpu unavailable in ClusterQueue'}",
		},
		{
			name: "load failed", phase: Failed, reason: "Error", container: "loadgen", message: "exit code 3 (Error): no server",
			pod: pod(tapRuns, "{name: loadgen, state: {terminated: {exitCode: 3, reason: Error, message: 'no server'}}}", ""),
		},
		{
			name: "evicted by Kueue", workload: "{type: Evicted, status: 'True', reason: Preempted, message: 'to make room'}",
			pod: pod(crashed("tap", "Error", 137), loadRuns, ""), phase: Failed, reason: "Evicted", message: "(Preempted): to make room",
		},
		{
			name: "no longer evicted", workload: "{type: Evicted, status: 'False', reason: QuotaReserved}",
			pod: pod(tapRuns, loadRuns, ""), phase: Running,
		},
		{
			name: "disrupted", phase: Failed, reason: "PreemptionByScheduler", message: "taken off node node-1",
			pod: pod(tapRuns, loadRuns, "conditions: [{type: DisruptionTarget, status: 'True', reason: PreemptionByScheduler}]"),
		},
		{name: "node lost", pod: "{phase: Unknown}", phase: Failed, reason: "NodeLost", message: "node node-1"},
		{
			name: "evicted by the kubelet", pod: "{phase: Failed, reason: Evicted, message: 'low on memory'}", phase: Failed,
			reason: "Evicted", message: "low on memory",
		},
		{
			name: "deadline", job: "{conditions: [{type: FailureTarget, status: 'True', reason: DeadlineExceeded, message: late}]}",
			pod: pod(tapRuns, loadRuns, ""), phase: Failed, reason: "DeadlineExceeded", message: "late",
		},
		{
			name: "failed", job: "{conditions: [{type: Failed, status: 'True', reason: BackoffLimitExceeded, message: limit}]}",
			phase: Failed, reason: "BackoffLimitExceeded", message: "limit",
		},
		{name: "pod goes", pod: pod(tapRuns, loadRuns, ""), deletion: "Pod", phase: Failed, reason: "PodDeleted", message: "somebody"},
		{name: "job goes", pod: pod(tapRuns, loadRuns, ""), deletion: "Job", phase: Failed, reason: "Deleted"},
	}
	for _, reason := range []string{
		"CrashLoopBackOff", "ErrImagePull", "ImagePullBackOff", "InvalidImageName", "CreateContainerError", "CreateContainerConfigError",
	} {
		tests = append(tests, stateTest{
			name: reason, pod: pod(tapRuns, waits("loadgen", reason), ""), phase: Failed, reason: reason,
			message: "container loadgen of image img: says the kubelet", container: "loadgen",
		})
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			o := test.objects(t)
			got := stateOf(o)
			if got.Phase != test.phase || got.Reason != test.reason || !strings.Contains(got.Message, test.message) {
				t.Errorf("%s, %s, %q, want %s, %s, %q", got.Phase, got.Reason, got.Message, test.phase, test.reason, test.message)
			}
			f := diagnose(o)
			require.True(t, test.phase != Failed || (f != nil && f.Hint != "" && f.Container == test.container), "got %+v, want container %q and a hint", f, test.container)
		})
	}
}

// TestStateOfImages is about what ran, which goes into the provenance of a golden.
func TestStateOfImages(t *testing.T) {
	p := testPod()
	parse(t, pod(tapRuns, "{name: loadgen, restartCount: 2, imageID: 'docker-pullable://l@sha256:2', state: {running: {}}}", ""), &p.Status)
	got := stateOf(objects{job: testJob(), pods: []corev1.Pod{*p}})
	want := map[string]string{"tap": "tap@sha256:1", "loadgen": "docker-pullable://l@sha256:2"}
	if diff := cmp.Diff(want, got.Images); diff != "" || got.Restarts != 2 || got.Pod != "p" || got.Node != "node-1" {
		t.Errorf("%+v\n%s", got, diff)
	}
}

// TestSecondPod is a Job that made a pod again.
func TestSecondPod(t *testing.T) {
	first, second := testPod(), testPod()
	second.Name = "q"
	parse(t, pod(tapRuns, loadReady, ""), &second.Status)
	if got := stateOf(objects{job: testJob(), pods: []corev1.Pod{*first, *second}}); got.Reason != "Replaced" {
		t.Errorf("%+v", got)
	}
}

func parse(t *testing.T, text string, into any) {
	t.Helper()
	if text == "" {
		return
	}
	require.NoErrorf(t, yaml.UnmarshalStrict([]byte(text), into), "%s", text)
}

func testJob() *batchv1.Job {
	var job batchv1.Job
	if err := yaml.Unmarshal([]byte(`
apiVersion: batch/v1
kind: Job
metadata: {name: j, namespace: default, uid: job-1, labels: {kueue.x-k8s.io/queue-name: queue, t/target: a, t/run: r1}}
spec: {suspend: false}
`), &job); err != nil {
		panic(err)
	}
	return &job
}

func testPod() *corev1.Pod {
	var pod corev1.Pod
	if err := yaml.Unmarshal([]byte(`
apiVersion: v1
kind: Pod
metadata:
  name: p
  namespace: default
  uid: pod-1
  labels: {batch.kubernetes.io/job-name: j}
  ownerReferences: [{apiVersion: batch/v1, kind: Job, name: j, uid: job-1}]
spec:
  nodeName: node-1
  initContainers: [{name: tap, restartPolicy: Always}]
  containers: [{name: loadgen}]
`), &pod); err != nil {
		panic(err)
	}
	return &pod
}
