package protocol

import (
	"encoding/binary"
	"errors"
	"fmt"
	"reflect"
	"sync"
	"unicode/utf8"

	"github.com/vllm-vcr/conformance/internal/wire/pack"
)

// Identity returns the ZeroMQ routing id of an engine: its index, 0 to 65535,
// in two bytes, little-endian (vllm/v1/engine/core.py EngineCoreProc). The
// handshake and every input socket carry the same one.
func Identity(engineIndex int) []byte {
	return binary.LittleEndian.AppendUint16(nil, uint16(engineIndex))
}

// EngineIndex reads the routing id of an engine.
func EngineIndex(identity []byte) (int, error) {
	if len(identity) != 2 {
		return 0, fmt.Errorf("engine identity %x has %d bytes, want 2", identity, len(identity))
	}
	return int(binary.LittleEndian.Uint16(identity)), nil
}

// Status is a HELLO or READY message of an engine (vllm/v1/engine/core.py). An engine without a parallel_config_hash may leave the
// key out or send nil: vllm-rs has the field as optional, and its own mock engine sends nil.
type Status struct {
	Status   string `wire:"status,given"` // "HELLO" or "READY"
	Local    bool   `wire:"local,given"`
	Headless bool   `wire:"headless,given"`
	// ParallelConfigHash is checked by a Python frontend of a MoE model with
	// more than one engine; empty leaves the key out.
	ParallelConfigHash string `wire:"parallel_config_hash"`
}

// AppendStatus writes a HELLO or READY message.
func AppendStatus(b []byte, s Status) []byte {
	n := 3
	if s.ParallelConfigHash != "" {
		n = 4
	}
	b = pack.AppendMapHeader(b, n)
	b = pack.AppendString(pack.AppendString(b, "status"), s.Status)
	b = pack.AppendBool(pack.AppendString(b, "local"), s.Local)
	b = pack.AppendBool(pack.AppendString(b, "headless"), s.Headless)
	if n == 4 {
		b = pack.AppendString(pack.AppendString(b, "parallel_config_hash"), s.ParallelConfigHash)
	}
	return b
}

// DecodeStatus reads a HELLO or READY message. Other keys are ignored, as both frontends do.
func DecodeStatus(payload []byte) (s Status, err error) {
	switch err = readWhole(payload, &s); {
	case err != nil:
	case s.Status == "":
		err = fmt.Errorf("no status in %s", pack.Format(payload))
	case !utf8.ValidString(s.ParallelConfigHash):
		err = errors.New("parallel_config_hash: it is not UTF-8")
	}
	if err != nil {
		return s, fmt.Errorf("handshake status: %w", err)
	}
	return s, nil
}

// IsHello reports whether a message is a HELLO, whatever else it says than a line that is known does.
func IsHello(payload []byte) bool { return ViewOf(payload).Field("status").Text() == "HELLO" }

// Addresses is EngineZmqAddresses (vllm/v1/engine/utils.py): where the frontend
// listens. Inputs and outputs pair up; their position is the client index.
type Addresses struct {
	Inputs               []string `wire:"inputs,given"`
	Outputs              []string `wire:"outputs,given"`
	CoordinatorInput     *string  `wire:"coordinator_input"`
	CoordinatorOutput    *string  `wire:"coordinator_output"`
	FrontendStatsPublish *string  `wire:"frontend_stats_publish_address"`
}

// initMessage is EngineHandshakeMetadata (vllm/v1/engine/utils.py) with the parallel_config of a Rust frontend.
type initMessage struct {
	Addresses Addresses `wire:"addresses,given"`
	Parallel  struct{}  `wire:"parallel_config,writeonly"`
}

var initLayout = sync.OnceValue(func() *structLayout { return allKeys(reflect.TypeFor[initMessage]()) })

// AppendInit writes the frontend's answer to HELLO, with an empty parallel_config as a Rust frontend sends it.
func AppendInit(b []byte, a Addresses) []byte {
	return appendStruct(b, nil, initLayout(), &initMessage{Addresses: a})
}

