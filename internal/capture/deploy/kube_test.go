package deploy_test

import (
	"encoding/json"
	"net/http"
	"os/exec"
	"slices"
	"strings"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/google/go-cmp/cmp"

	vcr "github.com/vllm-vcr/conformance"
	"github.com/vllm-vcr/conformance/internal/capture/deploy"
	"github.com/vllm-vcr/conformance/internal/capture/target"
	"github.com/vllm-vcr/conformance/internal/chart"
	"github.com/vllm-vcr/conformance/internal/testenv"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// collections are where the API server has the objects of a kind; N stands for the namespace.
var collections = map[string]string{
	"Namespace":          "/api/v1/namespaces",
	"Pod":                "/api/v1/namespaces/N/pods",
	"Job":                "/apis/batch/v1/namespaces/N/jobs",
	"Role":               "/apis/rbac.authorization.k8s.io/v1/namespaces/N/roles",
	"RoleBinding":        "/apis/rbac.authorization.k8s.io/v1/namespaces/N/rolebindings",
	"ClusterRole":        "/apis/rbac.authorization.k8s.io/v1/clusterroles",
	"ClusterRoleBinding": "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
	"NetworkPolicy":      "/apis/networking.k8s.io/v1/namespaces/N/networkpolicies",
	"ResourceFlavor":     "/apis/kueue.x-k8s.io/v1beta2/resourceflavors",
	"ClusterQueue":       "/apis/kueue.x-k8s.io/v1beta2/clusterqueues",
	"LocalQueue":         "/apis/kueue.x-k8s.io/v1beta2/namespaces/N/localqueues",
}

// TestRealServer creates everything that is rendered at a real API server, which refuses fields that it does not know,
// values that it does not take, and pods that are not confined as the namespace demands.
func TestRealServer(t *testing.T) {
	k := testenv.KubeAPI(t)
	setup, err := deploy.Setup(vcr.Files, vcr.DeployPath)
	require.NoError(t, err)
	for _, o := range setup {
		create(t, k, o)
	}
	t.Run("jobs", func(t *testing.T) {
		for _, job := range everyJob(t) {
			create(t, k, job)
			// No controller makes a pod of it here; what one would make must be admitted, too.
			create(t, k, podOf(typed(t, job)))
		}
	})
	t.Run("refusals", func(t *testing.T) { checkRefusals(t, k) })
	t.Run("roles", func(t *testing.T) { checkRoles(t, k) })
	t.Run("kubectl", func(t *testing.T) { checkKubectl(t, k, setup) })
}

// everyJob is a Job of each scenario on a GPU, and one without.
func everyJob(t *testing.T) []*deploy.Job {
	t.Helper()
	targets := []target.Target{onCPU()}
	for _, scenario := range target.Scenarios() {
		tgt := onGPU()
		tgt.ID, tgt.Scenario = "qwen3-8b-multiturn-"+string(scenario)+"-s7", scenario
		targets = append(targets, tgt)
	}
	r := run
	r.TokenSecret, r.NodeSelector = "hub/token", map[string]string{"pool": "gpu"}
	jobs, err := deploy.Jobs(targets, r)
	require.NoError(t, err)
	return jobs
}

// podOf is what a controller makes of a Job.
func podOf(job *batchv1.Job) *corev1.Pod {
	p := &corev1.Pod{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}, ObjectMeta: job.Spec.Template.ObjectMeta, Spec: job.Spec.Template.Spec}
	p.Name, p.Namespace = job.Name, job.Namespace
	return p
}

// create has an object created, first as a trial, and reads it back. A namespace stays for the next test: without
// controllers none ever ends.
func create(t *testing.T, k *testenv.Kube, object any) {
	t.Helper()
	plain, err := chart.Plain(object)
	require.NoError(t, err)
	for _, trial := range []string{"&dryRun=All", ""} {
		status, reply := post(t, k, plain, trial)
		if plain["kind"] == "Namespace" && status == http.StatusConflict {
			return
		}
		if status/100 != 2 {
			t.Fatalf("%v %v: status %d: %s", plain["kind"], plain["metadata"], status, reply)
		}
	}
	name := plain["metadata"].(map[string]any)["name"].(string)
	path := collection(plain) + "/" + name
	var back map[string]any
	k.Get(t, path, &back)
	require.Equal(t, lost(plain, back), "", "%s: the server has not kept", path)
	if plain["kind"] != "Namespace" {
		t.Cleanup(func() { k.Delete(t, path+"?gracePeriodSeconds=0&propagationPolicy=Background") })
	}
}

func collection(plain map[string]any) string {
	namespace, _ := plain["metadata"].(map[string]any)["namespace"].(string)
	return strings.ReplaceAll(collections[plain["kind"].(string)], "/N/", "/"+namespace+"/")
}

func post(t *testing.T, k *testenv.Kube, plain map[string]any, more string) (int, string) {
	t.Helper()
	text, err := json.Marshal(plain)
	require.NoError(t, err)
	status, reply := k.Do(t, http.MethodPost, collection(plain)+"?fieldValidation=Strict"+more, "application/json", string(text))
	return status, string(reply)
}

// lost names something that was sent and is not in what came back, or is "".
func lost(sent, back any) string {
	switch s := sent.(type) {
	case map[string]any:
		b, _ := back.(map[string]any)
		for key, value := range s {
			if _, ok := b[key]; !ok {
				return key
			}
			if inner := lost(value, b[key]); inner != "" {
				return key + "." + inner
			}
		}
	case []any:
		b, _ := back.([]any)
		if len(b) < len(s) {
			return "an element"
		}
		for i, value := range s {
			if inner := lost(value, b[i]); inner != "" {
				return inner
			}
		}
	}
	return ""
}

