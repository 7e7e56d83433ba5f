// Package target says what is captured: which released engine serves which model, how it is configured, and what it is
// asked.
package target

import "github.com/vllm-vcr/conformance/internal/load"

// A Target is one capture: a released engine serves one workload, once. Its recording becomes a golden, or two.
type Target struct {
	Line string // of the support window: "0.33"
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

	Images Images // of the line; zero if it is captured on CPUs alone
	Pos    int    // line of the file that asks for it
}

// Name is the line and the id, "0.33/multiturn-s7": unique in a file of targets.
func (t Target) Name() string { return t.Line + "/" + t.ID }

// Release is the version of the engine, "0.33.0"; that of nightly is "nightly".
func (t Target) Release() string {
	if len(t.Tag) > 0 && t.Tag[0] == 'v' {
		return t.Tag[1:]
	}
	return t.Tag
}

// A Model is what is served, and the engine that it needs.
type Model struct {
	Key string // in the file: "tiny"
	// Source is what the engine loads: a name of the model hub, or a folder below the file of targets.
	Source string
	// Served is the name in requests, and in goldens.
	Served string
	GPU    string // "cpu", or the product: "H200"
	// Engine are the options of the engine, by name ("max_model_len"), as text.
	Engine map[string]string
	// CPU, Memory and GPUs are what the engine's container asks for: "8", "64Gi", 1.
	CPU, Memory string
	GPUs        int
}

// A Scenario is a variation of the engine.
type Scenario string

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
