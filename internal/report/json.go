package report

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/base/jsonout"
	"github.com/vllm-vcr/conformance/internal/base/safetext"
)

// Schema is the JSON Schema of a document.
//
//go:embed schema.json
var Schema []byte

// JSON writes the whole document, every failure included. It may be written to the log
// of a CI, or to a terminal, so what is a command there in a text is escaped.
func JSON(w io.Writer, d *Document) error { return jsonout.Write(w, d) }

// Read reads a document that JSON has written, and refuses what it could not
// write again: another version of the schema, an unknown key, sums that are not
// those of the cases. name is the document's in errors.
func Read(name string, r io.Reader) (*Document, error) {
	data, err := io.ReadAll(r)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	var version struct {
		Schema *string `json:"schema"`
	}
	if err := json.Unmarshal(data, &version); err != nil {
		return nil, fmt.Errorf("%s is not a report: %w", name, placed(data, err))
	}
	if version.Schema == nil {
		return nil, fmt.Errorf("%s is not a report: it has no schema, want %q", name, SchemaVersion)
	}
	if *version.Schema != SchemaVersion {
		return nil, fmt.Errorf("%s: schema %q, this vllm-vcr reads %q: write the report with the same version", name, *version.Schema, SchemaVersion)
	}
	d := &Document{}
	if err := strictly(data, d); err != nil {
		return nil, fmt.Errorf("%s: %w", name, placed(data, err))
	}
	if err := d.check(); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	d.Causes = d.causes()
	d.fill()
	return d, nil
}

// placed adds the line of the document to an error that has an offset.
func placed(data []byte, err error) error {
	var syntax *json.SyntaxError
	var kind *json.UnmarshalTypeError
	at := int64(-1)
	switch {
	case errors.As(err, &syntax):
		at = syntax.Offset
	case errors.As(err, &kind):
		at = kind.Offset
	}
	if at < 0 || at > int64(len(data)) {
		return err
	}
	return fmt.Errorf("line %d: %w", 1+bytes.Count(data[:at], []byte("\n")), err)
}

// check refuses a document whose parts do not agree.
func (d *Document) check() error {
	counts, tokens := Counts{}, 0
	seen := map[string]bool{}
	for i := range d.Cases {
		c := &d.Cases[i]
		switch {
		case c.Name == "" || c.Line == "":
			return fmt.Errorf("cases[%d] has no name or no line", i)
		case seen[c.Name]:
			return fmt.Errorf("case %s is listed twice", c.Name)
		case !slices.Contains(conformance.Verdicts(), c.Verdict):
			return fmt.Errorf("case %s: unknown verdict %q: want one of %s", c.Name, c.Verdict, safetext.Words(conformance.Verdicts()))
		case !slices.ContainsFunc(d.Lines, func(l Line) bool { return l.Line == c.Line }):
			return fmt.Errorf("case %s: lines has no line %s", c.Name, c.Line)
		}
		seen[c.Name] = true
		counts[c.Verdict]++
		tokens += c.Tokens
	}
	if !maps.Equal(counts, d.Counts) || tokens != d.Tokens {
		return fmt.Errorf("counts %v and %d tokens, but its cases make %v and %d: it is incomplete or was edited", d.Counts, d.Tokens, counts, tokens)
	}
	return nil
}

// strictly decodes one JSON value that has no other keys than into has.
func strictly(data []byte, into any) error {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(into); err != nil {
		return err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return errors.New("there is more after the document")
	}
	return nil
}
