package builtin

import (
	"cmp"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// ToolRanges bound what the arguments of calls of tools are drawn from, as in llm-d-inference-sim. Optional and
// OptionalField are the percentages with which an argument that is not required, and such a member of an object, are
// there; Extra is that with which one more call follows, up to the number of tools.
type ToolRanges struct {
	MinInteger, MaxInteger         int
	MinNumber, MaxNumber           float64
	MinItems, MaxItems             int
	Optional, OptionalField, Extra int
}

// callTools is the planner of answers with calls of tools; nil lets a text be answered.
func (s *Server) callTools(q *chatRequest) (planner, *apiError) {
	tools := slices.Clone(q.Tools)
	if !s.sim.AnyTool {
		for i := range tools {
			if err := checkTool(&tools[i]); err != nil {
				return nil, badRequest("tools", "Tool validation failed: %v", err)
			}
		}
	}
	if q.choice.name != "" {
		tools = slices.DeleteFunc(tools, func(t tool) bool { return t.Function.Name != q.choice.name })
	}
	answered := q.Messages[len(q.Messages)-1].Role == "tool" && !q.choice.required
	if q.oneCall {
		answered = slices.ContainsFunc(q.Messages, func(m message) bool { return m.Role == "tool" })
	}
	sim := s.sim
	if sim.Deterministic {
		h := fnv.New64a()
		_, _ = h.Write(toJSON(q.Messages))
		sim = &simulator{Simulator: sim.Simulator, rng: rand.New(rand.NewPCG(sim.Seed, h.Sum64()))}
	}
	texts := make([]string, q.answers)
	for n := range texts {
		calls := 0
		if q.choice.required || q.oneCall && !answered {
			calls = 1
		}
		for !q.oneCall && calls < len(tools) && !answered && (q.Parallel == nil || *q.Parallel || calls == 0) && sim.chance(sim.Tools.Extra) {
			calls++
		}
		var b strings.Builder
		for range calls {
			one := &tools[sim.between(0, len(tools)-1)].Function
			value, err := sim.arguments(one.Parameters)
			if err != nil {
				return nil, badRequest("tools", "%v", err)
			}
			name, _ := json.Marshal(one.Name)
			text, _ := json.Marshal(value)
			fmt.Fprintf(&b, "%s\n{\"name\": %s, \"arguments\": %s}\n%s", callBegin, name, text, callEnd)
		}
		texts[n] = b.String()
	}
	otherwise := q.planner
	return func(i, n int) *plan {
		if n < len(texts) && texts[n] != "" {
			one := s.spell(texts[n])
			one.finish = protocol.FinishStop
			return one
		}
		if otherwise != nil {
			return otherwise(i, n)
		}
		return nil
	}, nil
}

// toolSchema is the part of JSON Schema that is understood.
type toolSchema struct {
	Type       string                 `json:"type"`
	Enum       []json.RawMessage      `json:"enum"`
	Properties map[string]*toolSchema `json:"properties"`
	Items      *toolSchema            `json:"items"`
	Required   []string               `json:"required"`
	MinItems   *int                   `json:"minItems"`
	MaxItems   *int                   `json:"maxItems"`
}

// maxSchemaDepth and maxDrawn bound what is drawn for one call.
const (
	maxSchemaDepth = 32
	maxDrawn       = 1 << 12 // values
)

// arguments draws the arguments of a call.
func (m *simulator) arguments(parameters json.RawMessage) (map[string]any, error) {
	var schema toolSchema
	if len(parameters) > 0 {
		if err := json.Unmarshal(parameters, &schema); err != nil {
			return nil, fmt.Errorf("the parameters of a tool: %w", err)
		}
	}
	left := maxDrawn
	return m.object(&schema, m.Tools.Optional, 0, &left)
}

func (m *simulator) object(schema *toolSchema, optional, depth int, left *int) (map[string]any, error) {
	object := map[string]any{}
	for _, name := range slices.Sorted(maps.Keys(schema.Properties)) { // so that the seed decides
		if !slices.Contains(schema.Required, name) && !m.chance(optional) {
			continue
		}
		value, err := m.value(schema.Properties[name], depth+1, left)
		if err != nil {
			return nil, err
		}
		object[name] = value
	}
	return object, nil
}

// argumentWords are the texts among arguments.
var argumentWords = []string{"apple", "bridge", "harbor", "lantern", "meadow", "orchard", "pencil", "river", "violin", "window"}

func (m *simulator) value(schema *toolSchema, depth int, left *int) (any, error) {
	if *left--; schema == nil || *left < 0 || depth > maxSchemaDepth {
		return nil, fmt.Errorf("the parameters of a tool are too many or too deep, or a schema is missing")
	}
	if len(schema.Enum) > 0 {
		return schema.Enum[m.between(0, len(schema.Enum)-1)], nil
	}
	switch schema.Type {
	case "string":
		return argumentWords[m.between(0, len(argumentWords)-1)], nil
	case "integer":
		return m.between(m.Tools.MinInteger, m.Tools.MaxInteger), nil
	case "number":
		return m.float(m.Tools.MinNumber, m.Tools.MaxNumber), nil
	case "boolean":
		return m.chance(50), nil
	case "array":
		lo, hi := or(schema.MinItems, m.Tools.MinItems), or(schema.MaxItems, m.Tools.MaxItems)
		if lo > hi {
			return nil, fmt.Errorf("minItems (%d) is greater than maxItems(%d)", lo, hi)
		}
		list := make([]any, min(m.between(lo, hi), maxDrawn))
		for i := range list {
			var err error
			if list[i], err = m.value(schema.Items, depth+1, left); err != nil {
				return nil, err
			}
		}
		return list, nil
	case "object":
		return m.object(schema, m.Tools.OptionalField, depth, left)
	}
	return nil, fmt.Errorf("tool parameters of type %s are not supported", schema.Type)
}

// schemaKeys are what a schema of the simulator may have, and schemaTypes what its types may be.
var (
	schemaKeys = []string{
		"type", "description", "enum", "properties", "items", "required", "additionalProperties", "minItems", "maxItems", "default", "minimum",
		"maximum", "exclusiveMinimum", "exclusiveMaximum", "minLength", "maxLength", "pattern", "format", "title",
	}
	schemaTypes = []string{"object", "array", "string", "number", "integer", "boolean", "null"}
)

// checkTool refuses the schemas that the simulator refuses.
func checkTool(t *tool) error {
	f := &t.Function
	switch {
	case f.Name == "":
		return fmt.Errorf("a function has no name")
	case absent(f.Parameters):
		return fmt.Errorf("the function %s has no parameters", f.Name)
	}
	return checkSchema(f.Name+".parameters", f.Parameters, 0)
}

func checkSchema(at string, raw json.RawMessage, depth int) error {
	var keys map[string]json.RawMessage
	var schema toolSchema
	if depth > maxSchemaDepth {
		return fmt.Errorf("%s: nested more than %d deep", at, maxSchemaDepth)
	}
	if err := json.Unmarshal(raw, &keys); err != nil {
		return fmt.Errorf("%s: %w", at, err)
	}
	for key := range keys {
		if !slices.Contains(schemaKeys, key) {
			return fmt.Errorf("%s: additionalProperties '%s' not allowed; --skip-tool-validation accepts it, as vLLM does", at, key)
		}
	}
	if err := json.Unmarshal(raw, &schema); err != nil {
		return fmt.Errorf("%s: %w", at, err)
	}
	if !slices.Contains(schemaTypes, schema.Type) {
		return fmt.Errorf("%s: the type is %q: want one of %s", at, schema.Type, strings.Join(schemaTypes, ", "))
	}
	for _, value := range schema.Enum {
		is := map[byte]string{'"': "string", 't': "boolean", 'f': "boolean", 'n': "null", '[': "array", '{': "object"}[value[0]]
		is = cmp.Or(is, "number")
		if is != schema.Type && !(is == "number" && schema.Type == "integer") {
			return fmt.Errorf("%s: the enum of a %s has the value %s", at, schema.Type, value)
		}
	}
	var properties map[string]json.RawMessage
	if err := json.Unmarshal(keys["properties"], &properties); err == nil {
		for name, raw := range properties {
			if err := checkSchema(at+"."+name, raw, depth+1); err != nil {
				return err
			}
		}
	}
	if schema.Type == "array" && len(keys["items"]) == 0 {
		return fmt.Errorf("%s: items are missing", at)
	}
	if raw := keys["items"]; len(raw) > 0 {
		return checkSchema(at+".items", raw, depth+1)
	}
	return nil
}
