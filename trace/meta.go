package trace

import (
	"encoding/json"
	"maps"
	"math"
	"slices"
	"strconv"
)

// Meta is what was captured. Every key is optional; nil means absent, so an
// empty string (a tap writes vllm_version "" if the engine reported none) is
// told from a missing one.
type Meta struct {
	// Model is the Hugging Face id or free text.
	Model *string
	// GPU is the accelerator's name, e.g. H200.
	GPU *string
	// TP is the tensor-parallel size.
	TP *uint32
	// MaxNumSeqs is the captured engine's scheduler batch cap.
	MaxNumSeqs *uint64
	// Source names the writer: tap, guidellm, gen-demo, loadgen-client, ….
	Source *string
	// BlockSize is the tokens per hashed block behind Record.BlockHashes. It
	// need not be the engine's KV block size.
	BlockSize *int
	// ConfigHash is the capture's fingerprint, see [ConfigHash], or whatever
	// the recorder has by an option.
	ConfigHash *string
	// VLLMVersion is the version the engine itself reported.
	VLLMVersion *string
	// ReadyResponseHex is the raw msgpack payload the engine registered with,
	// in lower-case hex.
	ReadyResponseHex *string
	// VLLMTag and EngineConfig are the inputs of ConfigHash beside GPU. This
	// project's own keys.
	VLLMTag      *string
	EngineConfig *string
	// Extra holds all other keys, as they stood.
	Extra map[string]json.RawMessage
}

// Or returns *p, or absent if p is nil: Or(meta.GPU, "").
func Or[T any](p *T, absent T) T {
	if p == nil {
		return absent
	}
	return *p
}

// metaField is one known key and how its value is read and written.
type metaField struct {
	key  string
	read func(*cursor) error
	// write appends the value, and is nil if the key is absent.
	write func([]byte) ([]byte, error)
}

// fields lists the known keys in the order they are written.
func (m *Meta) fields() []metaField {
	return []metaField{
		textField("model", &m.Model),
		textField("gpu", &m.GPU),
		intField("tp", &m.TP, math.MaxUint32),
		intField("max_num_seqs", &m.MaxNumSeqs, math.MaxUint64),
		textField("source", &m.Source),
		intField("block_size", &m.BlockSize, math.MaxInt),
		textField("config_hash", &m.ConfigHash),
		textField("vllm_version", &m.VLLMVersion),
		textField("ready_response_hex", &m.ReadyResponseHex),
		textField("vllm_tag", &m.VLLMTag),
		textField("engine_config", &m.EngineConfig),
	}
}

func textField(key string, at **string) metaField {
	f := metaField{key: key, read: func(c *cursor) error {
		s, err := c.str()
		*at = &s
		return err
	}}
	if *at != nil {
		f.write = func(b []byte) ([]byte, error) { return appendString(b, **at) }
	}
	return f
}

func intField[T int | uint32 | uint64](key string, at **T, most uint64) metaField {
	f := metaField{key: key, read: func(c *cursor) error {
		v, err := c.uint(most)
		n := T(v)
		*at = &n
		return err
	}}
	if *at != nil {
		f.write = func(b []byte) ([]byte, error) { return appendInt(b, **at) }
	}
	return f
}

// parse fills m from the object at c.
func (m *Meta) parse(c *cursor) error {
	fields := m.fields()
	seen := make([]bool, len(fields))
	return c.object(func(key []byte) error {
		name := string(key)
		i := slices.IndexFunc(fields, func(f metaField) bool { return f.key == name })
		if i < 0 {
			return inKey(m.keep(c, name), key)
		}
		if seen[i] {
			return within(c.fail("the key occurs twice"), name)
		}
		seen[i] = true
		if c.null() {
			return nil
		}
		return within(fields[i].read(c), name)
	})
}

// keep stores the value at c under a key this package does not know.
func (m *Meta) keep(c *cursor, key string) error {
	raw, err := c.value(3)
	if err != nil {
		return err
	}
	if m.Extra == nil {
		m.Extra = make(map[string]json.RawMessage)
	}
	m.Extra[key] = slices.Clone(raw)
	return nil
}

// appendMeta appends the meta line without its line feed.
func appendMeta(b []byte, m Meta) ([]byte, error) {
	var err error
	b = append(b, `{"meta":{`...)
	open := len(b)
	known := make(map[string]bool)
	for _, f := range m.fields() {
		known[f.key] = true
		if f.write == nil {
			continue
		}
		b = appendKey(b, open, f.key)
		if b, err = f.write(b); err != nil {
			return nil, within(err, "meta."+f.key)
		}
	}
	if b, err = appendExtra(b, open, m.Extra, 3, func(key string) bool { return known[key] }); err != nil {
		return nil, within(err, "meta")
	}
	return append(b, "}}"...), nil
}

// appendExtra appends keys this package does not know, sorted, to an object
// whose members start at open and whose values are at depth.
func appendExtra(b []byte, open int, extra map[string]json.RawMessage, depth int, known func(string) bool) ([]byte, error) {
	if len(extra) == 0 {
		return b, nil
	}
	for _, key := range slices.Sorted(maps.Keys(extra)) {
		if known(key) {
			return nil, invalid(key, "a known key must not be among the extra ones")
		}
		var err error
		if len(b) > open {
			b = append(b, ',')
		}
		if b, err = appendString(b, key); err != nil {
			return nil, err
		}
		if b, err = appendRaw(append(b, ':'), extra[key], depth); err != nil {
			return nil, inKey(err, []byte(key))
		}
	}
	return b, nil
}

func appendInt[T int | uint32 | uint64](b []byte, v T) ([]byte, error) {
	if v < 0 {
		return nil, invalid("", "want at least 0, got %d", v)
	}
	return strconv.AppendUint(b, uint64(v), 10), nil
}
