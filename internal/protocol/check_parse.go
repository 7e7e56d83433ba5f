package protocol

import (
	"strconv"
	"strings"

	"github.com/vllm-vcr/conformance/internal/pack"
)

// utilityCallType stands for the payload of a UTILITY message, which has no struct
// of its own.
const utilityCallType = "UtilityCall"

// Types that an annotation names and the profile does not declare: aliases, enums
// and classes of vLLM, as the wire shows them.
var (
	// vllm/v1/engine/__init__.py EngineCoreEventType
	eventType = enumShape{text: "EngineCoreEventType", codes: []int64{1, 2, 3}}
	// vllm/sampling_params.py RequestOutputKind
	outputKind = enumShape{text: "RequestOutputKind", codes: []int64{0, 1, 2}}
	// vllm/v1/engine/__init__.py PauseMode
	pauseMode = literalShape{text: "PauseMode", words: []string{"abort", "wait", "keep"}}
)

// parse reads a Python annotation.
func (r *rules) parse(annotation string) shape {
	annotation = strings.TrimSpace(annotation)
	options := splitTop(annotation, '|')
	if len(options) == 1 {
		return r.parseOne(annotation)
	}
	u := unionShape{text: annotation}
	for _, o := range options {
		u.options = append(u.options, r.parse(o))
	}
	return u
}

func (r *rules) parseOne(annotation string) shape {
	name, inner := annotation, ""
	if at := strings.IndexByte(annotation, '['); at >= 0 {
		name = annotation[:at]
		inner, _ = enclosed(annotation)
	}
	args := splitTop(inner, ',')
	switch name {
	case "list", "set", "frozenset", "Sequence":
		return listShape{text: annotation, element: r.argument(args, 0)}
	case "tuple":
		return r.parseTuple(annotation, args)
	case "dict", "Mapping":
		return dictShape{text: annotation, key: r.argument(args, 0), value: r.argument(args, 1)}
	case "Optional":
		return unionShape{text: annotation, options: []shape{r.argument(args, 0), kindShape{"None", pack.Nil}}}
	case "Annotated":
		return r.argument(args, 0)
	case "Literal":
		return parseLiteral(annotation, args)
	case "Callable": // a pickled function
		return kindShape{annotation, pack.Ext}
	}
	return r.parseName(annotation)
}

// argument parses one of the types in brackets. A bare list holds anything.
func (r *rules) argument(args []string, i int) shape {
	if i >= len(args) {
		return anyShape{}
	}
	return r.parse(args[i])
}

// parseTuple tells tuple[int, ...], as long as you like, from tuple[int, str].
func (r *rules) parseTuple(annotation string, args []string) shape {
	if len(args) == 0 || len(args) == 2 && strings.TrimSpace(args[1]) == "..." {
		return listShape{text: annotation, element: r.argument(args, 0)}
	}
	t := tupleShape{text: annotation}
	for i := range args {
		t.elements = append(t.elements, r.argument(args, i))
	}
	return t
}

func parseLiteral(annotation string, args []string) shape {
	l := literalShape{text: annotation}
	for _, a := range args {
		l.words = append(l.words, strings.Trim(strings.TrimSpace(a), `'"`))
	}
	return l
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
	case "Any":
		return anyShape{}
	case "FinishReason":
		return finishShape(r.profile.FinishReasons())
	case "np.ndarray", "torch.Tensor":
		return tensorShape{text: name, torch: name == "torch.Tensor"}
	case "MultiModalKwargsItem": // vllm/multimodal/inputs.py: fields by name
		return dictShape{text: name, key: plainTypes["str"], value: r.parse("MultiModalFieldElem")}
	case "BaseMultiModalField":
		return fieldShape{batched: r.parse("MultiModalBatchedField"), flat: r.parse("MultiModalFlatField"), shared: r.parse("MultiModalSharedField")}
	case "slice": // vllm/v1/serial_utils.py: start, stop, step
		step := r.parse("int | None")
		return tupleShape{text: name, elements: []shape{step, step, step}}
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
	"PoolingTask": kindShape{"PoolingTask", pack.String}, "CacheHitSource": kindShape{"CacheHitSource", pack.String},
	"EEPNotificationType": kindShape{"EEPNotificationType", pack.String},
	"ExternalBlockHash":   unionShape{text: "ExternalBlockHash", options: []shape{kindShape{"bytes", pack.Bin}, kindShape{"int", pack.Int}}},
	// [type_info, value]: the value is of the method called.
	"UtilityResult": tupleShape{text: "UtilityResult", elements: []shape{anyShape{}, anyShape{}}},
	"NestedTensors": nestedShape{},
}

func finishShape(reasons map[string]int) shape {
	e := enumShape{text: "FinishReason"}
	for _, code := range reasons {
		e.codes = append(e.codes, int64(code))
	}
	return e
}

// enclosed returns what stands in the first pair of brackets or parentheses of s,
// and what follows the pair.
func enclosed(s string) (inner, rest string) {
	from := strings.IndexAny(s, "[(")
	if from < 0 {
		return "", s
	}
	var depth enclosure
	for i := from; i < len(s); i++ {
		if depth.take(s[i]); depth.outside() {
			return s[from+1 : i], s[i+1:]
		}
	}
	return s[from+1:], ""
}

// splitTop splits s at the separators that stand in no brackets and no quotes.
// Nothing has no parts.
func splitTop(s string, separator byte) []string {
	if strings.TrimSpace(s) == "" {
		return nil
	}
	var parts []string
	for {
		head, rest, found := cutTop(s, separator)
		parts = append(parts, strings.TrimSpace(head))
		if !found {
			return parts
		}
		s = rest
	}
}

// cutTop is strings.Cut at the first separator that stands in no brackets and no
// quotes.
func cutTop(s string, separator byte) (head, rest string, found bool) {
	var depth enclosure
	for i := range len(s) {
		if s[i] == separator && depth.outside() {
			return s[:i], s[i+1:], true
		}
		depth.take(s[i])
	}
	return s, "", false
}

// enclosure follows brackets and quotes.
type enclosure struct {
	open  int
	quote byte
}

func (n *enclosure) outside() bool { return n.open == 0 && n.quote == 0 }

func (n *enclosure) take(b byte) {
	switch {
	case n.quote != 0:
		if b == n.quote {
			n.quote = 0
		}
	case b == '\'' || b == '"':
		n.quote = b
	case strings.IndexByte("[({", b) >= 0:
		n.open++
	case strings.IndexByte("])}", b) >= 0:
		n.open--
	}
}

// counted is a number with its noun: "1 field", "20 fields".
func counted(n int, noun string) string {
	if n != 1 {
		noun += "s"
	}
	return strconv.Itoa(n) + " " + noun
}
