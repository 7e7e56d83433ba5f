package testenv

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// A Cluster is a [Kube] with what makes Jobs run: the controllers, the scheduler, Kueue, and nodes whose kubelet is
// kwok's. No container is started: a pod goes through the states that its behaviour says, see [Cluster.Behave], and
// what is executed in it is executed on this machine, see [Cluster.Install]. In the namespace of a [Machine] they are.
//
// The nodes cpu-1 and cpu-2, gpu-1 and gpu-2 have 8 CPUs and 64 GiB of memory each, the latter also a GPU, with which
// they are labelled nvidia.com/gpu.product=NVIDIA-L4.
type Cluster struct {
	*Kube
	kubelet  int // port of kwok's server
	machines atomic.Int32
}

var kubeCluster shared[*Cluster]

var clusterPrograms = []string{
	"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kueue", "kwok",
}

// KubeCluster returns a whole cluster, apart from the server of [KubeAPI]. It takes 6 s to start for the first test
// that asks, and ends with the test binary. Kueue's webhooks are not installed: a Job must be created suspended.
//
// Where it is not installed, the test is skipped as with [KubeAPI].
func KubeCluster(t testing.TB) *Cluster {
	t.Helper()
	bin := kubePrograms(t, "kube-full", clusterPrograms...)
	if err := namespacesAllowed(); err != nil && kubeRequired("kube-full") {
		t.Fatal(err)
	} else if err != nil {
		t.Skip(err)
	}
	c := kubeCluster.get(func() *Cluster { return startCluster(t, bin) })
	c.logOnFailure(t)
	return c
}

// namespacesAllowed fails where a program cannot have a view of the file system of its own, which two of them need.
func namespacesAllowed() error {
	if runtime.GOOS != "linux" {
		return errors.New("a cluster for tests wants Linux: run the test there")
	}
	if output, err := exec.Command("unshare", mountNamespace(), "true").CombinedOutput(); err != nil {
		return fmt.Errorf("unshare %s: %v: %s: run the test as root, or allow user namespaces", mountNamespace(), err, output)
	}
	return nil
}

// mountNamespace is how unshare makes one: who is not root needs a user namespace to be root in.
func mountNamespace() string {
	if os.Geteuid() == 0 {
		return "-m"
	}
	return "-rm"
}

const controllers = "job-controller,ttl-after-finished-controller,garbage-collector-controller,namespace-controller," +
	"node-lifecycle-controller,taint-eviction-controller,pod-garbage-collector-controller,deployment-controller," +
	"replicaset-controller"

func startCluster(t testing.TB, bin string) *Cluster {
	t.Helper()
	c := &Cluster{Kube: startKube(t, bin), kubelet: FreePort(t)}
	require.NoError(t, c.writeConfigs(filepath.Join(filepath.Dir(bin), "kube", "kwok")))
	// The collector of garbage learns of types that come after it only half a minute later.
	c.installTypes(t)
	// A busy machine must not make nodes look dead: tests say when one is.
	c.start(t, exec.Command(filepath.Join(bin, "kube-controller-manager"), "--kubeconfig="+c.Kubeconfig, "--secure-port=0",
		"--leader-elect=false", "--node-monitor-grace-period=1h", "--controllers="+controllers))
	c.start(t, exec.Command(filepath.Join(bin, "kube-scheduler"), "--kubeconfig="+c.Kubeconfig, "--secure-port=0",
		"--leader-elect=false"))
	c.startKwok(t, bin)
	nodes := map[string]int{"cpu-1": 0, "cpu-2": 0, "gpu-1": 1, "gpu-2": 1}
	for name, gpus := range nodes {
		c.createNode(t, name, gpus)
	}
	c.startKueue(t, bin)
	for name := range nodes {
		c.awaitNode(t, name)
	}
	c.Create(t, kueuePath+"/resourceflavors",
		`{"apiVersion":"kueue.x-k8s.io/v1beta2","kind":"ResourceFlavor","metadata":{"name":"testenv"}}`)
	return c
}

