package deploy_test

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	vcr "github.com/vllm-vcr/conformance"
	"github.com/vllm-vcr/conformance/internal/capture/deploy"
	"github.com/vllm-vcr/conformance/internal/capture/load"
	"github.com/vllm-vcr/conformance/internal/capture/target"
	"github.com/vllm-vcr/conformance/internal/chart"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"k8s.io/apimachinery/pkg/api/resource"
)

var update = flag.Bool("update", false, "rewrite the expected files in testdata")

func TestJobFiles(t *testing.T) {
	ofFrontend := onGPU()
	ofFrontend.Images.Frontend = "ghcr.io/vllm/frontend:v0.33.0@sha256:" + strings.Repeat("f", 64)
	ofFrontend.ID, ofFrontend.Scenario = "qwen3-8b-multiturn-nocache-s7", target.NoCache
	secret := run
	secret.TokenSecret, secret.NodeSelector = "hub/token", map[string]string{"nvidia.com/gpu.product": "NVIDIA-H200-NVL"}
	tests := []struct {
		name   string
		target target.Target
		run    deploy.Run
	}{
		{name: "gpu", target: onGPU(), run: run},
		{name: "cpu", target: onCPU(), run: run},
		{name: "own-frontend", target: ofFrontend, run: secret},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			job, err := deploy.NewJob(test.target, test.run)
			require.NoError(t, err)
			compare(t, "job-"+test.name, job)
		})
	}
}

// compare holds objects to a file of testdata, and to being the same a second time.
func compare(t *testing.T, name string, objects ...any) {
	t.Helper()
	got := render(t, chart.YAML, objects...)
	if again := render(t, chart.YAML, objects...); got != again {
		t.Error("written twice, it differs:\n" + cmp.Diff(got, again))
	}
	for document := range strings.SplitSeq(got, "---\n") {
		checkFields(t, document)
	}
	file := filepath.Join("testdata", name+".yaml")
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(got), 0o644))
	}
	want, err := os.ReadFile(file)
	require.NoError(t, err)
	require.NoDiff(t, cmp.Diff(string(want), got), "%s (-want +got)", file)
}

// checkFields demands that a document has only fields of its kind, with values of their types.
func checkFields(t *testing.T, document string) {
	t.Helper()
	var kind struct{ Kind string }
	require.NoError(t, yaml.Unmarshal([]byte(document), &kind))
	into := map[string]any{"Job": new(batchv1.Job), "Deployment": new(appsv1.Deployment), "Service": new(corev1.Service)}[kind.Kind]
	require.NoErrorf(t, yaml.UnmarshalStrict([]byte(document), into), "%s", kind.Kind)
}

func render(t *testing.T, format chart.Format, objects ...any) string {
	t.Helper()
	var text bytes.Buffer
	require.NoError(t, chart.Write(&text, format, objects...))
	return text.String()
}

// TestJobOfEveryScenario holds to the Job what does not depend on the target.
func TestJobOfEveryScenario(t *testing.T) {
	for _, scenario := range target.Scenarios() {
		t.Run(string(scenario), func(t *testing.T) {
			tgt := onGPU()
			tgt.Scenario = scenario
			job, err := deploy.NewJob(tgt, run)
			require.NoError(t, err)
			checkStart(t, typed(t, job))
			checkSecurity(t, typed(t, job).Spec.Template.Spec)
			require.Equal(t, job.Annotations[deploy.AnnotationConfigHash], tgt.ConfigHash(), "config hash")
			tap := container(t, typed(t, job), deploy.Tap)
			if at := slices.Index(tap.Args, "--engine-config"); at < 0 || tap.Args[at+1] != tgt.EngineConfig() {
				t.Errorf("the tap is told another configuration than %s: %q", tgt.EngineConfig(), tap.Args)
			}
		})
	}
}

