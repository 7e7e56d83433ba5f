// Package nixl is the control plane of vLLM's NixlConnector: what a prefill engine and a decode engine send each other to move KV
// caches, apart from the bytes of the caches, which package agent moves.
//
// A decode engine asks the side channel of a prefill engine for its metadata ([Line.Handshake], [Serve]), and compares its
// compatibility hash with its own ([Line.CompatibilityHash]). It reads blocks, and says so in a notification, which also ends the
// lease of the blocks; heartbeats extend it ([ParseNotification], [Leases]). The forms are those of a vLLM line, from its profile.
package nixl

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/vllm-vcr/conformance/internal/wire/pack"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// A Line is the boundary of one vLLM line.
type Line struct {
	Name    string // "0.33"
	Release string // "0.33.0", the release of the profile
	// Version is NIXL_CONNECTOR_VERSION, part of the hash.
	Version int
	*protocol.Boundary

	getMeta []byte // the word of the request
}

// Load returns the boundary of a line, release or tracker.
func Load(line string) (*Line, error) {
	p, err := protocol.LoadProfile(line)
	if err != nil {
		return nil, err
	}
	l := &Line{Name: p.Line, Release: p.Version, Boundary: p.Nixl()}
	if l.Boundary == nil {
		return nil, fmt.Errorf("the wire profile of vLLM %s has no boundary of NIXL: extract it again (vllm-vcr drift extract)", p.Line)
	}
	var word string
	for name, to := range map[string]any{"NIXL_CONNECTOR_VERSION": &l.Version, "GET_META_MSG": &word} {
		if err := json.Unmarshal(l.Constants[name].Value, to); err != nil {
			return nil, fmt.Errorf("wire profile %s: %s: %w", p.Line, name, err)
		}
	}
	if l.getMeta, err = hex.DecodeString(strings.TrimPrefix(word, "0x")); err != nil {
		return nil, fmt.Errorf("wire profile %s: GET_META_MSG: %w", p.Line, err)
	}
	for _, name := range []string{"NixlAgentMetadata", "NixlHandshakePayload"} {
		if l.Structs[name].Encoding != "map" {
			return nil, fmt.Errorf("wire profile %s: %s is encoded as %q, and this program writes a map", p.Line, name, l.Structs[name].Encoding)
		}
	}
	return l, nil
}

// has reports whether a message of the line has a key, frame or value.
func (l *Line) has(message, key string) bool {
	return slices.ContainsFunc(l.Messages[message].Keys, func(k protocol.Key) bool { return k.Name == key })
}

// HasPipelineRank reports whether a request names a pipeline rank; before 0.26 it names a tensor-parallel rank alone.
func (l *Line) HasPipelineRank() bool { return l.has("handshake request", "remote_pp_rank") }

// HasClock reports whether the answer has the clock of the engine.
func (l *Line) HasClock() bool { return l.has("handshake reply", "ts") }

// Request encodes the request for the metadata of one worker.
func (l *Line) Request(pp, tp int) []byte {
	values := [][]byte{pack.AppendBin(nil, l.getMeta)}
	if l.HasPipelineRank() {
		values = append(values, pack.AppendInt(nil, int64(pp)))
	}
	return pack.AppendArray(nil, append(values, pack.AppendInt(nil, int64(tp)))...)
}

// ParseRequest reads a request. known is whether its word is that of the line: a real engine logs another one and answers.
func (l *Line) ParseRequest(body []byte) (pp, tp int, known bool, err error) {
	values, err := pack.Elements(body)
	want := len(l.Messages["handshake request"].Keys)
	if err == nil && len(values) != want {
		err = fmt.Errorf("it has %d values, and a request of vLLM %s has %d", len(values), l.Name, want)
	}
	if err != nil {
		return 0, 0, false, fmt.Errorf("handshake request: %w", err)
	}
	var ranks [2]int64
	for i, v := range values[1:] {
		cur := pack.NewCursor(v)
		if ranks[i+2-len(values[1:])], err = cur.Int(); err != nil {
			return 0, 0, false, fmt.Errorf("handshake request: rank: %w", err)
		}
	}
	cur := pack.NewCursor(values[0])
	word, err := cur.Bin()
	return int(ranks[0]), int(ranks[1]), err == nil && string(word) == string(l.getMeta), nil
}