// startKueue gives it the certificate that it reads at a fixed path, whether it uses it or not.
func (c *Cluster) startKueue(t testing.TB, bin string) {
	t.Helper()
	health := FreePort(t)
	config := fmt.Sprintf(`apiVersion: config.kueue.x-k8s.io/v1beta2
kind: Configuration
health: {healthProbeBindAddress: "127.0.0.1:%d"}
metrics: {bindAddress: "0"}
webhook: {host: 127.0.0.1, port: %d, certDir: %q}
leaderElection: {leaderElect: false}
internalCertManagement: {enable: false}
integrations: {frameworks: [batch/job]}
`, health, FreePort(t), filepath.Join(c.dir, "webhook"))
	require.NoError(t, os.WriteFile(filepath.Join(c.dir, "kueue.yaml"), []byte(config), 0o600))
	p := c.start(t, exec.Command("unshare", mountNamespace(), "sh", "-c", `
		mount -t tmpfs tmpfs /etc && mkdir -p /etc/kueue/metrics/certs && cp webhook/* /etc/kueue/metrics/certs && exec "$@"`,
		"kueue", filepath.Join(bin, "kueue"), "--config=kueue.yaml", "--kubeconfig="+c.Kubeconfig,
		"--feature-gates=VisibilityOnDemand=false", "--zap-log-level=error"))
	c.await(t, p, "Kueue to be ready", func() error {
		response, err := http.Get("http://127.0.0.1:" + strconv.Itoa(health) + "/readyz")
		if err != nil {
			return err
		}
		response.Body.Close()
		if response.StatusCode != http.StatusOK {
			return errors.New(response.Status)
		}
		return nil
	})
}

// kwokRoot is the folder that kwok has for its root. What is put there directly can be executed in pods as well.
const kwokRoot = "root"

// kwokScript binds what this machine has into the root, and has kwok see the folder of installed programs in the place of
// /usr/local/bin.
const kwokScript = `set -e
for entry in /*; do
  if [ -L "$entry" ]; then
    cp -P "$entry" "root$entry"
  elif [ -d "$entry" ]; then
    mkdir "root$entry"
    mount --rbind "$entry" "root$entry"
  fi
done
mount --bind programs root/usr/local/bin
exec chroot root sh -c 'cd "$0" && exec "$@"' "$PWD" "$@"`

// startKwok starts it where it sees what pods may execute.
func (c *Cluster) startKwok(t testing.TB, bin string) {
	t.Helper()
	address := "127.0.0.1:" + strconv.Itoa(c.kubelet)
	cmd := exec.Command("unshare", mountNamespace(), "sh", "-c", kwokScript,
		"kwok", filepath.Join(bin, "kwok"), "--kubeconfig="+c.Kubeconfig, "--config=kwok.yaml", "--manage-all-nodes",
		"--node-ip=127.0.0.1", "--node-port="+strconv.Itoa(c.kubelet), "--server-address="+address,
		"--tls-cert-file=server.crt", "--tls-private-key-file=server.key", "--node-lease-duration-seconds=40")
	cmd.Env = append(os.Environ(), "PATH=/usr/local/bin:"+os.Getenv("PATH"))
	c.start(t, cmd)
}

// maxNamespaces is how many tests of one binary can have a namespace in a cluster: what is executed and logged in each
// is part of the configuration that kwok starts with, as it tells nobody when it has taken up a change.
const maxNamespaces = 200

func (c *Cluster) writeConfigs(peers string) error {
	for _, folder := range []string{"programs", "webhook", "pods", kwokRoot} {
		if err := os.Mkdir(filepath.Join(c.dir, folder), 0o755); err != nil {
			return err
		}
	}
	for _, file := range []string{"crt", "key"} {
		if err := os.Link(filepath.Join(c.dir, "server."+file), filepath.Join(c.dir, "webhook", "tls."+file)); err != nil {
			return err
		}
	}
	stages, err := filepath.Glob(filepath.Join(peers, "*.yaml"))
	if err != nil || len(stages) == 0 {
		return fmt.Errorf("no stages of nodes in %s: %v: remove the folder and run .ci/peers kube-full", peers, err)
	}
	documents := []string{podStages()}
	for _, stage := range stages {
		text, err := os.ReadFile(stage)
		if err != nil {
			return err
		}
		documents = append(documents, string(text))
	}
	for i := range maxNamespaces {
		documents = append(documents, c.rules(fmt.Sprintf("test-%d", i+1), func(log string) string { return log }))
	}
	for i := range maxMachines {
		documents = append(documents, c.rules(fmt.Sprintf("%s%d", machinePrefix, i+1), previousLog))
	}
	return os.WriteFile(filepath.Join(c.dir, "kwok.yaml"), []byte(strings.Join(documents, "\n---\n")), 0o600)
}

