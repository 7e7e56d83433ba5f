package check

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/trace"
)

// framesMeta is what the first line of a frames file says of the capture: the
// options of the recorder that enter a trace's meta line.
type framesMeta struct {
	Model           *string `json:"model"`
	GPU             *string `json:"gpu"`
	TP              *uint32 `json:"tp"`
	MaxNumSeqs      *uint64 `json:"max_num_seqs"`
	BlockSize       *int    `json:"block_size"`
	VLLMTag         *string `json:"vllm_tag"`
	EngineConfig    *string `json:"engine_config"`
	ConfigHash      *string `json:"config_hash"`
	RecorderVersion *string `json:"recorder_version"`
	CapturedAt      *string `json:"captured_at"`
}

// meta is that of the trace which was recorded with the frames.
func (h *framesMeta) meta(s *engineStart) trace.Meta {
	version, ready := s.response.VLLMVersion, hex.EncodeToString(s.payload)
	hash := trace.Or(h.ConfigHash, "")
	if hash == "" {
		hash = trace.ConfigHash(trace.Or(h.GPU, ""), trace.Or(h.VLLMTag, version), trace.Or(h.EngineConfig, ""))
	}
	m := trace.Meta{
		Model: h.Model, GPU: h.GPU, TP: h.TP, MaxNumSeqs: h.MaxNumSeqs, BlockSize: h.BlockSize, ConfigHash: &hash,
		VLLMVersion: &version, ReadyResponseHex: &ready, VLLMTag: h.VLLMTag, EngineConfig: h.EngineConfig,
		Extra: map[string]json.RawMessage{},
	}
	for key, text := range map[string]*string{"recorder_version": h.RecorderVersion, "captured_at": h.CapturedAt} {
		if text != nil {
			m.Extra[key], _ = json.Marshal(*text) // a string always can be
		}
	}
	return m
}

// OpenFrames begins to read the frames of a golden, within the limits that goldens have. Its name says whether it is compressed.
func OpenFrames(data []byte, name string) (*trace.FrameReader, error) {
	opt, err := trace.GoldenOptions(data, name, trace.IsGzip(name))
	if err != nil {
		return nil, err
	}
	return trace.NewFrameReader(bytes.NewReader(data), name, trace.IsGzip(name), opt)
}

// WriteFrames are the bytes of a file of this name with a first line, nil for none, and messages.
func WriteFrames(name string, meta json.RawMessage, messages []trace.Message) ([]byte, error) {
	var out bytes.Buffer
	w, err := trace.NewFrameWriter(&out, trace.IsGzip(name), meta)
	for i := 0; i < len(messages) && err == nil; i++ {
		err = w.Write(&messages[i])
	}
	if err == nil {
		err = w.Close()
	}
	return out.Bytes(), err
}

// ReadFrames reads the frames of a golden of role wire or frames to their end and returns,
// as the meta of a trace, what its first line and the engine's registration
// say, and the messages, notes included. A golden that does not show a whole start
// of an engine is an error.
func ReadFrames(data []byte, name string) (meta trace.Meta, messages []trace.Message, err error) {
	reader, err := OpenFrames(data, name)
	if err != nil {
		return meta, nil, err
	}
	raw := reader.Meta()
	var m trace.Message
	if raw == nil {
		if err := reader.Next(&m); err != nil && !errors.Is(err, io.EOF) { // no frames at all
			return meta, nil, err
		}
		return meta, nil, fmt.Errorf("%s: line 1: no meta line, so what was captured is unknown: record with --frames-out, or tell golden add by --gpu, --model, --vllm-version and --engine-config", name)
	}
	var head framesMeta
	if err := json.Unmarshal(raw, &head); err != nil {
		return meta, nil, fmt.Errorf("%s: line 1: meta: %w", name, err)
	}
	start := engineStart{name: name}
	for {
		err := reader.Next(&m)
		if errors.Is(err, io.EOF) {
			break
		}
		if err == nil {
			err = start.see(&m)
		}
		if err != nil {
			return meta, nil, err
		}
		messages = append(messages, m.Clone())
	}
	if err := start.complete(); err != nil {
		return meta, nil, err
	}
	return head.meta(&start), messages, nil
}

