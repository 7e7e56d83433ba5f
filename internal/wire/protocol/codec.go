package protocol

import (
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"sync"

	"github.com/vllm-vcr/conformance/internal/wire/pack"
)

// Codec reads and writes the messages of one line. It is immutable and safe
// for concurrent use.
type Codec struct {
	profile  *Profile
	request  requestLayout
	lora     arrayLayout
	sampling samplingLayout
	envelope envelopeLayout
	utility  arrayLayout
	output   outputLayout
	// What crosses the wire as a map. drafts is nil before 0.29, failure before 0.33.
	event, prefill, drafts, failure, stats, ready *structLayout
	// rules are those of the profile, others those of all other lines.
	rules  func() *rules
	others func() []*rules
}

// NewCodec compiles a profile. It fails when the profile asks for something
// this package does not know how to write: a new required field, for instance,
// must never be sent as a silent nil.
func NewCodec(p *Profile) (*Codec, error) {
	c := &Codec{profile: p}
	c.rules, c.others = lazyRules(p)
	for _, compile := range []func() error{
		c.compileRequest, c.compileSampling, c.compileOutput, c.compileOutputParts, c.compileEnvelope,
		c.compileStructs, c.compileHandshake,
	} {
		if err := compile(); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// CodecFor loads and compiles the profile of a line, release tag or tracker. All who ask for a line share one codec.
func CodecFor(line string) (*Codec, error) {
	name := profileOf(line)
	if known, ok := codecs.Load(name); ok {
		return known.(*Codec), nil
	}
	p, err := LoadProfile(line)
	if err != nil {
		return nil, err
	}
	c, err := NewCodec(p)
	if err == nil {
		codecs.Store(name, c)
	}
	return c, err
}

// codecs are those that [CodecFor] has compiled, by line. [Learn] takes the line's out.
var codecs sync.Map

// Profile returns what the codec was compiled from.
func (c *Codec) Profile() *Profile { return c.profile }

// Line returns the line's name, such as "0.33".
func (c *Codec) Line() string { return c.profile.Line }

// HasRequestError reports whether an output of the line can carry a
// [RequestError]; before 0.33 a refused request has only its finish reason.
func (c *Codec) HasRequestError() bool { return c.output.hasError }

// HasCacheMisses reports whether an engine of the line asks for images that it has lost; before 0.28 it failed.
func (c *Codec) HasCacheMisses() bool { return c.output.hasMisses }

// compileStructs lays out the structs that are maps.
func (c *Codec) compileStructs() (err error) {
	for _, s := range []struct {
		name string
		to   **structLayout
		of   reflect.Type
		sent bool
	}{
		{"EngineCoreEvent", &c.event, reflect.TypeFor[Event](), true},
		{"PrefillStats", &c.prefill, reflect.TypeFor[PrefillStats](), true},
		{"RequestSpecDecodeMetrics", &c.drafts, reflect.TypeFor[RequestDrafts](), c.output.hasDrafts},
		{"RequestError", &c.failure, reflect.TypeFor[RequestError](), c.output.hasError},
		{"SchedulerStats", &c.stats, reflect.TypeFor[SchedulerStats](), true},
		{"EngineCoreReadyResponse", &c.ready, reflect.TypeFor[ReadyResponse](), true},
	} {
		if s.sent && err == nil {
			*s.to, err = c.compileStruct(s.name, s.of)
		}
	}
	return err
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

// defaultOf encodes the default of a field that this package has no value for:
// a real engine writes every field, defaults included. A required field has
// none and is refused.
func (c *Codec) defaultOf(structName string, f Field) ([]byte, error) {
	if f.Required {
		return nil, c.unknownRequired(structName, f.Name)
	}
	def, err := defaultBytes(f)
	if err != nil {
		return nil, fmt.Errorf("wire profile %s: %s.%s: %w", c.profile.Line, structName, f.Name, err)
	}
	return def, nil
}

// unknownRequired is the error for a profile field that a newer release
// requires and this package has no value for.
func (c *Codec) unknownRequired(structName, field string) error {
	return fmt.Errorf("wire profile %s: %s.%s is required and this build has no value for it: teach internal/wire/protocol the field",
		c.profile.Line, structName, field)
}

func defaultBytes(f Field) ([]byte, error) {
	if len(f.Default) == 0 {
		return pack.AppendNil(nil), nil
	}
	var v any
	if err := json.Unmarshal(f.Default, &v); err != nil {
		return nil, err
	}
	switch v := v.(type) {
	case nil:
		return pack.AppendNil(nil), nil
	case bool:
		return pack.AppendBool(nil, v), nil
	case string:
		if strings.HasPrefix(f.Type, "str") {
			return pack.AppendString(nil, v), nil
		}
	case float64:
		if strings.HasPrefix(f.Type, "float") {
			return pack.AppendFloat64(nil, v), nil
		}
		if v == math.Trunc(v) && math.Abs(v) < 1<<53 {
			return pack.AppendInt(nil, int64(v)), nil
		}
	case []any:
		if len(v) == 0 {
			return pack.AppendArrayHeader(nil, 0), nil
		}
	case map[string]any:
		if len(v) == 0 && strings.HasPrefix(f.Type, "dict[") {
			return pack.AppendMapHeader(nil, 0), nil
		}
	}
	return nil, fmt.Errorf("default %s of type %s cannot be written", f.Default, f.Type)
}

// ReadsByName reports whether a field is looked up by its name when messages are
// decoded or recorded, so that without it something is lost. All others are
// skipped, or kept as they are.
func ReadsByName(structName, field string) bool {
	return readFields()[structName+"."+field]
}

var readFields = sync.OnceValue(func() map[string]bool {
	read := map[string]bool{
		// What the recorder looks into raw values for.
		"MultiModalFeatureSpec.mm_hash": true, "PrefillStats.num_local_cached_tokens": true,
		"PrefillStats.num_external_cached_tokens": true, "SchedulerStats.num_running_reqs": true,
		"LoRARequest.lora_name": true, "LoRARequest.lora_int_id": true, "LoRARequest.lora_path": true,
		// What decoding pooling_params looks up.
		"PoolingParams.task": true, "PoolingParams.dimensions": true, "PoolingParams.use_activation": true,
		"PoolingParams.late_interaction_params": true, "PoolingParams.late_chunking_params": true,
		"PoolingParams.skip_reading_prefix_cache": true,
		// What decoding mm_features looks up.
		"MultiModalFeatureSpec.identifier": true, "MultiModalFeatureSpec.mm_position": true,
		"PlaceholderRange.offset": true, "PlaceholderRange.length": true,
		"EngineCoreOutputs.engine_index": true, "EngineCoreOutputs.outputs": true,
		"EngineCoreOutput.request_id": true, "EngineCoreOutput.new_token_ids": true,
		"UtilityOutput.call_id": true, "UtilityOutput.failure_message": true, "UtilityOutput.result": true,
	}
	mark(read, "SamplingParams", samplingKeys)
	mark(read, "EngineCoreRequest", requestFields)
	mark(read, "EngineCoreOutputs", envelopeFields)
	mark(read, "EngineCoreOutput", outputFields)
	for key, i := range structTypeOf(reflect.TypeFor[ReadyResponse]()).keys {
		read["EngineCoreReadyResponse."+key] = !structTypeOf(reflect.TypeFor[ReadyResponse]()).fields[i].writeOnly
	}
	return read
})

func mark[T any](read map[string]bool, structName string, fields map[string]T) {
	for field := range fields {
		read[structName+"."+field] = true
	}
}

// lazyRules defers the reading of annotations to the first check: a caller that only encodes
// and decodes does without.
func lazyRules(p *Profile) (own func() *rules, others func() []*rules) {
	own = sync.OnceValue(func() *rules { return newRules(p) })
	others = sync.OnceValue(func() []*rules {
		return slices.DeleteFunc(allRules(), func(r *rules) bool { return r.profile.Line == p.Line })
	})
	return own, others
}
