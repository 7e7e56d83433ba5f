package protocol

import (
	"encoding/binary"
	"errors"
	"fmt"
	"unicode/utf8"

	"github.com/vllm-vcr/conformance/internal/base/safetext"
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

// Status is a HELLO or READY message of an engine (vllm/v1/engine/core.py).
type Status struct {
	Status   string // "HELLO" or "READY"
	Local    bool
	Headless bool
	// ParallelConfigHash is checked by a Python frontend of a MoE model with
	// more than one engine; empty leaves the key out.
	ParallelConfigHash string
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

// DecodeStatus reads a HELLO or READY message. Other keys are ignored, as both
// frontends do. An engine without a parallel_config_hash may leave the key out or
// send nil: vllm-rs has the field as optional, and its own mock engine sends nil.
func DecodeStatus(payload []byte) (s Status, err error) {
	err = eachKey(payload, func(key string, cur *pack.Cursor) (err error) {
		switch key {
		case "status":
			s.Status, err = cur.StrString()
		case "local":
			s.Local, err = cur.Bool()
		case "headless":
			s.Headless, err = cur.Bool()
		case "parallel_config_hash":
			if !cur.Nil() {
				if s.ParallelConfigHash, err = cur.StrString(); err == nil && !utf8.ValidString(s.ParallelConfigHash) {
					err = errors.New("it is not UTF-8")
				}
			}
		default:
			err = cur.Skip()
		}
		return err
	})
	if err != nil {
		return s, fmt.Errorf("handshake status: %w", err)
	}
	if s.Status == "" {
		return s, fmt.Errorf("handshake status: no status in %s", pack.Format(payload))
	}
	return s, nil
}

// IsHello reports whether a message is a HELLO, whatever else it says than a line that is known does.
func IsHello(payload []byte) bool {
	var status string
	err := eachKey(payload, func(key string, cur *pack.Cursor) (err error) {
		if key != "status" {
			return cur.Skip()
		}
		status, err = cur.StrString()
		return err
	})
	return err == nil && status == "HELLO"
}

// Addresses is EngineZmqAddresses (vllm/v1/engine/utils.py): where the frontend
// listens. Inputs and outputs pair up; their position is the client index.
type Addresses struct {
	Inputs               []string
	Outputs              []string
	CoordinatorInput     *string
	CoordinatorOutput    *string
	FrontendStatsPublish *string
}

// AppendInit writes the frontend's answer to HELLO, EngineHandshakeMetadata
// (vllm/v1/engine/utils.py), with an empty parallel_config as a Rust frontend
// sends it.
func AppendInit(b []byte, a Addresses) []byte {
	b = pack.AppendMapHeader(b, 2)
	b = pack.AppendMapHeader(pack.AppendString(b, "addresses"), 5)
	b = appendStrings(pack.AppendString(b, "inputs"), a.Inputs)
	b = appendStrings(pack.AppendString(b, "outputs"), a.Outputs)
	b = appendOptional(pack.AppendString(b, "coordinator_input"), a.CoordinatorInput)
	b = appendOptional(pack.AppendString(b, "coordinator_output"), a.CoordinatorOutput)
	b = appendOptional(pack.AppendString(b, "frontend_stats_publish_address"), a.FrontendStatsPublish)
	return pack.AppendMapHeader(pack.AppendString(b, "parallel_config"), 0)
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
	var a Addresses
	err := eachKey(payload, func(key string, cur *pack.Cursor) error {
		if key != "addresses" {
			return cur.Skip()
		}
		raw, err := cur.Raw()
		if err != nil {
			return err
		}
		return eachKey(raw, a.decodeKey)
	})
	if err != nil {
		return a, fmt.Errorf("handshake init: %w", err)
	}
	if len(a.Inputs) == 0 || len(a.Inputs) != len(a.Outputs) {
		return a, fmt.Errorf("handshake init: %d input and %d output addresses, want as many of both and at least one",
			len(a.Inputs), len(a.Outputs))
	}
	if (a.CoordinatorInput == nil) != (a.CoordinatorOutput == nil) {
		return a, fmt.Errorf("handshake init: a coordinator needs both addresses")
	}
	return a, nil
}

func (a *Addresses) decodeKey(key string, cur *pack.Cursor) (err error) {
	switch key {
	case "inputs":
		a.Inputs, err = decodeStrings(cur)
	case "outputs":
		a.Outputs, err = decodeStrings(cur)
	case "coordinator_input":
		a.CoordinatorInput, err = decodeOptional(cur)
	case "coordinator_output":
		a.CoordinatorOutput, err = decodeOptional(cur)
	case "frontend_stats_publish_address":
		a.FrontendStatsPublish, err = decodeOptional(cur)
	default:
		err = cur.Skip()
	}
	return err
}

func decodeStrings(cur *pack.Cursor) ([]string, error) {
	n, err := cur.ArrayLen()
	if err != nil {
		return nil, err
	}
	if n > MaxClients {
		return nil, fmt.Errorf("%d addresses, at most %d are taken: a frontend has one for each of its API server processes", n, MaxClients)
	}
	var values []string
	for range n {
		s, err := cur.StrString()
		if err != nil {
			return nil, err
		}
		values = append(values, s)
	}
	return values, nil
}

func decodeOptional(cur *pack.Cursor) (*string, error) {
	if cur.Nil() {
		return nil, nil
	}
	s, err := cur.StrString()
	return &s, err
}

// eachKey calls f for each key of a map that fills the payload. A key that is there twice is an error, as it is to vllm-rs.
func eachKey(payload []byte, f func(string, *pack.Cursor) error) error {
	cur := pack.NewCursor(payload)
	n, err := cur.MapLen()
	if err != nil {
		return err
	}
	seen := map[string]bool{}
	for range n {
		key, err := cur.StrString()
		if err != nil {
			return fmt.Errorf("key: %w", err)
		}
		if seen[key] {
			return fmt.Errorf("%s: the key is there twice", safetext.Clip(key, 80))
		}
		seen[key] = true
		if err := f(key, &cur); err != nil {
			return fmt.Errorf("%s: %w", key, err)
		}
	}
	if !cur.Done() {
		return fmt.Errorf("%d bytes after the message", len(payload)-cur.Offset())
	}
	return nil
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
