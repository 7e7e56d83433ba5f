package report

import (
	"cmp"
	"io"
	"path/filepath"
	"slices"
	"strings"

	"github.com/vllm-vcr/conformance/internal/base/safetext"

	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/check"
)

// caseProperties are the further properties of a result.
type caseProperties struct {
	Case   string `json:"case,omitempty"`
	Count  int    `json:"count"` // failures of the case with this code
	Repeat string `json:"repeat,omitempty"`
}

// SARIF writes a result for each code of each case that breaks a gate, or would
// if its line gated, at the line where the case is written down. Its fingerprint
// is the name of the case and the code, so that equal failures of two runs are
// known as one.
func SARIF(w io.Writer, d *Document) error {
	run := SARIFRun{ID: "vllm-vcr/conform/", Below: true, Rules: d.rules()}
	if len(d.Runs) > 0 {
		run.Version = d.Runs[0].Tool.Version
	}
	for _, p := range d.Problems {
		run.Results = append(run.Results, problemResult(p))
	}
	for i := range d.Cases {
		run.Results = append(run.Results, d.Cases[i].sarif()...)
	}
	return WriteSARIF(w, run)
}

// codeXPass is the rule of cases that pass against an expectation, which have no
// failure to take a code from.
const codeXPass conformance.Code = "xpass"

// redCodes are the codes that a case has results under.
func (c *Case) redCodes() []conformance.Code {
	codes := c.codes()
	switch {
	case len(codes) > 0:
		return codes
	case c.Verdict == conformance.XPass:
		return []conformance.Code{codeXPass}
	}
	return []conformance.Code{check.CodeUnjudged}
}

// rules are the codes of all results, by name.
func (d *Document) rules() []SARIFRule {
	var codes []conformance.Code
	for _, p := range d.Problems {
		codes = append(codes, ruleOf(p.Code))
	}
	for i := range d.Cases {
		if c := &d.Cases[i]; c.Verdict.Red() {
			codes = append(codes, c.redCodes()...)
		}
	}
	slices.Sort(codes)
	rules := []SARIFRule{}
	for _, code := range slices.Compact(codes) {
		title := cmp.Or(d.Findings[code], family(code))
		rules = append(rules, SARIFRule{
			ID: string(code), Name: string(code), Short: SARIFText{Text: title}, HelpURI: HelpURL(code, d.Findings[code]),
			Help: &SARIFText{Text: "vllm-vcr conform --explain " + string(code)}, Defaults: &SARIFDefaults{Level: "error"},
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

// sarif is a result for each code of the case, in the order of its failures.
func (c *Case) sarif() []SARIFResult {
	if !c.Verdict.Red() {
		return nil
	}
	var results []SARIFResult
	for _, code := range c.redCodes() {
		r := SARIFResult{RuleID: string(code), Level: "warning", Locations: []SARIFLocation{c.sarifPlace()}}
		if c.Gating {
			r.Level = "error"
		}
		text, count := c.Name+": "+family(codeXPass), 0
		for _, f := range c.Failures {
			if ruleOf(f.Code) != code {
				continue
			}
			if count++; count == 1 {
				text = c.Name + ": " + f.Message
			}
		}
		r.Message.Text = safetext.Line(text)
		r.Properties = caseProperties{c.Name, count, c.Repeat}
		r.Fingerprints = fingerprint(c.Name, code)
		results = append(results, r)
	}
	return results
}

func problemResult(f conformance.Failure) SARIFResult {
	return SARIFResult{
		RuleID: string(ruleOf(f.Code)), Level: "error", Message: SARIFText{Text: safetext.Line(f.Message)},
		Locations: []SARIFLocation{problemPlace(f.Message)}, Properties: caseProperties{Count: 1},
		Fingerprints: fingerprint(f.Message, f.Code),
	}
}

// problemPlace is the place that a message begins with, as findings about files do.
func problemPlace(message string) SARIFLocation {
	first, _, _ := strings.Cut(message, ": ")
	if file, line := splitPlace(first); line > 0 && filepath.IsLocal(file) {
		return SARIFAt(filepath.ToSlash(file), line)
	}
	return SARIFAt("conformance/expectations.toml", 1)
}

// fingerprint depends on nothing that differs between two runs of the same case.
func fingerprint(name string, code conformance.Code) map[string]string {
	return SARIFFingerprint("vllmVcrCase/v1", name, string(code))
}

// upstream is where the files of the binary can be read.
const upstream = "https://github.com/vllm-vcr/conformance/blob/main/"

// sarifPlace is where a case is written down. Readers of SARIF refuse a result
// without a place. A file of the binary is none of the repository that is checked, so it is named where it is published.
func (c *Case) sarifPlace() SARIFLocation {
	if c.File != "" {
		return SARIFAt(c.File, c.FileLine)
	}
	file, line := splitPlace(strings.TrimPrefix(c.Entry, Embedded))
	if file == "" || strings.HasPrefix(file, "/") {
		return SARIFAt("compat.toml", 1)
	}
	if strings.HasPrefix(c.Entry, Embedded) {
		return SARIFLocation{Physical: &SARIFPhysical{Artifact: SARIFArtifact{URI: upstream + PathURI(file)}, Region: &SARIFRegion{StartLine: max(line, 1)}}}
	}
	return SARIFAt(file, line)
}
