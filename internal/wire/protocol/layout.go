package protocol

import (
	"fmt"
	"slices"

	"github.com/vllm-vcr/conformance/internal/wire/pack"
)

// mapField writes one key of a map-encoded struct and its value.
type mapField[T any] struct {
	key   []byte
	value func([]byte, *T) []byte
}

// mapValues says, by key, how the values of a map-encoded struct are written.
type mapValues[T any] map[string]func([]byte, *T) []byte

// compileMap pairs the fields that the line's struct has with what writes
// them, in the line's order. An optional field that this package knows nothing
// of is written with its default, as a real engine writes it.
func compileMap[T any](c *Codec, name string, values mapValues[T]) ([]mapField[T], error) {
	s, err := c.profile.needStruct(name, "map")
	if err != nil {
		return nil, err
	}
	var fields []mapField[T]
	for _, f := range s.Fields {
		value, known := values[f.Name]
		if !known {
			def, err := c.defaultOf(name, f)
			if err != nil {
				return nil, err
			}
			value = func(b []byte, _ *T) []byte { return append(b, def...) }
		}
		fields = append(fields, mapField[T]{key: pack.AppendString(nil, f.Name), value: value})
	}
	return fields, nil
}

func appendMap[T any](b []byte, fields []mapField[T], v *T) []byte {
	b = pack.AppendMapHeader(b, len(fields))
	for i := range fields {
		b = fields[i].value(append(b, fields[i].key...), v)
	}
	return b
}

// appendMapOrNil is appendMap for a struct that may be absent.
func appendMapOrNil[T any](b []byte, fields []mapField[T], v *T) []byte {
	if v == nil {
		return pack.AppendNil(b)
	}
	return appendMap(b, fields, v)
}

func intValue[T any](get func(*T) int) func([]byte, *T) []byte {
	return func(b []byte, v *T) []byte { return pack.AppendInt(b, int64(get(v))) }
}

func intsValue[T any](get func(*T) []int) func([]byte, *T) []byte {
	return func(b []byte, v *T) []byte { return appendInts(b, get(v)) }
}

func stringValue[T any](get func(*T) string) func([]byte, *T) []byte {
	return func(b []byte, v *T) []byte { return pack.AppendString(b, get(v)) }
}

func boolValue[T any](get func(*T) bool) func([]byte, *T) []byte {
	return func(b []byte, v *T) []byte { return pack.AppendBool(b, get(v)) }
}

func floatValue[T any](get func(*T) float64) func([]byte, *T) []byte {
	return func(b []byte, v *T) []byte { return pack.AppendFloat64(b, get(v)) }
}

func optionalValue[T any](get func(*T) *string) func([]byte, *T) []byte {
	return func(b []byte, v *T) []byte { return appendOptional(b, get(v)) }
}

// arrayLayout is an array-encoded struct of which this package writes the
// first fields in code; the others of the line are at their defaults.
type arrayLayout struct {
	fields int
	tail   []byte
}

// compileArray checks that the line's struct begins with the fields that are
// written in code.
func (c *Codec) compileArray(name string, written ...string) (arrayLayout, error) {
	var l arrayLayout
	s, err := c.profile.needStruct(name, "array")
	if err != nil {
		return l, err
	}
	for i, f := range s.Fields {
		if i < len(written) {
			if f.Name != written[i] {
				return l, fmt.Errorf("wire profile %s: field %d of %s is %s, this codec writes %s", c.profile.Line, i, name, f.Name, written[i])
			}
			continue
		}
		def, err := c.defaultOf(name, f)
		if err != nil {
			return l, err
		}
		l.tail = append(l.tail, def...)
	}
	if l.fields = len(s.Fields); l.fields < len(written) {
		return l, fmt.Errorf("wire profile %s: %s has %d fields, this codec writes %d", c.profile.Line, name, l.fields, len(written))
	}
	return l, nil
}

// needKeys refuses a map-encoded struct with a required field other than those
// that are written in code. Optional ones may be left out of a map.
func (c *Codec) needKeys(name string, written ...string) error {
	s, err := c.profile.needStruct(name, "map")
	if err != nil {
		return err
	}
	for _, f := range s.Fields {
		if f.Required && !slices.Contains(written, f.Name) {
			return c.unknownRequired(name, f.Name)
		}
	}
	return nil
}

// compileHandshake checks the messages that are the same in every line and so
// are written without a codec (vllm/v1/engine/utils.py, vllm/config/kv_events.py).
func (c *Codec) compileHandshake() error {
	if err := c.needKeys("EngineHandshakeMetadata", "addresses", "parallel_config"); err != nil {
		return err
	}
	if err := c.needKeys("EngineZmqAddresses", "inputs", "outputs", "coordinator_input", "coordinator_output",
		"frontend_stats_publish_address"); err != nil {
		return err
	}
	return c.needKeys("KVEventsConfig", "enable_kv_cache_events", "publisher", "endpoint", "replay_endpoint",
		"buffer_steps", "hwm", "max_queue_size", "topic")
}
