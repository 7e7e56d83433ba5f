package acceptance

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/vllm-vcr/conformance/internal/wire/pack"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// A node is a place of a message as a line declares it, with a value that a frontend can take.
type node struct {
	place  string // "EngineCoreOutputs.outputs[].finish_reason"
	field  string // "EngineCoreOutput.finish_reason"
	parent *node
	form   form
	kind   pack.Kind // of the sample
	// plain is the value there as long as neither the place nor one within it is looked at: nil if that is the sample, and
	// empty for a key that is absent then.
	plain []byte
	leaf  func(facts) []byte // of a scalar
	words []string           // of a scalar, if it is one of some
	// Of an array or a map; keys are those of a map.
	parts []*node
	keys  []string
	// Of a tensor.
	torch   bool
	rows    int
	columns int // 0: it has one dimension
	floats  bool
}

type form uint8

const (
	scalar form = iota
	structArray
	structMap
	list
	tuple
	dict
	tensor
)

// facts are what a sample takes from the request that it answers.
type facts struct {
	id     string
	callID uint64
	finish protocol.FinishReason
	ready  map[string][]byte // what the line's engine registers with, by key
}

// builder makes samples of one line's messages.
type builder struct {
	profile *protocol.Profile
	all     []*node // in their order
}

// Samples whose value does not follow from the type: what answers the request that was sent.
var hints = map[string]func(facts) []byte{
	"EngineCoreOutput.request_id":             func(f facts) []byte { return pack.AppendString(nil, f.id) },
	"EngineCoreOutput.new_token_ids[]":        func(facts) []byte { return pack.AppendInt(nil, sampledToken) },
	"EngineCoreOutput.finish_reason":          func(f facts) []byte { return pack.AppendInt(nil, int64(f.finish)-1) },
	"EngineCoreOutputs.finished_requests[]":   func(f facts) []byte { return pack.AppendString(nil, f.id) },
	"EngineCoreOutputs.timestamp":             func(facts) []byte { return pack.AppendFloat64(nil, sampleTime) },
	"EngineCoreEvent.timestamp":               func(facts) []byte { return pack.AppendFloat64(nil, sampleTime-1) },
	"UtilityOutput.call_id":                   func(f facts) []byte { return pack.AppendUint(nil, f.callID) },
	"PrefillStats.num_prompt_tokens":          func(facts) []byte { return pack.AppendInt(nil, promptTokens) },
	"PrefillStats.num_computed_tokens":        func(facts) []byte { return pack.AppendInt(nil, promptTokens) },
	"SchedulerStats.kv_cache_usage":           func(facts) []byte { return pack.AppendFloat64(nil, 0.25) },
	"LogprobsLists.cu_num_generated_tokens[]": func(facts) []byte { return pack.AppendInt(nil, 0) },
	"EngineCoreRequest.request_id":            func(f facts) []byte { return pack.AppendString(nil, f.id) },
	"EngineCoreRequest.prompt_token_ids[]":    func(facts) []byte { return pack.AppendInt(nil, 20) },
	"EngineCoreRequest.arrival_time":          func(facts) []byte { return pack.AppendFloat64(nil, sampleTime) },
	"SamplingParams.max_tokens":               func(facts) []byte { return pack.AppendInt(nil, 2) },
	"SamplingParams.temperature":              func(facts) []byte { return pack.AppendFloat64(nil, 0) },
	"SamplingParams.output_kind":              func(facts) []byte { return pack.AppendInt(nil, 1) },
	"EngineZmqAddresses.inputs[]":             func(f facts) []byte { return f.ready["inputs"] },
	"EngineZmqAddresses.outputs[]":            func(f facts) []byte { return f.ready["outputs"] },
}

// always are places that have their sample, whatever their default is.
var always = []string{
	"EngineCoreOutput.finish_reason", "EngineCoreOutputs.timestamp", "PrefillStats.num_prompt_tokens", "PrefillStats.num_computed_tokens",
	"SamplingParams.max_tokens", "SamplingParams.temperature", "SamplingParams.output_kind",
}

const (
	sampledToken = 7
	otherToken   = 11
	promptTokens = 4
	sampleTime   = 1000.5
)

