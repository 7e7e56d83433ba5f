package protocol

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/internal/wire/pack"
)

func TestIdentity(t *testing.T) {
	for _, test := range []struct {
		index int
		want  string
	}{{0, "\x00\x00"}, {1, "\x01\x00"}, {258, "\x02\x01"}, {65535, "\xff\xff"}} {
		got := Identity(test.index)
		require.True(t, string(got) == test.want, "Identity(%d) = %x, want %x", test.index, got, test.want)
		if index, err := EngineIndex(got); index != test.index || err != nil {
			t.Errorf("EngineIndex(%x) = %d %v, want %d", got, index, err, test.index)
		}
	}
	for _, bad := range []string{"", "\x00", "\x00\x00\x00", "engine-0"} {
		if _, err := EngineIndex([]byte(bad)); err == nil || !strings.Contains(err.Error(), "want 2") {
			t.Errorf("EngineIndex(%q): %v", bad, err)
		}
	}
}

// addresses are of a frontend with two clients and a coordinator.
func addresses() Addresses {
	in, out, stats := "tcp://127.0.0.1:5", "tcp://127.0.0.1:6", "tcp://127.0.0.1:7"
	return Addresses{
		Inputs: []string{"tcp://127.0.0.1:1", "tcp://127.0.0.1:2"}, Outputs: []string{"tcp://127.0.0.1:3", "tcp://127.0.0.1:4"},
		CoordinatorInput: &in, CoordinatorOutput: &out, FrontendStatsPublish: &stats,
	}
}

// TestHandshake lets the two halves talk to each other, registration before and
// after READY.
func TestHandshake(t *testing.T) {
	r := DefaultReady("0.33.0")
	registration := codecOf(t, recorded).AppendReady(nil, &r)
	for _, order := range []string{"01R", "10R", "0R1", "R01", "R10"} {
		t.Run(order, func(t *testing.T) {
			engine := EngineHandshake{ParallelConfigHash: "abc"}
			frontend := FrontendHandshake{Addresses: addresses()}
			init, err := frontend.OnStatus(engine.Hello())
			require.NoError(t, err)
			got, err := engine.Init(init)
			require.NoError(t, err)
			require.NoDiff(t, cmp.Diff(addresses(), got), "addresses: -sent +received")
			for i, step := range order {
				require.True(t, !frontend.Done(), "done before step %d", i)
				if step == 'R' {
					if answer, err := frontend.OnStatus(engine.Ready()); answer != nil || err != nil {
						t.Errorf("READY: answer %x, %v", answer, err)
					}
					continue
				}
				got, err := frontend.OnRegister(int(step-'0'), [][]byte{registration})
				require.NoError(t, err)
				require.NoDiff(t, cmp.Diff(r, got), "registration: -sent +received")
			}
			require.True(t, frontend.Done(), "not done")
		})
	}
}

// TestStatusOutOfTurn: an engine says HELLO, then READY, once each. What it
// says out of turn changes nothing.
func TestStatusOutOfTurn(t *testing.T) {
	status := func(s string) []byte { return AppendStatus(nil, Status{Status: s, Headless: true}) }
	for _, test := range []struct {
		name   string
		before []string
		bad    []byte
		want   string
	}{
		{"READY first", nil, status("READY"), `handshake: "READY" out of turn`},
		{"HELLO twice", []string{"HELLO"}, status("HELLO"), `handshake: "HELLO" out of turn`},
		{"HELLO after READY", []string{"HELLO", "READY"}, status("HELLO"), `handshake: "HELLO" out of turn`},
		{"READY twice", []string{"HELLO", "READY"}, status("READY"), `handshake: "READY" out of turn`},
		{"another word", []string{"HELLO"}, status("hello\n"), `handshake: "hello\n" out of turn`},
		{"no word", nil, status(""), "handshake status: no status in {"},
		{"not a map", nil, []byte("HELLO"), "handshake status: msgpack: byte 0: expected map"},
		{"nil for a flag", nil, []byte{0x81, 0xa5, 'l', 'o', 'c', 'a', 'l', 0xc0}, "handshake status: local: msgpack"},
		{"integer key", nil, []byte{0x81, 0x05, 0xc0}, "handshake status: key: msgpack"},
	} {
		t.Run(test.name, func(t *testing.T) {
			h := FrontendHandshake{Addresses: addresses()}
			for _, s := range test.before {
				if _, err := h.OnStatus(status(s)); err != nil {
					t.Fatal(err)
				}
			}
			answer, err := h.OnStatus(test.bad)
			require.True(t, answer == nil && err != nil && strings.HasPrefix(err.Error(), test.want), "answer %x, error %v, want %s", answer, err, test.want)
			for _, s := range []string{"HELLO", "READY"}[len(test.before):] {
				if _, err := h.OnStatus(status(s)); err != nil {
					t.Errorf("%s in turn, afterwards: %v", s, err)
				}
			}
		})
	}
}

