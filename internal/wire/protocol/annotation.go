package protocol

import (
	"encoding/json"
	"strings"

	"github.com/vllm-vcr/conformance/internal/wire/pack"
)

// utilityCallType is the payload of a UTILITY message, which has no struct
// of its own.
const utilityCallType = "UtilityCall"

// Types that an annotation names and the profile does not declare: aliases, enums
// and classes of vLLM, as the wire shows them.
var (
	// vllm/v1/engine/__init__.py EngineCoreEventType
	eventType = newEnum("EngineCoreEventType", 1, 2, 3)
	// vllm/sampling_params.py RequestOutputKind
	outputKind = newEnum("RequestOutputKind", 0, 1, 2)
	// vllm/v1/engine/__init__.py PauseMode
	pauseMode = newLiteral("PauseMode", "abort", "wait", "keep")
)

// parse finds what an annotation allows.
func (r *rules) parse(annotation string) shape { return r.shape(ParsePyType(annotation)) }

func (r *rules) shape(t PyType) shape {
	text := t.String()
	argument := func(i int) shape {
		if i >= len(t.Args) { // a bare list holds anything
			return anyShape{}
		}
		return r.shape(t.Args[i])
	}
	if t.Kind == PyUnion {
		u := unionShape{text: text}
		for i := range t.Args {
			u.options = append(u.options, argument(i))
		}
		return u
	}
	switch t.Name {
	case "list", "set", "frozenset", "Sequence":
		return listShape{kindShape{text, pack.Array}, argument(0)}
	case "tuple":
		if n := len(t.Args); n == 0 || n == 2 && t.Args[1].Name == "..." { // as long as you like
			return listShape{kindShape{text, pack.Array}, argument(0)}
		}
		s := tupleShape{kindShape: kindShape{text, pack.Array}}
		for i := range t.Args {
			s.elements = append(s.elements, argument(i))
		}
		return s
	case "dict", "Mapping":
		return dictShape{kindShape{text, pack.Map}, argument(0), argument(1)}
	case "Annotated":
		return argument(0)
	case "Literal":
		l := newLiteral(text)
		for _, value := range t.Args {
			l.words = append(l.words, strings.Trim(value.Name, `'"`))
		}
		return l
	case "Callable": // a pickled function
		return kindShape{text, pack.Ext}
	}
	return r.parseName(text)
}

// parseName finds what a plain name means.
func (r *rules) parseName(name string) shape {
	if s, declared := r.structs[name]; declared {
		return s
	}
	if kinds, known := plainTypes[name]; known {
		return kinds
	}
	switch name {
	case "CacheHitSource": // the Python client makes a member of it
		words := newLiteral(name)
		for _, m := range r.profile.Enums[name].Members {
			var word string
			if json.Unmarshal(m.Value, &word) == nil {
				words.words = append(words.words, word)
			}
		}
		if words.words == nil {
			return kindShape{name, pack.String}
		}
		return words
	case "Any":
		return anyShape{}
	case "FinishReason":
		e := newEnum("FinishReason")
		for _, code := range r.profile.FinishReasons() {
			e.codes = append(e.codes, int64(code))
		}
		return e
	case "np.ndarray", "torch.Tensor":
		return newTensor(name)
	case "MultiModalKwargsItem": // vllm/multimodal/inputs.py: fields by name
		return dictShape{kindShape{name, pack.Map}, plainTypes["str"], r.parse("MultiModalFieldElem")}
	case "BaseMultiModalField":
		return fieldShape{batched: r.parse("MultiModalBatchedField"), flat: r.parse("MultiModalFlatField"), shared: r.parse("MultiModalSharedField")}
	case "slice": // vllm/v1/serial_utils.py: start, stop, step
		step := r.parse("int | None")
		return tupleShape{kindShape{name, pack.Array}, []shape{step, step, step}}
	case utilityCallType:
		return callShape{}
	}
	r.unknown[name] = true
	return anyShape{}
}

// plainTypes need no profile.
var plainTypes = map[string]shape{
	"None": kindShape{"None", pack.Nil}, "bool": kindShape{"bool", pack.Bool}, "int": kindShape{"int", pack.Int},
	"str": kindShape{"str", pack.String}, "bytes": kindShape{"bytes", pack.Bin}, "float": floatShape{},
	"EngineCoreEventType": eventType, "RequestOutputKind": outputKind, "PauseMode": pauseMode,
	// Words whose list grows with the releases.
	"PoolingTask": kindShape{"PoolingTask", pack.String}, "EEPNotificationType": kindShape{"EEPNotificationType", pack.String},
	"ExternalBlockHash": unionShape{text: "ExternalBlockHash", options: []shape{kindShape{"bytes", pack.Bin}, kindShape{"int", pack.Int}}},
	// [type_info, value]: the value is of the method called.
	"UtilityResult": tupleShape{kindShape{"UtilityResult", pack.Array}, []shape{anyShape{}, anyShape{}}},
	"NestedTensors": nestedShape{},
}

// FieldName names a position of an array-encoded struct for [pack.Diff], so that a difference reads
// EngineCoreOutputs.outputs[0].prefill_stats. The path is the one reached so far; an empty result means an ordinary array.
func (c *Codec) FieldName(path string, index int) string {
	parts := strings.Split(path, ".")
	s := c.rules().structs[parts[0]]
	for _, part := range parts[1:] {
		name, _, isElement := strings.Cut(part, "[")
		if s == nil || s.declared.Index(name) < 0 {
			return ""
		}
		s = structIn(s.types[s.declared.Index(name)], isElement)
	}
	if s == nil || s.declared.Encoding != "array" || index >= len(s.types) {
		return ""
	}
	return s.declared.Fields[index].Name
}

// structIn returns the struct that a field holds, or that an element of it is, where no value but None may be another.
func structIn(of shape, element bool) *structShape {
	if u, isUnion := of.(unionShape); isUnion && len(u.options) == 2 && u.options[1].String() == "None" {
		of = u.options[0]
	}
	if list, isList := of.(listShape); isList && element {
		of, element = list.element, false
	}
	s, isStruct := of.(*structShape)
	if element || !isStruct {
		return nil
	}
	return s
}
