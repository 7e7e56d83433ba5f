package testenv

import (
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
	}{
		{name: "skipped in CI", skipped: ".ci/peers kube"},
		{name: "required", required: "1", fatal: ".ci/peers kube"},
		{name: "not required by a false value", required: "false", skipped: ".ci/peers kube"},
		{name: "half installed", required: "1", installed: []string{"etcd"}, fatal: "no kube-apiserver"},
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
			fake.run(func(tb testing.TB) { KubeAPI(tb) })
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
	k.Create(t, "/apis/kueue.x-k8s.io/v1beta2"+"/namespaces/"+ns+"/localqueues",
		"{apiVersion: kueue.x-k8s.io/v1beta2, kind: LocalQueue, metadata: {name: gpu}, spec: {clusterQueue: gpu}}")
	status, reply = k.Do(t, http.MethodPost, "/apis/kueue.x-k8s.io/v1beta2"+"/namespaces/"+ns+"/localqueues", "application/yaml",
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