// previousLog is where the log of the time before lies.
func previousLog(log string) string { return strings.TrimSuffix(log, ".log") + ".previous.log" }

// rules say what is executed and logged in the pods of a namespace.
func (c *Cluster) rules(namespace string, previous func(string) string) string {
	root := c.Root(namespace)
	logs := ""
	for _, container := range containersWithLogs {
		log := filepath.Join(root, container+".log")
		logs += fmt.Sprintf("  - {containers: [%s], logsFile: %q, previousLogsFile: %q, follow: true}\n",
			container, log, previous(log))
	}
	return fmt.Sprintf(`kind: ClusterExec
apiVersion: kwok.x-k8s.io/v1alpha1
metadata: {name: %[1]s}
spec:
  selector: {matchNamespaces: [%[1]s]}
  execs: [{local: {workDir: %[2]q, envs: [{name: POD_ROOT, value: %[2]q}]}}]
---
kind: ClusterLogs
apiVersion: kwok.x-k8s.io/v1alpha1
metadata: {name: %[1]s}
spec:
  selector: {matchNamespaces: [%[1]s]}
  logs:
  - {logsFile: %[3]q, previousLogsFile: %[3]q, follow: true}
%[4]s`, namespace, root, filepath.Join(root, "default.log"), logs)
}

// A podStage is what kwok makes of a pod on a node. The first of a pod leaves its phase pending or running, and a
// behaviour has one more at most.
type podStage struct {
	name, when string // a selector, as a list of YAML
	status     string // of the pod, in YAML, beside its containers and conditions
	ready      string // of a container
	podReady   string // "True" or "False"
	state      string // of a container that is not an init container of the ordinary kind
	more       string // of such a container
}

const (
	isNew = `{key: .status.phase, operator: In, values: [Pending]}, {key: .status.startTime, operator: DoesNotExist}`
	// onKwok leaves the pods of a [Machine] to it.
	onKwok    = `{key: '.metadata.namespace[0:5]', operator: NotIn, values: [real-]}`
	isRunning = `{key: .status.phase, operator: In, values: [Running]}`
	started   = "startTime: {{ $now | Quote }}\n"
	address   = "hostIP: 127.0.0.1\n" +
		"podIP: {{ PodIPWith .spec.nodeName false .metadata.uid .metadata.name .metadata.namespace | Quote }}\n"
	running = `{running: {startedAt: {{ $now | Quote }}}}`
)

// podStages returns the configuration of kwok's stages of pods.
func podStages() string {
	stages := []podStage{
		{
			name: "run", when: isNew + ", " + behaves("NotIn", PodNoImage, PodNothing),
			status: "phase: Running\n" + started + address,
			ready:  "{{ if .restartPolicy }}true{{ else }}{{ not .readinessProbe }}{{ end }}", podReady: "{{ $ready }}", state: running,
		},
		{
			name: "no-image", when: isNew + ", " + behaves("In", PodNoImage), status: "phase: Pending\n" + started,
			state: waiting("ImagePullBackOff", `"Back-off pulling image %s: not found" .image`),
		},
		{
			name: "ready", when: isRunning + ", " + behaves("In", PodReady) +
				`, {key: '.status.conditions.[] | select(.type == "Ready") | .status', operator: NotIn, values: ["True"]}`,
			ready: "true", podReady: "True", state: running,
		},
		{
			name: "crash", when: isRunning + ", " + behaves("In", PodCrash) +
				`, {key: '.status.containerStatuses.[].restartCount', operator: NotIn, values: ["1"]}`,
			state: waiting("CrashLoopBackOff", `"back-off 10s restarting %s" .name`),
			more:  "restartCount: 1, lastState: " + terminated(1, "Error"),
		},
		ending(PodComplete, "phase: Succeeded", terminated(0, "Completed")),
		ending(PodFail, "phase: Failed", terminated(1, "Error")),
		ending(PodOOM, "phase: Failed", terminated(137, "OOMKilled")),
		ending(PodEvict, "phase: Failed\nreason: Evicted\nmessage: 'The node was low on resource: memory.'",
			terminated(137, "Error")),
	}
	documents := []string{podDeletion}
	for _, stage := range stages {
		documents = append(documents, stage.yaml())
	}
	return strings.Join(documents, "---\n")
}

