package testenv

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// The sidecar says in a file that it catches SIGTERM: killed or asked to end before that, it would leave nothing to see.
const machinePod = `apiVersion: v1
kind: Pod
metadata: {name: pod}
spec:
  restartPolicy: Never
  volumes: [{name: trace, emptyDir: {}}]
  initContainers:
  - {name: model, image: "model@sha256:%[1]s", command: [sh, -c, "echo prepared >/trace/model"], volumeMounts: [{name: trace, mountPath: /trace}]}
  - name: tap
    image: "registry.example.com:5000/tap:1@sha256:%[1]s"
    restartPolicy: Always
    command: [sh, -c, "trap 'echo ended >>/trace/tap; exit 0' TERM; cat /trace/model; echo >>/trace/started; while :; do sleep 0.1; done"]
    volumeMounts: [{name: trace, mountPath: /trace}]
  containers:
  - name: loadgen
    image: "loadgen@sha256:%[1]s"
    command: [sh, -c, "started() { until [ \"$(cat /trace/started 2>/dev/null | wc -l)\" = $1 ]; do sleep 0.1; done; }; started 1; touch /here 2>/dev/null || echo read-only >/trace/loadgen; started 2; until [ -e /trace/fetched ]; do sleep 0.1; done"]
    securityContext: {readOnlyRootFilesystem: true}
    readinessProbe: {exec: {command: [test, -e, /trace/loadgen]}, periodSeconds: 1}
    volumeMounts: [{name: trace, mountPath: /trace}]
`

// TestRealClusterMachine runs a pod whose sidecar is killed, and executes the command that lets it end.
func TestRealClusterMachine(t *testing.T) {
	c := KubeCluster(t)
	finish := filepath.Join(t.TempDir(), "finish")
	require.NoError(t, os.WriteFile(finish, []byte("#!/bin/sh\necho $1; >/trace/fetched\n"), 0o755))
	m := c.Machine(t, MachineOptions{Files: map[string]string{"/finish": finish}, Program: "/finish"})
	events := c.watch(t, "/api/v1/namespaces/"+m.Namespace+"/pods")
	c.Create(t, "/api/v1/namespaces/"+m.Namespace+"/pods", strings.ReplaceAll(machinePod, "%[1]s", pinned))
	pod := until(t, events, func(e kubeEvent) bool { return e.Object.is("Ready") })
	if got, want := pod.Status.InitContainerStatuses[1].ImageID, "registry.example.com:5000/tap@sha256:"+pinned; got != want {
		t.Errorf("image %s, want %s", got, want)
	}
	m.Kill(t, "tap")
	pod = until(t, events, func(e kubeEvent) bool { return e.Object.Status.InitContainerStatuses[1].RestartCount == 1 })
	if n := m.Restarts("tap"); n != 1 || pod.Status.InitContainerStatuses[1].State["running"] != (struct {
		Reason   string
		ExitCode int
	}{}) {
		t.Errorf("%d restarts, state %+v", n, pod.Status.InitContainerStatuses[1].State)
	}
	var said, complaint strings.Builder
	if err := c.exec(t, m.Namespace, "pod", &said, &complaint, "/finish", "fetched"); err != nil || said.String() != "fetched\n" {
		t.Fatalf("executed: %q, %v: %s", said.String(), err, complaint.String())
	}
	until(t, events, func(e kubeEvent) bool { return e.Object.Status.Phase == "Succeeded" })
	got := map[string]string{}
	for _, name := range []string{"model", "tap", "loadgen"} {
		text, err := os.ReadFile(filepath.Join(m.Volume("trace"), name))
		if err != nil {
			t.Error(err)
		}
		got[name] = string(text)
	}
	want := map[string]string{"model": "prepared\n", "tap": "ended\n", "loadgen": "read-only\n"}
	require.NoDiff(t, cmp.Diff(want, got), "files (-want +got)")
	if log := m.Log("tap"); strings.Count(log, " stdout F prepared\n") != 1 {
		t.Errorf("log %q", log)
	}
	gone := deletionOf(pod)
	c.Delete(t, podPath(m.Namespace, "pod"))
	until(t, events, gone)
}
