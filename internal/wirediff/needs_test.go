package wirediff_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/vllm-vcr/conformance/internal/frontend"
	"github.com/vllm-vcr/conformance/internal/pack"
	"github.com/vllm-vcr/conformance/internal/protocol"
	"github.com/vllm-vcr/conformance/internal/wirediff"
	"github.com/vllm-vcr/conformance/player"
)

// arguments are those of the methods that do not do without.
var (
	lora      = pack.AppendString(pack.AppendInt(pack.AppendString(pack.AppendArrayHeader(nil, 3), "x"), 1), "/x")
	arguments = map[string][][]byte{
		"set_weight_version": {pack.AppendString(nil, "2")}, "add_lora": {lora},
		"remove_lora": {pack.AppendInt(nil, 1)}, "pin_lora": {pack.AppendInt(nil, 1)},
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

// TestNothingIsNeeded: this build speaks all lines, so that no struct of one asks
// anything of it.
func TestNothingIsNeeded(t *testing.T) {
	for _, from := range protocol.Lines() {
		for _, to := range protocol.Lines() {
			d := wirediff.Compare(load(t, from), load(t, to))
			if d.Codec != "" {
				t.Errorf("%s: %s", to, d.Codec)
			}
			for _, c := range d.Changes {
				if isStruct := strings.HasPrefix(string(c.Kind), "field") || strings.HasPrefix(string(c.Kind), "struct"); isStruct &&
					c.Needs.Player != wirediff.FromProfile {
					t.Errorf("%s to %s, %s: %s", from, to, c.Subject, c.Needs.Player)
				}
			}
		}
	}
}

// failures calls every method of a line on a player, and returns how each failed.
func failures(t *testing.T, line string) map[string]string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	codec, err := protocol.CodecFor(line)
	if err != nil {
		t.Fatal(err)
	}
	front, err := frontend.Listen(frontend.Options{Codec: codec, Clients: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer front.Close()
	p, err := player.New(player.Options{Codec: codec, VLLMVersion: line, Handshake: front.Handshake()})
	if err != nil {
		t.Fatal(err)
	}
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

func call(ctx context.Context, t *testing.T, front *frontend.Frontend, method string) string {
	t.Helper()
	id, err := front.Call(0, method, arguments[method]...)
	if err != nil {
		t.Fatal(err)
	}
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
