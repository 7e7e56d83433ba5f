package grammar

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"github.com/vllm-vcr/conformance/internal/base/safetext"
)

// object is a JSON object that keeps the order of its members: texts have the
// members in the order of the schema. Of members of the same name the last counts.
//
// The other JSON values are nil, bool, json.Number, string and []any.
type object struct {
	keys   []string
	values map[string]any
}

func (o *object) get(key string) (any, bool) {
	v, ok := o.values[key]
	return v, ok
}

// parseJSON reads one value, and no more.
func parseJSON(w *Work, text string) (any, error) {
	w.spend(1 + len(text)/16)
	if !utf8.ValidString(text) {
		return nil, errors.New("JSON is not UTF-8")
	}
	d := json.NewDecoder(strings.NewReader(text))
	d.UseNumber()
	v, err := parseValue(w, d, 0)
	if err != nil {
		return nil, fmt.Errorf("JSON: %w", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("JSON: something follows the value at byte %d", d.InputOffset())
	}
	return v, nil
}

// maxDepth bounds how deep values may be nested.
const maxDepth = 256

func parseValue(w *Work, d *json.Decoder, depth int) (any, error) {
	if depth > maxDepth {
		return nil, fmt.Errorf("nested more than %d deep", maxDepth)
	}
	w.spend(3)
	w.kept += 96
	token, err := d.Token()
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return nil, err
	}
	switch token {
	case json.Delim('{'):
		return parseObject(w, d, depth)
	case json.Delim('['):
		items := []any{}
		for d.More() {
			v, err := parseValue(w, d, depth+1)
			if err != nil {
				return nil, err
			}
			items = append(items, v)
		}
		_, err := d.Token()
		return items, err
	}
	return token, nil
}

func parseObject(w *Work, d *json.Decoder, depth int) (any, error) {
	o := &object{values: map[string]any{}}
	w.kept += 128
	for d.More() {
		w.spend(5)
		w.kept += 128
		key, err := d.Token()
		if err != nil {
			return nil, err
		}
		v, err := parseValue(w, d, depth+1)
		if err != nil {
			return nil, err
		}
		name, _ := key.(string) // the decoder refuses any other
		if _, known := o.values[name]; !known {
			o.keys = append(o.keys, name)
		}
		o.values[name] = v
	}
	_, err := d.Token()
	return o, err
}

// appendJSON writes a value without white space.
func appendJSON(b []byte, v any) []byte {
	switch v := v.(type) {
	case nil:
		return append(b, "null"...)
	case bool:
		if v {
			return append(b, "true"...)
		}
		return append(b, "false"...)
	case json.Number:
		return append(b, v...)
	case string:
		return appendQuoted(b, v)
	case []any:
		b = append(b, '[')
		for i, item := range v {
			if i > 0 {
				b = append(b, ',')
			}
			b = appendJSON(b, item)
		}
		return append(b, ']')
	case *object:
		b = append(b, '{')
		for i, key := range v.keys {
			if i > 0 {
				b = append(b, ',')
			}
			b = append(appendQuoted(b, key), ':')
			b = appendJSON(b, v.values[key])
		}
		return append(b, '}')
	}
	return b
}

// maxShown is how many characters of a value an error repeats.
const maxShown = 100

// shown is a value in an error.
func shown(v any) string {
	switch v.(type) {
	case []any:
		return "a list"
	case *object:
		return "an object"
	}
	return safetext.Clip(string(appendJSON(nil, v)), maxShown)
}

const hex = "0123456789abcdef"

// appendQuoted writes a JSON string that escapes nothing but what must be.
func appendQuoted(b []byte, s string) []byte {
	b = append(b, '"')
	for i := range len(s) {
		switch c := s[i]; {
		case c == '"', c == '\\':
			b = append(b, '\\', c)
		case c == '\n':
			b = append(b, '\\', 'n')
		case c == '\r':
			b = append(b, '\\', 'r')
		case c == '\t':
			b = append(b, '\\', 't')
		case c < ' ':
			b = append(b, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		default:
			b = append(b, c)
		}
	}
	return append(b, '"')
}
