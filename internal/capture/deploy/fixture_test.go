package deploy_test

import (
	"encoding/json"
	"strings"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/vllm-vcr/conformance/internal/capture/deploy"
	"github.com/vllm-vcr/conformance/internal/capture/load"
	"github.com/vllm-vcr/conformance/internal/capture/target"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

var (
	engineImage = "docker.io/vllm/vllm-openai:v0.33.0@sha256:" + strings.Repeat("e", 64)
	tapImage    = "ghcr.io/vllm-vcr/vllm-vcr:1.1.0@sha256:" + strings.Repeat("a", 64)
)

// onGPU is a target as files of targets have it for a GPU.
func onGPU() target.Target {
	return target.Target{
		Line: "0.33", Tag: "v0.33.0", ID: "qwen3-8b-multiturn-s7", Seed: 7, Scenario: target.Baseline,
		Model: target.Model{
			Key: "qwen3-8b", Source: "Qwen/Qwen3-8B", Served: "Qwen/Qwen3-8B", GPU: "H200",
			Engine: map[string]string{"max_model_len": "16384", "max_num_seqs": "256", "enforce_eager": "true"},
			CPU:    "8", Memory: "64Gi", GPUs: 1,
		},
		Workload: target.Workload{Name: "multiturn", Kind: load.Multiturn},
		Images:   target.Images{Engine: engineImage, Tap: tapImage},
	}
}

// onCPU is a target of the shipped file, with images.
func onCPU() target.Target {
	t := onGPU()
	t.ID = "multiturn-s7"
	t.Model = target.Model{
		Key: "tiny", Source: "../testdata/model/tiny", Served: "tiny", GPU: "cpu",
		Engine: map[string]string{
			"block_size": "128", "dtype": "float32", "enforce_eager": "true", "load_format": "dummy",
			"max_model_len": "4096", "max_num_seqs": "64",
		},
	}
	return t
}

var run = deploy.Run{ID: "17", Namespace: "vllm-vcr"}

// typed is a Job with the types of Kubernetes.
func typed(t *testing.T, job *deploy.Job) *batchv1.Job {
	t.Helper()
	var typed batchv1.Job
	convert(t, job, &typed)
	return &typed
}

// untyped is the other way round.
func untyped(t *testing.T, job *batchv1.Job) *deploy.Job {
	t.Helper()
	var plain deploy.Job
	convert(t, job, &plain)
	return &plain
}

func convert(t *testing.T, from, to any) {
	t.Helper()
	text, err := json.Marshal(from)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, to))
}

func isSidecar(c corev1.Container) bool {
	return c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
}
