package wirediff

import (
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/vllm-vcr/conformance/internal/report/sarif"

	"github.com/vllm-vcr/conformance/internal/base/safetext"
)

// help is where the comparison is documented.
const help = sarif.Project + "/blob/main/docs/drift.md"

// notRead is the rule of gaps.
const notRead = "not-read"

// sarifLevels: what breaks is an error, all else is a note.
var sarifLevels = map[Level]string{Breaking: "error", Compatible: "note", Informational: "note"}

// SARIF writes a result for each change, at its place upstream, and one for each
// gap. tool is the version of this program. The fingerprint of a result is the
// same in every comparison that finds the same change.
func SARIF(w io.Writer, d *Diff, tool string) error {
	run := sarif.Run{ID: "vllm-vcr/drift/", Version: tool, Rules: sarifRules()}
	for _, g := range d.Gaps {
		run.Results = append(run.Results, gapResult(g))
	}
	for _, c := range d.Changes {
		run.Results = append(run.Results, changeResult(c))
	}
	return sarif.Write(w, run)
}

// sarifRules are all kinds, so that the rules of two runs are the same.
func sarifRules() []sarif.Rule {
	rules := []sarif.Rule{{ID: notRead, Short: sarif.Text{Text: "a part of the sources that could not be read"}, HelpURI: help}}
	for _, kind := range slices.Sorted(maps.Keys(patterns)) {
		rules = append(rules, sarif.Rule{
			ID: string(kind), Short: sarif.Text{Text: strings.ReplaceAll(string(kind), "-", " ")}, HelpURI: help,
		})
	}
	return rules
}

func changeResult(c Change) sarif.Result {
	message := c.Subject + " " + c.What() + ": " + c.Reason
	if c.Caution != "" {
		message += "; but " + c.Caution
	}
	properties := map[string]any{"level": c.Level, "breaks": c.Breaks, "needs": c.Needs}
	return sarif.Result{
		RuleID: string(c.Kind), Level: sarifLevels[c.Level], Message: sarif.Text{Text: safetext.Line(message)},
		Locations: location(c.Where, c.Subject), Fingerprints: fingerprint(string(c.Kind), c.Subject, c.Before, c.After),
		Properties: properties,
	}
}

func gapResult(g Gap) sarif.Result {
	return sarif.Result{
		RuleID: notRead, Level: "warning", Message: sarif.Text{Text: safetext.Line(g.String())},
		Locations:    location(Where{Release: g.Release, Place: g.Place}, g.What),
		Fingerprints: fingerprint(notRead, g.Module, g.What, g.Why), Properties: map[string]any{"release": g.Release},
	}
}

func location(w Where, subject string) []sarif.Location {
	l := sarif.Location{Logical: []sarif.Logical{{FullName: subject}}}
	if w.Module == "" {
		return []sarif.Location{l}
	}
	uri, _, _ := strings.Cut(w.URL, "#")
	if w.URL == "" {
		uri = sarif.PathURI(strings.TrimLeft(w.Module, "/"))
	}
	l.Physical = &sarif.Physical{Artifact: sarif.Artifact{URI: uri}}
	if w.At > 0 {
		l.Physical.Region = &sarif.Region{StartLine: w.At}
	}
	return []sarif.Location{l}
}

func fingerprint(parts ...string) map[string]string {
	return sarif.Fingerprint("vllmVcrWire/v1", parts...)
}
