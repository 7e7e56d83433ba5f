package check

import (
	"strconv"

	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/manifest"
	"github.com/vllm-vcr/conformance/player"
)

// Case is one assertion about one golden of one line. A line without goldens
// has one case without golden and assertion, which is skipped.
type Case struct {
	Line  compat.Line
	Suite Suite
	// Golden is what is replayed, or what the player says to a frontend under
	// test. Of the live suite only schema has one: what its engine registered with.
	Golden    manifest.Golden
	Assertion Assertion
	// Variant tells the fidelity cases of a golden apart.
	Variant Variant
	// Gating cases decide the exit code.
	Gating bool
	// Entry is where the registry has the golden: "manifest.toml:14".
	Entry string
	// Skip, when not empty, says why the case will not run.
	Skip string
}

// Check names the assertion and its variant: "fidelity-index-16".
func (c Case) Check() string {
	if c.Assertion == Fidelity {
		return string(Fidelity) + "-" + c.Variant.String()
	}
	return string(c.Assertion)
}

// Name is the path of the case: "0.33/multiturn-s7/fidelity-index-1",
// "0.33/live/abort".
func (c Case) Name() string {
	switch {
	case c.Assertion == "":
		return c.Line.Name
	case c.Suite == SuiteReplay:
		return c.Line.Name + "/" + c.Golden.ID + "/" + c.Check()
	}
	return c.Line.Name + "/" + string(c.Suite) + "/" + c.Check()
}

// Variant is how a fidelity case replays.
type Variant struct {
	Match       player.Match
	Concurrency int
	// Frontend, unless zero, is the real frontend whose HTTP side the requests
	// go through, Stream as server-sent events.
	Frontend RealFrontend
	Stream   bool
}

// ThroughFrontend tells whether a real frontend stands before the player.
func (v Variant) ThroughFrontend() bool { return v.Frontend.Binary != "" }

// String tells the variants of a golden apart: "index-16", "frontend-stream-index-16".
func (v Variant) String() string {
	s := string(v.Match) + "-" + strconv.Itoa(v.Concurrency)
	switch {
	case v.Stream:
		return "frontend-stream-" + s
	case v.ThroughFrontend():
		return "frontend-" + s
	}
	return s
}

// RealFrontend is the frontend binary of a vLLM release and a model directory
// for it.
type RealFrontend struct {
	Binary   string
	ModelDir string
}

// NeedsGolden tells whether a case reads its golden.
func NeedsGolden(c Case) bool { return c.Skip == "" && c.Golden.ID != "" }
