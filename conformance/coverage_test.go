package conformance

import (
	"slices"
	"testing"

	"github.com/vllm-vcr/conformance/internal/check/coverage"
	"github.com/vllm-vcr/conformance/internal/check/frontendsuite"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// TestJudgedFields: of what an engine under test says, a report tells what fidelity has judged and what was only read; of the
// player, whose messages are not those of a subject, and without being asked, it tells nothing.
func TestJudgedFields(t *testing.T) {
	matrix, mf := repository(t)
	cases, err := NewPlan(matrix, mf, Selection{
		Lines: []string{"0.33"}, Goldens: []string{"edge-s1"}, Assertions: []Assertion{Fidelity}, Concurrency: []int{16},
	})
	require.NoError(t, err)
	run := func(r Runner) Coverage {
		r.Store = liveRunner().Store
		report := r.Run(t.Context(), cases)
		if report.ExitCode != ExitOK || len(report.Coverage) != 1 {
			t.Fatalf("%s; %d lines", report.Reason, len(report.Coverage))
		}
		return report.Coverage[0]
	}
	for name, r := range map[string]Runner{"the player": {Coverage: true}, "not asked": {Engine: Player}} {
		if c := run(r); c.Fields.Said+c.Fields.Judged > 0 {
			t.Errorf("%s: %d fields are said, %d judged", name, c.Fields.Said, c.Fields.Judged)
		}
	}
	c := run(Runner{Engine: Player, Coverage: true})
	for name, want := range map[string]struct{ said, judged bool }{
		"EngineCoreOutput.new_token_ids":      {true, true},
		"EngineCoreOutput.finish_reason":      {true, true},
		"EngineCoreOutput.request_id":         {true, true},
		"EngineCoreOutputs.timestamp":         {true, true},   // an invariant: it does not go back
		"EngineCoreReadyResponse.instance_id": {true, false},  // only read
		"EngineCoreReadyResponse.block_size":  {true, true},   // an invariant: blocks of the KV cache are of it
		"EngineCoreOutput.kv_transfer_params": {false, false}, // not said
		"EngineCoreRequest.request_id":        {false, false}, // said by us
	} {
		at := slices.IndexFunc(c.Details.Fields, func(f coverage.FieldState) bool { return f.Name == name })
		if f := c.Details.Fields[at]; f.Said != want.said || f.Judged != want.judged {
			t.Errorf("%s: said is %v, judged %v", name, f.Said, f.Judged)
		}
	}
	if !slices.Contains(c.Details.OnlyParsed(), "EngineCoreReadyResponse.instance_id") || slices.Contains(c.Details.OnlyParsed(), "EngineCoreOutput.finish_reason") {
		t.Errorf("only parsed: %q", c.Details.OnlyParsed())
	}
}

// TestFacedFields: of a frontend under test, a report tells which fields it set, and which it was sent.
func TestFacedFields(t *testing.T) {
	matrix, mf := repository(t)
	line, _ := matrix.ByName("0.33")
	runner := liveRunner()
	runner.Frontend, runner.Coverage = realUnderTest(t, "0.33.0"), true
	report := runner.Run(t.Context(), frontendsuite.Cases(line, mf, []Assertion{frontendsuite.Requests, frontendsuite.LoRA, frontendsuite.RealEngine}, true))
	if report.ExitCode != ExitOK || len(report.Coverage) != 1 {
		t.Fatalf("%s; %d lines", report.Reason, len(report.Coverage))
	}
	c := report.Coverage[0]
	for name, want := range map[string]struct{ sent, faced bool }{
		"EngineCoreRequest.request_id":        {true, false},
		"EngineCoreRequest.lora_request":      {true, false},
		"EngineCoreRequest.pooling_params":    {false, false}, // nothing is pooled here
		"EngineCoreOutput.new_token_ids":      {false, true},
		"SchedulerStats.spec_decoding_stats":  {false, true}, // of the real engine
		"EngineCoreOutput.kv_transfer_params": {false, false},
		"EngineCoreReadyResponse.block_size":  {false, false}, // it is not looked at
		"EngineHandshakeMetadata.addresses":   {true, false},
	} {
		at := slices.IndexFunc(c.Details.Fields, func(f coverage.FieldState) bool { return f.Name == name })
		if f := c.Details.Fields[at]; f.Sent != want.sent || f.Faced != want.faced {
			t.Errorf("%s: set by the frontend is %v, sent to it is %v", name, f.Sent, f.Faced)
		}
	}
	judged := 0
	for _, f := range c.Details.Fields {
		if f.Direction == protocol.ToEngine && f.Judged {
			judged++
		}
	}
	if least := 60; judged < least {
		t.Errorf("the values of %d fields to the engine are judged, want %d or more", judged, least)
	}
	if slices.Contains(c.Details.NotFaced(), "EngineCoreOutput.new_token_ids") {
		t.Errorf("not sent %q, not faced %q", c.Details.NotSent(), c.Details.NotFaced())
	}
}
