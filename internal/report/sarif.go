package report

import (
	"cmp"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"

	"github.com/vllm-vcr/conformance/internal/base/safetext"

	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/check"
)

// causeProperties are the further properties of a result.
type causeProperties struct {
	Case        string                  `json:"case,omitempty"` // the first of the cases
	Cases       int                     `json:"cases,omitempty"`
	Count       int                     `json:"count"` // failures
	Consequence conformance.Consequence `json:"consequence,omitempty"`
	Level       conformance.Level       `json:"level,omitempty"`
	Repeat      string                  `json:"repeat,omitempty"`
}

// SARIF writes a result for each cause of what breaks a gate, or would if its line gated, at the line where its first case is
// written down. Its fingerprint is the name of that case, the code and the place, so that equal failures of two runs are known
// as one.
func SARIF(w io.Writer, d *Document) error {
	run := SARIFRun{ID: "vllm-vcr/conform/", Rules: d.rules()}
	if len(d.Runs) > 0 {
		run.Version = d.Runs[0].Tool.Version
	}
	for _, p := range d.Problems {
		run.Results = append(run.Results, d.problemResult(p))
	}
	alike := map[string]int{}
	for i := range d.Causes {
		c := &d.Causes[i]
		key := c.Cases[0] + " " + string(c.Code) + " " + c.Path
		run.Results = append(run.Results, c.sarif(d, alike[key]))
		alike[key]++
	}
	return WriteSARIF(w, run)
}

// codeXPass is the rule of cases that pass against an expectation, which have no
// failure to take a code from.
const codeXPass conformance.Code = "xpass"

// rule is the code of a cause.
func (c *Cause) rule() conformance.Code {
	if c.Code == "" && c.first.Verdict == conformance.XPass {
		return codeXPass
	}
	return ruleOf(c.Code)
}

// rules are the codes of all results, by name.
func (d *Document) rules() []SARIFRule {
	var codes []conformance.Code
	for _, p := range d.Problems {
		codes = append(codes, ruleOf(p.Code))
	}
	for i := range d.Causes {
		codes = append(codes, d.Causes[i].rule())
	}
	slices.Sort(codes)
	rules := []SARIFRule{}
	for _, code := range slices.Compact(codes) {
		title := cmp.Or(d.Findings[code], family(code))
		rules = append(rules, SARIFRule{
			ID: string(code), Name: string(code), Short: SARIFText{Text: title}, HelpURI: HelpURL(code, d.Findings[code]),
			Help: SARIFText{Text: "vllm-vcr conform --explain " + string(code)}, Defaults: &SARIFDefaults{Level: "error"},
		})
	}
	return rules
}

func ruleOf(code conformance.Code) conformance.Code { return cmp.Or(code, check.CodeUnjudged) }

// HelpURL is where a finding code is documented. Its section is headed by the code
// and its title.
func HelpURL(code conformance.Code, title string) string {
	heading := strings.ToLower(strings.TrimSpace(string(code) + " " + title))
	slug := strings.Map(func(r rune) rune {
		switch {
		case 'a' <= r && r <= 'z', '0' <= r && r <= '9', r == '-', r == '_':
			return r
		case r == ' ':
			return '-'
		}
		return -1
	}, heading)
	return Project + "/blob/main/docs/findings.md#" + slug
}

// family says what a code is about by its letter, for codes without a title.
func family(code conformance.Code) string {
	families := map[byte]string{
		'I': "the bytes of a golden", 'L': "the line of a golden", 'P': "the provenance of a golden", 'S': "a registration",
		'F': "a replayed stream", 'G': "a trace that is registered", 'R': "a case that could not be judged", 'W': "a message",
		'E': "the engine under test", 'H': "the frontend under test", 'X': "the expectations", 'T': "the self-test",
	}
	if code == codeXPass {
		return "a case that passes, but was expected to fail"
	}
	if code != "" && families[code[0]] != "" {
		return families[code[0]]
	}
	return "a finding"
}

// sarif is the result of a cause. What gates and reaches the answers of users is an error, what does not gate or only makes a
// metric wrong a warning, and what has no effect a note.
// number counts those before it of the same case, code and place.
func (c *Cause) sarif(d *Document, number int) SARIFResult {
	r := SARIFResult{RuleID: string(c.rule()), Level: "error", Locations: []SARIFLocation{SARIFAt(d.place(c.first))}}
	switch {
	case c.Consequence == check.Differs:
		r.Level = "note"
	case !c.Gating || c.Consequence == check.MetricWrong:
		r.Level = "warning"
	}
	text := c.Cases[0] + ": " + c.Message
	if c.Consequence != "" {
		text = string(c.Consequence) + ": " + text
	}
	r.Message.Text = safetext.Line(text)
	r.Properties = causeProperties{c.Cases[0], len(c.Cases), c.Failures, c.Consequence, c.Level, c.first.Repeat}
	r.Fingerprints = SARIFFingerprint("vllmVcrCause/v1", c.Cases[0], string(c.Code), c.Path, fmt.Sprint(number))
	return r
}

func (d *Document) problemResult(f conformance.Failure) SARIFResult {
	return SARIFResult{
		RuleID: string(ruleOf(f.Code)), Level: "error", Message: SARIFText{Text: safetext.Line(f.Message)},
		Locations: []SARIFLocation{SARIFAt(d.problemPlace(f.Message))}, Properties: causeProperties{Count: 1},
		Fingerprints: SARIFFingerprint("vllmVcrCause/v1", f.Message, string(f.Code)),
	}
}

// problemPlace is the place that a message begins with, as failures in files do.
func (d *Document) problemPlace(message string) (file string, line int) {
	first, _, _ := strings.Cut(message, ": ")
	if file, line = splitPlace(first); line > 0 && filepath.IsLocal(file) {
		return filepath.ToSlash(file), line
	}
	return d.annotateFile(), 1
}

// place is where a case is written down in the repository. GitHub refuses a whole SARIF file if one result has no place in
// the repository, so what has none is shown at another file of it.
func (d *Document) place(c *Case) (file string, line int) {
	if c.File != "" {
		return c.File, max(c.FileLine, 1)
	}
	return d.annotateFile(), 1
}

func (d *Document) annotateFile() string {
	for _, r := range d.Runs {
		if r.AnnotateFile != "" {
			return r.AnnotateFile
		}
	}
	return "compat.toml"
}
