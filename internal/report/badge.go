package report

import (
	"encoding/json"
	"fmt"
	"io"

	"github.com/vllm-vcr/conformance/internal/base/plural"
	"github.com/vllm-vcr/conformance/internal/base/safetext"

	"github.com/vllm-vcr/conformance/conformance"
)

// Badge is what shields.io draws a badge of, by its endpoint API.
type Badge struct {
	SchemaVersion int    `json:"schemaVersion"` // 1
	Label         string `json:"label"`
	Message       string `json:"message"`
	Color         string `json:"color"`
	IsError       bool   `json:"isError,omitempty"`
}

// BadgeOf is the badge of a line.
func BadgeOf(l Line) Badge {
	b := Badge{SchemaVersion: 1, Label: safetext.Line("vLLM " + l.Line), Message: "conforms", Color: "brightgreen"}
	failed, errors := l.Counts[conformance.Fail]+l.Counts[conformance.XPass], l.Counts[conformance.Error]
	switch {
	case failed > 0:
		b.Message, b.Color, b.IsError = fmt.Sprintf("%d failed", failed), "red", true
	case errors > 0:
		b.Message, b.Color, b.IsError = "not judged: "+plural.Count(errors, "error"), "orange", true
	case l.Asserted == 0:
		b.Message, b.Color, b.IsError = "nothing asserted", "lightgrey", l.Gating
	case l.Counts[conformance.XFail]+l.Counts[conformance.Flaky] > 0:
		b.Message, b.Color = fmt.Sprintf("conforms, %d known", l.Counts[conformance.XFail]+l.Counts[conformance.Flaky]), "yellowgreen"
	}
	if !l.Gating {
		b.Message += ", not gating"
		if b.IsError {
			b.Color, b.IsError = "yellow", false
		}
	}
	return b
}

func (b Badge) write(w io.Writer) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(b)
}
