package deploy_test

import (
	"strings"

	"github.com/vllm-vcr/conformance/internal/capture/deploy"
	"github.com/vllm-vcr/conformance/internal/capture/load"
	"github.com/vllm-vcr/conformance/internal/capture/target"
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