// checkStart demands an order in which nobody waits for who is started later.
func checkStart(t *testing.T, job *batchv1.Job) {
	t.Helper()
	pod := job.Spec.Template.Spec
	var order []string
	for _, c := range pod.InitContainers {
		require.True(t, isSidecar(c), "%s does not end with the load generator", c.Name)
		require.True(t, c.StartupProbe == nil, "%s holds up what is started after it, which it waits for", c.Name)
		order = append(order, c.Name)
	}
	require.NoDiff(t, cmp.Diff([]string{deploy.Frontend, deploy.Tap, deploy.Engine}, order), "order (-want +got)")
	if len(pod.Containers) != 1 || pod.Containers[0].Name != deploy.Loadgen || pod.Containers[0].ReadinessProbe == nil {
		t.Errorf("want one main container with a readiness probe: %v", pod.Containers)
	}
	require.True(t, *job.Spec.Suspend && *job.Spec.BackoffLimit == 0 && job.Labels["kueue.x-k8s.io/queue-name"] == deploy.DefaultQueue, "the Job is not left to the queue, or has a second pod")
	if got, least := *job.Spec.ActiveDeadlineSeconds, int64(4*time.Hour/time.Second); got < least {
		t.Errorf("deadline after %d s, want at least its budgets, %d s", got, least)
	}
}

func checkSecurity(t *testing.T, pod corev1.PodSpec) {
	t.Helper()
	require.True(t, !*pod.AutomountServiceAccountToken && !*pod.EnableServiceLinks && *pod.SecurityContext.RunAsNonRoot, "the pod has a token of the cluster, its services, or a privileged user")
	for _, c := range slices.Concat(pod.InitContainers, pod.Containers) {
		s := c.SecurityContext
		require.True(t, !*s.AllowPrivilegeEscalation && slices.Equal(s.Capabilities.Drop, []corev1.Capability{"ALL"}), "%s may become more than it is", c.Name)
		if diff := cmp.Diff(c.Resources.Requests, c.Resources.Limits, cmp.Comparer(sameQuantity)); diff != "" || len(c.Resources.Requests) == 0 {
			t.Errorf("%s gets something else than it asks for: %s", c.Name, diff)
		}
	}
}

func sameQuantity(a, b resource.Quantity) bool { return a.Cmp(b) == 0 }

func container(t *testing.T, job *batchv1.Job, name string) corev1.Container {
	t.Helper()
	pod := job.Spec.Template.Spec
	all := slices.Concat(pod.InitContainers, pod.Containers)
	at := slices.IndexFunc(all, func(c corev1.Container) bool { return c.Name == name })
	if at < 0 {
		t.Fatalf("there is no container %s", name)
	}
	return all[at]
}

// TestNoSecrets looks for what could be a secret in all that is rendered, with tokens in the environment.
func TestNoSecrets(t *testing.T) {
	const token = "hf_0123456789abcdefghijklmnopqrstuvwx"
	for _, name := range []string{"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "AWS_SECRET_ACCESS_KEY", "ACTIONS_ID_TOKEN_REQUEST_TOKEN"} {
		t.Setenv(name, token)
	}
	r := run
	r.TokenSecret = "hub/token"
	job, err := deploy.NewJob(onGPU(), r)
	require.NoError(t, err)
	require.Equal(t, secretIn(render(t, chart.JSON, job)), "", "the Job has")
	refs := 0
	pod := typed(t, job).Spec.Template.Spec
	for _, c := range slices.Concat(pod.InitContainers, pod.Containers) {
		for _, env := range c.Env {
			require.True(t, !suspicious.MatchString(env.Name) || env.Value == "", "%s has the value of %s", c.Name, env.Name)
			if env.ValueFrom != nil && env.ValueFrom.SecretKeyRef.Name == "hub" {
				refs++
			}
		}
	}
	require.Equal(t, refs, 2, "containers that get the hub's token: engine and frontend")
	// What somebody took for the name of the secret is not shown.
	r.TokenSecret = token
	if _, err := deploy.NewJob(onGPU(), r); err == nil || strings.Contains(err.Error(), token) {
		t.Errorf("got %v, want an error without the token", err)
	}
}

var (
	suspicious = regexp.MustCompile(`(?i)token|secret|password|credential|api_?key`)
	secrets    = regexp.MustCompile(`hf_[A-Za-z0-9]{20,}|AKIA[0-9A-Z]{16}|gh[pousr]_[A-Za-z0-9]{20,}|eyJ[A-Za-z0-9_-]{20,}|-----BEGIN|[?&]X-Amz-`)
)

func secretIn(text string) string { return secrets.FindString(text) }

