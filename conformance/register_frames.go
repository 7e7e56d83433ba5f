package conformance

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/trace"
)

// Facts are what raw frames say of their capture only if the recorder was told: the flags of record that have these names.
type Facts struct {
	GPU          string // kind of GPU, "cpu" for none
	Model        string
	VLLMTag      string // release of the engine, such as v0.33.0
	EngineConfig string // the engine's options, key=value sorted and joined by ;
}

// combine makes one file of the raw frames of all engines of a session, in the order of their times, with all facts in its
// first line. The messages stay as they are.
func (r *registrar) combine(raw []byte) ([]byte, error) {
	meta, messages, err := readAllFrames(raw, r.Trace)
	if err != nil {
		return nil, refuse(ExitFail, err)
	}
	for _, path := range r.Others {
		other, err := r.load(path)
		if err != nil {
			return nil, err
		}
		_, more, err := readAllFrames(other, path)
		if err != nil {
			return nil, refuse(ExitFail, err)
		}
		for i := range more {
			if more[i].Note == "" && slices.ContainsFunc(messages, func(m trace.Message) bool { return m.Note == "" && m.Rank == more[i].Rank }) {
				return nil, refuse(ExitUsage, fmt.Errorf("%s: line %d: a message of engine %d, whose messages another file has: give the file of each engine once",
					path, more[i].Line, more[i].Rank))
			}
		}
		messages = append(messages, more...)
	}
	slices.SortStableFunc(messages, func(a, b trace.Message) int { return cmp.Compare(a.At, b.At) })
	if meta, err = r.Facts.into(meta, r.Trace); err != nil {
		return nil, refuse(ExitUsage, err)
	}
	if raw, err = check.WriteFrames(r.Trace, meta, messages); err != nil {
		return nil, refuse(ExitFail, err)
	}
	return raw, nil
}

// readAllFrames reads a frames file whole.
func readAllFrames(data []byte, name string) (meta json.RawMessage, messages []trace.Message, err error) {
	reader, err := check.OpenFrames(data, name)
	if err != nil {
		return nil, nil, err
	}
	for {
		var m trace.Message
		err := reader.Next(&m)
		if errors.Is(err, io.EOF) {
			return reader.Meta(), messages, nil
		}
		if err != nil {
			return nil, nil, err
		}
		messages = append(messages, m.Clone())
	}
}

// into puts the facts into a meta line that does not have them. One that says otherwise is an error.
func (f Facts) into(meta json.RawMessage, name string) (json.RawMessage, error) {
	keys := map[string]json.RawMessage{}
	if meta != nil {
		if err := json.Unmarshal(meta, &keys); err != nil {
			return nil, fmt.Errorf("%s: line 1: meta: %w", name, err)
		}
	}
	for _, fact := range []struct{ key, flag, value string }{
		{"gpu", "--gpu", f.GPU}, {"model", "--model", f.Model}, {"vllm_tag", "--vllm-version", f.VLLMTag}, {"engine_config", "--engine-config", f.EngineConfig},
	} {
		if fact.value == "" {
			continue
		}
		text, err := json.Marshal(fact.value)
		if err != nil {
			return nil, err
		}
		if known, ok := keys[fact.key]; ok && !bytes.Equal(known, text) {
			return nil, fmt.Errorf("%s: line 1: meta.%s is %s, and %s says %s: leave %s out, what was recorded stays",
				name, fact.key, known, fact.flag, text, fact.flag)
		}
		keys[fact.key] = text
	}
	return json.Marshal(keys)
}
