package wirediff_test

import (
	"strings"
	"testing"

	"github.com/vllm-vcr/conformance/internal/wirediff"
)

// TestCautions: where a released Rust frontend is stricter than the declarations.
func TestCautions(t *testing.T) {
	tests := []struct{ name, from, to, subject, want string }{
		{name: "strict until 0.30", from: "0.30", to: "0.31", subject: "EngineCoreOutput.prompt_token_id_logprobs", want: "vllm-rs of 0.30 refuses"},
		{name: "not since 0.31", from: "0.32", to: "0.33", subject: "EngineCoreOutput.error"},
		{name: "the envelope, still", from: "0.31", to: "0.32", subject: "EngineCoreOutputs.weight_version", want: "vllm-rs of 0.31 refuses"},
		{name: "the other way round", from: "0.28", to: "0.27", subject: "EngineCoreOutput.new_sampling_mask", want: "vllm-rs of 0.27 refuses"},
		{name: "what breaks needs none", from: "0.25", to: "0.26", subject: "EngineCoreOutput.ec_transfer_params"},
		{name: "requests are not concerned", from: "0.27", to: "0.28", subject: "EngineCoreRequest.session_id"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			found := false
			for _, c := range wirediff.Compare(load(t, test.from), load(t, test.to)).Changes {
				if c.Subject != test.subject {
					continue
				}
				found = true
				if !strings.Contains(c.Caution, test.want) || test.want == "" && c.Caution != "" {
					t.Errorf("got %q, want %q", c.Caution, test.want)
				}
			}
			if !found {
				t.Errorf("no change of %s", test.subject)
			}
		})
	}
}

// TestWantedKeys: a key with a default that the Rust frontend does not do without.
func TestWantedKeys(t *testing.T) {
	b := load(t, "0.33")
	stats := b.Structs["SchedulerStats"]
	stats.Fields = stats.Fields[1:]
	b.Structs["SchedulerStats"] = stats
	d := wirediff.Compare(load(t, "0.33"), b)
	if len(d.Changes) != 1 || !strings.Contains(d.Changes[0].Caution, "vllm-rs wants the key") || d.Changes[0].Level != wirediff.Compatible {
		t.Errorf("got %+v", d.Changes)
	}
	if need := d.Changes[0].Needs.Recorder; !strings.Contains(need, "it reads SchedulerStats.num_running_reqs by this name") {
		t.Errorf("the recorder needs %q", need)
	}
}
