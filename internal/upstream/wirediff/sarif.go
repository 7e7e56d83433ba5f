package wirediff

import (
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/vllm-vcr/conformance/internal/base/safetext"
	"github.com/vllm-vcr/conformance/internal/report"
)

// help is where the comparison is documented.
const help = report.Project + "/blob/main/docs/drift.md"

// notRead is the rule of gaps.
const notRead = "not-read"

// sarifLevels: what breaks is an error, all else is a note.
var sarifLevels = map[Level]string{Breaking: "error", Compatible: "note", Informational: "note"}

// SARIF writes a result for each change, and one for each gap. All are shown at a file of the repository, the only places that
// GitHub accepts; their text has the place upstream. tool is the version of this program. The fingerprint of a result is the
// same in every comparison that finds the same change.
func SARIF(w io.Writer, d *Diff, file, tool string) error {
	run := report.SARIFRun{ID: "vllm-vcr/drift/", Version: tool, Rules: sarifRules()}
	for _, g := range d.Gaps {
		run.Results = append(run.Results, gapResult(g, file))
	}
	for _, c := range d.Changes {
		run.Results = append(run.Results, changeResult(c, file))
	}
	return report.WriteSARIF(w, run)
}

// sarifRules are all kinds, so that the rules of two runs are the same.
func sarifRules() []report.SARIFRule {
	rules := []report.SARIFRule{{ID: notRead, Short: report.SARIFText{Text: "a part of the sources that could not be read"}, HelpURI: help}}
	for _, kind := range slices.Sorted(maps.Keys(patterns)) {
		rules = append(rules, report.SARIFRule{
			ID: string(kind), Short: report.SARIFText{Text: strings.ReplaceAll(string(kind), "-", " ")}, HelpURI: help,
		})
	}
	return rules
}

func changeResult(c Change, file string) report.SARIFResult {
	message := c.Subject + " " + c.What() + ": " + c.Reason
	if c.Caution != "" {
		message += "; but " + c.Caution
	}
	if c.Where.URL != "" {
		message += " (" + c.Where.URL + ")"
	}
	properties := map[string]any{"level": c.Level, "breaks": c.Breaks, "needs": c.Needs}
	return report.SARIFResult{
		RuleID: string(c.Kind), Level: sarifLevels[c.Level], Message: report.SARIFText{Text: safetext.Line(message)},
		Locations: location(file, c.Subject), Fingerprints: fingerprint(string(c.Kind), c.Subject, c.Before, c.After),
		Properties: properties,
	}
}

func gapResult(g Gap, file string) report.SARIFResult {
	return report.SARIFResult{
		RuleID: notRead, Level: "warning", Message: report.SARIFText{Text: safetext.Line(g.String())},
		Locations:    location(file, g.What),
		Fingerprints: fingerprint(notRead, g.Module, g.What, g.Why), Properties: map[string]any{"release": g.Release},
	}
}

func location(file, subject string) []report.SARIFLocation {
	l := report.SARIFAt(file, 1)
	l.Logical = []report.SARIFLogical{{FullName: subject}}
	return []report.SARIFLocation{l}
}

func fingerprint(parts ...string) map[string]string {
	return report.SARIFFingerprint("vllmVcrWire/v1", parts...)
}
