package chart

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"

	"sigs.k8s.io/yaml"

	"github.com/vllm-vcr/conformance/internal/base/jsonout"
)

// Format is how objects are written.
type Format string

// Formats.
const (
	YAML Format = "yaml"
	JSON Format = "json"
)

// Formats are all formats, the usual one first.
func Formats() []Format { return []Format{YAML, JSON} }

// Write writes objects as the API server takes them: YAML documents, or JSON, which of several is a List. What says
// nothing is left out, and the same objects always give the same bytes.
func Write(w io.Writer, format Format, objects ...any) error {
	plain := make([]any, len(objects))
	for i, o := range objects {
		var err error
		if plain[i], err = Plain(o); err != nil {
			return err
		}
	}
	var text bytes.Buffer
	if err := encode(&text, format, plain); err != nil {
		return err
	}
	_, err := w.Write(text.Bytes())
	return err
}

func encode(w *bytes.Buffer, format Format, objects []any) error {
	if format == JSON {
		if len(objects) == 1 {
			return jsonout.Write(w, objects[0])
		}
		return jsonout.Write(w, map[string]any{"apiVersion": "v1", "kind": "List", "items": objects})
	}
	for i, o := range objects {
		text, err := yaml.Marshal(o)
		if err != nil {
			return err
		}
		if i > 0 {
			w.WriteString("---\n")
		}
		w.Write(text)
	}
	return nil
}

// Plain is an object as it is sent to the API server: without its status, and without nulls.
func Plain(object any) (map[string]any, error) {
	text, err := json.Marshal(object)
	if err != nil {
		return nil, fmt.Errorf("write %T: %w", object, err)
	}
	var plain map[string]any
	if err := json.Unmarshal(text, &plain); err != nil {
		return nil, fmt.Errorf("write %T: %w", object, err)
	}
	delete(plain, "status")
	return tidy(plain).(map[string]any), nil
}

// tidy takes out nulls, and makes whole numbers whole in Go, too.
func tidy(value any) any {
	switch v := value.(type) {
	case map[string]any:
		for key, inner := range v {
			if inner == nil {
				delete(v, key)
				continue
			}
			v[key] = tidy(inner)
		}
	case []any:
		for i, inner := range v {
			v[i] = tidy(inner)
		}
	case float64:
		if whole := int64(v); float64(whole) == v {
			return whole
		}
	}
	return value
}
