// Package jsonout writes JSON for people and programs alike: indented by two spaces, with a line end behind it, no HTML
// escapes, and nothing in it that a terminal or a CI service would act on ([safetext.JSON]). It also reads the JSON objects of flags.
package jsonout

import (
	"bytes"
	"encoding/json"
	"io"

	"github.com/vllm-vcr/conformance/internal/base/safetext"
)

// Write writes value to w, at once. The error is of the encoder or of w.
func Write(w io.Writer, value any) error {
	data, err := Bytes(value)
	if err != nil {
		return err
	}
	_, err = w.Write(data)
	return err
}

// Bytes returns what [Write] writes.
func Bytes(value any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(value); err != nil {
		return nil, err
	}
	return safetext.JSON(b.Bytes()), nil
}

// Line returns value in one line, with its end, for files of JSON lines.
func Line(value any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(value); err != nil {
		return nil, err
	}
	return safetext.JSON(b.Bytes()), nil
}