// build makes the sample of a place whose type is annotated.
func (b *builder) build(parent *node, place, field string, t protocol.PyType) *node {
	n := &node{place: place, field: field, parent: parent}
	b.all = append(b.all, n)
	t = t.Options()[0]
	argument := func(i int) protocol.PyType {
		if i < len(t.Args) {
			return t.Args[i]
		}
		return protocol.PyType{Name: "Any"}
	}
	switch t.Name {
	case "list", "set", "frozenset", "Sequence":
		n.form, n.kind = list, pack.Array
		n.parts = []*node{b.build(n, place+"[]", field+"[]", argument(0))}
	case "tuple":
		if len(t.Args) == 0 || len(t.Args) == 2 && t.Args[1].Name == "..." {
			n.form, n.kind = list, pack.Array
			n.parts = []*node{b.build(n, place+"[]", field+"[]", argument(0))}
			break
		}
		n.form, n.kind = tuple, pack.Array
		for i := range t.Args {
			n.parts = append(n.parts, b.build(n, fmt.Sprintf("%s[%d]", place, i), field+"[]", t.Args[i]))
		}
	case "dict", "Mapping":
		n.form, n.kind, n.keys = dict, pack.Map, []string{"x"}
		if e, is := b.profile.Enums[argument(0).Name]; is && len(e.Members) > 0 {
			key := &node{}
			if enumSample(key, e); len(key.words) > 0 {
				n.keys = key.words[:1]
			}
		}
		n.parts = []*node{b.build(n, place+"{}", field+"{}", argument(1))}
	case "Annotated":
		b.all = b.all[:len(b.all)-1]
		return b.build(parent, place, field, argument(0))
	case "np.ndarray", "torch.Tensor":
		b.tensor(n, t.Name == "torch.Tensor")
	case "UtilityResult":
		n.form, n.kind = tuple, pack.Array
		n.parts = []*node{
			b.build(n, place+".type_info", field+".type_info", protocol.PyType{Name: "None"}),
			b.build(n, place+".value", field+".value", protocol.PyType{Name: "None"}),
		}
	default:
		if s, is := b.profile.Structs[t.Name]; is {
			b.fields(n, t.Name, s)
			break
		}
		b.scalar(n, t)
	}
	return n
}

// fields makes the samples of a struct's.
func (b *builder) fields(n *node, name string, s protocol.Struct) {
	n.form, n.kind = structArray, pack.Array
	if s.Encoding != "array" {
		n.form, n.kind = structMap, pack.Map
	}
	for _, f := range s.Fields {
		t := protocol.ParsePyType(f.Type)
		part := b.build(n, n.place+"."+f.Name, name+"."+f.Name, t)
		switch {
		case slices.Contains(always, part.field):
		case !f.Required:
			part.plain = plainOf(f.Default, part)
			if isNil := len(part.plain) == 1 && part.plain[0] == 0xc0; isNil && !t.Options()[len(t.Options())-1].IsNone() {
				part.plain = nil // the default is made when the struct is
			}
		case t.Options()[len(t.Options())-1].IsNone():
			part.plain = pack.AppendNil(nil)
		}
		n.parts, n.keys = append(n.parts, part), append(n.keys, f.Name)
	}
}

// plainOf is a default as the wire has it; nil if that is a struct, whose sample is used.
func plainOf(text json.RawMessage, n *node) []byte {
	var value any
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	if len(text) == 0 || decoder.Decode(&value) != nil {
		return pack.AppendNil(nil)
	}
	switch v := value.(type) {
	case bool:
		return pack.AppendBool(nil, v)
	case string:
		return pack.AppendString(nil, v)
	case json.Number:
		if i, err := v.Int64(); err == nil && n.kind != pack.Float {
			return pack.AppendInt(nil, i)
		}
		f, _ := v.Float64()
		return pack.AppendFloat64(nil, f)
	case []any:
		return pack.AppendArrayHeader(nil, 0)
	case map[string]any:
		if n.form == dict {
			return pack.AppendMapHeader(nil, 0)
		}
		return nil
	}
	return pack.AppendNil(nil)
}

func constant(value []byte) func(facts) []byte { return func(facts) []byte { return value } }

// scalar makes the sample of a type without parts.
func (b *builder) scalar(n *node, t protocol.PyType) {
	value := pack.AppendInt(nil, 1)
	switch t.Name {
	case "float":
		value = pack.AppendFloat64(nil, 0.5)
	case "str":
		value = pack.AppendString(nil, "x")
	case "bool":
		value = pack.AppendBool(nil, false)
	case "bytes":
		value = pack.AppendBin(nil, []byte("x"))
	case "None":
		value = pack.AppendNil(nil)
	case "Literal":
		for _, word := range t.Args {
			n.words = append(n.words, strings.Trim(word.Name, `'"`))
		}
		if len(n.words) > 0 {
			value = pack.AppendString(nil, n.words[0])
		}
	default:
		if e, is := b.profile.Enums[t.Name]; is && len(e.Members) > 0 {
			value = enumSample(n, e)
		}
	}
	n.leaf = constant(value)
	if hint := hints[n.field]; hint != nil {
		n.leaf = hint
	}
	if key, is := strings.CutPrefix(n.field, "EngineCoreReadyResponse."); is {
		usual := n.leaf
		n.leaf = func(f facts) []byte {
			if registered := f.ready[key]; registered != nil {
				return registered
			}
			return usual(f)
		}
	}
	cur := pack.NewCursor(value)
	n.kind = cur.Kind()
}

