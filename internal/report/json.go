package report

import (
	"encoding/json"
	"io"

	"github.com/vllm-vcr/conformance/conformance"
)

// jsonReport is the document that JSON writes.
type jsonReport struct {
	Schema     string              `json:"schema"` // changes when a key changes its meaning
	Verdict    conformance.Verdict `json:"verdict"`
	Reason     string              `json:"reason"`
	ExitCode   int                 `json:"exit_code"`
	Tokens     int                 `json:"tokens"`
	DurationMs float64             `json:"duration_ms"`
	Lines      []jsonLine          `json:"lines"`
	Cases      []jsonCase          `json:"cases"`
}

type jsonLine struct {
	Line     string                      `json:"line"`
	Tag      string                      `json:"tag"`
	Gating   bool                        `json:"gating"`
	Verdict  conformance.Verdict         `json:"verdict"`
	Counts   map[conformance.Verdict]int `json:"counts"`
	Goldens  int                         `json:"goldens"`
	Asserted int                         `json:"asserted"`
	Tokens   int                         `json:"tokens"`
}

type jsonCase struct {
	Name       string                `json:"name"`
	Line       string                `json:"line"`
	Golden     string                `json:"golden,omitempty"`
	Check      string                `json:"check,omitempty"`
	Verdict    conformance.Verdict   `json:"verdict"`
	Gating     bool                  `json:"gating"`
	Location   string                `json:"location,omitempty"`
	Entry      string                `json:"entry,omitempty"`
	Asserted   int                   `json:"asserted"`
	Tokens     int                   `json:"tokens"`
	DurationMs float64               `json:"duration_ms"`
	Note       string                `json:"note,omitempty"`
	Failures   []conformance.Failure `json:"failures,omitempty"`
	Repeat     string                `json:"repeat,omitempty"`
}

// JSON writes the whole report, every failure included.
func JSON(w io.Writer, r *conformance.Report) error {
	doc := jsonReport{
		Lines: []jsonLine{}, Cases: []jsonCase{},
		Schema: "vllm-vcr/conformance/1", Verdict: r.Verdict, Reason: r.Reason, ExitCode: r.ExitCode,
		Tokens: r.Tokens, DurationMs: float64(r.Duration.Microseconds()) / 1000,
	}
	for _, l := range r.Lines {
		doc.Lines = append(doc.Lines, jsonLine{
			Line: l.Line.Name, Tag: l.Line.Tag, Gating: l.Gating, Verdict: l.Verdict, Goldens: l.Goldens, Counts: l.Counts,
			Asserted: l.Asserted, Tokens: l.Tokens,
		})
	}
	for _, result := range r.Results {
		doc.Cases = append(doc.Cases, caseOf(result, r.Flags))
	}
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(doc)
}

func caseOf(r conformance.Result, flags []string) jsonCase {
	c := jsonCase{
		Name: r.Case.Name(), Line: r.Case.Line.Name, Golden: r.Case.Golden.ID, Verdict: r.Verdict,
		Gating: r.Case.Gating, Location: r.Location, Entry: r.Case.Entry, Asserted: r.Asserted, Tokens: r.Tokens,
		DurationMs: float64(r.Duration.Microseconds()) / 1000, Note: r.Note, Failures: r.Failures,
	}
	if r.Case.Assertion != "" {
		c.Check, c.Repeat = r.Case.Check(), Repeat(r.Case, flags...)
	}
	return c
}