func TestJobErrors(t *testing.T) {
	tests := []struct {
		name   string
		target func(*target.Target)
		run    func(*deploy.Run)
		want   []string
	}{
		{
			name: "without images", target: func(t *target.Target) { t.Images = target.Images{} },
			want: []string{"0.33/qwen3-8b-multiturn-s7: engine_image of line 0.33: there is none: give the line one", "tap_image of line 0.33: there is none"},
		},
		{
			name: "image by tag", target: func(t *target.Target) { t.Images.Tap = "ghcr.io/vllm-vcr/vllm-vcr:latest" },
			want: []string{`tap_image of line 0.33: "ghcr.io/vllm-vcr/vllm-vcr:latest" has no digest: want NAME:TAG@sha256:`},
		},
		{
			name: "frontend by tag", target: func(t *target.Target) { t.Images.Frontend = "x:y" },
			want: []string{`frontend_image of line 0.33: "x:y" has no digest: want NAME:TAG@sha256:`},
		},
		{
			name: "name too long", target: func(t *target.Target) { t.ID = strings.Repeat("a", 60) },
			want: []string{"has 76 characters of at most 63: shorten its id or the run id"},
		},
		{
			name: "name of other letters", target: func(t *target.Target) { t.Line, t.ID = "0.33", "ä" },
			want: []string{`target 0.33/ä: "ä" cannot be a label`},
		},
		{
			name: "arrivals", target: func(t *target.Target) { t.Workload.Kind, t.Workload.Shape.Arrivals = load.Arrivals, "day.jsonl.gz" },
			want: []string{"the file day.jsonl.gz of this machine, which no pod has"},
		},
		{name: "no run", run: func(r *deploy.Run) { r.ID = "" }, want: []string{`run id "": want`}},
		{name: "run with letters of its own", run: func(r *deploy.Run) { r.ID = "A_b" }, want: []string{`run id "A_b": want`}},
		{name: "run too long", run: func(r *deploy.Run) { r.ID = strings.Repeat("1", 21) }, want: []string{"at most 20"}},
		{name: "namespace", run: func(r *deploy.Run) { r.Namespace = "a/b" }, want: []string{`namespace "a/b"`}},
		{name: "queue", run: func(r *deploy.Run) { r.Queue = "a b" }, want: []string{`queue "a b"`}},
		{name: "budget", run: func(r *deploy.Run) { r.Fetch = -time.Second }, want: []string{"fetch budget -1s"}},
		{name: "cache", run: func(r *deploy.Run) { r.ModelCache = "much" }, want: []string{`model cache "much"`}},
		{
			name: "node", run: func(r *deploy.Run) { r.NodeSelector = map[string]string{"gpu": "H 200"} },
			want: []string{`node selector "gpu"="H 200"`},
		},
		{name: "cpu", target: func(t *target.Target) { t.Model.CPU = "some" }, want: []string{`cpu "some": want a quantity`}},
		{name: "memory", target: func(t *target.Target) { t.Model.Memory = "-1Gi" }, want: []string{`memory "-1Gi": want`}},
		{name: "cpu with GPUs", target: func(t *target.Target) { t.Model.GPU = "cpu" }, want: []string{"gpu is cpu, and gpus is 1"}},
		{
			name: "a folder", target: func(t *target.Target) { t.Model.Source = "./weights" },
			want: []string{"model qwen3-8b is the folder weights, which no pod has"},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			tgt, r := onGPU(), run
			if test.target != nil {
				test.target(&tgt)
			}
			if test.run != nil {
				test.run(&r)
			}
			_, err := deploy.NewJob(tgt, r)
			if (err != nil) != (len(test.want) > 0) {
				t.Fatalf("got %v, want %q", err, test.want)
			}
			for _, want := range test.want {
				require.True(t, strings.Contains(err.Error(), want), "got %v, want it to contain %q", err, want)
			}
		})
	}
}

func TestJobs(t *testing.T) {
	dotted, imageless := onGPU(), onGPU()
	dotted.ID, imageless.ID, imageless.Images = "qwen3.8b-multiturn-s7", "other", target.Images{}
	jobs, err := deploy.Jobs([]target.Target{onGPU(), onCPU(), dotted, imageless}, run)
	for _, want := range []string{
		"0.33/qwen3-8b-multiturn-s7 and 0.33/qwen3.8b-multiturn-s7: both would be the Job capture-0-33-qwen3-8b-multiturn-s7-17",
		"target 0.33/other: engine_image",
	} {
		require.ErrorContains(t, err, want)
	}
	require.Equal(t, len(jobs), 3, "Jobs of the targets that have one")
}

func shippedQuota() (deploy.Quota, error) {
	objects, err := deploy.Setup(vcr.Files, vcr.DeployPath)
	if err != nil {
		return deploy.Quota{}, err
	}
	return deploy.QuotaOf(objects)
}
