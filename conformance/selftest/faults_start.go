package selftest

import (
	"errors"
	"fmt"
	"slices"

	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/check/replay"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// errDies is how an engine ends.
var errDies = errors.New("out of memory")

// on edits what the engine sends to a socket, given how many messages came there
// before.
func on(to socket, edit func(before int, m message) ([]message, error)) func(*scene) tamper {
	return func(*scene) tamper {
		before := 0
		return func(m message) ([]message, error) {
			if m.to != to {
				return faithful(m)
			}
			before++
			return edit(before-1, m)
		}
	}
}

// The two messages of the handshake socket, by how many came before.
const (
	hello = 0
	ready = 1
)

// status edits HELLO or READY.
func status(which int, edit func(m message) ([]message, error)) func(*scene) tamper {
	return on(handshake, func(before int, m message) ([]message, error) {
		if before != which {
			return faithful(m)
		}
		return edit(m)
	})
}

// nothing is what is sent of a message that is lost.
func nothing(message) ([]message, error) { return nil, nil }

// frames sends something else.
func frames(other ...[]byte) func(message) ([]message, error) {
	return func(m message) ([]message, error) {
		m.frames = other
		return []message{m}, nil
	}
}

// says is a HELLO or READY with another word.
func says(word string) func(message) ([]message, error) {
	return frames(protocol.AppendStatus(nil, protocol.Status{Status: word, Headless: true}))
}

// handshakeFaults are about HELLO, the identity and READY.
func handshakeFaults(*scene) []Fault {
	silent := func(waiting string) map[conformance.Assertion]want {
		return started(nowhere(check.CodeNoHandshake, waiting, "no handshake within "))
	}
	wrong := func(parts ...string) map[conformance.Assertion]want {
		return started(nowhere(check.CodeHandshake, parts...))
	}
	identity := protocol.Identity(1)
	return []Fault{
		{Name: "no-hello", Says: "the engine never says HELLO", red: silent("waiting for HELLO"), waits: connect, wire: status(hello, nothing)},
		{Name: "no-ready", Says: "the engine never says READY", red: silent("waiting for READY"), waits: connect, wire: status(ready, nothing)},
		{
			Name: "no-registration", Says: "the engine never registers", red: silent("waiting for the registration"), waits: connect,
			wire: on(input, func(_ int, m message) ([]message, error) { return nothing(m) }),
		},
		{
			Name: "other-identity", Says: "the engine registers under another identity than it said HELLO",
			red: wrong(fmt.Sprintf("identity %x", identity), fmt.Sprintf("had %x", protocol.Identity(0))), identity: identity,
		},
		{Name: "wrong-status", Says: "the engine says something else than HELLO", red: wrong(`"HOLA"`, "HELLO, then READY"), wire: status(hello, says("HOLA"))},
		{Name: "ready-first", Says: "the engine says READY before HELLO", red: wrong(`"READY" out of turn`), wire: status(hello, says("READY"))},
		{Name: "hello-twice", Says: "the engine says HELLO in place of READY", red: wrong(`"HELLO" out of turn`), wire: status(ready, says("HELLO"))},
		{Name: "status-not-a-map", Says: "HELLO is a number", red: wrong("handshake status", "expected map, found int"), wire: status(hello, frames(number(7).bytes()))},
		{
			Name: "hello-key", Says: "HELLO has a key that the real engine does not send",
			red:  only(conformance.Wire, differing(replay.CodeWireExtra, "Status.surprise")),
			wire: status(hello, edited(func(root *node) { root.items = append(root.items, text("surprise"), number(1)) })),
		},
		{Name: "status-frames", Says: "HELLO has a second frame", red: wrong("2 frames, want 1"), wire: status(hello, func(m message) ([]message, error) {
			m.frames = append(m.frames, []byte{0xc0})
			return []message{m}, nil
		})},
	}
}

// edited sends a message of one frame with other values.
func edited(edit func(root *node)) func(message) ([]message, error) {
	return func(m message) ([]message, error) {
		root, err := parse(m.frames[0])
		if err != nil {
			return nil, err
		}
		edit(root)
		m.frames[0] = root.bytes()
		return faithful(m)
	}
}

// register edits the registration.
func register(edit func(ready *node)) func(*scene) tamper {
	change := edited(edit)
	return on(input, func(_ int, m message) ([]message, error) { return change(m) })
}

// registrationFaults are about what the engine registers with: every field that
// the line requires is missing in turn.
func registrationFaults(s *scene) []Fault {
	missing := func(key string) map[conformance.Assertion]want {
		w := nowhere(check.CodeReadyMissing, key).in("EngineCoreReadyResponse." + key)
		return only(conformance.Schema, w.compares("", "missing"))
	}
	var faults []Fault
	for _, f := range s.profile.Structs["EngineCoreReadyResponse"].Fields {
		if f.Required {
			faults = append(faults, Fault{
				Name: "no-" + f.Name, Says: "the engine registers without " + f.Name,
				red: missing(f.Name), wire: register(func(ready *node) { ready.remove(f.Name) }),
			})
		}
	}
	kind := func(key, expected, actual string) want {
		return nowhere(check.CodeReadyKind, key).in("EngineCoreReadyResponse."+key).compares(expected, actual)
	}
	// What no frontend can read keeps it from every request too.
	unreadable := func(schema want, parts ...string) map[conformance.Assertion]want {
		red := started(nowhere(check.CodeHandshake, parts...))
		red[conformance.Schema] = schema
		return red
	}
	const optional = "mamba_block_size"
	if s.profile.Structs["EngineCoreReadyResponse"].Index(optional) >= 0 {
		faults = append(faults, Fault{
			Name: "other-kind-than-nil", Says: "the engine registers with a str where an int or nil belongs",
			red:    only(conformance.Wire, differing(replay.CodeWireKind, "EngineCoreReadyResponse."+optional)),
			layout: only(conformance.Schema, want{code: check.CodeLayout, request: -1, position: -1, path: optional, distinct: true}),
			wire:   register(func(ready *node) { ready.value(optional).become(text("none")) }),
		})
	}
	return append(faults, []Fault{
		{
			Name: "renamed-field", Says: "the engine registers with a misspelt key", red: missing("block_size"),
			wire: register(func(ready *node) {
				value := *ready.value("block_size")
				ready.remove("block_size")
				ready.items = append(ready.items, text("blocksize"), &value)
			}),
		},
		{
			Name: "null-field", Says: "the engine registers with nil for a value that must be there",
			red:  only(conformance.Schema, kind("dtype", "str", "nil")),
			wire: register(func(ready *node) { ready.value("dtype").become(null()) }),
		},
		{
			Name: "other-kind", Says: "the engine registers with a str for a number that no frontend reads",
			red:  only(conformance.Schema, kind("kv_cache_size_tokens", "int", "str")),
			wire: register(func(ready *node) { ready.value("kv_cache_size_tokens").become(text("many")) }),
		},
		{
			Name: "other-kind-read", Says: "the engine registers with a str for a number that frontends read",
			red:  unreadable(kind("max_model_len", "int", "str"), "ready response: max_model_len: ", "expected int, found str"),
			wire: register(func(ready *node) { ready.value("max_model_len").become(text("many")) }),
		},
		{
			Name: "extra-field", Says: "the engine registers with a key that the real engine does not send",
			red:  only(conformance.Wire, differing(replay.CodeWireExtra, "EngineCoreReadyResponse.surprise")),
			wire: register(func(ready *node) { ready.items = append(ready.items, text("surprise"), number(1)) }),
		},
		{
			Name: "field-order", Says: "the engine registers with its keys in another order",
			red:  only(conformance.Wire, differing(replay.CodeWireOrder, "EngineCoreReadyResponse")),
			wire: register(func(ready *node) { ready.items = append(slices.Clone(ready.items[2:]), ready.items[:2]...) }),
		},
		{
			Name: "registration-not-a-map", Says: "the engine registers with an array",
			red:  unreadable(nowhere(check.CodeReadyUnreadable, "expected map, found array"), "ready response: ", "expected map, found array"),
			wire: register(func(ready *node) { ready.become(array(number(7))) }),
		},
		{
			Name: "registration-frames", Says: "the registration has a second frame",
			red: started(nowhere(check.CodeHandshake, "registration", "2 frames, want 1")),
			wire: on(input, func(_ int, m message) ([]message, error) {
				m.frames = append(m.frames, []byte{0xc0})
				return faithful(m)
			}),
		},
	}...)
}

// remove takes a text key and its value out of a map.
func (n *node) remove(key string) {
	for i := 0; i+1 < len(n.items); i += 2 {
		if n.items[i].isText(key) {
			n.items = slices.Delete(n.items, i, i+2)
			return
		}
	}
}
