package report

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"net/url"
	"path/filepath"
	"slices"
	"strings"

	"github.com/vllm-vcr/conformance/internal/base/safetext"

	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/check"
)

// project is where the documentation of the finding codes is.
const project = "https://github.com/vllm-vcr/conformance"

type sarifLog struct {
	Schema  string     `json:"$schema"`
	Version string     `json:"version"`
	Runs    []sarifRun `json:"runs"`
}

type sarifRun struct {
	Tool              sarifTool           `json:"tool"`
	AutomationDetails sarifAutomation     `json:"automationDetails"`
	BaseIDs           map[string]struct{} `json:"originalUriBaseIds"`
	ColumnKind        string              `json:"columnKind"`
	Results           []sarifResult       `json:"results"`
}

type sarifAutomation struct {
	ID string `json:"id"`
}

type sarifTool struct {
	Driver sarifDriver `json:"driver"`
}

type sarifDriver struct {
	Name           string      `json:"name"`
	Version        string      `json:"version,omitempty"`
	InformationURI string      `json:"informationUri"`
	Rules          []sarifRule `json:"rules"`
}

type sarifRule struct {
	ID        string    `json:"id"`
	Name      string    `json:"name"`
	Short     sarifText `json:"shortDescription"`
	HelpURI   string    `json:"helpUri"`
	Help      sarifText `json:"help"`
	Configure struct {
		Level string `json:"level"`
	} `json:"defaultConfiguration"`
}

type sarifText struct {
	Text string `json:"text"`
}

type sarifResult struct {
	RuleID       string            `json:"ruleId"`
	RuleIndex    int               `json:"ruleIndex"`
	Level        string            `json:"level"`
	Message      sarifText         `json:"message"`
	Locations    []sarifLocation   `json:"locations"`
	Fingerprints map[string]string `json:"partialFingerprints"`
	Properties   sarifProperties   `json:"properties"`
}

type sarifProperties struct {
	Case   string `json:"case,omitempty"`
	Count  int    `json:"count"` // failures of the case with this code
	Repeat string `json:"repeat,omitempty"`
}

type sarifLocation struct {
	Physical struct {
		Artifact struct {
			URI    string `json:"uri"`
			BaseID string `json:"uriBaseId"`
		} `json:"artifactLocation"`
		Region struct {
			StartLine int `json:"startLine"`
		} `json:"region"`
	} `json:"physicalLocation"`
}

// SARIF writes a result for each code of each case that breaks a gate, or would
// if its line gated, at the line where the case is written down. Its fingerprint
// is the name of the case and the code, so that equal findings of two runs are
// known as one.
func SARIF(w io.Writer, d *Document) error {
	run := sarifRun{
		BaseIDs: map[string]struct{}{"%SRCROOT%": {}}, ColumnKind: "utf16CodeUnits", Results: []sarifResult{},
		AutomationDetails: sarifAutomation{"vllm-vcr/conform/"},
	}
	run.Tool.Driver = sarifDriver{Name: "vllm-vcr", InformationURI: project, Rules: d.rules()}
	if len(d.Runs) > 0 {
		run.Tool.Driver.Version = d.Runs[0].Tool.Version
	}
	index := map[string]int{}
	for i, r := range run.Tool.Driver.Rules {
		index[r.ID] = i
	}
	for _, p := range d.Problems {
		run.Results = append(run.Results, problemResult(p))
	}
	for i := range d.Cases {
		run.Results = append(run.Results, d.Cases[i].sarif()...)
	}
	for i := range run.Results {
		run.Results[i].RuleIndex = index[run.Results[i].RuleID]
	}
	enc := json.NewEncoder(w)
	enc.SetIndent("", " ")
	enc.SetEscapeHTML(false)
	return enc.Encode(sarifLog{
		Schema:  "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json",
		Version: "2.1.0", Runs: []sarifRun{run},
	})
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
func (d *Document) rules() []sarifRule {
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
	rules := []sarifRule{}
	for _, code := range slices.Compact(codes) {
		title := cmp.Or(d.Findings[code], family(code))
		r := sarifRule{
			ID: string(code), Name: string(code), Short: sarifText{title}, HelpURI: HelpURL(code, d.Findings[code]),
			Help: sarifText{"vllm-vcr conform --explain " + string(code)},
		}
		r.Configure.Level = "error"
		rules = append(rules, r)
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
	return project + "/blob/main/docs/findings.md#" + slug
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
func (c *Case) sarif() []sarifResult {
	if !c.Verdict.Red() {
		return nil
	}
	var results []sarifResult
	for _, code := range c.redCodes() {
		r := sarifResult{RuleID: string(code), Level: "warning", Locations: []sarifLocation{c.sarifPlace()}}
		if c.Gating {
			r.Level = "error"
		}
		text := c.Name + ": " + family(codeXPass)
		for _, f := range c.Failures {
			if ruleOf(f.Code) != code {
				continue
			}
			if r.Properties.Count++; r.Properties.Count == 1 {
				text = c.Name + ": " + f.Message
			}
		}
		r.Message.Text = safetext.Line(text)
		r.Properties.Case, r.Properties.Repeat = c.Name, c.Repeat
		r.Fingerprints = fingerprint(c.Name, code)
		results = append(results, r)
	}
	return results
}

func problemResult(f conformance.Failure) sarifResult {
	return sarifResult{
		RuleID: string(ruleOf(f.Code)), Level: "error", Message: sarifText{safetext.Line(f.Message)},
		Locations: []sarifLocation{problemPlace(f.Message)}, Properties: sarifProperties{Count: 1},
		Fingerprints: fingerprint(f.Message, f.Code),
	}
}

// problemPlace is the place that a message begins with, as findings about files do.
func problemPlace(message string) sarifLocation {
	first, _, _ := strings.Cut(message, ": ")
	if file, line := splitPlace(first); line > 0 && filepath.IsLocal(file) {
		return sarifAt(filepath.ToSlash(file), line)
	}
	return sarifAt("conformance/expectations.toml", 1)
}

// fingerprint depends on nothing that differs between two runs of the same case.
func fingerprint(name string, code conformance.Code) map[string]string {
	sum := sha256.Sum256([]byte(name + "\x00" + string(code)))
	return map[string]string{"vllmVcrCase/v1": hex.EncodeToString(sum[:16])}
}

// sarifPlace is where a case is written down. Readers of SARIF refuse a result
// without a place, so a file of the binary is named as it is in this project.
func (c *Case) sarifPlace() sarifLocation {
	if c.File != "" {
		return sarifAt(c.File, c.FileLine)
	}
	file, line := splitPlace(strings.TrimPrefix(c.Entry, embedded))
	if file == "" || strings.HasPrefix(file, "/") {
		return sarifAt("compat.toml", 1)
	}
	return sarifAt(file, line)
}

func sarifAt(file string, line int) (l sarifLocation) {
	l.Physical.Artifact.URI = (&url.URL{Path: strings.ReplaceAll(file, `\`, "/")}).EscapedPath()
	l.Physical.Artifact.BaseID = "%SRCROOT%"
	l.Physical.Region.StartLine = max(line, 1)
	return l
}
