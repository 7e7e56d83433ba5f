package report

import (
	"html/template"
	"time"

	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/check"
)

// SchemaVersion is the value of a document's schema key. It changes when a key
// goes or changes its meaning; schema.json describes this version.
const SchemaVersion = "vllm-vcr/conformance/2"

// Document is a run, or several that were merged, as every renderer sees it.
type Document struct {
	Schema     string              `json:"schema"`
	Verdict    conformance.Verdict `json:"verdict"`
	Reason     string              `json:"reason"` // what the exit code means, in a sentence
	ExitCode   int                 `json:"exit_code"`
	Counts     Counts              `json:"counts"`
	Tokens     int                 `json:"tokens"`                // compared
	DurationMs float64             `json:"duration_ms,omitempty"` // of all runs, one after the other
	Runs       []Run               `json:"runs"`
	// Findings has the title of every code that occurs, where it is known.
	Findings map[conformance.Code]string `json:"findings"`
	// Problems are what is wrong with a run rather than with one of its cases.
	Problems []conformance.Failure `json:"problems"`
	Lines    []Line                `json:"lines"`
	// Levels has the verdict on each level of each line, Causes what is red, each once, the worst first.
	Levels []check.LevelSummary `json:"levels"`
	Causes []Cause              `json:"causes"`
	Cases  []Case               `json:"cases"`
	// Coverage is how much of the wire the goldens show, by line.
	Coverage []Coverage `json:"coverage,omitempty"`
	// Preface comes first in the HTML report.
	Preface template.HTML `json:"-"`
}

// Counts are how many cases had each verdict, and Line sums up those of a vLLM line.
type (
	Counts = check.Counts
	Line   = check.LineSummary
)

// Coverage is that of a line.
type Coverage = conformance.Coverage

// Run is one run of the tool.
type Run struct {
	Tool       Tool      `json:"tool"`
	Started    time.Time `json:"started,omitzero"`
	DurationMs float64   `json:"duration_ms,omitempty"`
	OS         string    `json:"os,omitempty"`
	Arch       string    `json:"arch,omitempty"`
	Arguments  []string  `json:"arguments"`
	Inputs     []Input   `json:"inputs"`
	Subject    Subject   `json:"subject"`
	// Origin is the repository and the CI run, where a run was made by one.
	Origin *Origin `json:"origin,omitempty"`
	// AnnotateFile is the file of the repository where what has no other place is shown.
	AnnotateFile string `json:"annotate_file,omitempty"`
	// Claims are the levels that gate; without any, all do.
	Claims []check.Level `json:"claims,omitempty"`
}

// Origin is where a run was made.
type Origin struct {
	Repository string `json:"repository"`    // "owner/name"
	Commit     string `json:"commit"`        // 40 lowercase hex digits
	Run        string `json:"run,omitempty"` // https address
}

// Tool is what made a run.
type Tool struct {
	Name    string `json:"name"`
	Version string `json:"version"`
	Commit  string `json:"commit,omitempty"`
}

// Input is a file that decided what a run did.
type Input struct {
	Path   string `json:"path"`
	SHA256 string `json:"sha256"` // 64 lowercase hex digits
}

// Subject says what was under test, see [conformance.Description].
type Subject struct {
	Kind     string            `json:"kind,omitempty"`
	Command  string            `json:"command,omitempty"`
	Versions map[string]string `json:"versions,omitempty"`
}

// Case is the outcome of a case.
type Case struct {
	Name      string                `json:"name"`
	Line      string                `json:"line"`
	Tag       string                `json:"tag,omitempty"`
	Suite     conformance.Suite     `json:"suite"`
	Golden    string                `json:"golden,omitempty"`
	Assertion conformance.Assertion `json:"assertion,omitempty"` // none: the line has no cases
	Check     string                `json:"check,omitempty"`     // the assertion and its variant
	Verdict   conformance.Verdict   `json:"verdict"`
	Gating    bool                  `json:"gating"`
	// Unclaimed: the case is red, but only in levels that do not gate.
	Unclaimed bool `json:"unclaimed,omitempty"`
	// Levels are those that the case judges.
	Levels []check.Level `json:"levels,omitempty"`
	// Infra marks an error whose cause is not the subject: network, disk, a golden.
	Infra bool `json:"infra,omitempty"`
	// Location is where the golden's bytes are, Entry where it is registered, as
	// the run names it; File and FileLine are the same place below the root of the
	// repository, when it is there.
	Location string `json:"location,omitempty"`
	Entry    string `json:"entry,omitempty"`
	File     string `json:"file,omitempty"`
	FileLine int    `json:"file_line,omitempty"`
	// SHA256 is of the golden's bytes, TokensSHA256 of its token streams, as
	// registered.
	SHA256       string                `json:"sha256,omitempty"`
	TokensSHA256 string                `json:"tokens_sha256,omitempty"`
	Asserted     int                   `json:"asserted"`
	Tokens       int                   `json:"tokens"`
	DurationMs   float64               `json:"duration_ms,omitempty"`
	Note         string                `json:"note,omitempty"`
	Needs        string                `json:"needs,omitempty"` // what has to be set for the case not to be skipped
	Failures     []conformance.Failure `json:"failures,omitempty"`
	Expected     *Expectation          `json:"expected,omitempty"`
	Repeat       string                `json:"repeat,omitempty"` // the command that runs the case alone
}

// Expectation is the expectation that decided a verdict, see
// [expect.Expectation].
type Expectation struct {
	Pattern string              `json:"pattern"`
	Outcome conformance.Verdict `json:"outcome"`
	Reason  string              `json:"reason"`
	Issue   string              `json:"issue,omitempty"`
	Expires string              `json:"expires,omitempty"` // the first day on which it no longer holds: "2027-01-31"
	Pos     string              `json:"pos,omitempty"`
}

// group is what a case is shown under: its golden, else its suite.
func (c *Case) group() string {
	switch {
	case c.Golden != "" && (c.Suite == conformance.SuiteReplay || c.Suite == ""):
		return c.Golden
	case c.Assertion == "":
		return "-"
	}
	return string(c.Suite)
}

// codes are those of a case's failures, each once, in their order.
func (c *Case) codes() []conformance.Code {
	var once []conformance.Code
	seen := map[conformance.Code]bool{}
	for _, f := range c.Failures {
		if f.Code != "" && !seen[f.Code] {
			once, seen[f.Code] = append(once, f.Code), true
		}
	}
	return once
}

// gate says what the verdict of a case means to the run.
func gate(gating bool) string {
	if gating {
		return ""
	}
	return " (does not gate)"
}

// stale says of a case that passed unexpectedly what was expected, unless one of
// its failures does.
func (c *Case) stale() string {
	if c.Verdict != conformance.XPass || c.Expected == nil || len(c.Failures) > 0 {
		return ""
	}
	return "passes, but was expected to fail: " + c.Expected.says()
}
