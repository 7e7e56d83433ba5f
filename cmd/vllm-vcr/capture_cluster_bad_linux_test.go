package main

import (
	"errors"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vllm-vcr/conformance/internal/capture/deploy"
	"github.com/vllm-vcr/conformance/internal/testenv"
)

const clusterTargets = `[lines."0.33"]
engine_image = "docker.io/vllm/vllm-openai:v0.33.0@sha256:5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a"
tap_image = "ghcr.io/vllm-vcr/vllm-vcr:1.0.0@sha256:5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a"

[models.qwen]
source = "Qwen/Qwen3-0.6B"
unprefixed = true
gpu = "cpu"
cpu = "1"
memory = "4Gi"

[[target]]
lines = ["0.33"]
models = ["qwen"]
scenarios = ["baseline"]
workloads = ["edge"]
seeds = [1, 2]
`

// A clusterUser is somebody who captures in a namespace of a cluster, with a manifest of their own.
type clusterUser struct {
	kube           *testenv.Kube
	dir, namespace string
	kubeconfig, mf string
}

func newClusterUser(t *testing.T, kube *testenv.Kube, namespace string) *clusterUser {
	t.Helper()
	d := &clusterUser{kube: kube, dir: t.TempDir(), namespace: namespace, kubeconfig: kube.Kubeconfig}
	d.mf = filepath.Join(d.dir, "manifest.toml")
	if err := os.WriteFile(filepath.Join(d.dir, "targets.toml"), []byte(clusterTargets), 0o600); err != nil {
		t.Fatal(err)
	}
	return d
}

// queued is one with a queue of that many cores and no GPU. A capture wants 7.
func queued(t *testing.T, k *testenv.Cluster, cores string) *clusterUser {
	t.Helper()
	d := newClusterUser(t, k.Kube, k.Namespace(t))
	k.Queue(t, d.namespace, deploy.DefaultQueue, 0)
	k.Patch(t, clusterQueuePath(d.namespace), `{"spec":{"resourceGroups":[{"coveredResources":["cpu","memory"],"flavors":[
		{"name":"testenv","resources":[{"name":"cpu","nominalQuota":"`+cores+`"},{"name":"memory","nominalQuota":"64Gi"}]}]}]}}`)
	return d
}

func clusterQueuePath(name string) string {
	return "/apis/kueue.x-k8s.io/v1beta2/clusterqueues/" + name
}

// args are those of a command that is about the cluster.
func (d *clusterUser) args(command, run string, more ...string) []string {
	args := []string{"capture", command, "--targets", filepath.Join(d.dir, "targets.toml"), "--run-id", run, "--namespace", d.namespace}
	if d.kubeconfig != "" {
		args = append(args, "--kubeconfig", d.kubeconfig)
	}
	if command == "run" {
		args = append(args, "--manifest", d.mf, "--work", filepath.Join(d.dir, "work"))
	}
	return append(args, more...)
}

// jobs are the names of all that are in the namespace.
func (d *clusterUser) jobs(t *testing.T) (names []string) {
	t.Helper()
	var list struct {
		Items []struct{ Metadata struct{ Name string } }
	}
	d.kube.Get(t, "/apis/batch/v1/namespaces/"+d.namespace+"/jobs", &list)
	for _, job := range list.Items {
		names = append(names, job.Metadata.Name)
	}
	return names
}

// refused demands that a command ended with a code and one message, and left nothing but jobs of others.
func (d *clusterUser) refused(t *testing.T, s *spied, code, want int, message string, others ...string) {
	t.Helper()
	if code != want {
		t.Errorf("exit code %d, want %d", code, want)
	}
	all := s.stdout.text() + s.stderr.text()
	says(t, all, message)
	if n := len(regexp.MustCompile("(?m)^vllm-vcr: error: ").FindAllString(s.stderr.text(), -1)); n != 1 {
		t.Errorf("%d errors, want one, in:\n%s", n, all)
	}
	for _, secret := range []string{d.kube.Token, d.kube.RestrictedToken, "another-token"} {
		if strings.Contains(all, secret) {
			t.Errorf("it tells a secret:\n%s", all)
		}
	}
	if left := d.jobs(t); strings.Join(left, " ") != strings.Join(others, " ") {
		t.Errorf("jobs %q are left, want %q", left, others)
	}
	if _, err := os.Stat(d.mf); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("something was registered: %v", err)
	}
}

