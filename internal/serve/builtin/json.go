package builtin

import (
	"bytes"
	"encoding/json"
	"math"
	"strconv"
	"strings"
	"sync"
)

// Answers are structs with tags: the order of the fields is that of vLLM.

// A jsonBuffer is what JSON is written into.
type jsonBuffer struct {
	bytes.Buffer
	encoder *json.Encoder
}

var jsonBuffers = sync.Pool{New: func() any {
	b := &jsonBuffer{}
	b.encoder = json.NewEncoder(&b.Buffer)
	b.encoder.SetEscapeHTML(false)
	return b
}}

func newJSONBuffer() *jsonBuffer {
	b := jsonBuffers.Get().(*jsonBuffer)
	b.Reset()
	return b
}

// release gives a buffer back.
func (b *jsonBuffer) release() {
	if b.Cap() <= maxKept {
		jsonBuffers.Put(b)
	}
}

// value writes a value, and a line end that does not count.
func (b *jsonBuffer) value(v any) {
	if b.encoder.Encode(v) != nil { // JSON of a client that is not valid
		b.WriteString("null\n")
	}
}

// toJSON returns a value as JSON.
func toJSON(v any) json.RawMessage {
	b := newJSONBuffer()
	defer b.release()
	b.value(v)
	return bytes.Clone(bytes.TrimSuffix(b.Bytes(), []byte("\n")))
}

// none is a member that is always null.
type none = *struct{}

// orNull is a text, null for "".
func orNull(text string) *string {
	if text == "" {
		return nil
	}
	return &text
}

// idsIf are ids if they are wanted: nil is null, or a member that is left out.
func idsIf(wanted bool, ids []uint32) []uint32 {
	if wanted && ids == nil {
		return []uint32{}
	}
	if !wanted {
		return nil
	}
	return ids
}

// An object keeps the order of its members.
type object []member

type member struct {
	name  string
	value any
}

// MarshalJSON implements [json.Marshaler]. A nil object is null.
func (o object) MarshalJSON() ([]byte, error) {
	if o == nil {
		return []byte("null"), nil
	}
	b := []byte{'{'}
	for i, m := range o {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(append(append(b, toJSON(m.name)...), ':'), toJSON(m.value)...)
	}
	return append(b, '}'), nil
}

// lowestLogprob is the least that an answer has (clamp_logprob of vLLM): JSON has no infinity.
const lowestLogprob = -9999

// A logprob is written as vLLM writes a float of 32 bits.
type logprob float32

// MarshalJSON implements [json.Marshaler].
func (v logprob) MarshalJSON() ([]byte, error) {
	if !(v > lowestLogprob) {
		v = lowestLogprob
	}
	format, size := byte('f'), math.Abs(float64(v))
	switch {
	case size == math.Trunc(size):
		return strconv.AppendFloat(nil, float64(v), format, 1, 32), nil
	case size < 1e-5:
		format = 'e'
	}
	return strconv.AppendFloat(nil, float64(v), format, -1, 32), nil
}

// A float is written as Python writes it: 1.0 for 1.
type float float64

// MarshalJSON implements [json.Marshaler].
func (v float) MarshalJSON() ([]byte, error) {
	text := strconv.FormatFloat(float64(v), 'g', -1, 64)
	if !strings.ContainsAny(text, ".e") {
		text += ".0"
	}
	return []byte(text), nil
}

// spacedJSON is JSON as Python writes it, with a space behind each comma and colon. What is not JSON stays as it is.
func spacedJSON(raw []byte) string {
	var compact bytes.Buffer
	if json.Compact(&compact, raw) != nil {
		return string(raw)
	}
	var b []byte
	quoted := false
	for i, text := 0, compact.Bytes(); i < len(text); i++ {
		b = append(b, text[i])
		switch ch := text[i]; {
		case quoted && ch == '\\':
			i++
			b = append(b, text[i])
		case ch == '"':
			quoted = !quoted
		case !quoted && (ch == ',' || ch == ':'):
			b = append(b, ' ')
		}
	}
	return string(b)
}

// textPart is a text as a part of a content.
func textPart(text string) any { return object{{"type", "text"}, {"text", text}} }
