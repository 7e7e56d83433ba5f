package chart_test

import (
	"bytes"
	"encoding/json"
	"net/http"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/vllm-vcr/conformance/internal/chart"
	"github.com/vllm-vcr/conformance/internal/testenv"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// TestRealServer creates all objects at a real API server, which refuses fields that it does not know, values that it does not take, and pods
// that are not restricted.
func TestRealServer(t *testing.T) {
	k := testenv.KubeAPI(t)
	if status, reply := post(t, k, chart.Namespace(release.Namespace)); status != http.StatusCreated {
		t.Fatalf("status %d: %s", status, reply)
	}
	for _, v := range variants {
		t.Run(v.name, func(t *testing.T) {
			for _, o := range render(t, v.values) {
				object := o.(map[string]any)
				if slices.Contains([]string{"PodMonitor", "VariantAutoscaling"}, object["kind"].(string)) {
					continue // the server does not have their types
				}
				if status, reply := post(t, k, object); status != http.StatusCreated {
					t.Fatalf("%s: status %d: %s", name(object), status, reply)
				}
				t.Cleanup(func() { k.Delete(t, path(object)+"/"+object["metadata"].(map[string]any)["name"].(string)) })
				if object["kind"] != "Deployment" {
					continue
				}
				// No controller makes its pods, which must be admitted, too.
				template := object["spec"].(map[string]any)["template"].(map[string]any)
				pod := map[string]any{"apiVersion": "v1", "kind": "Pod", "spec": template["spec"], "metadata": map[string]any{
					"name": "trial", "namespace": release.Namespace, "labels": template["metadata"].(map[string]any)["labels"],
				}}
				if status, reply := post(t, k, pod, "dryRun=All"); status != http.StatusCreated {
					t.Errorf("pod of %s: status %d: %s", name(object), status, reply)
				}
			}
		})
	}
	t.Run("kubectl", func(t *testing.T) { checkKubectl(t, k) })
}

// checkKubectl applies a folder as the documentation says. A trial shows what is absent, before anything is applied.
func checkKubectl(t *testing.T, k *testenv.Kube) {
	kubectl, err := exec.LookPath("kubectl")
	if err != nil {
		t.Skip("no kubectl here")
	}
	run := func(stdin []byte, args ...string) (string, error) {
		cmd := exec.CommandContext(t.Context(), kubectl, append([]string{"--kubeconfig", k.Kubeconfig}, args...)...)
		cmd.Stdin = bytes.NewReader(stdin)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	objects := render(t, "{topology: prefix-cache}")
	out := filepath.Join(t.TempDir(), "out")
	require.NoError(t, chart.WriteFolder(out, objects))
	applied, err := run(nil, "apply", "--server-side", "--dry-run=server", "-k", out)
	if got := strings.Count(applied, "serverside-applied (server dry run)"); err != nil || got != len(objects) || strings.Contains(applied, "Warning") {
		t.Errorf("%v: %d objects, want %d:\n%s", err, got, len(objects), applied)
	}
	for _, test := range []struct{ name, values, want string }{
		{"types that are absent", "{topology: autoscale}", `no matches for kind "PodMonitor" in version "monitoring.coreos.com/v1"`},
		{"a namespace that is absent", "{topology: pool}", `namespaces "nowhere" not found`},
	} {
		var text bytes.Buffer
		require.NoError(t, chart.Write(&text, chart.YAML, render(t, test.values)...))
		input := text.Bytes()
		if strings.Contains(test.want, "nowhere") {
			input = bytes.ReplaceAll(input, []byte("namespace: vllm-vcr"), []byte("namespace: nowhere"))
		}
		if out, err := run(input, "apply", "--server-side", "--dry-run=server", "-f", "-"); err == nil || !strings.Contains(out, test.want) {
			t.Errorf("%s: %v, want %q:\n%s", test.name, err, test.want, out)
		}
	}
}

// path is where the API server has the objects of a kind.
func path(object map[string]any) string {
	version := object["apiVersion"].(string)
	group := "/apis/" + version
	if version == "v1" {
		group = "/api/v1"
	}
	kind := strings.ToLower(object["kind"].(string)) + "s"
	if kind == "networkpolicys" {
		kind = "networkpolicies"
	}
	namespace, isIn := object["metadata"].(map[string]any)["namespace"].(string)
	if !isIn {
		return group + "/" + kind
	}
	return group + "/namespaces/" + namespace + "/" + kind
}

func post(t *testing.T, k *testenv.Kube, object any, more ...string) (int, string) {
	t.Helper()
	plain, err := chart.Plain(object)
	require.NoError(t, err)
	text, err := json.Marshal(plain)
	require.NoError(t, err)
	query := strings.Join(append(more, "fieldValidation=Strict"), "&")
	status, reply := k.Do(t, http.MethodPost, path(plain)+"?"+query, "application/json", string(text))
	return status, string(reply)
}
