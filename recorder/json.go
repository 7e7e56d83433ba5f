package recorder

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"math"
	"strconv"
	"unicode/utf8"

	"github.com/vllm-vcr/conformance/internal/wire/pack"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// appendJSON reads one msgpack value, which must be well formed, and appends it
// as JSON. Keys that are no strings become strings, bytes become base64, and
// what JSON has no form for (NaN, extensions) becomes null.
func appendJSON(b []byte, cur *pack.Cursor) []byte {
	switch cur.Kind() {
	case pack.Bool:
		v, _ := cur.Bool()
		return strconv.AppendBool(b, v)
	case pack.Int:
		return appendInteger(b, cur)
	case pack.Float:
		return appendNumber(b, cur)
	case pack.String:
		s, _ := cur.Str()
		return appendText(b, s)
	case pack.Bin:
		data, _ := cur.Bin()
		return append(base64.StdEncoding.AppendEncode(append(b, '"'), data), '"')
	case pack.Array:
		n, _ := cur.ArrayLen()
		b = append(b, '[')
		for i := range n {
			if i > 0 {
				b = append(b, ',')
			}
			b = appendJSON(b, cur)
		}
		return append(b, ']')
	case pack.Map:
		return appendMap(b, cur)
	default:
		_ = cur.Skip()
		return append(b, "null"...)
	}
}

func appendMap(b []byte, cur *pack.Cursor) []byte {
	n, _ := cur.MapLen()
	b = append(b, '{')
	for i := range n {
		if i > 0 {
			b = append(b, ',')
		}
		if cur.Kind() == pack.String {
			b = appendJSON(b, cur)
		} else {
			b = appendText(b, appendJSON(nil, cur))
		}
		b = appendJSON(append(b, ':'), cur)
	}
	return append(b, '}')
}

func appendInteger(b []byte, cur *pack.Cursor) []byte {
	if v, err := cur.Int(); err == nil {
		return strconv.AppendInt(b, v, 10)
	}
	v, _ := cur.Uint()
	return strconv.AppendUint(b, v, 10)
}

// appendNumber writes the shortest decimal that reads back at the width the
// value had: a float32 of 0.9 is 0.9.
func appendNumber(b []byte, cur *pack.Cursor) []byte {
	const float32Tag = 0xca
	width := 64
	if cur.Rest()[0] == float32Tag {
		width = 32
	}
	v, _ := cur.Float()
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return append(b, "null"...)
	}
	start := len(b)
	b = strconv.AppendFloat(b, v, 'g', -1, width)
	for _, ch := range b[start:] {
		if ch == '.' || ch == 'e' {
			return b
		}
	}
	return append(b, ".0"...)
}

// appendText appends text as a JSON string. Ids and reasons come from users and
// need not be UTF-8; what is not is replaced.
func appendText[T string | []byte](b []byte, text T) []byte {
	const hex = "0123456789abcdef"
	b = append(b, '"')
	for i := 0; i < len(text); {
		ch := text[i]
		if ch >= utf8.RuneSelf {
			r, size := utf8.DecodeRuneInString(string(text[i:min(i+utf8.UTFMax, len(text))]))
			b = utf8.AppendRune(b, r)
			i += size
			continue
		}
		switch {
		case ch == '"' || ch == '\\':
			b = append(b, '\\', ch)
		case ch < ' ':
			b = append(b, `\u00`...)
			b = append(b, hex[ch>>4], hex[ch&15])
		default:
			b = append(b, ch)
		}
		i++
	}
	return append(b, '"')
}

// samplingWriter writes what a request's SamplingParams have other than the defaults
// of the line (vllm/sampling_params.py) as a JSON object.
//
// Only numbers, truth values and stop_token_ids are written, and under
// "structured_output" which kind of grammar there is: everything else, from stop
// strings to forced token ids, tells of the content, and is written only with
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
			b = appendText(appendName(b, open, "structured_output"), kind)
		}
	}
	if !w.content && isContent(key, raw) {
		return b
	}
	cur := pack.NewCursor(raw)
	w.value = appendJSON(w.value[:0], &cur)
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
	return append(appendText(append(b, lead), key), ':')
}
