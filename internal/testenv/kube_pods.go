package testenv

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/vllm-vcr/conformance/internal/base/atomicfile"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// What a pod does, by [Cluster.Behave] or by its annotation testenv/pod when it is created. Without any it runs, and its
// sidecars are ready, and those of its other containers that have no readiness probe.
const (
	PodReady    = "ready"    // all containers are ready
	PodComplete = "complete" // all containers end with exit code 0
	PodFail     = "fail"     // all containers end with exit code 1
	PodCrash    = "crash"    // all containers have ended once with exit code 1 and wait to be started again
	PodOOM      = "oom"      // all containers were killed for want of memory, which ends the pod
	PodEvict    = "evict"    // the kubelet ended the pod for want of memory of the node
	PodNoImage  = "noimage"  // images cannot be pulled; only if the pod is created with it
	PodNothing  = "nothing"  // stays pending, for a test that sets the status itself; only if the pod is created with it
)

// BehaviourAnnotation is the annotation of a pod that holds what it does.
const BehaviourAnnotation = "testenv/pod"

// containersWithLogs have logs of their own; all others share one.
var containersWithLogs = []string{"engine", "frontend", "tap", "loadgen", "load"}

func logName(container string) string {
	if slices.Contains(containersWithLogs, container) {
		return container
	}
	return "default"
}

// Namespace creates a namespace of the test's own and deletes it, with its pods, when the test ends.
func (c *Cluster) Namespace(t testing.TB) string {
	t.Helper()
	namespace := c.Kube.Namespace(t)
	if int(c.namespaces.Load()) > maxNamespaces {
		t.Fatalf("%s: a cluster has %d namespaces at most: raise the bound or run tests less often", namespace, maxNamespaces)
	}
	require.NoError(t, os.Mkdir(c.Root(namespace), 0o755))
	return namespace
}

// Root returns the folder that stands for the file system of the pods of a namespace, as they all share one: commands
// are executed in it, and have it as $POD_ROOT.
func (c *Cluster) Root(namespace string) string { return filepath.Join(c.dir, "pods", namespace) }

// Install lets pods execute a program of this machine by the given name, alone or below /usr/local/bin. Arguments that
// lie in one of the folders of a pod, such as /trace, are taken below its root. Where a program fails, the API server
// answers with an internal error that holds "exit status 1", not with the exit code of a real kubelet.
func (c *Cluster) Install(t testing.TB, name, program string, folders ...string) {
	t.Helper()
	patterns := "/nowhere"
	for _, folder := range folders {
		patterns += "|" + folder + "|" + folder + "/*"
	}
	script := fmt.Sprintf(`#!/bin/sh
for argument; do
  shift
  case $argument in %s) argument=$POD_ROOT$argument ;; esac
  set -- "$@" "$argument"
done
exec '%s' "$@"
`, patterns, program)
	// Renamed, as a test may replace a program that runs.
	require.NoError(t, atomicfile.Write(filepath.Join(c.dir, "programs", name), []byte(script), 0o755))
}

// Log appends lines to what a container of the pods of a namespace has written. All but engine, frontend, tap, loadgen
// and load share one log. A container that has written nothing has no log, which the API server answers as an error.
func (c *Cluster) Log(t testing.TB, namespace, container string, lines ...string) {
	t.Helper()
	path := filepath.Join(c.Root(namespace), logName(container)+".log")
	file, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	require.NoError(t, err)
	defer file.Close()
	for _, line := range lines {
		if _, err := fmt.Fprintf(file, "%s stdout F %s\n", time.Now().UTC().Format(time.RFC3339Nano), line); err != nil {
			t.Fatal(err)
		}
	}
}

// Behave sets what a pod does, such as [PodComplete].
func (c *Cluster) Behave(t testing.TB, namespace, pod, behaviour string) {
	t.Helper()
	c.Patch(t, podPath(namespace, pod),
		fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, BehaviourAnnotation, behaviour))
}

// Evict requests the end of a pod, as the drain of a node does.
func (k *Kube) Evict(t testing.TB, namespace, pod string) {
	t.Helper()
	k.Create(t, podPath(namespace, pod)+"/eviction",
		fmt.Sprintf(`{"apiVersion":"policy/v1","kind":"Eviction","metadata":{"name":%q,"namespace":%q}}`, pod, namespace))
}