func TestRegistrationRefused(t *testing.T) {
	r := DefaultReady("0.33.0")
	good := codecOf(t, recorded).AppendReady(nil, &r)
	for _, test := range []struct {
		name   string
		client int
		frames [][]byte
		want   string
	}{
		{"twice", 0, [][]byte{good}, "registration on input socket 0: a second one"},
		{"two frames", 1, [][]byte{good, good}, "registration on input socket 1: 2 frames, want 1"},
		{"no frame", 1, nil, "registration on input socket 1: 0 frames, want 1"},
		{"empty", 1, [][]byte{{}}, "registration on input socket 1: ready response: msgpack: byte 0: empty message"},
		{"array", 1, [][]byte{{0x90}}, "registration on input socket 1: ready response: msgpack: byte 0: expected map"},
		{"text for a number", 1, [][]byte{append(pack.AppendString([]byte{0x81}, "block_size"), 0xa1, 'x')}, "registration on input socket 1: ready response: block_size: msgpack"},
		{"number for a text", 1, [][]byte{append(pack.AppendString([]byte{0x81}, "dtype"), 5)}, "registration on input socket 1: ready response: dtype: msgpack"},
		{"number for a flag", 1, [][]byte{append(pack.AppendString([]byte{0x81}, "supports_lora"), 5)}, "registration on input socket 1: ready response: supports_lora: msgpack"},
		{"number for an address", 1, [][]byte{append(pack.AppendString([]byte{0x81}, "dp_stats_address"), 5)}, "registration on input socket 1: ready response: dp_stats_address: msgpack"},
		{"negative", 1, [][]byte{append(pack.AppendString([]byte{0x81}, "max_loras"), 0xff)}, "registration on input socket 1: ready response: max_loras: -1 is out of range"},
		{"socket that is not there", 2, [][]byte{good}, "registration on input socket 2: the engine was given 2"},
		{"negative socket", -1, [][]byte{good}, "registration on input socket -1: the engine was given 2"},
	} {
		t.Run(test.name, func(t *testing.T) {
			h := FrontendHandshake{Addresses: addresses()}
			for _, s := range [][]byte{EngineHandshake{}.Hello(), EngineHandshake{}.Ready()} {
				if _, err := h.OnStatus(s); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := h.OnRegister(0, [][]byte{good}); err != nil {
				t.Fatal(err)
			}
			if _, err := h.OnRegister(test.client, test.frames); err == nil || !strings.HasPrefix(err.Error(), test.want) {
				t.Errorf("got %v, want %s", err, test.want)
			}
			require.True(t, !h.Done(), "done without a registration on socket 1")
			if _, err := h.OnRegister(1, [][]byte{good}); err != nil || !h.Done() {
				t.Errorf("the right one, afterwards: %v, done %v", err, h.Done())
			}
		})
	}
}

func TestInitRefused(t *testing.T) {
	one := "tcp://127.0.0.1:1"
	raw := func(inner ...[]byte) []byte {
		b := pack.AppendString(pack.AppendMapHeader(nil, 1), "addresses")
		b = pack.AppendMapHeader(b, len(inner)/2)
		for _, v := range inner {
			b = append(b, v...)
		}
		return b
	}
	key := func(s string) []byte { return pack.AppendString(nil, s) }
	for _, test := range []struct {
		name    string
		payload []byte
		want    string
	}{
		{"no addresses", []byte{0x80}, "0 input and 0 output addresses"},
		{"no inputs", AppendInit(nil, Addresses{Outputs: []string{one}}), "0 input and 1 output addresses"},
		{"unpaired", AppendInit(nil, Addresses{Inputs: []string{one, one}, Outputs: []string{one}}), "2 input and 1 output addresses"},
		{"half a coordinator", AppendInit(nil, Addresses{Inputs: []string{one}, Outputs: []string{one}, CoordinatorInput: &one}), "a coordinator needs both addresses"},
		{"the other half", AppendInit(nil, Addresses{Inputs: []string{one}, Outputs: []string{one}, CoordinatorOutput: &one}), "a coordinator needs both addresses"},
		{"addresses a list", append(pack.AppendString([]byte{0x81}, "addresses"), 0x90), "addresses: msgpack: byte 11: expected map"},
		{"inputs nil", raw(key("inputs"), []byte{0xc0}), "addresses: inputs: msgpack"},
		{"input nil", raw(key("inputs"), []byte{0x91, 0xc0}), "addresses: inputs: msgpack"},
		{"coordinator a number", raw(key("coordinator_input"), []byte{5}), "addresses: coordinator_input: msgpack"},
		{"not a map", []byte{0x90}, "msgpack: byte 0: expected map"},
		{"empty", nil, "msgpack: byte 0: empty message"},
	} {
		t.Run(test.name, func(t *testing.T) {
			if _, err := (EngineHandshake{}).Init(test.payload); err == nil || !strings.HasPrefix(err.Error(), "handshake init: "+test.want) {
				t.Errorf("got %v, want handshake init: %s", err, test.want)
			}
		})
	}
}

// TestStatusBytes pins the bytes that every release's frontend was seen to take
// (vllm/v1/engine/core.py).
func TestStatusBytes(t *testing.T) {
	const hello = "\x83\xa6status\xa5HELLO\xa5local\xc2\xa8headless\xc3"
	const ready = "\x83\xa6status\xa5READY\xa5local\xc2\xa8headless\xc3"
	const hashed = "\x84\xa6status\xa5READY\xa5local\xc2\xa8headless\xc3\xb4parallel_config_hash\xa1h"
	for _, test := range []struct {
		name string
		got  []byte
		want string
	}{
		{"hello", EngineHandshake{ParallelConfigHash: "h"}.Hello(), hello},
		{"ready", EngineHandshake{}.Ready(), ready},
		{"ready with a hash", EngineHandshake{ParallelConfigHash: "h"}.Ready(), hashed},
	} {
		require.True(t, string(test.got) == test.want, "%s: got %q, want %q", test.name, test.got, test.want)
	}
	// An engine may send nil for a hash that it does not have, as the mock engine of vllm-rs does.
	for text, hash := range map[string]string{hashed: "h", strings.TrimSuffix(hashed, "\xa1h") + "\xc0": "", ready: ""} {
		s, err := DecodeStatus([]byte(text))
		if want := (Status{Status: "READY", Headless: true, ParallelConfigHash: hash}); s != want || err != nil {
			t.Errorf("%q: got %+v %v, want %+v", text, s, err, want)
		}
	}
}

// TestReadyOptional covers what no captured registration has.
func TestReadyOptional(t *testing.T) {
	in, out, stats, backend, replay := "tcp://c:1", "tcp://c:2", "tcp://c:3", "nccl", "tcp://c:4"
	r := DefaultReady("0.33.0")
	r.DPStatsAddress, r.WeightTransferBackend = &stats, &backend
	r.CoordinatorInputAddress, r.CoordinatorOutputAddress = &in, &out
	r.SupportsLoRA, r.MaxLoRAs, r.EnableSleepMode, r.SupportsDraftWeightUpdates, r.InstanceID = true, 4, true, true, "pod-1"
	r.DataParallelRank, r.DataParallelSize = 1, 2
	payload := codecOf(t, recorded).AppendReady(nil, &r)
	got, err := DecodeReady(payload)
	require.NoError(t, err)
	require.NoDiff(t, cmp.Diff(r, got), "-sent +received")
	r.KVEvents = &KVEventsConfig{
		Enable: true, Publisher: "zmq", Endpoint: "tcp://*:5557", ReplayEndpoint: &replay,
		BufferSteps: 10000, HWM: 100000, MaxQueueSize: 100000, Topic: "kv",
	}
	events := member(t, codecOf(t, recorded).AppendReady(nil, &r), "kv_events_config")
	want := `{"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": "tcp://*:5557", "replay_endpoint": "tcp://c:4", ` +
		`"buffer_steps": 10000, "hwm": 100000, "max_queue_size": 100000, "topic": "kv"}`
	if got := pack.Format(events); got != want {
		t.Errorf("kv_events_config\n got %s\nwant %s", got, want)
	}
	// Rust demands all eight keys, and the line declares no other.
	var declared []string
	for _, f := range codecOf(t, recorded).Profile().Structs["KVEventsConfig"].Fields {
		declared = append(declared, f.Name)
	}
	require.NoDiff(t, cmp.Diff(declared, keys(events)), "-declared +written")
}

// An engine opens two sockets for each pair of addresses, so their number is bounded.
func TestInitOfManyClients(t *testing.T) {
	for _, test := range []struct {
		clients int
		want    string
	}{
		{MaxClients, ""},
		{MaxClients + 1, "257 addresses, at most 256 are taken"},
		{20_000, "20000 addresses, at most 256 are taken"},
	} {
		address := "ipc:///" + strings.Repeat("x", 100)
		a := Addresses{Inputs: slices.Repeat([]string{address}, test.clients), Outputs: slices.Repeat([]string{address}, test.clients)}
		init := AppendInit(nil, a)
		_, err := DecodeInit(init)
		if test.want == "" && (err != nil || len(init) > MaxInit) || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
			t.Errorf("%d clients, %d bytes: %v, want %q", test.clients, len(init), err, test.want)
		}
	}
}

func TestAnnouncedEngines(t *testing.T) {
	size := func(value []byte) []byte {
		return append(pack.AppendString(pack.AppendInt(pack.AppendString(pack.AppendMapHeader(nil, 2), "_coord_store_port"), 1), "data_parallel_size"), value...)
	}
	for _, test := range []struct {
		name     string
		parallel []byte
		want     int
	}{
		{"nothing", pack.AppendMapHeader(nil, 0), 0},
		{"four", size(pack.AppendInt(nil, 4)), 4},
		{"a negative number", size(pack.AppendInt(nil, -4)), 0},
		{"no number", size(pack.AppendString(nil, "4")), 0},
		{"no map", pack.AppendInt(nil, 1), 0},
	} {
		init := pack.AppendMapHeader(pack.AppendString(pack.AppendMapHeader(nil, 2), "addresses"), 0)
		init = append(pack.AppendString(init, "parallel_config"), test.parallel...)
		if got := AnnouncedEngines(init); got != test.want {
			t.Errorf("%s: %d engines, want %d", test.name, got, test.want)
		}
	}
}