// engineStart follows the start of the engines of a frames file.
type engineStart struct {
	name     string
	shook    bool         // there is a handshake
	ready    map[int]bool // ranks that sent READY
	spoke    []int        // ranks, as they come up
	outputs  int
	payload  []byte // of the first registration
	response protocol.ReadyResponse
	seen     map[[2]int]bool // rank and client of registrations
}

func (s *engineStart) see(m *trace.Message) error {
	s.shook = s.shook || m.Channel == "handshake"
	switch {
	case m.Note != "":
		return nil
	case m.Elided > 0 && m.Direction == trace.EngineToFrontend:
		return fmt.Errorf("%s: line %d: %d bytes of a message of the engine were left out", s.name, m.Line, m.Elided)
	case m.Elided > 0:
		return fmt.Errorf("%s: line %d: %d bytes of a message were left out", s.name, m.Line, m.Elided)
	case m.Direction != trace.EngineToFrontend:
		return nil
	case m.Channel == "handshake":
		return s.status(m)
	case m.Channel == "input":
		return s.register(m)
	case m.Channel == "output":
		s.outputs++
		if !slices.Contains(s.spoke, m.Rank) {
			s.spoke = append(s.spoke, m.Rank)
		}
	}
	return nil
}

func (s *engineStart) status(m *trace.Message) error {
	if len(m.Frames) != 1 {
		return fmt.Errorf("%s: line %d: a handshake message of %d frames, want 1", s.name, m.Line, len(m.Frames))
	}
	status, err := protocol.DecodeStatus(m.Frames[0])
	if err != nil {
		return fmt.Errorf("%s: line %d: %w", s.name, m.Line, err)
	}
	if s.ready == nil {
		s.ready = map[int]bool{}
	}
	s.ready[m.Rank] = s.ready[m.Rank] || status.Status == "READY"
	return nil
}

// register takes the first message of an engine on an input socket.
func (s *engineStart) register(m *trace.Message) error {
	at := [2]int{m.Rank, m.Client}
	if s.seen[at] {
		return nil
	}
	if len(m.Frames) != 1 {
		return fmt.Errorf("%s: line %d: a registration of %d frames, want 1", s.name, m.Line, len(m.Frames))
	}
	response, err := protocol.DecodeReady(m.Frames[0])
	if err != nil {
		return fmt.Errorf("%s: line %d: %w", s.name, m.Line, err)
	}
	if s.seen == nil {
		s.seen, s.payload, s.response = map[[2]int]bool{}, bytes.Clone(m.Frames[0]), response
	}
	s.seen[at] = true
	if response.VLLMVersion != s.response.VLLMVersion {
		return fmt.Errorf("%s: line %d: an engine of vLLM %q registers beside one of %q", s.name, m.Line, response.VLLMVersion, s.response.VLLMVersion)
	}
	return nil
}

func (s *engineStart) complete() error {
	if !s.shook { // the engines were given addresses instead
		s.ready = map[int]bool{}
		for at := range s.seen {
			s.ready[at[0]] = true
		}
	}
	switch {
	case s.seen == nil:
		return fmt.Errorf("%s: no engine registers in it: record from before the engine starts", s.name)
	case !slices.Contains(slices.Collect(maps.Values(s.ready)), true):
		return fmt.Errorf("%s: no engine says READY in it: record from before the engine starts", s.name)
	case s.outputs == 0:
		return fmt.Errorf("%s: no output of an engine is in it", s.name)
	}
	for _, rank := range s.spoke {
		if !s.ready[rank] {
			return fmt.Errorf("%s: engine %d does not say READY in it: record from before the engines start, and add the files of all", s.name, rank)
		}
	}
	return nil
}
