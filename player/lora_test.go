package player

import (
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/testenv"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

func adapted(name string, id int64) change {
	return func(r *protocol.Request) {
		r.LoRA = &protocol.LoRA{Name: name, ID: id, Path: "/adapters/" + name}
	}
}

// Adapters that do not exist are refused, and nobody else notices.
func TestUnknownLoRA(t *testing.T) {
	for _, tt := range []struct {
		line, want string
	}{
		{"0.33", "[] error bad_request: Loading lora x failed: No adapter found for /adapters/x"},
		{"0.27", "[] error"},
	} {
		t.Run(tt.line, func(t *testing.T) {
			r := newRig(t, Options{VLLMVersion: tt.line, Source: counting{}, LoRA: LoRAOptions{Names: []string{"a"}}}, 1)
			const unknown = "failed: Call to add_lora method failed: Loading lora x failed: No adapter found for /adapters/x"
			if got := r.do("add_lora", lora("x", 9)); got != unknown {
				t.Error(got)
			}
			r.submit(ask("bad", []uint32{1}, 2, adapted("x", 9)), ask("good", []uint32{1}, 2, adapted("a", 1)), ask("none", []uint32{1}, 2))
			r.runAll()
			got := []string{outcome(r.answer("bad")), outcome(r.answer("good")), outcome(r.answer("none")), r.do("list_loras")}
			if diff := cmp.Diff([]string{tt.want, "[2 3] length", "[2 3] length", "[1]"}, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// A request loads its adapter. When no more fit, the one goes that was not used for the
// longest time, unless it is pinned or runs.
func TestLoadedLoRAs(t *testing.T) {
	r := newRig(t, Options{LoRA: LoRAOptions{MaxLoRAs: 2, MaxCPULoRAs: 3}}, 1)
	one := func(id int64) {
		r.submit(ask(fmt.Sprint("r", r.arrivals), count(0, 3), 1, adapted(fmt.Sprint(id), id)))
		r.runAll()
	}
	for _, step := range []struct {
		name string
		do   func()
		want string
	}{
		{"loaded by requests", func() { one(1); one(2); one(3) }, "[1, 2, 3]"},
		{"the oldest goes", func() { one(4) }, "[2, 3, 4]"},
		{"used again", func() { one(2); one(5) }, "[2, 4, 5]"},
		{"added", func() { r.do("add_lora", lora("6", 6)) }, "[2, 5, 6]"},
		{"pinned", func() { r.do("pin_lora", 2); one(7); one(8) }, "[2, 7, 8]"},
		{"removed", func() { r.do("remove_lora", 2) }, "[7, 8]"},
		{"one that runs stays", func() {
			r.submit(ask("long", count(0, 3), 50, adapted("7", 7)))
			r.step()
			r.do("add_lora", lora("9", 9))
			r.do("add_lora", lora("10", 10))
			r.do("add_lora", lora("11", 11))
		}, "[7, 10, 11]"},
	} {
		step.do()
		if got := r.do("list_loras"); got != step.want {
			t.Errorf("%s: %s, want %s", step.name, got, step.want)
		}
	}
}

// A request whose adapter has no place in the batch waits, and is counted apart; those
// behind it do not wait for it.
func TestLoRASlots(t *testing.T) {
	r := newRig(t, Options{LoRA: LoRAOptions{MaxLoRAs: 1}}, 1)
	r.submit(ask("a", count(0, 3), 2, adapted("a", 1)), ask("b", count(0, 3), 1, adapted("b", 2)),
		ask("a2", count(0, 3), 1, adapted("a", 1)), ask("none", count(0, 3), 1))
	r.runAll()
	var got []string
	for _, e := range r.envelopes {
		s := e.stats(t)
		var ids []string
		for _, out := range e.Outputs.Outputs {
			ids = append(ids, string(out.ID))
		}
		got = append(got, fmt.Sprint(ids, " ", s["num_waiting_reqs"], " ", s["num_skipped_waiting_reqs"], " ", s["running_lora_adapters"]))
	}
	equal(t, "who speaks, waiting, skipped, and adapters, of which a frontend itself keeps account", []string{"[a a2 none] 0 1 map[]", "[a] 0 1 map[]", "[b] 0 0 map[]"}, got)
}

func TestRegisteredLoRAs(t *testing.T) {
	for _, tt := range []struct {
		name string
		opt  Options
		want int // 0 is no support
	}{
		{"none", Options{}, 0},
		{"some run at once", Options{LoRA: LoRAOptions{MaxLoRAs: 3}}, 3},
		{"some exist", Options{LoRA: LoRAOptions{Names: []string{"a", "b"}}}, 2},
		{"none exists yet", Options{LoRA: LoRAOptions{Names: []string{}}}, 1},
		{"both", Options{LoRA: LoRAOptions{MaxLoRAs: 4, Names: []string{"a"}}}, 4},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ready := newRig(t, tt.opt, 1).player.ready
			if ready.SupportsLoRA != (tt.want > 0) || ready.MaxLoRAs != tt.want {
				t.Errorf("supports_lora %v, max_loras %d; want %d", ready.SupportsLoRA, ready.MaxLoRAs, tt.want)
			}
		})
	}
	if _, err := New(Options{LoRA: LoRAOptions{MaxLoRAs: 3, MaxCPULoRAs: 2}}); err == nil || !strings.Contains(err.Error(), "2 adapters can be loaded, and 3 run at once") {
		t.Errorf("less loaded than run: %v", err)
	}
}

// Real frontends load adapters, use them, and are told which do not exist.
func TestRealFrontendsLoadLoRAs(t *testing.T) {
	for _, version := range testenv.FrontendVersions() {
		t.Run(version, func(t *testing.T) {
			f := fronted(t, version, Options{Source: counting{}, LoRA: LoRAOptions{MaxLoRAs: 2, Names: []string{"known"}}},
				"VLLM_ALLOW_RUNTIME_LORA_UPDATING=1", "VLLM_RUNTIME_LORA_ALLOWED_PATH_PREFIXES="+os.TempDir())
			named := func(name string) object { return object{"lora_name": name, "lora_path": t.TempDir()} }
			if status, answer := f.post("/v1/load_lora_adapter", named("unknown")); status == http.StatusOK {
				t.Errorf("an adapter was loaded that does not exist: %v", answer)
			}
			for _, step := range []struct {
				name, path string
				body       object
				status     int
				said       string
			}{
				{"load", "/v1/load_lora_adapter", named("known"), http.StatusOK, ""},
				{"use", "/v1/completions", completing(20, 2, object{"model": "known"}), http.StatusOK, "[25 26] length"},
				{"use none", "/v1/completions", completing(20, 2, nil), http.StatusOK, "[25 26] length"},
				{"unload", "/v1/unload_lora_adapter", named("known"), http.StatusOK, ""},
				{"use it again", "/v1/completions", completing(20, 2, object{"model": "known"}), http.StatusNotFound, ""},
			} {
				status, answer := f.post(step.path, step.body)
				if status != step.status || step.said != "" && saidIn(answer) != step.said {
					t.Errorf("%s: HTTP %d, %s; want %d, %s", step.name, status, saidIn(answer), step.status, step.said)
				}
			}
		})
	}
}
