package testenv

import (
	"encoding/json"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

func TestAbsentKubernetes(t *testing.T) {
	tests := []struct {
		name, required string
		installed      []string
		fatal, skipped string // what the message of each kind of end must contain
		cluster        bool
	}{
		{name: "skipped in CI", skipped: ".ci/peers kube"},
		{name: "required", required: "1", fatal: ".ci/peers kube"},
		{name: "not required by a false value", required: "false", skipped: ".ci/peers kube"},
		{name: "half installed", required: "kube", installed: []string{"etcd"}, fatal: "no kube-apiserver"},
		{name: "cluster", cluster: true, skipped: ".ci/peers kube-full"},
		{name: "cluster required", cluster: true, required: "1", fatal: ".ci/peers kube-full"},
		{name: "cluster where only the server is", cluster: true, required: "kube", skipped: ".ci/peers kube-full"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			for _, name := range test.installed {
				install(t, dir, filepath.Join("bin", name), 0o755)
			}
			t.Setenv(envPeers, dir)
			t.Setenv(envCI, "true")
			t.Setenv(envKube, test.required)
			fake := newFakeTB(t)
			fake.run(func(tb testing.TB) {
				if test.cluster {
					KubeCluster(tb)
				} else {
					KubeAPI(tb)
				}
			})
			if (fake.fatal == "") != (test.fatal == "") || (fake.skipped == "") != (test.skipped == "") ||
				!strings.Contains(fake.fatal, test.fatal) || !strings.Contains(fake.skipped, test.skipped) {
				t.Errorf("got fatal %q, skipped %q, want %q, %q", fake.fatal, fake.skipped, test.fatal, test.skipped)
			}
		})
	}
}

func TestRealKubeValidates(t *testing.T) {
	k := KubeAPI(t)
	ns := k.Namespace(t)
	jobs := "/apis/batch/v1/namespaces/" + ns + "/jobs"
	status, reply := k.Do(t, http.MethodPost, jobs, "application/yaml", `
{apiVersion: batch/v1, kind: Job, metadata: {name: job}, spec: {template: {spec: {containers: [{name: a, image: a}]}}}}`)
	if status != http.StatusUnprocessableEntity || !strings.Contains(string(reply), "restartPolicy") {
		t.Errorf("a Job without a policy of restarts: status %d: %s", status, reply)
	}
	k.Create(t, kueuePath+"/namespaces/"+ns+"/localqueues",
		"{apiVersion: kueue.x-k8s.io/v1beta2, kind: LocalQueue, metadata: {name: gpu}, spec: {clusterQueue: gpu}}")
	status, reply = k.Do(t, http.MethodPost, kueuePath+"/namespaces/"+ns+"/localqueues", "application/yaml",
		"{apiVersion: kueue.x-k8s.io/v1beta2, kind: LocalQueue, metadata: {name: wrong}, spec: {clusterQueue: 1}}")
	if status != http.StatusUnprocessableEntity || !strings.Contains(string(reply), "spec.clusterQueue") {
		t.Errorf("a queue of the wrong type: status %d: %s", status, reply)
	}
}

func TestRealKubeUsers(t *testing.T) {
	k := KubeAPI(t)
	ns := k.Namespace(t)
	pods := "/api/v1/namespaces/" + ns + "/pods"
	as := func(token string) int {
		t.Helper()
		response, err := k.send(t.Context(), token, http.MethodGet, pods, "", "")
		require.NoError(t, err)
		response.Body.Close()
		return response.StatusCode
	}
	for token, want := range map[string]int{
		k.Token: http.StatusOK, k.RestrictedToken: http.StatusForbidden, "unknown": http.StatusUnauthorized,
	} {
		if got := as(token); got != want {
			t.Errorf("token %s: status %d, want %d", token, got, want)
		}
	}
	rbac := "/apis/rbac.authorization.k8s.io/v1/namespaces/" + ns
	k.Create(t, rbac+"/roles", `{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"Role","metadata":{"name":"reader"},
		"rules":[{"apiGroups":[""],"resources":["pods"],"verbs":["list"]}]}`)
	k.Create(t, rbac+"/rolebindings", `{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"RoleBinding",
		"metadata":{"name":"reader"},"subjects":[{"kind":"User","name":"restricted"}],
		"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"Role","name":"reader"}}`)
	k.await(t, k.apiserver, "the role to hold", func() error {
		if as(k.RestrictedToken) != http.StatusOK {
			return io.ErrNoProgress
		}
		return nil
	})
}

func TestRealKubeRestartsUnderAWatch(t *testing.T) {
	k := KubeAPI(t)
	ns := k.Namespace(t)
	maps := "/api/v1/namespaces/" + ns + "/configmaps"
	create := func(name string) {
		k.Create(t, maps, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"`+name+`"}}`)
	}
	create("before")
	events := k.watch(t, maps)
	before := until(t, events, func(e kubeEvent) bool { return e.Object.Metadata.Name == "before" })
	k.Down(t)
	for err := error(nil); err == nil; {
		err = events.Decode(&json.RawMessage{})
	}
	if _, _, err := k.request(http.MethodGet, "/readyz", "", ""); err == nil {
		t.Error("the server answers while it is down")
	}
	k.Up(t)
	create("after")
	events = k.watch(t, maps)
	seen := map[string]string{}
	until(t, events, func(e kubeEvent) bool {
		seen[e.Object.Metadata.Name] = e.Object.Metadata.UID
		return seen["before"] != "" && seen["after"] != ""
	})
	if seen["before"] != before.Metadata.UID {
		t.Errorf("the object is another one than before: %s and %s", before.Metadata.UID, seen["before"])
	}
}
