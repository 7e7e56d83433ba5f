package deploy_test

import (
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"

	vcr "github.com/vllm-vcr/conformance"
	"github.com/vllm-vcr/conformance/internal/capture/deploy"
	"github.com/vllm-vcr/conformance/internal/capture/target"
	"github.com/vllm-vcr/conformance/internal/testenv"
)

// TestRealClusterAdmitsOneAtATime submits Jobs with a GPU and without to the queue of the folder deploy, all at once.
func TestRealClusterAdmitsOneAtATime(t *testing.T) {
	c := testenv.KubeCluster(t)
	setup, err := deploy.Setup(vcr.Files, vcr.DeployPath)
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range setup {
		create(t, c.Kube, o)
	}
	jobs, err := deploy.Jobs(smallTargets(), run)
	if err != nil {
		t.Fatal(err)
	}
	for _, job := range jobs {
		create(t, c.Kube, job)
	}
	for done := range jobs {
		pod := theOnlyPod(t, c, done)
		if pod.Labels[deploy.LabelTarget] != onCPU().ID && !strings.HasPrefix(pod.Spec.NodeName, "gpu-") {
			t.Errorf("%s is on node %s", pod.Name, pod.Spec.NodeName)
		}
		c.Behave(t, pod.Namespace, pod.Name, testenv.PodComplete)
	}
	eventually(t, "all Jobs are complete", func() bool { return count(jobsOf(t, c), complete) == len(jobs) })
}

// smallTargets fit on the nodes of a test: two with a GPU, and one without.
func smallTargets() []target.Target {
	one, other, cpu := onGPU(), onGPU(), onCPU()
	other.ID = "qwen3-8b-multiturn-s13"
	for _, t := range []*target.Target{&one, &other, &cpu} {
		t.Model.CPU, t.Model.Memory = "2", "8Gi"
		if t.Model.GPU != "cpu" {
			t.Model.GPU = "L4"
		}
	}
	return []target.Target{one, cpu, other}
}

// theOnlyPod waits for the pod of the next Job to run, when that many are complete, and demands that no other does.
func theOnlyPod(t *testing.T, c *testenv.Cluster, done int) corev1.Pod {
	t.Helper()
	var running []corev1.Pod
	eventually(t, "the next pod runs", func() bool {
		running = nil
		var pods corev1.PodList
		c.Get(t, "/api/v1/namespaces/vllm-vcr/pods", &pods)
		for _, pod := range pods.Items {
			if pod.Status.Phase == corev1.PodRunning {
				running = append(running, pod)
			}
		}
		return len(running) > 0 && count(jobsOf(t, c), complete) == done
	})
	if admitted := count(jobsOf(t, c), admitted); len(running) != 1 || admitted != 1 {
		t.Errorf("%d pods run and %d Jobs are admitted, want one", len(running), admitted)
	}
	return running[0]
}

func jobsOf(t *testing.T, c *testenv.Cluster) []batchv1.Job {
	t.Helper()
	var list batchv1.JobList
	c.Get(t, "/apis/batch/v1/namespaces/vllm-vcr/jobs", &list)
	return list.Items
}

func count(jobs []batchv1.Job, is func(batchv1.Job) bool) (n int) {
	for _, job := range jobs {
		if is(job) {
			n++
		}
	}
	return n
}

func complete(job batchv1.Job) bool {
	for _, c := range job.Status.Conditions {
		if c.Type == batchv1.JobComplete && c.Status == corev1.ConditionTrue {
			return true
		}
	}
	return false
}

func admitted(job batchv1.Job) bool { return !*job.Spec.Suspend && !complete(job) }

// eventually asks until it is so.
func eventually(t *testing.T, what string, isSo func() bool) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for tick := time.Tick(100 * time.Millisecond); !isSo(); <-tick {
		if time.Now().After(deadline) {
			t.Fatalf("after a minute it is still not so that %s", what)
		}
	}
}
