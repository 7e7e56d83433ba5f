// Package target says what is captured: which released engine serves which model, how it is configured, and what it is
// asked.
//
// [Load] reads a file of targets. Each of them is a [Target], from which everything else follows: the id of the golden,
// the canonical configuration of the engine and its hash, and the command lines of the four programs that make the
// capture. A capture that is deployed and one that runs on this machine take the same command lines, so that what was
// hashed is what ran.
package target

import (
	"path"
	"strings"

	"github.com/vllm-vcr/conformance/internal/capture/load"
)

// A Target is one capture: a released engine serves one workload, once. Its recording becomes a golden, or two.
type Target struct {
	Line string // of the compat matrix: "0.33"
	Tag  string // the release that stands for the line: "v0.33.0"
	ID   string // of the golden in its line: "multiturn-nocache-s7"

	Model    Model
	Scenario Scenario
	Workload Workload
	Seed     uint64
	// Fit marks a capture that latency models are fitted to. It gates nothing.
	Fit bool
	// Wire makes the raw frames a golden too, "wire-" and ID.
	Wire bool

	// Session is what is captured in place of a workload in a scenario: its raw frames become the golden.
	Session *load.Session

	Images Images // of the line; zero if it is captured on CPUs alone
	Pos    int    // line of the file that asks for it
}

// Name is the line and the id, "0.33/multiturn-s7": unique in a file of targets.
func (t Target) Name() string { return t.Line + "/" + t.ID }

// WireID is the id of the golden of the raw frames, if the target has one.
func (t Target) WireID() string { return wirePrefix + t.ID }

// wirePrefix begins the ids of goldens of raw frames.
const wirePrefix = "wire-"

// Release is the version of the engine, "0.33.0"; that of nightly is "nightly".
func (t Target) Release() string {
	if len(t.Tag) > 0 && t.Tag[0] == 'v' {
		return t.Tag[1:]
	}
	return t.Tag
}

// onCPU is the GPU of an engine that has none.
const onCPU = "cpu"

// A Model is what is served, and the engine that it needs.
type Model struct {
	Key string // in the file: "tiny"
	// Source is what the engine loads: a name of the model hub, or a folder, see [Model.Folder].
	Source string
	// Served is the name in requests, and in goldens.
	Served string
	// Prefix begins the ids of the model's targets: "qwen3-8b-", or empty.
	Prefix string
	GPU    string // "cpu", or the product: "H200"
	// Engine are the options of the engine, by name ("max_model_len"), as text.
	Engine map[string]string
	// Scenarios are what an engine needs besides in a scenario.
	Scenarios map[Scenario]map[string]string
	// Multimodal says that the model takes images.
	Multimodal bool
	// Adapters are low-rank adapters of the model, in the order of the file. Requests of the scenario lora ask the first.
	Adapters []Adapter
	// CPU, Memory and GPUs are what the engine's container asks for: "8", "64Gi", 1.
	CPU, Memory string
	GPUs        int

	Root string // folder of the file of targets, with slashes
}

// An Adapter is a low-rank adapter: the name in requests, and what the engine loads.
type Adapter struct{ Name, Source string }

// Folder is where a model lies that is not a name of the hub: a path with slashes, from where the path of the file of
// targets begins. The second result is false for a name of the hub.
func (m Model) Folder() (string, bool) {
	if !strings.HasPrefix(m.Source, "./") && !strings.HasPrefix(m.Source, "../") {
		return "", false
	}
	return path.Join(m.Root, m.Source), true
}

// OnCPU reports whether the engine needs no GPU.
func (m Model) OnCPU() bool { return m.GPU == onCPU }

// A Workload is what the engine is asked: a kind of load with its shape.
type Workload struct {
	Name  string // in the file, and in ids
	Kind  load.Workload
	Shape load.Shape
}

// Images are the containers of a line, by digest.
type Images struct {
	Engine   string // "docker.io/vllm/vllm-openai:v0.33.0@sha256:…"
	Frontend string // has vllm-rs; that of the engine unless given
	Tap      string // has vllm-vcr
}