// enumSample is the first member of an enumeration, as the wire has it.
func enumSample(n *node, e protocol.Enum) []byte {
	var number int64
	var word string
	if json.Unmarshal(e.Members[0].Value, &number) == nil {
		n.words = []string{}
		return pack.AppendInt(nil, number)
	}
	_ = json.Unmarshal(e.Members[0].Value, &word) // the profile's reader has seen that it is one of the two
	n.words = []string{word}
	return pack.AppendString(nil, word)
}

// tensor makes the sample of an array of numbers: of one row for one sampled token, of one for each token of a prompt but the
// first, and of a column for the token and one for the most likely.
func (b *builder) tensor(n *node, torch bool) {
	n.form, n.kind, n.torch = tensor, pack.Array, torch
	n.rows, n.columns = 1, 2
	if strings.HasPrefix(n.field, "SamplingMaskLists.") { // of one position
		n.rows, n.columns = 2, 0
	}
	if strings.Contains(n.place, "prompt") {
		n.rows = promptTokens - 1
	}
	switch name := n.field[strings.LastIndexByte(n.field, '.')+1:]; {
	case strings.HasSuffix(name, "ranks"), strings.HasPrefix(name, "cu_"), strings.Contains(name, "offsets"):
		n.columns = 0
	case strings.HasSuffix(name, "ids"):
	case name == "routed_experts":
	default:
		n.floats = true
	}
	dtype := n.dtypes()[0]
	part := func(name string, kind pack.Kind, value []byte) *node {
		p := &node{place: n.place + "." + name, field: n.field + "." + name, parent: n, kind: kind, leaf: constant(value)}
		b.all = append(b.all, p)
		n.parts = append(n.parts, p)
		return p
	}
	part("dtype", pack.String, pack.AppendString(nil, dtype))
	shape := part("shape", pack.Array, nil)
	shape.form, shape.leaf = list, nil
	dims := []int{n.rows, n.columns}
	if n.columns == 0 {
		dims = dims[:1]
	}
	for i, d := range dims {
		p := &node{
			place: fmt.Sprintf("%s[%d]", shape.place, i), field: shape.field + "[]", parent: shape, kind: pack.Int,
			leaf: constant(pack.AppendInt(nil, int64(d))),
		}
		b.all = append(b.all, p)
		shape.parts = append(shape.parts, p)
	}
	part("data", pack.Ext, pack.AppendExt(nil, protocol.ExtRawView, n.data(dtype, n.rows, n.columns)))
}

// dtypes are those that a tensor is sent with, the first being that of its sample.
func (n *node) dtypes() []string {
	switch {
	case n.torch && n.floats:
		return []string{"float32", "float64", "float16", "bfloat16", "int32", "complex64", "<f4", "nonsense"}
	case n.torch:
		return []string{"int32", "int64", "uint8", "int16", "float32", "<i8", "nonsense"}
	case n.floats:
		return []string{"<f4", "<f8", "<f2", ">f4", "<i4", "<c8", "float32", "nonsense"}
	}
	types := []string{"<i4", "<i8", "<i2", "<u4", "|u1", ">i4", "<f4", "int32", "nonsense"}
	if strings.HasSuffix(n.field, "ranks") { // as released engines send them
		types[0], types[1] = types[1], types[0]
	}
	return types
}

// data is the sample's numbers, as a type has them.
func (n *node) data(dtype string, rows, columns int) []byte {
	columns = max(columns, 1)
	var data []byte
	for i := range rows * columns {
		value := float64(1)
		switch {
		case n.floats:
			value = -0.5 - float64(i%columns)
		case strings.HasSuffix(n.field, ".offsets"):
			value = float64(2 * i)
		case n.field == "SamplingMaskLists.token_ids":
			value = [2]float64{sampledToken, otherToken}[i%2]
		case n.columns > 0 && i%columns == 0:
			value = float64(promptID(1 + i/columns))
			if n.rows == 1 {
				value = sampledToken
			}
		case n.columns > 0:
			value = otherToken
		}
		data = appendNumber(data, dtype, value)
	}
	return data
}

// promptID is a token of the prompt.
func promptID(i int) int { return 20 + i }