const (
	// MaxStatus bounds what is taken of an engine before it has registered, in bytes: HELLO, READY and the registration
	// have less than 2 KiB.
	MaxStatus = 64 << 10
	// MaxInit bounds the answer to HELLO: [MaxClients] pairs of the longest addresses take 60 KiB.
	MaxInit = 1 << 20
	// MaxClients bounds the pairs of addresses in INIT. A frontend has one for each of its API server processes, and an
	// engine opens two sockets for each.
	MaxClients = 256
)

// DecodeInit reads the frontend's answer to HELLO.
func DecodeInit(payload []byte) (Addresses, error) {
	var m initMessage
	if err := readWhole(payload, &m); err != nil {
		return m.Addresses, fmt.Errorf("handshake init: %w", err)
	}
	a, n := m.Addresses, len(m.Addresses.Inputs)
	switch {
	case n == 0 || n != len(a.Outputs):
		return a, fmt.Errorf("handshake init: %d input and %d output addresses, want as many of both and at least one", n, len(a.Outputs))
	case n > MaxClients:
		return a, fmt.Errorf("handshake init: %d addresses, at most %d are taken: a frontend has one for each of its API server processes", n, MaxClients)
	case (a.CoordinatorInput == nil) != (a.CoordinatorOutput == nil):
		return a, errors.New("handshake init: a coordinator needs both addresses")
	}
	return a, nil
}

// EngineHandshake is the engine's half of the start-up handshake, without
// sockets: send Hello, pass the answer to Init, register on every input socket,
// then send Ready. A remote engine says local=false, headless=true; both
// frontends accept that for any engine they did not start.
type EngineHandshake struct {
	ParallelConfigHash string
}

// Hello returns the first message.
func (h EngineHandshake) Hello() []byte {
	return AppendStatus(nil, Status{Status: "HELLO", Headless: true})
}

// Init reads the frontend's answer.
func (h EngineHandshake) Init(payload []byte) (Addresses, error) { return DecodeInit(payload) }

// Ready returns the last message.
func (h EngineHandshake) Ready() []byte {
	return AppendStatus(nil, Status{Status: "READY", Headless: true, ParallelConfigHash: h.ParallelConfigHash})
}

// FrontendHandshake is the frontend's half for one engine, without sockets. It
// is done when the engine has said READY and registered on every input socket,
// in either order.
type FrontendHandshake struct {
	Addresses  Addresses
	hello      bool
	ready      bool
	registered map[int]bool
}

// OnStatus takes a message of the engine's handshake socket and returns the
// answer to send, or nil when there is none.
func (h *FrontendHandshake) OnStatus(payload []byte) ([]byte, error) {
	s, err := DecodeStatus(payload)
	switch {
	case err != nil:
		return nil, err
	case s.Status == "HELLO" && !h.hello:
		h.hello = true
		return AppendInit(nil, h.Addresses), nil
	case s.Status == "READY" && h.hello && !h.ready:
		h.ready = true
		return nil, nil
	}
	return nil, fmt.Errorf("handshake: %q out of turn: an engine says HELLO, then READY, once each", s.Status)
}

// OnRegister takes the first message on an input socket: the ready response.
func (h *FrontendHandshake) OnRegister(client int, frames [][]byte) (ReadyResponse, error) {
	if len(frames) != 1 {
		return ReadyResponse{}, fmt.Errorf("registration on input socket %d: %d frames, want 1", client, len(frames))
	}
	if client < 0 || client >= len(h.Addresses.Inputs) {
		return ReadyResponse{}, fmt.Errorf("registration on input socket %d: the engine was given %d", client, len(h.Addresses.Inputs))
	}
	if h.registered[client] {
		return ReadyResponse{}, fmt.Errorf("registration on input socket %d: a second one", client)
	}
	r, err := DecodeReady(frames[0])
	if err != nil {
		return r, fmt.Errorf("registration on input socket %d: %w", client, err)
	}
	if h.registered == nil {
		h.registered = map[int]bool{}
	}
	h.registered[client] = true
	return r, nil
}

// Done reports whether the engine may be sent requests.
func (h *FrontendHandshake) Done() bool {
	return h.ready && len(h.registered) == len(h.Addresses.Inputs)
}
