package chart_test

import (
	"bytes"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/santhosh-tekuri/jsonschema/v6"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/yaml"

	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/internal/chart"
	"github.com/vllm-vcr/conformance/internal/testenv"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

const folder = "../../deploy/chart"

var release = chart.Release{Name: "fleet", Namespace: "vllm-vcr", Version: "1.2.3"}

// A variant is a topology with values, as YAML.
type variant struct{ name, values string }

// variants use each template, and each branch of it.
var variants = []variant{
	{"pool", `{topology: pool}`},
	{"prefix-cache", `{topology: prefix-cache}`},
	{"pd", `{topology: pd}`},
	{"pd-real", `{topology: pd-real}`},
	{"autoscale", `{topology: autoscale}`},
	{"golden", `{topology: replay, trace: {golden: 0.33/multiturn-s7}}`},
	{"trace", `{topology: replay, trace: {location: "s3://bucket/trace.jsonl.gz", sha256: "` + digest + `", secretName: aws}}`},
	{"values that are nothing", `{topology: pool, decode: {replicas: 0, podDisruptionBudget: {enabled: false}}, networkPolicy: {enabled: false}, httpRoute: {create: false}}`},
	{"ranks", `{topology: pd, decode: {parallelism: {data: 3}}, prefill: {parallelism: {data: 2}}, kvEvents: {enabled: true}}`},
	{"half real", `{topology: pd-real, decode: {real: {enabled: false}, config: {max-num-seqs: 2}}, prefill: {real: {args: [--enforce-eager]}}}`},
	{"picker", `{topology: pool, router: {inferencePool: {create: false}, epp: {replicas: 2, flags: {v: 4}, image: {digest: "sha256:` + digest + `"},
		pluginsConfigFile: own.yaml, pluginsCustomConfig: {own.yaml: "a: {{ b }}\n"}}}, httpRoute: {inferenceGatewayNamespace: gateways}}`},
	{"places", `{topology: pool, image: {tag: "0.32", digest: "sha256:` + digest + `"}, imagePullSecrets: [{name: pull}], serviceAccountOverride: servers,
		decode: {nodeSelector: {pool: cpu}, tolerations: [{operator: Exists}], args: [--strict], env: [{name: A, value: "1"}]}}`},
}

const digest = "eeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeee"

func open(t *testing.T) *chart.Chart {
	t.Helper()
	c, err := chart.Open(os.DirFS(folder))
	require.NoError(t, err)
	return c
}

func render(t *testing.T, values ...string) []any {
	t.Helper()
	return renderIn(t, release.Namespace, values...)
}

// renderIn renders for a namespace. Of several values, the later ones have precedence.
func renderIn(t *testing.T, namespace string, values ...string) []any {
	t.Helper()
	c := open(t)
	var given []map[string]any
	for _, text := range values {
		v, err := chart.ReadValues("values", []byte(text))
		require.NoError(t, err)
		given = append(given, v)
	}
	merged, err := c.Values(given...)
	require.NoError(t, err)
	in := release
	in.Namespace = namespace
	objects, err := c.Render(in, merged)
	require.NoError(t, err)
	return objects
}

// TestObjects demands that objects have only fields of their types, and that selectors and references are those of other objects.
func TestObjects(t *testing.T) {
	for _, v := range variants {
		t.Run(v.name, func(t *testing.T) {
			objects := render(t, v.values)
			if diff := cmp.Diff(objects, render(t, v.values)); diff != "" {
				t.Error("rendered twice, it differs:\n" + diff)
			}
			names := map[string]bool{}
			for _, o := range objects {
				meta := o.(map[string]any)["metadata"].(map[string]any)
				names[o.(map[string]any)["kind"].(string)+"/"+meta["name"].(string)] = true
				require.Equal[any](t, meta["namespace"], release.Namespace, "namespace of %v", meta)
			}
			for _, o := range objects {
				if d, ok := typed(t, o).(*appsv1.Deployment); ok {
					checkDeployment(t, d, names)
				}
			}
		})
	}
}

func typed(t *testing.T, object any) any {
	t.Helper()
	kind := object.(map[string]any)["kind"].(string)
	into := map[string]any{
		"ConfigMap": new(corev1.ConfigMap), "Deployment": new(appsv1.Deployment), "HorizontalPodAutoscaler": new(autoscalingv2.HorizontalPodAutoscaler),
		"NetworkPolicy": new(networkingv1.NetworkPolicy), "PodDisruptionBudget": new(policyv1.PodDisruptionBudget), "Role": new(rbacv1.Role),
		"RoleBinding": new(rbacv1.RoleBinding), "Service": new(corev1.Service), "ServiceAccount": new(corev1.ServiceAccount),
	}[kind]
	if into == nil {
		return nil
	}
	text, err := yaml.Marshal(object)
	require.NoError(t, err)
	require.NoErrorf(t, yaml.UnmarshalStrict(text, into), "%s", kind)
	return into
}

func checkDeployment(t *testing.T, d *appsv1.Deployment, names map[string]bool) {
	t.Helper()
	pod := d.Spec.Template.Spec
	for key, value := range d.Spec.Selector.MatchLabels {
		require.True(t, d.Spec.Template.Labels[key] == value, "%s: its pods lack the label %s=%s", d.Name, key, value)
	}
	volumes := map[string]bool{}
	for _, v := range pod.Volumes {
		volumes[v.Name] = true
		if v.ConfigMap != nil {
			require.True(t, names["ConfigMap/"+v.ConfigMap.Name], "%s: there is no ConfigMap %s", d.Name, v.ConfigMap.Name)
		}
	}
	require.True(t, pod.Containers[0].Name != "epp" || names["ServiceAccount/"+pod.ServiceAccountName], "%s: there is no ServiceAccount %s", d.Name, pod.ServiceAccountName)
	require.True(t, *pod.SecurityContext.RunAsNonRoot && pod.SecurityContext.SeccompProfile != nil, "%s: its pods are not restricted", d.Name)
	for _, c := range slices.Concat(pod.InitContainers, pod.Containers) {
		if c.SecurityContext == nil || *c.SecurityContext.AllowPrivilegeEscalation || !*c.SecurityContext.ReadOnlyRootFilesystem {
			t.Errorf("%s: %s is not restricted", d.Name, c.Name)
		}
		require.True(t, !c.Resources.Requests.Cpu().IsZero() && !c.Resources.Limits.Memory().IsZero(), "%s: %s has no request or no limit", d.Name, c.Name)
		for _, m := range c.VolumeMounts {
			require.True(t, volumes[m.Name], "%s: %s mounts %s, which is no volume", d.Name, c.Name, m.Name)
		}
	}
}

// TestValues refuses values by their path.
func TestValues(t *testing.T) {
	tests := []struct{ name, values, want string }{
		{"wrong kind", `{decode: {replicas: many}}`, `decode.replicas: type: many has type "string", want "integer"`},
		{"unknown", `{decode: {replica: 1}}`, "decode.replica: there is no such value"},
		{"too many ranks", `{decode: {parallelism: {data: 9}}}`, "decode.parallelism.data: maximum: 9/1 is greater than 8"},
		{"digest", `{image: {digest: latest}}`, `image.digest: pattern: "latest" does not match`},
		{"port of the configuration", `{config: {port: 1}}`, "config.port: the chart sets this value"},
		{"topology", `{topology: ring}`, "topology: enum: ring does not equal any of: [pool"},
		{"trace without digest", `{topology: replay, trace: {location: "s3://b/k"}}`, "trace.sha256: give the sha256 of s3://b/k"},
		{"replay of nothing", `{topology: replay}`, "trace.location: replay needs a trace"},
		{"configuration of the picker", `{router: {epp: {pluginsConfigFile: none.yaml}}}`, `router.epp.pluginsConfigFile: there is no "none.yaml"`},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			given, err := chart.ReadValues("values", []byte(test.values))
			require.NoError(t, err)
			c := open(t)
			merged, err := c.Values(given)
			if err == nil {
				_, err = c.Render(release, merged)
			}
			require.True(t, err != nil && strings.Contains(err.Error(), test.want), "%v; want %q", err, test.want)
		})
	}
}

