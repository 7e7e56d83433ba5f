package wirediff

import (
	"bytes"
	"encoding/json"
	"io"
)

// Schema is the version of the document that [JSON] writes. A key may be added to
// it; whatever else changes makes it another.
const Schema = "vllm-vcr/wire-diff/1"

// document is a Diff with what follows from it.
type document struct {
	Schema  string  `json:"schema"`
	Verdict Verdict `json:"verdict"`
	Counts  struct {
		Breaking      int           `json:"breaking"`
		Compatible    int           `json:"compatible"`
		Informational int           `json:"informational"`
		Breaks        map[Party]int `json:"breaks"`
	} `json:"counts"`
	*Diff
}

// JSON writes a comparison whole. It may be written to the log of a CI or to a
// terminal, so what is a command there is escaped.
func JSON(w io.Writer, d *Diff) error {
	doc := document{Schema: Schema, Verdict: d.Verdict(), Diff: d}
	doc.Counts.Breaking, doc.Counts.Compatible = len(d.At(Breaking)), len(d.At(Compatible))
	doc.Counts.Informational = len(d.At(Informational))
	doc.Counts.Breaks = map[Party]int{}
	for _, p := range []Party{Engines, Frontends, Taps} {
		doc.Counts.Breaks[p] = d.Breaking(p)
	}
	return WriteJSON(w, doc)
}

// WriteJSON writes a document with texts from the sources of a release. What is a
// command to a terminal or a CI is escaped in them.
func WriteJSON(w io.Writer, v any) error {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return err
	}
	_, err := w.Write(escapeJSON(b.Bytes()))
	return err
}
