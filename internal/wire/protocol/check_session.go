package protocol

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/vllm-vcr/conformance/internal/wire/pack"
)

// What passes next to requests and outputs: the handshake, the coordinator of data-parallel engines, and KV events.

// CheckStatus is [Codec.CheckRequest] for what an engine says on the handshake socket, HELLO or READY.
func (c *Codec) CheckStatus(payload []byte) []Mismatch {
	const root = "Status"
	if err := pack.Validate(payload); err != nil {
		return []Mismatch{{Path: root, Expected: "one well-formed message", Actual: err.Error()}}
	}
	name := "READY"
	if IsHello(payload) {
		name = "HELLO"
	}
	declared, known := c.profile.Messages[name]
	x := &examination{rules: c.rules(), cur: pack.NewCursor(payload), path: []place{{name: root}}}
	if x.cur.Kind() != pack.Map || !known {
		x.mismatch("a map, HELLO or READY")
		return x.found
	}
	n, _ := x.cur.MapLen()
	seen := map[string]bool{}
	for range n {
		at := x.cur.Offset()
		key, ok := x.str("the name of a key of " + name)
		if !ok {
			x.skip()
			continue
		}
		x.path = append(x.path, place{name: keyStep(key)})
		switch declares := slices.ContainsFunc(declared.Keys, func(k Key) bool { return k.Name == key }); {
		case !declares || seen[key]:
			m := x.mismatch(fmt.Sprintf("no such key in %s of line %s, and none twice", name, c.profile.Line))
			m.Offset, m.Unknown = at, !declares
			x.skip()
		case key == "status":
			x.value(newLiteral("the status", "HELLO", "READY"))
		default:
			x.value(x.rules.parse(statusTypes[key]))
		}
		seen[key] = true
		x.path = x.path[:len(x.path)-1]
	}
	for _, k := range declared.Keys {
		if !k.Optional && !seen[k.Name] {
			x.missing(k.Name, "a key of "+name)
		}
	}
	return x.found
}

// statusTypes are the types of the values of HELLO and READY, which are written by hand
// (vllm/v1/engine/core.py startup_handshake, _perform_handshake). What is not here may be anything.
var statusTypes = map[string]string{
	"local": "bool", "headless": "bool", "parallel_config_hash": "str | None", "coord_store_port": "int | None",
	"elastic_ep_max_dp_size": "int | None", "num_redundant_experts": "int | None",
}

// Words that pass on the sockets of a coordinator, without MessagePack (vllm/v1/engine/coordinator.py).
const (
	coordinatorReady     = "READY"
	coordinatorSubscribe = "\x01"
)

// CheckCoordinator is [Codec.CheckMessage] for a message of a data-parallel coordinator, or to it.
func (c *Codec) CheckCoordinator(fromEngine bool, frames [][]byte) []Mismatch {
	switch {
	case len(frames) == 1 && fromEngine && string(frames[0]) == coordinatorSubscribe,
		len(frames) == 1 && !fromEngine && string(frames[0]) == coordinatorReady:
		return nil
	case fromEngine && len(frames) > 0:
		return c.CheckOutputs(frames[0], frames[1:]...)
	case len(frames) == 2 && len(frames[0]) == 1 && frames[0][0] == TypeStartDPWave:
		if _, _, err := DecodeStartWave(frames[1]); err != nil {
			return []Mismatch{{Path: "START_DP_WAVE", Expected: "[wave, engine_index]", Actual: err.Error()}}
		}
		return nil
	}
	return []Mismatch{{
		Path: "message", Expected: "READY, or 02 (START_DP_WAVE) and a payload",
		Actual: fmt.Sprintf("%d frames, of %s bytes", len(frames), frameSizes(frames)),
	}}
}

// CheckKVEvents is [Codec.CheckRequest] for what an engine publishes to routers: the topic, the number of the message in 8
// bytes, and a KVEventBatch.
func (c *Codec) CheckKVEvents(frames [][]byte) []Mismatch {
	if len(frames) != 3 || len(frames[1]) != 8 {
		return []Mismatch{{
			Path: "message", Expected: "the topic, a number of 8 bytes, and a KVEventBatch",
			Actual: fmt.Sprintf("%d frames, of %s bytes", len(frames), frameSizes(frames)),
		}}
	}
	return c.check(KindKVEvents, frames[2], nil)
}

// KVEventsOfRank is the endpoint at which a data-parallel rank publishes its KV events, given that of rank 0: each has a port of
// its own. Port 0 is any free one for all of them.
func KVEventsOfRank(endpoint string, rank int) (string, error) {
	if rank == 0 {
		return endpoint, nil
	}
	if !strings.HasPrefix(endpoint, "tcp://") {
		return "", fmt.Errorf("endpoint %q of KV events: data-parallel rank %d needs one of its own, which only tcp:// has, by its port",
			endpoint, rank)
	}
	at := strings.LastIndexByte(endpoint, ':')
	port, err := strconv.Atoi(endpoint[at+1:])
	switch {
	case err != nil:
		return "", fmt.Errorf("endpoint %q of KV events: want tcp://host:port with a number for data-parallel rank %d to add to", endpoint, rank)
	case port == 0:
		return endpoint, nil
	case port+rank > 65535:
		return "", fmt.Errorf("endpoint %q of KV events: there is no port %d for data-parallel rank %d", endpoint, port+rank, rank)
	}
	return endpoint[:at+1] + strconv.Itoa(port+rank), nil
}