// TestRealClusterRefuses is about what can be known before anything is submitted.
func TestRealClusterRefuses(t *testing.T) {
	k := testenv.KubeCluster(t)
	host := regexp.QuoteMeta(k.URL)
	with := func(t *testing.T, d *clusterUser, old, other string) {
		text, err := os.ReadFile(k.Kubeconfig)
		if err != nil {
			t.Fatal(err)
		}
		d.kubeconfig = filepath.Join(d.dir, "kubeconfig")
		if err := os.WriteFile(d.kubeconfig, []byte(strings.ReplaceAll(string(text), old, other)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	tests := []struct {
		name   string
		cores  string // of the queue; none without
		change func(*testing.T, *clusterUser)
		code   int
		want   string
	}{
		{name: "no queue", code: 3, want: `: no LocalQueue conformance-queue in namespace test-\d+ of ` + host + `: kubectl apply -k deploy/$`},
		{
			name: "a stopped queue", cores: "8", code: 3, want: `: .*Queue .* is not active \(Stopped: .*\)`,
			change: func(t *testing.T, d *clusterUser) {
				k.Patch(t, clusterQueuePath(d.namespace), `{"spec":{"stopPolicy":"Hold"}}`)
				eventuallyTrue(t, "the queue is stopped", func() bool {
					_, reply := k.Do(t, http.MethodGet, clusterQueuePath(d.namespace), "", "")
					return strings.Contains(string(reply), `"reason":"Stopped"`)
				})
			},
		},
		{
			name: "a queue that is too small", cores: "6", code: 3,
			want: `target 0\.33/edge-s1: its pod asks for 7 of cpu, 2 in container frontend, of which cluster queue test-\d+ has 6: it would never be admitted$`,
		},
		{
			name: "no GPU", cores: "8", code: 3, want: `asks for 1 of nvidia\.com/gpu, 1 in container engine, of which cluster queue test-\d+ has none: `,
			change: func(t *testing.T, d *clusterUser) {
				text := strings.ReplaceAll(clusterTargets, `gpu = "cpu"`, `gpu = "L4"`)
				if err := os.WriteFile(filepath.Join(d.dir, "targets.toml"), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			},
		},
		{
			name: "no namespace", code: 3, want: `: no namespace vllm-vcr-nowhere at ` + host + `: give another with --namespace, or create it with the queue: `,
			change: func(_ *testing.T, d *clusterUser) { d.namespace = "vllm-vcr-nowhere" },
		},
		{
			name: "no rights", cores: "8", code: 3, want: `may not create jobs in namespace test-\d+ of ` + host,
			change: func(_ *testing.T, d *clusterUser) { d.kubeconfig = k.RestrictedKubeconfig },
		},
		{
			name: "a bad token", cores: "8", code: 3, want: `: ` + host + ` does not take our credentials: `,
			change: func(t *testing.T, d *clusterUser) { with(t, d, k.Token, "another-token") },
		},
		{
			name: "nobody there", cores: "8", code: 3, want: `: the API server at https://127\.0\.0\.1:1 is not reached: check the address`,
			change: func(t *testing.T, d *clusterUser) { with(t, d, k.URL, "https://127.0.0.1:1") },
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			d := newClusterUser(t, k.Kube, "")
			if test.cores == "" {
				d.namespace = k.Namespace(t)
			} else {
				d = queued(t, k, test.cores)
			}
			if test.change != nil {
				test.change(t, d)
			}
			for _, command := range []string{"submit", "run"} {
				s, code := runSpied(t, nil, d.args(command, "r1", "0.33/*edge-s1")...)
				d.refused(t, s, code, test.code, test.want)
			}
			s, code := runSpied(t, nil, d.args("run", "r1", "0.33/edge-s3")...)
			d.refused(t, s, code, 2, `^vllm-vcr: error: there is no target "0\.33/edge-s3"; did you mean `)
		})
	}
}

func eventuallyTrue(t *testing.T, what string, isSo func() bool) {
	t.Helper()
	deadline := time.After(patience)
	for !isSo() {
		select {
		case <-deadline:
			t.Fatalf("it never came to it that %s", what)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// otherJob is the Job of somebody else's capture of 0.33/edge-s2.
const otherJob = "capture-0-33-edge-s2-others"

// occupied has somebody else capture 0.33/edge-s2, who has the quota.
func (d *clusterUser) occupied(t *testing.T) {
	t.Helper()
	if s, code := runSpied(t, nil, d.args("submit", "others", "0.33/edge-s2")...); code != 0 {
		t.Fatalf("exit code %d: %s%s", code, s.stdout.text(), s.stderr.text())
	}
	eventuallyTrue(t, "the other is admitted", func() bool {
		_, reply := d.kube.Do(t, http.MethodGet, "/apis/batch/v1/namespaces/"+d.namespace+"/jobs/"+otherJob, "", "")
		return strings.Contains(string(reply), `"suspend":false`)
	})
}

// TestRealClusterBusy is about captures that others are in the way of: they are left alone.
func TestRealClusterBusy(t *testing.T) {
	k := testenv.KubeCluster(t)
	tests := []struct {
		name string
		args []string
		want string
	}{
		{
			"quota that is never granted",
			[]string{"0.33/edge-s1", "--admission-timeout", "2s"},
			`^0\.33/edge-s1: failed: job capture-0-33-edge-s1-r1: NotAdmitted: no quota after 2s: .*insufficient unused quota for cpu.*: see what else is in the queue`,
		},
		{
			"two captures at once",
			[]string{"0.33/edge-s2"},
			`^0\.33/edge-s2: failed: two captures at once: job ` + otherJob + ` captures the same for run "others" since .*: wait for it, or clean it up`,
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			d := queued(t, k, "8")
			d.occupied(t)
			s, code := runSpied(t, nil, d.args("run", "r1", test.args...)...)
			d.refused(t, s, code, 3, test.want, otherJob)
			says(t, s.stderr.text(), `^vllm-vcr: error: 1 of 1 targets failed$`)
		})
	}
}

// TestRealClusterFrozen stops the API server in the middle of a capture, then interrupts the capture: it does not give
// up deleting its Job at the first silence, and leaves nothing.
func TestRealClusterFrozen(t *testing.T) {
	k := testenv.KubeCluster(t)
	d := queued(t, k, "8")
	s := startSpied(t, nil, d.args("run", "r1", "0.33/edge-s1", "-v")...)
	s.await(t, s.stderr.has("0.33/edge-s1: running"))
	signal := func(to syscall.Signal) {
		if err := syscall.Kill(k.APIServerPid(), to); err != nil {
			t.Error(err)
		}
	}
	signal(syscall.SIGSTOP)
	t.Cleanup(func() { signal(syscall.SIGCONT) })
	s.Process.Signal(syscall.SIGINT)
	s.await(t, s.stderr.has("msg=\"trying again\""))
	signal(syscall.SIGCONT)
	d.refused(t, s, s.end(t), 3, `^vllm-vcr: error: interrupted$`)
	says(t, s.stdout.text(), `^0\.33/edge-s1: failed: .*interrupt`)
}

// TestRealClusterInterruptedQueued interrupts captures that wait for quota: nothing of them stays in the queue.
func TestRealClusterInterruptedQueued(t *testing.T) {
	k := testenv.KubeCluster(t)
	d := queued(t, k, "8")
	d.occupied(t)
	s := startSpied(t, nil, d.args("run", "r1", "0.33/edge-s1")...)
	s.await(t, s.stderr.has("0.33/edge-s1: queued: Pending: "))
	s.Process.Signal(syscall.SIGINT)
	d.refused(t, s, s.end(t), 3, `^vllm-vcr: error: interrupted$`, otherJob)
}
