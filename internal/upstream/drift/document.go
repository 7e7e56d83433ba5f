package drift

import (
	"time"

	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/upstream/wirediff"
)

// SchemaVersion is the value of a document's schema key. It changes when a key goes or changes its meaning.
const SchemaVersion = "vllm-vcr/drift/1"

// A Document is a check as JSON. What was run by the layers live, goldens and engine is in a report of its own.
type Document struct {
	Schema   string  `json:"schema"`
	Release  string  `json:"release,omitempty"` // empty if it is not known
	Uploaded string  `json:"uploaded,omitempty"`
	Commit   string  `json:"commit,omitempty"` // of vllm.git, nine digits
	Wheel    string  `json:"wheel,omitempty"`
	Line     string  `json:"line,omitempty"` // that it was judged as
	Own      bool    `json:"own"`            // it is the release's own
	Verdict  Verdict `json:"verdict"`
	ExitCode int     `json:"exit_code"`
	Summary  string  `json:"summary"`
	// Wire is the fingerprint of what the release declares, see [Fingerprint].
	Wire       string          `json:"wire,omitempty"`
	Seconds    float64         `json:"seconds"`
	Downloaded int64           `json:"downloaded"` // bytes
	Layers     []LayerDocument `json:"layers"`
	// Adoption says whether the player serves the release by its own profile; only of a release without a line.
	Adoption *LayerDocument `json:"adoption,omitempty"`
}

// A LayerDocument is a layer as JSON.
type LayerDocument struct {
	Name       LayerName         `json:"name"`
	Verdict    Verdict           `json:"verdict"`
	Vacuous    bool              `json:"vacuous,omitempty"` // nothing was asserted
	Reason     string            `json:"reason"`
	Compared   string            `json:"compared,omitempty"`
	Seconds    float64           `json:"seconds"`
	Downloaded int64             `json:"downloaded,omitempty"` // bytes
	Changes    []wirediff.Change `json:"changes,omitempty"`
	Gaps       []wirediff.Gap    `json:"gaps,omitempty"`
	Cases      []LayerCase       `json:"cases,omitempty"`
	Notes      []string          `json:"notes,omitempty"`
}

// Document is what JSON shows of a result; what the caller knows of the release is left to it.
func (r Result) Document() Document {
	d := Document{
		Schema: SchemaVersion, Verdict: r.Verdict, ExitCode: r.ExitCode(), Commit: r.Frontend.Commit, Wheel: r.Frontend.Wheel,
		Wire: Fingerprint(r.Profile), Layers: []LayerDocument{},
	}
	if d.Commit == "" && r.Profile != nil {
		d.Commit = r.Profile.Commit
	}
	for _, l := range r.Layers {
		d.Layers = append(d.Layers, l.document())
		d.Downloaded += l.Downloaded
	}
	if r.Adoption != nil {
		adoption := r.Adoption.document()
		d.Adoption = &adoption
	}
	return d
}

func (l Layer) document() LayerDocument {
	d := LayerDocument{
		Name: l.Name, Verdict: l.Verdict, Vacuous: l.Vacuous, Reason: l.Reason, Compared: l.Compared,
		Seconds: l.Took.Round(time.Millisecond).Seconds(), Downloaded: l.Downloaded, Notes: l.Notes, Cases: l.Cases,
	}
	if l.Diff != nil {
		d.Changes, d.Gaps = l.Diff.Changes, l.Diff.Gaps
	}
	for _, report := range l.Reports {
		for _, r := range report.Results {
			c := LayerCase{Name: r.Case.Name(), Verdict: None}
			switch {
			case r.Verdict == conformance.Error:
				c.Verdict = Unknown
			case r.Verdict.Red():
				c.Verdict = Found
			case r.Verdict == conformance.Skip:
				c.Verdict = Skipped
			}
			if len(r.Failures) > 0 {
				c.Message = firstLine(string(r.Failures[0].Code) + " " + r.Failures[0].Message)
			}
			d.Cases = append(d.Cases, c)
		}
	}
	return d
}
