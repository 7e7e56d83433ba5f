package wirediff

import (
	"slices"
	"strings"

	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// route is the ways that a struct travels.
type route uint8

const (
	toEngine       route = 1 << iota // a frontend writes, an engine reads
	toFrontend                       // an engine writes, a frontend reads
	events                           // an engine publishes, consumers of KV events read
	amongFrontends                   // a frontend and its coordinator, in data parallel; no tap sees it
	toDecode                         // a prefill engine writes, a decode engine reads
	toPrefill                        // a decode engine writes, a prefill engine reads
	throughSidecar                   // a prefill engine writes, a sidecar and a decode engine read
)

// roots are what messages consist of. What is reached from their fields travels the same way.
var roots = map[string]route{
	"EngineCoreRequest": toEngine, "EngineHandshakeMetadata": toEngine, "EngineCoreRequestType": toEngine,
	"ExternalElasticEPScaleUpHandshakeMetadata": toEngine, "FaultToleranceRequest": toEngine,
	"EngineCoreOutputs": toFrontend, "EngineCoreReadyResponse": toFrontend, "FaultToleranceResult": toFrontend,
	"EngineStatusType": toFrontend, "EEPNotificationType": toFrontend, "FinishReason": toFrontend,
	"KVEventBatch": events, "EventBatch": events, "KVCacheEvent": events,
	"HELLO": toFrontend, "READY": toFrontend, "INIT": toEngine, "UTILITY": toEngine, "START_DP_WAVE": toEngine,
}

// standIns are names in annotations that mean others: base classes, and classes that code of its own writes
// (vllm/multimodal/inputs.py, vllm/v1/serial_utils.py).
var standIns = map[string][]string{
	"MultiModalKwargsItem": {"MultiModalFieldElem"},
	"BaseMultiModalField":  {"MultiModalBatchedField", "MultiModalFlatField", "MultiModalSharedField"},
}

// routes are the ways of each struct, enum, message and method of two profiles.
type routes map[string]route

func findRoutes(a, b *protocol.Profile) routes {
	r := routes{}
	for name, way := range roots {
		r.follow(name, way, a, b)
	}
	for _, p := range []*protocol.Profile{a, b} {
		for name, u := range p.Utilities {
			s := protocol.ParseSignature(u.Signature)
			for _, param := range s.Params {
				r.followType(param.Type.String(), toEngine, a, b)
			}
			r.followType(s.Result.String(), toFrontend, a, b)
			r[name] |= toEngine
		}
	}
	return r
}

// follow marks a name, and what its fields are of.
func (r routes) follow(name string, way route, profiles ...*protocol.Profile) {
	if r[name]&way == way {
		return
	}
	r[name] |= way
	for _, other := range standIns[name] {
		r.follow(other, way, profiles...)
	}
	for _, p := range profiles {
		for _, f := range p.Structs[name].Fields {
			r.followType(f.Type, way, profiles...)
		}
	}
}

func (r routes) followType(annotation string, way route, profiles ...*protocol.Profile) {
	for _, name := range protocol.PyWords(annotation) {
		r.follow(name, way, profiles...)
	}
}

// of returns the ways of a name; what is on no known way may go any. The first word of a message's name says what it
// belongs to: "INIT.parallel_config", "KV events replay", "coordinator counts".
func (r routes) of(name string) route {
	if way := r[name]; way != 0 {
		return way
	}
	head, _, _ := strings.Cut(strings.ReplaceAll(name, ".", " "), " ")
	switch way := r[head]; {
	case way != 0:
		return way
	case head == "KV":
		return events
	case head == "coordinator":
		return amongFrontends
	}
	return toEngine | toFrontend
}

// parties returns which sides fail if those of A that read do, or those that write. Recorders read all that any side reads.
func (way route) parties(readers, writers bool) []Party {
	if way >= toDecode {
		return way.nixlParties(readers, writers)
	}
	var parties []Party
	if readers && way != amongFrontends {
		parties = append(parties, Recorders)
	}
	if (readers || writers) && way&amongFrontends != 0 {
		parties = append(parties, Frontends)
	}
	if readers && way&toEngine != 0 || writers && way&(toFrontend|events) != 0 {
		parties = append(parties, Engines)
	}
	if readers && way&toFrontend != 0 || writers && way&toEngine != 0 {
		parties = append(parties, Frontends)
	}
	slices.Sort(parties)
	return slices.Compact(parties)
}