// TestDefaults holds the files of the chart, which are merged, against the schema, and names in them against other files.
func TestDefaults(t *testing.T) {
	files, err := filepath.Glob(folder + "/topologies/*.yaml")
	if err != nil || len(files) < 6 {
		t.Fatal(files, err)
	}
	for _, file := range append(files, folder+"/defaults.yaml") {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		values, err := chart.ReadValues(file, text)
		require.NoError(t, err)
		if _, err := open(t).Values(values); err != nil {
			t.Errorf("%s: %v", file, err)
		}
		line, isGiven := values["vllmVersion"]
		matrix, _ := compat.Load("../../compat.toml")
		if newest, _ := matrix.Default(); isGiven && line != newest.Name {
			t.Errorf("%s: vllmVersion is %v, and the default line of compat.toml is %s", file, line, newest.Name)
		}
	}
}

// TestCompose holds the file for Docker Compose against the schema of such files.
func TestCompose(t *testing.T) {
	schema, err := jsonschema.NewCompiler().Compile(filepath.Join(testenv.PeersDir(t), "kube/compose/compose-spec.json"))
	if err != nil {
		testenv.Absent(t, "no schema of Docker Compose: .ci/peers helm: "+err.Error())
	}
	c := open(t)
	for _, given := range []map[string]any{
		{}, {"decode": map[string]any{"replicas": 3, "args": []any{"--strict"}}, "kvEvents": map[string]any{"enabled": true}},
	} {
		given = maps.Clone(given)
		given["topology"] = "compose"
		values, err := c.Values(given)
		require.NoError(t, err)
		text, err := c.RenderFile("compose.yaml", release, values)
		require.NoError(t, err)
		var document any
		require.NoError(t, yaml.UnmarshalStrict([]byte(text), &document))
		require.NoErrorf(t, schema.Validate(document), "%s", text)
	}
}

// TestFolder writes a folder twice, and not over files of others.
func TestFolder(t *testing.T) {
	out := filepath.Join(t.TempDir(), "out")
	for _, replicas := range []string{"3", "0"} {
		require.NoError(t, chart.WriteFolder(out, render(t, "{topology: pool, decode: {replicas: "+replicas+"}}")))
		text, err := os.ReadFile(out + "/deployment-fleet-decode.yaml")
		require.True(t, err == nil && bytes.Contains(text, []byte("\n  replicas: "+replicas+"\n")), "%v: %s", err, text)
	}
	others, err := os.ReadDir(filepath.Dir(out))
	require.True(t, err == nil && len(others) == 1, "next to the folder there is also %v: %v", others, err)
	mine := t.TempDir()
	require.NoError(t, os.WriteFile(mine+"/notes.txt", nil, 0o600))
	if err := chart.WriteFolder(mine, nil); err == nil || !strings.Contains(err.Error(), "it has files that vllm-vcr did not write") {
		t.Error(err)
	}
}
