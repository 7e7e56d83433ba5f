package deploy_test

import (
	"strings"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/vllm-vcr/conformance/internal/capture/deploy"
	"github.com/vllm-vcr/conformance/internal/capture/target"
	"github.com/vllm-vcr/conformance/internal/testenv/require"

	"k8s.io/apimachinery/pkg/api/resource"
)

func TestShippedQuota(t *testing.T) {
	quota, err := shippedQuota()
	require.NoError(t, err)
	for name, want := range map[string]string{"cpu": "24", "memory": "96Gi", "nvidia.com/gpu": "1", "pods": "1"} {
		if got := quota.Has[name]; got.String() != want {
			t.Errorf("%s: %s, want %s", name, got.String(), want)
		}
	}
	require.Equal(t, quota.Queue, deploy.DefaultQueue, "queue")
}

func TestCheck(t *testing.T) {
	gpu := "container engine, of which cluster queue conformance-queue"
	tests := []struct {
		name   string
		target func(*target.Target)
		job    func(*batchv1.Job)
		want   []string // what the error has in it; none without
	}{
		{name: "fits"},
		{name: "fits exactly", target: func(t *target.Target) { t.Model.Memory = "88Gi" }}, // 96Gi without 4, 2 and 2
		{
			name: "a byte too much", target: func(t *target.Target) { t.Model.Memory = "94489280513" },
			want: []string{"of memory, 94489280513 in " + gpu + " has 96Gi: it would never be admitted"},
		},
		{
			name: "two GPUs", target: func(t *target.Target) { t.Model.GPUs = 2 },
			want: []string{"target 0.33/qwen3-8b-multiturn-s7: its pod asks for 2 of nvidia.com/gpu, 2 in " + gpu + " has 1"},
		},
		{
			name: "two reasons", target: func(t *target.Target) { t.Model.GPUs, t.Model.CPU = 2, "19" },
			want: []string{"25 of cpu, 19 in " + gpu + " has 24", "2 of nvidia.com/gpu"},
		},
		{
			name: "not covered", job: func(j *batchv1.Job) {
				j.Spec.Template.Spec.Containers[0].Resources.Requests["ephemeral-storage"] = resource.MustParse("1Gi")
			},
			want: []string{"1Gi of ephemeral-storage, 1Gi in container loadgen, of which cluster queue conformance-queue has none"},
		},
		{
			name: "a large init container behind a sidecar", job: func(j *batchv1.Job) {
				pod := &j.Spec.Template.Spec
				c := corev1.Container{Name: "prepare", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
					"cpu": resource.MustParse("23"),
				}}}
				pod.InitContainers = []corev1.Container{pod.InitContainers[0], c, pod.InitContainers[1], pod.InitContainers[2]}
			},
			want: []string{"25 of cpu, 23 in container prepare"},
		},
		{
			name: "a large init container before all", job: func(j *batchv1.Job) {
				pod := &j.Spec.Template.Spec
				c := corev1.Container{Name: "prepare", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
					"cpu": resource.MustParse("24"),
				}}}
				pod.InitContainers = append([]corev1.Container{c}, pod.InitContainers...)
			},
		},
	}
	quota, err := shippedQuota()
	require.NoError(t, err)
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			tgt := onGPU()
			if test.target != nil {
				test.target(&tgt)
			}
			job, err := deploy.NewJob(tgt, run)
			require.NoError(t, err)
			if test.job != nil {
				edited := typed(t, job)
				test.job(edited)
				job = untyped(t, edited)
			}
			err = deploy.Check([]*deploy.Job{job}, quota)
			if (err != nil) != (len(test.want) > 0) {
				t.Fatalf("got %v, want %q", err, test.want)
			}
			for _, want := range test.want {
				require.True(t, strings.Contains(err.Error(), want), "got %v, want it to contain %q", err, want)
			}
		})
	}
}

func TestReadQuotaErrors(t *testing.T) {
	tests := []struct{ name, text, want string }{
		{name: "no YAML", text: "\t{", want: "q.yaml: read a ClusterQueue"},
		{name: "another kind", text: "kind: LocalQueue\nmetadata: {name: a}", want: `q.yaml: is a "LocalQueue" called "a"`},
		{name: "empty", text: "", want: `q.yaml: is a "" called ""`},
		{name: "no quota", text: "kind: ClusterQueue\nmetadata: {name: a}\nspec: {}", want: "cluster queue a has no quota of anything"},
		{
			name: "no quantity", want: "q.yaml: read a ClusterQueue",
			text: "kind: ClusterQueue\nmetadata: {name: a}\nspec: {resourceGroups: [{flavors: [{resources: [{name: cpu, nominalQuota: much}]}]}]}",
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			_, err := deploy.ReadQuota("q.yaml", []byte(test.text))
			require.ErrorContains(t, err, test.want)
		})
	}
}