func podPath(namespace, pod string) string { return "/api/v1/namespaces/" + namespace + "/pods/" + pod }

const nodesPath = "/api/v1/nodes"

// createNode adds a node with 8 CPUs, 64 GiB of memory and that many GPUs.
func (c *Cluster) createNode(t testing.TB, name string, gpus int) {
	t.Helper()
	labels := `"kubernetes.io/arch":"amd64","kubernetes.io/os":"linux","kubernetes.io/hostname":"` + name + `"`
	resources := `"cpu":"8","memory":"64Gi","ephemeral-storage":"500Gi","pods":"110"`
	if gpus > 0 {
		labels += `,"nvidia.com/gpu.product":"NVIDIA-L4"`
		resources += fmt.Sprintf(`,"nvidia.com/gpu":"%d"`, gpus)
	}
	c.Create(t, nodesPath, fmt.Sprintf(`{"apiVersion":"v1","kind":"Node","metadata":{"name":%q,"labels":{%s}},
		"status":{"allocatable":{%s},"capacity":{%[3]s}}}`, name, labels, resources))
}

// awaitNode returns when pods can be put on a node.
func (c *Cluster) awaitNode(t testing.TB, name string) {
	t.Helper()
	c.await(t, c.apiserver, "node "+name+" to be ready", func() error {
		var node struct {
			Spec   struct{ Taints []struct{ Key string } }
			Status struct {
				Conditions []struct{ Type, Status string }
			}
		}
		status, reply, err := c.request(http.MethodGet, nodesPath+"/"+name, "", "")
		if err != nil {
			return err
		}
		if err := json.Unmarshal(reply, &node); err != nil {
			return err
		}
		ready := slices.ContainsFunc(node.Status.Conditions, func(condition struct{ Type, Status string }) bool {
			return condition.Type == "Ready" && condition.Status == "True"
		})
		if status != http.StatusOK || !ready || len(node.Spec.Taints) > 0 {
			return fmt.Errorf("status %d, ready %t, taints %v", status, ready, node.Spec.Taints)
		}
		return nil
	})
}

const kueuePath = "/apis/kueue.x-k8s.io/v1beta2"

// Queue creates a LocalQueue in a namespace and a ClusterQueue for it alone, named as the namespace, with 16 CPUs, 128
// GiB of memory and that many GPUs. It returns when Kueue has taken it up.
func (c *Cluster) Queue(t testing.TB, namespace, name string, gpus int) {
	t.Helper()
	quota := func(resource, amount string) string {
		return fmt.Sprintf("{name: %s, nominalQuota: %q}", resource, amount)
	}
	c.Create(t, kueuePath+"/clusterqueues", fmt.Sprintf(`apiVersion: kueue.x-k8s.io/v1beta2
kind: ClusterQueue
metadata: {name: %s}
spec:
  namespaceSelector: {}
  resourceGroups:
  - coveredResources: [cpu, memory, ephemeral-storage, nvidia.com/gpu]
    flavors: [{name: testenv, resources: [%s]}]
`, namespace, strings.Join([]string{
		quota("cpu", "16"), quota("memory", "128Gi"), quota("ephemeral-storage", "500Gi"),
		quota("nvidia.com/gpu", strconv.Itoa(gpus)),
	}, ", ")))
	t.Cleanup(func() { c.Do(t, http.MethodDelete, kueuePath+"/clusterqueues/"+namespace, "", "") })
	c.Create(t, kueuePath+"/namespaces/"+namespace+"/localqueues", fmt.Sprintf(`apiVersion: kueue.x-k8s.io/v1beta2
kind: LocalQueue
metadata: {name: %s}
spec: {clusterQueue: %s}
`, name, namespace))
	c.await(t, c.apiserver, "queue "+name+" to be active", func() error {
		_, reply, err := c.request(http.MethodGet, kueuePath+"/namespaces/"+namespace+"/localqueues/"+name, "", "")
		if err == nil && !strings.Contains(string(reply), `"reason":"Ready"`) {
			err = errors.New(string(reply))
		}
		return err
	})
}
