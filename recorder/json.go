package recorder

import (
	"bytes"
	"encoding/json"
	"strconv"

	"github.com/vllm-vcr/conformance/internal/wire/pack"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// samplingWriter writes what a request's SamplingParams have other than the defaults
// of the line (vllm/sampling_params.py) as a JSON object.
//
// Only numbers, truth values and stop_token_ids are written, and under
// "structured_output" which kind of grammar there is: everything else, from stop
// strings to forced token ids, reveals the content, and is written only with
// content.
type samplingWriter struct {
	defaults map[string]string // compact JSON, "null" where the default is None
	content  bool
	value    []byte // scratch

	raw, text []byte // of the last request: the next one's are mostly the same
}

func newSamplingWriter(p *protocol.Profile, content bool) *samplingWriter {
	w := &samplingWriter{defaults: make(map[string]string), content: content}
	for _, f := range p.Structs["SamplingParams"].Fields {
		w.defaults[f.Name] = defaultJSON(f.Default)
	}
	return w
}

func defaultJSON(raw json.RawMessage) string {
	var out bytes.Buffer
	if len(raw) == 0 || json.Compact(&out, raw) != nil {
		return "null"
	}
	return out.String()
}

// append appends the object; nothing if all is default. raw must be well formed.
func (w *samplingWriter) append(b, raw []byte) []byte {
	const most = 64 << 10 // bytes that are worth keeping
	if len(raw) > most {
		return w.object(b, raw)
	}
	if !bytes.Equal(raw, w.raw) {
		w.raw = append(w.raw[:0], raw...)
		w.text = w.object(w.text[:0], raw)
	}
	return append(b, w.text...)
}

func (w *samplingWriter) object(b, raw []byte) []byte {
	open := len(b)
	cur := pack.NewCursor(raw)
	n, err := cur.MapLen()
	if err != nil {
		return b
	}
	for range n {
		key, err := cur.Str()
		if err != nil {
			return b[:open]
		}
		value, err := cur.Raw()
		if err != nil {
			return b[:open]
		}
		b = w.member(b, open, string(key), value)
	}
	if len(b) == open {
		return b
	}
	return append(b, '}')
}

// member appends one key if it is worth it.
func (w *samplingWriter) member(b []byte, open int, key string, raw []byte) []byte {
	if key == "_all_stop_token_ids" { // the union of two other keys
		return b
	}
	if key == "structured_outputs" {
		if kind := structuredKind(raw); kind != "" {
			b = pack.AppendJSONString(appendName(b, open, "structured_output"), kind)
		}
	}
	if !w.content && isContent(key, raw) {
		return b
	}
	cur := pack.NewCursor(raw)
	w.value, _ = cur.AppendJSON(w.value[:0]) // it is well formed
	if w.isDefault(key, string(w.value)) {
		return b
	}
	return append(appendName(b, open, key), w.value...)
}

// isContent reports whether a parameter may reveal what a request is about.
func isContent(key string, raw []byte) bool {
	cur := pack.NewCursor(raw)
	switch cur.Kind() {
	case pack.Nil, pack.Bool, pack.Int, pack.Float:
		return false
	case pack.Array:
		return key != "stop_token_ids" || !allIntegers(cur)
	}
	return true
}

func allIntegers(cur pack.Cursor) bool {
	n, err := cur.ArrayLen()
	for i := 0; i < n && err == nil; i++ {
		_, err = cur.Int()
	}
	return err == nil
}

// isDefault compares numbers by value: a frontend writes 1.0 where the profile
// has 1. An empty list is as good as none.
func (w *samplingWriter) isDefault(key, value string) bool {
	def, known := w.defaults[key]
	if value == "null" || value == "[]" {
		return !known || def == "null" || def == value
	}
	if value == def {
		return true
	}
	a, errA := strconv.ParseFloat(value, 64)
	b, errB := strconv.ParseFloat(def, 64)
	return errA == nil && errB == nil && a == b
}

// structuredKind names the grammar of a StructuredOutputsParams map, "" if there
// is none.
func structuredKind(raw []byte) string {
	cur := pack.NewCursor(raw)
	n, err := cur.MapLen()
	if err != nil {
		return ""
	}
	for range n {
		key, err := cur.Str()
		if err != nil {
			return ""
		}
		value, err := cur.Raw()
		if err != nil {
			return ""
		}
		switch kind := string(key); kind {
		case "json", "regex", "choice", "grammar", "json_object", "structural_tag":
			if v := pack.NewCursor(value); v.Kind() != pack.Nil && !isFalse(v) {
				return kind
			}
		}
	}
	return ""
}

func isFalse(cur pack.Cursor) bool {
	v, err := cur.Bool()
	return err == nil && !v
}

// appendName appends the key of a member to an object that begins at open, and
// with the first member its brace.
func appendName(b []byte, open int, key string) []byte {
	lead := byte(',')
	if len(b) == open {
		lead = '{'
	}
	return append(pack.AppendJSONString(append(b, lead), key), ':')
}
