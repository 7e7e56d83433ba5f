package frontendsuite

import (
	"embed"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/wire/pack"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// A probe is an HTTP request of which it is known what reaches the engine: what the released frontends of the line send.
type probe struct {
	Name string `json:"name"`
	// Chat is set for a request for a chat completion, else it is one for a completion of token ids.
	Chat bool   `json:"chat,omitempty"`
	Body object `json:"body"`
	// Header is sent with the request.
	Header map[string]string `json:"header,omitempty"`
	// Adapter is set for a request of the adapter that the check lora loads.
	Adapter bool `json:"adapter,omitempty"`
	// Core is set for parameters that every frontend takes.
	Core bool `json:"core,omitempty"`
}

//go:embed expected/probes.json
var probesText []byte

// expectedFiles have, for each line and released frontend, what that frontend sends: all fields of the first probe, and of each other
// one the fields that differ from the first one; of a chat, those that differ from the first chat.
//
//go:embed expected
var expectedFiles embed.FS

// references are the released frontends of a line, and the ends of the names of their files. A frontend is held to the one that it
// resembles most in the first probe; if it resembles both as much, to the first of them.
var references = []struct{ name, file string }{
	{"vllm-rs", ".json"},
	{pythonServer, "-python.json"},
}

const pythonServer = "Python server"

// probes are the requests, in their order.
func probes() ([]probe, error) {
	var all []probe
	return all, json.Unmarshal(probesText, &all)
}

// expectation is what reaches an engine of a line from one of its released frontends.
type expectation struct {
	frontend string // its name
	// Sampler is the tokens of the text [sampler], by which the model that the values were captured with is recognised.
	Sampler []uint32 `json:"sampler"`
	// EOS is the end of sequence of that model.
	EOS uint32 `json:"eos"`
	// Fields are those of each probe, by path. A probe that is missing was refused.
	Fields map[string]map[string]any `json:"fields"`
}

// is reports whether it is of this frontend.
func (x *expectation) is(frontend string) bool { return x != nil && x.frontend == frontend }

// expectationsOf returns those of a line that were captured.
func expectationsOf(line string) (all []*expectation, err error) {
	for _, r := range references {
		text, err := expectedFiles.ReadFile("expected/" + line + r.file)
		if err != nil {
			continue // the line has no such frontend
		}
		x := &expectation{frontend: r.name}
		if err := json.Unmarshal(text, x); err != nil {
			return nil, fmt.Errorf("%s: %w", line+r.file, err)
		}
		all = append(all, x)
	}
	return all, nil
}

// of is what is expected of a probe; nil if the frontend of the line refused it.
func (x *expectation) of(all []probe, name string) map[string]any {
	own := x.Fields[name]
	if own == nil {
		return nil
	}
	fields := map[string]any{}
	for _, base := range basesOf(all, name) {
		maps.Copy(fields, x.Fields[base])
	}
	maps.Copy(fields, own)
	return fields
}

// basesOf are the probes whose fields a probe has where it has no others: the first one, and of a chat the first chat.
func basesOf(all []probe, name string) []string {
	bases := []string{all[0].Name}
	chat := slices.IndexFunc(all, func(p probe) bool { return p.Chat })
	if at := slices.IndexFunc(all, func(p probe) bool { return p.Name == name }); chat >= 0 && at > chat && all[at].Chat {
		bases = append(bases, all[chat].Name)
	}
	return bases
}

// Names of values that differ from one request to the next, or between models.
const (
	anID     = "$id"        // a text that names the request
	aLonger  = "$id-random" // external_req_id, a hyphen, and 8 digits
	aClient  = "$client"    // the index of the process of the frontend
	aTime    = "$time"      // Unix seconds
	aPrompt  = "$prompt"    // the ids of the request
	aPath    = "$path"      // of the adapter
	theEOS   = "$eos"
	aWord    = "$word" // with a digit: an id that the tokenizer knows
	anyValue = "$any"
)

const (
	badWords    = "sampling_params._bad_words_token_ids"
	loadInPlace = "lora_request.load_inplace"
)

// ofTokenizer are the fields whose values are token ids of a text that the frontend has tokenized.
var ofTokenizer = []string{"prompt_token_ids", badWords}

// flatten returns the fields of a request by path, those of the structs in it too, as package json would decode their values. Fields
// that a map leaves out have their defaults.
func flatten(profile *protocol.Profile, payload []byte) (map[string]any, error) {
	if err := pack.Validate(payload); err != nil {
		return nil, err
	}
	all := map[string]any{}
	return all, flattenStruct(profile, "EngineCoreRequest", "", payload, all)
}

func flattenStruct(profile *protocol.Profile, name, prefix string, raw []byte, all map[string]any) error {
	declared := profile.Structs[name]
	root := protocol.ViewOf(raw)
	if root.Kind() == pack.Nil {
		all[strings.TrimSuffix(prefix, ".")] = nil
		return nil
	}
	for i, f := range declared.Fields {
		value := root.Field(f.Name)
		if root.Kind() == pack.Array {
			value = root.At(i)
		}
		path := prefix + f.Name
		if value.IsAbsent() {
			var fallback any
			_ = json.Unmarshal(f.Default, &fallback) // none means nil
			all[path] = fallback
			continue
		}
		if inner := structOf(profile, f.Type); inner != "" {
			if err := flattenStruct(profile, inner, path+".", value.Bytes(), all); err != nil {
				return err
			}
			continue
		}
		cur := pack.NewCursor(value.Bytes())
		plain, err := plainValue(&cur)
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		all[path] = plain
	}
	return nil
}

// structOf is the struct that a field holds, "" for another value.
func structOf(profile *protocol.Profile, annotation string) string {
	for _, option := range protocol.ParsePyType(annotation).Options() {
		if _, is := profile.Structs[option.Name]; is {
			return option.Name
		}
	}
	return ""
}

// symbolic puts the names of values that are not the same in each run in the place of these.
func (k *frontendCase) symbolic(fields map[string]any, h *heard, prompt []uint32) {
	external, _ := fields["external_req_id"].(string)
	const digits = 8
	if id, is := fields["request_id"].(string); is && external != "" && strings.HasPrefix(id, external+"-") && len(id) == len(external)+1+digits {
		fields["request_id"] = aLonger
	} else if is && id != "" {
		fields["request_id"] = anID
	}
	if external != "" && !strings.Contains(external, clientsID) {
		fields["external_req_id"] = anID
	}
	if fields["client_index"] == float64(h.client) {
		fields["client_index"] = aClient
	}
	if seconds, is := fields["arrival_time"].(float64); is && seconds >= year2020 {
		fields["arrival_time"] = aTime
	}
	if prompt != nil && sameCarried(listOf(prompt), fields["prompt_token_ids"]) {
		fields["prompt_token_ids"] = aPrompt
	}
	if fields["lora_request.lora_path"] == adapterPath {
		fields["lora_request.lora_path"] = aPath
	}
	for _, name := range []string{"_eos_token_id", "_all_stop_token_ids", "stop_token_ids", "allowed_token_ids", "logit_bias", "logprob_token_ids"} {
		if path := "sampling_params." + name; fields[path] != nil {
			fields[path] = k.named(fields[path])
		}
	}
}

// clientsID is the request id that a probe asks for.
const clientsID = "named-by-the-client"

// named puts names in the place of the end of sequence and of words.
func (k *frontendCase) named(v any) any {
	switch v := v.(type) {
	case float64:
		if k.eos != nil && v == float64(*k.eos) {
			return theEOS
		}
		for i, word := range k.vocabulary() {
			if v == float64(word) {
				return fmt.Sprint(aWord, i)
			}
		}
	case []any:
		list := make([]any, len(v))
		for i := range v {
			list[i] = k.named(v[i])
		}
		return list
	case map[string]any:
		all := map[string]any{}
		for key, value := range v {
			for i, word := range k.vocabulary() {
				if key == fmt.Sprint(word) {
					key = fmt.Sprint(aWord, i)
				}
			}
			all[key] = value
		}
		return all
	}
	return v
}

// vocabulary are the ids that probes name.
func (k *frontendCase) vocabulary() []uint32 {
	k.learn()
	return k.alphabet[len(k.alphabet)-min(3, len(k.alphabet)):]
}

// written puts the ids of the tokenizer in the place of names, in the body of a probe.
func (k *frontendCase) written(v any) any {
	switch v := v.(type) {
	case string:
		for i, word := range k.vocabulary() {
			if v == fmt.Sprint(aWord, i) {
				return word
			}
		}
	case []any:
		list := make([]any, len(v))
		for i := range v {
			list[i] = k.written(v[i])
		}
		return list
	case map[string]any:
		all := map[string]any{}
		for key, value := range v {
			if id, is := k.written(key).(uint32); is {
				key = fmt.Sprint(id)
			}
			all[key] = k.written(value)
		}
		return all
	}
	return v
}

// differing are the paths at which a request is not as expected, sorted.
func differing(want, got map[string]any) []string {
	paths := map[string]bool{}
	for path := range got {
		paths[path] = true
	}
	for path := range want {
		paths[path] = true
	}
	maps.DeleteFunc(paths, func(path string, _ bool) bool { return sameExpected(want[path], got[path]) })
	return slices.Sorted(maps.Keys(paths))
}

// sameExpected compares an expected value with one that was sent. The order of stop ids, which is that of a set, does not count.
func sameExpected(want, got any) bool {
	if want == anyValue || sameCarried(want, got) {
		return true
	}
	if text, is := want.(string); is && strings.HasPrefix(text, "{") {
		var a, b any // the order of keys does not count
		other, _ := got.(string)
		return json.Unmarshal([]byte(text), &a) == nil && json.Unmarshal([]byte(other), &b) == nil && sameCarried(a, b)
	}
	w, isW := want.([]any)
	g, isG := got.([]any)
	if !isW || !isG || len(w) != len(g) {
		return false
	}
	for _, v := range w {
		if !slices.ContainsFunc(g, func(other any) bool { return sameCarried(v, other) }) {
			return false
		}
	}
	return true
}

// compareProbe reports where a request differs from what the reference sends for the same HTTP request. A difference that
// an earlier request had too is one failure.
func (k *frontendCase) compareProbe(p probe, h *heard, paths []string, want, got map[string]any) {
	for _, path := range paths {
		k.Asserted++
		key := path + asJSON(want[path]) + asJSON(got[path])
		if k.told[key] {
			continue
		}
		k.told[key] = true
		k.fail(check.Failed(CodeCarried, "request with %s: the engine got %s = %s, but the %s of line %s sends %s for the same HTTP request", p.Name, path,
			asJSON(got[path]), k.reference.frontend, k.line.Name, asJSON(want[path])).Within(h.number, "EngineCoreRequest."+path).Compared(asJSON(want[path]), asJSON(got[path])))
	}
}