func appendNumber(b []byte, dtype string, value float64) []byte {
	little := func(bits uint64, size int) []byte {
		for i := range size {
			b = append(b, byte(bits>>(8*i)))
		}
		return b
	}
	switch strings.TrimLeft(dtype, "<|") {
	case "f8", "float64":
		return little(math.Float64bits(value), 8)
	case "f4", "float32":
		return little(uint64(math.Float32bits(float32(value))), 4)
	case "c8", "complex64":
		return little(uint64(math.Float32bits(float32(value))), 8)
	case "f2", "float16":
		return little(0xb800, 2) // -0.5
	case "bfloat16":
		return little(uint64(math.Float32bits(float32(value))>>16), 2)
	case "i8", "int64":
		return little(uint64(int64(value)), 8)
	case "i2", "int16":
		return little(uint64(int64(value)), 2)
	case "u1", "uint8":
		return little(uint64(int64(value)), 1)
	case ">i4":
		n := uint32(int32(value))
		return append(b, byte(n>>24), byte(n>>16), byte(n>>8), byte(n))
	case ">f4":
		n := math.Float32bits(float32(value))
		return append(b, byte(n>>24), byte(n>>16), byte(n>>8), byte(n))
	}
	return little(uint64(int64(value)), 4)
}

// status makes the sample of HELLO or READY, which are no structs: the profile has the names of their keys only.
func (b *builder) status(name string) *node {
	n := &node{place: name, field: name, form: structMap, kind: pack.Map}
	b.all = append(b.all, n)
	for _, key := range b.profile.Messages[name].Keys {
		part := &node{place: name + "." + key.Name, field: name + "." + key.Name, parent: n, kind: pack.Int, leaf: constant(pack.AppendInt(nil, 1))}
		switch key.Name {
		case "status":
			part.kind, part.leaf, part.words = pack.String, constant(pack.AppendString(nil, name)), []string{name}
		case "local", "headless":
			part.kind, part.leaf = pack.Bool, constant(pack.AppendBool(nil, key.Name == "headless"))
		case "parallel_config_hash":
			part.kind, part.leaf = pack.String, constant(pack.AppendString(nil, "0123456789abcdef"))
		}
		if key.Optional {
			part.plain = []byte{}
		}
		b.all = append(b.all, part)
		n.parts, n.keys = append(n.parts, part), append(n.keys, key.Name)
	}
	return n
}

// registered are the keys of the registration that the line's own engine sends, but for those that are None.
func registered(codec *protocol.Codec) map[string][]byte {
	ready := protocol.DefaultReady(codec.Profile().Version)
	ready.MaxModelLen, ready.NumGPUBlocks, ready.InstanceID = 2048, 256, "engine"
	values := map[string][]byte{}
	for v := range protocol.ViewOf(codec.AppendReady(nil, &ready)).Parts() {
		if v.Given() {
			values[v.Name()] = v.Bytes()
		}
	}
	return values
}

// isWithin reports whether a node is another or lies within it.
func (n *node) isWithin(other *node) bool {
	for ; n != nil; n = n.parent {
		if n == other {
			return true
		}
	}
	return false
}

// A tamper is what is done to one place of a message.
type tamper struct {
	at      *node
	variant string
	open    []string // places beside it that have their samples
	// instead is what is there instead of the sample; nil leaves it.
	instead func(sample []byte) []byte
	missing bool // the place and, in an array, what is behind it
}

// encode appends the sample of a node, as it is tampered with.
func (t *tamper) encode(b []byte, n *node, f facts) []byte {
	if n == t.at && t.instead != nil {
		return append(b, t.instead(t.sample(nil, n, f))...)
	}
	if n.plain != nil && !t.at.isWithin(n) && !slices.Contains(t.open, n.place) {
		return append(b, n.plain...)
	}
	return t.sample(b, n, f)
}

// sample appends the sample of a node, whatever is to stand there.
func (t *tamper) sample(b []byte, n *node, f facts) []byte {
	if n.leaf != nil {
		return append(b, n.leaf(f)...)
	}
	parts := n.parts
	if t.missing && t.at.parent == n && n.form != structMap {
		parts = parts[:slices.Index(parts, t.at)]
	}
	if n.form != structMap && n.form != dict {
		b = pack.AppendArrayHeader(b, len(parts))
		for _, p := range parts {
			b = t.encode(b, p, f)
		}
		return b
	}
	var body []byte
	count := 0
	for i, p := range parts {
		value := t.encode(nil, p, f)
		if len(value) == 0 || t.missing && t.at == p {
			continue
		}
		count++
		body = append(pack.AppendString(body, n.keys[i]), value...)
	}
	return append(pack.AppendMapHeader(b, count), body...)
}
