package wirediff_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/vllm-vcr/conformance/internal/frontends/coreclient"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/internal/upstream/wirediff"
	"github.com/vllm-vcr/conformance/internal/wire/pack"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/player"
)

// arguments are those of the methods that do not do without.
var (
	lora      = pack.AppendString(pack.AppendInt(pack.AppendString(pack.AppendArrayHeader(nil, 3), "x"), 1), "/x")
	arguments = map[string][][]byte{
		"set_weight_version": {pack.AppendString(nil, "2")}, "add_lora": {lora},
		"collective_rpc": {pack.AppendString(nil, "check_health")},
		"remove_lora":    {pack.AppendInt(nil, 1)}, "pin_lora": {pack.AppendInt(nil, 1)},
	}
)

// TestPlayerNeeds: of each method of each line, what is said of the player is what
// a player over real sockets does.
func TestPlayerNeeds(t *testing.T) {
	for _, line := range protocol.Lines() {
		t.Run(line, func(t *testing.T) {
			says := map[string]string{}
			none := load(t, line)
			none.Utilities = nil
			for _, c := range wirediff.Compare(none, load(t, line)).Changes {
				if c.Kind == wirediff.UtilityAdded {
					says[c.Subject] = c.Needs.Player
				}
			}
			failed := failures(t, line)
			if len(says) < 20 || len(says) != len(failed) {
				t.Fatalf("%d methods are new to an empty profile, and %d were called", len(says), len(failed))
			}
			for method, failure := range failed {
				if (failure == "") != (says[method] == wirediff.FromProfile) {
					t.Errorf("%s is answered with the failure %q, and it is said: %s", method, failure, says[method])
				}
			}
		})
	}
}

// failures calls every method of a line on a player, and returns how each failed.
func failures(t *testing.T, line string) map[string]string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	codec, err := protocol.CodecFor(line)
	require.NoError(t, err)
	front, err := coreclient.Listen(coreclient.Options{Codec: codec, Clients: 1})
	require.NoError(t, err)
	defer front.Close()
	p, err := player.New(player.Options{
		Codec: codec, VLLMVersion: line, Handshake: front.Handshake(), LoRA: player.LoRAOptions{MaxLoRAs: 1},
	})
	require.NoError(t, err)
	ended := make(chan error, 1)
	run, stop := context.WithCancel(ctx)
	go func() { ended <- p.Run(run) }()
	defer func() { stop(); <-ended }()
	if _, err := front.Accept(ctx); err != nil {
		t.Fatal(err)
	}
	failed := map[string]string{}
	for method := range codec.Profile().Utilities {
		switch method {
		case "release_kv_cache_memory":
			call(ctx, t, front, "pause_scheduler")
		case "pin_lora":
			call(ctx, t, front, "add_lora")
		}
		failed[method] = call(ctx, t, front, method)
		call(ctx, t, front, "wake_up")
		call(ctx, t, front, "resume_scheduler")
	}
	return failed
}

func call(ctx context.Context, t *testing.T, front *coreclient.Frontend, method string) string {
	t.Helper()
	id, err := front.Call(0, method, arguments[method]...)
	require.NoError(t, err)
	for {
		var o protocol.Outputs
		if _, err := front.Next(ctx, 0, &o); err != nil {
			t.Fatalf("%s: %v", method, err)
		}
		if o.Utility != nil && o.Utility.CallID == id {
			return o.Utility.Failure
		}
	}
}

// TestCautions: where a released Rust frontend is stricter than the declarations.
func TestCautions(t *testing.T) {
	tests := []struct{ name, from, to, subject, want string }{
		{"strict until 0.30", "0.30", "0.31", "EngineCoreOutput.prompt_token_id_logprobs", "vllm-rs of 0.30 refuses"},
		{"not since 0.31", "0.32", "0.33", "EngineCoreOutput.error", ""},
		{"the envelope, still", "0.31", "0.32", "EngineCoreOutputs.weight_version", "vllm-rs of 0.31 refuses"},
		{"the other way round", "0.28", "0.27", "EngineCoreOutput.new_sampling_mask", "vllm-rs of 0.27 refuses"},
		{"what breaks needs none", "0.25", "0.26", "EngineCoreOutput.ec_transfer_params", ""},
		{"requests are not concerned", "0.27", "0.28", "EngineCoreRequest.session_id", ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			found := false
			for _, c := range wirediff.Compare(load(t, test.from), load(t, test.to)).Changes {
				if c.Subject != test.subject {
					continue
				}
				found = true
				require.True(t, strings.Contains(c.Caution, test.want) && (test.want != "" || c.Caution == ""), "got %q, want %q", c.Caution, test.want)
			}
			require.True(t, found, "no change of %s", test.subject)
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
	require.True(t, len(d.Changes) == 1 && strings.Contains(d.Changes[0].Caution, "vllm-rs requires the key") && d.Changes[0].Level == wirediff.Breaking, "got %+v", d.Changes)
	require.Contains(t, d.Changes[0].Needs.Recorder, "it reads SchedulerStats.num_running_reqs by this name")
}