func ending(behaviour, status, state string) podStage {
	when := isRunning + ", " + behaves("In", behaviour)
	return podStage{name: behaviour, when: when, status: status + "\n", state: state}
}

func behaves(operator string, behaviours ...string) string {
	return fmt.Sprintf(`{key: '.metadata.annotations["%s"]', operator: %s, values: [%s]}`,
		BehaviourAnnotation, operator, strings.Join(behaviours, ", "))
}

func terminated(code int, reason string) string {
	const times = "startedAt: {{ $now | Quote }}, finishedAt: {{ $now | Quote }}"
	return fmt.Sprintf("{terminated: {exitCode: %d, reason: %s, %s}}", code, reason, times)
}

// waiting is the state of a container, with a message as arguments of printf.
func waiting(reason, message string) string {
	return fmt.Sprintf("{waiting: {reason: %s, message: {{ printf %s | Quote }}}}", reason, message)
}

const podDeletion = `apiVersion: kwok.x-k8s.io/v1alpha1
kind: Stage
metadata: {name: pod-delete}
spec:
  resourceRef: {apiGroup: v1, kind: Pod}
  selector: {matchExpressions: [{key: .metadata.deletionTimestamp, operator: Exists}, ` + onKwok + `]}
  next: {delete: true}
`

func (s podStage) yaml() string {
	if s.podReady == "" {
		s.ready, s.podReady = "false", "False"
	}
	if s.more == "" {
		s.more = "restartCount: 0"
	}
	condition := func(name, status string) string {
		return fmt.Sprintf("- {type: %s, status: %q, lastTransitionTime: {{ $now | Quote }}}\n", name, status)
	}
	template := `{{ $now := Now }}{{ $ready := "True" }}
{{ range .spec.containers }}{{ if .readinessProbe }}{{ $ready = "False" }}{{ end }}{{ end }}
` + s.status + "conditions:\n" + condition("Initialized", "True") + condition("ContainersReady", s.podReady) +
		condition("Ready", s.podReady) + `{{ with .spec.initContainers }}
initContainerStatuses:
{{ range . }}{{ if .restartPolicy }}
` + container(s.state, s.ready, s.more) + `{{ else }}
` + container(terminated(0, "Completed"), "true", "restartCount: 0") + `{{ end }}{{ end }}{{ end }}
containerStatuses:
{{ range .spec.containers }}
` + container(s.state, s.ready, s.more) + "{{ end }}\n"
	return fmt.Sprintf(`apiVersion: kwok.x-k8s.io/v1alpha1
kind: Stage
metadata: {name: pod-%s}
spec:
  resourceRef: {apiGroup: v1, kind: Pod}
  selector: {matchExpressions: [{key: .metadata.deletionTimestamp, operator: DoesNotExist}, %s, %s]}
  next:
    statusTemplate: |
      %s
`, s.name, onKwok, s.when, strings.ReplaceAll(strings.TrimSpace(template), "\n", "\n      "))
}

// container is the status of one. An image that is not pinned turns out to have the digest 1.
func container(state, ready, more string) string {
	return fmt.Sprintf(`{{ $digest := "@sha256:%064d" }}{{ if contains "@" .image }}{{ $digest = "" }}{{ end }}
- {name: {{ .name | Quote }}, image: {{ .image | Quote }}, imageID: {{ print .image $digest | Quote }},
   ready: %s, started: %t, state: %s, %s}
`, 1, ready, state == running, state, more)
}
