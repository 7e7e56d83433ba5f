package conformance

import (
	"time"

	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/check/coverage"
)

// Description says what is under test.
type Description struct {
	// Kind is "player" for the embedded one, "engine" or "frontend" for what the
	// caller brought.
	Kind string
	// Command is its command line, or its address.
	Command string
	// Versions are what it said it is, line by line.
	Versions map[string]string
}

// Summary is what the cases of a run come to, and [LineSummary] those of a line.
type (
	Summary     = check.Summary
	LineSummary = check.LineSummary
	Counts      = check.Counts
	// Coverage is how much of the wire of a line its goldens show.
	Coverage = coverage.Summary
)

// Report is the outcome of a run.
type Report struct {
	Summary
	Results  []Result
	Duration time.Duration
	// Problems are the failures of the run rather than of one of its cases: an
	// expectation that matches none, or that has expired.
	Problems []Failure
	// Subject says what was under test.
	Subject Description
	// Claims are the levels that gate; without any, all do.
	Claims []Level
	// Flags are those that a command needs to run a case of the report on the
	// same inputs, besides the selection of the case. The runner leaves it empty.
	Flags []string
	// Coverage has an entry for each line whose goldens were read.
	Coverage []Coverage
}

// NewReport sums up the results of a run, in their order, and fills in what each failure does to users. Of a subject that claims
// levels, only these gate.
func NewReport(results []Result, took time.Duration, claims ...Level) *Report {
	r := &Report{Results: results, Duration: took, Claims: claims}
	for i := range results {
		classify(results[i].Case, results[i].Failures)
		results[i].Unclaimed = results[i].Verdict.Red() && check.Claims(claims).Unclaimed(results[i].Failures)
	}
	r.summarise()
	return r
}

// Blame adds failures of the run, and judges it anew: they weigh as much as a failure
// of the subject.
func (r *Report) Blame(failures ...Failure) {
	if len(failures) > 0 {
		r.Problems = append(r.Problems, failures...)
		r.summarise()
	}
}

func (r *Report) summarise() {
	claims := check.Claims(r.Claims)
	judged := make([]check.Judged, len(r.Results))
	for i, result := range r.Results {
		c := result.Case
		judged[i] = check.Judged{
			Line: c.Line.Name, Tag: c.Line.Tag, Golden: c.Golden.ID, Gating: c.Gating, Verdict: result.Verdict,
			Infra: result.Infra, Asserted: result.Asserted, Tokens: result.Tokens, Needs: result.Needs, Check: c.Check(),
			Levels: LevelsOf(c), Failures: result.Failures, Unclaimed: result.Unclaimed,
		}
		if n := len(result.Failures); n > 0 {
			judged[i].Code = result.Failures[n-1].Code
		}
	}
	r.Summary = check.Summarise(judged, claims, len(r.Problems))
}