// checkRefusals shows that the server is one that refuses.
func checkRefusals(t *testing.T, k *testenv.Kube) {
	tests := []struct {
		name string
		edit func(pod *corev1.PodSpec)
		kind func(*batchv1.Job) any
		want string
	}{
		{name: "restart policy", edit: func(p *corev1.PodSpec) { p.RestartPolicy = "Always" }, want: "restartPolicy"},
		{
			name: "pod as root", edit: func(p *corev1.PodSpec) { *p.SecurityContext.RunAsUser = 0 },
			kind: func(j *batchv1.Job) any { return podOf(j) }, want: "runAsUser=0",
		},
		{name: "volume", edit: func(p *corev1.PodSpec) { p.Volumes = p.Volumes[1:] }, want: "volumeMounts"},
		{name: "failure policy", edit: func(p *corev1.PodSpec) { p.Containers[0].Name = "load" }, want: "podFailurePolicy"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			job, err := deploy.NewJob(onGPU(), run)
			require.NoError(t, err)
			broken := typed(t, job)
			test.edit(&broken.Spec.Template.Spec)
			var object any = broken
			if test.kind != nil {
				object = test.kind(broken)
			}
			plain, err := chart.Plain(object)
			require.NoError(t, err)
			status, reply := post(t, k, plain, "&dryRun=All")
			require.True(t, status/100 != 2 && strings.Contains(reply, test.want), "status %d: %s; want a refusal with %q", status, reply, test.want)
		})
	}
}

// checkKubectl has kubectl do what the head of the folder's kustomization says, and compares what it makes of the folder
// with what we do.
func checkKubectl(t *testing.T, k *testenv.Kube, setup []any) {
	kubectl, err := exec.LookPath("kubectl")
	if err != nil {
		t.Skip("no kubectl here")
	}
	output := func(args ...string) string {
		out, err := exec.CommandContext(t.Context(), kubectl, append([]string{"--kubeconfig", k.Kubeconfig}, args...)...).CombinedOutput()
		if err != nil || strings.Contains(string(out), "Warning") {
			t.Fatalf("kubectl %q: %v\n%s", args, err, out)
		}
		return string(out)
	}
	const folder = "../../../" + vcr.DeployPath
	applied := output("apply", "-k", folder, "--server-side", "--force-conflicts", "--dry-run=server")
	if got := strings.Count(applied, "serverside-applied"); got != len(setup) {
		t.Errorf("%d objects, want %d:\n%s", got, len(setup), applied)
	}
	theirs := strings.Split(output("kustomize", folder), "\n---\n")
	ours := strings.Split(render(t, chart.YAML, setup...), "---\n")
	require.NoDiff(t, cmp.Diff(sorted(theirs), sorted(ours)), "kubectl makes of the folder (-) what we do not (+)")
}

// sorted are YAML documents in an order of their own.
func sorted(documents []string) []string {
	all := make([]string, len(documents))
	for i, text := range documents {
		all[i] = strings.TrimSpace(text)
	}
	slices.Sort(all)
	return all
}

// checkRoles asks the server what the capturer may do, and what not.
func checkRoles(t *testing.T, k *testenv.Kube) {
	tests := []struct {
		name, verb, group, resource, sub, object, namespace string
		want                                                bool
	}{
		{name: "submit", verb: "create", group: "batch", resource: "jobs", namespace: "vllm-vcr", want: true},
		{name: "clean", verb: "delete", group: "batch", resource: "jobs", namespace: "vllm-vcr", want: true},
		{name: "watch", verb: "watch", resource: "pods", namespace: "vllm-vcr", want: false},
		{name: "logs", verb: "get", resource: "pods", sub: "log", namespace: "vllm-vcr", want: true},
		{name: "fetch", verb: "create", resource: "pods", sub: "exec", namespace: "vllm-vcr", want: true},
		{name: "admission", verb: "list", group: "kueue.x-k8s.io", resource: "workloads", namespace: "vllm-vcr", want: true},
		{name: "the queue", verb: "get", group: "kueue.x-k8s.io", resource: "clusterqueues", object: "conformance-queue", want: true},
		{name: "another queue", verb: "get", group: "kueue.x-k8s.io", resource: "clusterqueues", object: "theirs"},
		{name: "raise the quota", verb: "update", group: "kueue.x-k8s.io", resource: "clusterqueues", object: "conformance-queue"},
		{name: "another namespace", verb: "create", group: "batch", resource: "jobs", namespace: "default"},
		{name: "pods of its own", verb: "create", resource: "pods", namespace: "vllm-vcr"},
		{name: "secrets", verb: "get", resource: "secrets", namespace: "vllm-vcr"},
		{name: "roles", verb: "create", group: "rbac.authorization.k8s.io", resource: "roles", namespace: "vllm-vcr"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			review := map[string]any{
				"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
				"spec": map[string]any{"user": "github:repo:o/r:environment:capture", "groups": []string{"github:capture"}, "resourceAttributes": map[string]any{
					"verb": test.verb, "group": test.group, "resource": test.resource, "subresource": test.sub,
					"name": test.object, "namespace": test.namespace,
				}},
			}
			text, err := json.Marshal(review)
			require.NoError(t, err)
			status, reply := k.Do(t, http.MethodPost, "/apis/authorization.k8s.io/v1/subjectaccessreviews", "application/json", string(text))
			var answer struct{ Status struct{ Allowed bool } }
			if err := json.Unmarshal(reply, &answer); err != nil || status != http.StatusCreated {
				t.Fatalf("status %d: %s", status, reply)
			}
			require.Equal(t, answer.Status.Allowed, test.want, "allowed")
		})
	}
}
