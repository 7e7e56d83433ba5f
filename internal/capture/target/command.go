package target

import (
	"cmp"
	"fmt"
	"maps"
	"net"
	"path"
	"slices"
	"strconv"
	"time"

	"github.com/vllm-vcr/conformance/internal/capture/load"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// Files that a capture leaves in its folder.
const (
	TraceFile    = load.Trace
	StepsFile    = load.Steps
	FramesFile   = load.Frames
	LoadFile     = load.ReportFile
	RequestsFile = load.Requests
)

// handshakeHost is where frontend, tap and engine meet: they share a machine, or a pod.
const handshakeHost = "127.0.0.1"

// Addresses are where the programs of a capture meet.
type Addresses struct {
	// Model is what engine and frontend load, if that is not the model's source: the path of its folder.
	Model string
	// Host is where the frontend serves HTTP, and HTTP the port; Host is 127.0.0.1 unless given.
	Host string
	HTTP int
	// FrontendHandshake and EngineHandshake are ports of 127.0.0.1: the frontend waits for the tap at the first, and the
	// tap for the engine at the second.
	FrontendHandshake, EngineHandshake int
	// Material is the folder of what a session needs, and KVEvents the port on which its first engine publishes them.
	Material string
	KVEvents int
	// SideChannel is where an engine announces KV caches that it sends to others; 0 without a connector.
	SideChannel int
	// ReadyTimeout is how long the frontend waits for the engine; its own default unless given.
	ReadyTimeout time.Duration
}

// EngineArgs are the arguments of vllm.
func (t Target) EngineArgs(a Addresses) []string {
	args := slices.Concat(t.serve(a),
		[]string{"--headless", "--data-parallel-size", strconv.Itoa(t.ranks()), "--data-parallel-address", handshakeHost},
		[]string{"--data-parallel-rpc-port", strconv.Itoa(a.EngineHandshake)})
	if t.Session == nil {
		return append(args, flagsOf(t.options())...)
	}
	args = append(args, flagsOf(t.Model.Engine)...)
	if t.ranks() > 1 {
		args = append(args, "--data-parallel-size-local", strconv.Itoa(t.ranks()))
	}
	if t.Session.KVEvents {
		// A publisher listens only where it may choose the interface; elsewhere it dials.
		args = append(args, "--kv-events-config", fmt.Sprintf(
			`{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:%d","topic":"kv","buffer_steps":20,"hwm":1000,"max_queue_size":1000}`, a.KVEvents))
	}
	return append(args, t.Session.EngineFlags(t.Line, a.Material)...)
}

// ranks are the engines of a group.
func (t Target) ranks() int {
	if t.Session == nil {
		return 1
	}
	return t.Session.Ranks
}

// PythonFrontend reports whether the frontend is that of the engine's environment, not vllm-rs.
func (t Target) PythonFrontend() bool {
	return t.Session != nil && t.Session.Frontend == load.Python
}

// FrontendArgs are the arguments of vllm-rs, or of vllm where the frontend is [Target.PythonFrontend].
func (t Target) FrontendArgs(a Addresses) []string {
	args := append(t.serve(a),
		"--data-parallel-size", strconv.Itoa(t.ranks()), "--data-parallel-size-local", "0", "--data-parallel-address", handshakeHost,
		"--data-parallel-rpc-port", strconv.Itoa(a.FrontendHandshake),
		"--host", cmp.Or(a.Host, handshakeHost), "--port", strconv.Itoa(a.HTTP))
	if t.PythonFrontend() {
		if t.Session.Clients > 1 {
			args = append(args, "--api-server-count", strconv.Itoa(t.Session.Clients))
		}
		return slices.Concat(args, flagsOf(t.Model.Engine), t.Session.FrontendFlags(t.Line, a.Material))
	}
	if t.Session != nil {
		args = append(args, t.Session.FrontendFlags(t.Line, a.Material)...)
	}
	if a.ReadyTimeout > 0 {
		args = append(args, "--engine-ready-timeout-secs", strconv.Itoa(int(a.ReadyTimeout/time.Second)))
	}
	if t.Scenario == Structured && protocol.RustChoosesGrammar.Holds(t.Tag) {
		args = append(args, "--structured-outputs-config", grammar(t.options()[optGrammar]))
	}
	if t.Scenario == LoRA {
		args = append(append(args, "--lora-modules"), t.adapters()...)
	}
	return args
}

// serve begins the command line of engine and frontend.
func (t Target) serve(a Addresses) []string {
	return []string{"serve", cmp.Or(a.Model, t.Model.Source), "--served-model-name", t.Model.Served}
}

// TapArgs are the arguments of vllm-vcr for the tap, which writes into a folder; its path has slashes.
func (t Target) TapArgs(a Addresses, dir string) []string {
	options := t.options()
	args := []string{
		"record",
		"--frontend-handshake", "tcp://" + handshakeHost + ":" + strconv.Itoa(a.FrontendHandshake),
		"--engine-handshake", "tcp://" + handshakeHost + ":" + strconv.Itoa(a.EngineHandshake),
		"--trace-out", path.Join(dir, TraceFile),
		"--frames-out", path.Join(dir, FramesFile),
		"--step-stats-out", path.Join(dir, StepsFile),
		"--record-tokens", "--record-prompts",
		"--model", t.Model.Served, "--gpu", t.Model.GPU, "--tensor-parallel-size", options[optTensor],
		"--vllm-version", t.Tag, "--engine-config", t.EngineConfig(),
	}
	if most, ok := options["max_num_seqs"]; ok {
		args = append(args, "--max-num-seqs", most)
	}
	if t.Session != nil && t.Session.KVEvents {
		args = append(args, "--kv-events", "tcp://"+handshakeHost+":"+strconv.Itoa(a.KVEvents))
	}
	return args
}

// LoadArgs are the arguments of vllm-vcr for the load generator, which writes into a folder; its path has slashes.
func (t Target) LoadArgs(a Addresses, dir string) []string {
	host := cmp.Or(a.Host, handshakeHost)
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		host = handshakeHost
	}
	return slices.Concat([]string{
		"capture", "load", "http://" + net.JoinHostPort(host, strconv.Itoa(a.HTTP)),
		"--model", t.AskedModel(), "--workload", string(t.Workload.Kind), "--seed", strconv.FormatUint(t.Seed, 10),
		"--report-json", path.Join(dir, LoadFile), "--records", path.Join(dir, RequestsFile),
	}, t.Workload.Shape.Flags())
}

// AskedModel is the model that requests name: the first adapter in the scenario lora, else the model itself.
func (t Target) AskedModel() string {
	if t.Scenario == LoRA && len(t.Model.Adapters) > 0 {
		return t.Model.Adapters[0].Name
	}
	return t.Model.Served
}

// EngineEnv is the environment of engine and frontend beside what every process has, as NAME=value, sorted. Nothing else
// that begins with VLLM_ should be there: it could change what the engine says.
func (t Target) EngineEnv() []string {
	env := map[string]string{
		"DO_NOT_TRACK": "1", "VLLM_NO_USAGE_STATS": "1",
		"VLLM_SERVER_DEV_MODE": "1", // the calls that act on the engine are under test
	}
	if _, isFolder := t.Model.Folder(); isFolder {
		env["HF_HUB_OFFLINE"] = "1"
	}
	if t.Model.OnCPU() {
		maps.Copy(env, map[string]string{
			"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1",
		})
	}
	all := make([]string, 0, len(env))
	for _, name := range slices.Sorted(maps.Keys(env)) {
		all = append(all, name+"="+env[name])
	}
	return all
}
