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
)

// A Cluster is a [Kube] with what makes Jobs run: the controllers, the scheduler, Kueue, and nodes whose kubelet is
// kwok's. No container is started: a pod goes through the states that its behaviour says, see [Cluster.Behave], and
// what is executed in it is executed on this machine, see [Cluster.Install]. In the namespace of a [Machine] they are.
//
// The nodes cpu-1 and cpu-2, gpu-1 and gpu-2 have 8 CPUs and 64 GiB of memory each, the latter also a GPU, with which
// they are labelled nvidia.com/gpu.product=NVIDIA-L4. More are added by [Cluster.AddNode].
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
	peers := filepath.Join(filepath.Dir(bin), "kube", "kwok")
	if err := c.writeConfigs(t, peers); err != nil {
		t.Fatal(err)
	}
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
	c.createFlavor(t)
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
	if err := os.WriteFile(filepath.Join(c.dir, "kueue.yaml"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
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

func (c *Cluster) writeConfigs(t testing.TB, peers string) error {
	t.Helper()
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
	root := c.root(namespace)
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

func (c *Cluster) root(namespace string) string { return filepath.Join(c.dir, "pods", namespace) }
