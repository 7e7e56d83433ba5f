package wirediff

import (
	"crypto/sha256"
	"encoding/hex"
	"io"
	"maps"
	"net/url"
	"slices"
	"strings"

	"github.com/vllm-vcr/conformance/internal/base/jsonout"
	"github.com/vllm-vcr/conformance/internal/base/safetext"
)

const (
	project = "https://github.com/vllm-vcr/conformance"
	help    = project + "/blob/main/docs/drift.md" // where the comparison is documented
)

// notRead is the rule of gaps.
const notRead = "not-read"

type sarifText struct {
	Text string `json:"text"`
}

type sarifRule struct {
	ID      string    `json:"id"`
	Short   sarifText `json:"shortDescription"`
	HelpURI string    `json:"helpUri"`
}

type sarifResult struct {
	RuleID       string            `json:"ruleId"`
	RuleIndex    int               `json:"ruleIndex"`
	Level        string            `json:"level"`
	Message      sarifText         `json:"message"`
	Locations    []sarifLocation   `json:"locations"`
	Fingerprints map[string]string `json:"partialFingerprints"`
	Properties   map[string]any    `json:"properties"`
}

type sarifLocation struct {
	Physical *sarifPhysical `json:"physicalLocation,omitempty"`
	Logical  []sarifLogical `json:"logicalLocations"`
}

type sarifPhysical struct {
	Artifact struct {
		URI string `json:"uri"`
	} `json:"artifactLocation"`
	Region *sarifRegion `json:"region,omitempty"`
}

type sarifRegion struct {
	StartLine int `json:"startLine"`
}

type sarifLogical struct {
	FullName string `json:"fullyQualifiedName"`
}

// sarifLevels: what breaks is an error, all else is a note.
var sarifLevels = map[Level]string{Breaking: "error", Compatible: "note", Informational: "note"}

// SARIF writes a result for each change, at its place upstream, and one for each
// gap. tool is the version of this program. The fingerprint of a result is the
// same in every comparison that finds the same change.
func SARIF(w io.Writer, d *Diff, tool string) error {
	rules := sarifRules()
	results := []sarifResult{}
	for _, g := range d.Gaps {
		results = append(results, gapResult(g))
	}
	for _, c := range d.Changes {
		results = append(results, changeResult(c))
	}
	for i := range results {
		results[i].RuleIndex = slices.IndexFunc(rules, func(r sarifRule) bool { return r.ID == results[i].RuleID })
	}
	driver := map[string]any{"name": "vllm-vcr", "informationUri": project, "rules": rules}
	if tool != "" {
		driver["version"] = tool
	}
	return jsonout.Write(w, map[string]any{
		"$schema": "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json",
		"version": "2.1.0",
		"runs": []any{map[string]any{
			"tool": map[string]any{"driver": driver}, "automationDetails": map[string]string{"id": "vllm-vcr/drift/"},
			"columnKind": "utf16CodeUnits", "results": results,
		}},
	})
}

// sarifRules are all kinds, so that the rules of two runs are the same.
func sarifRules() []sarifRule {
	rules := []sarifRule{{ID: notRead, Short: sarifText{"a part of the sources that could not be read"}, HelpURI: help}}
	for _, kind := range slices.Sorted(maps.Keys(patterns)) {
		rules = append(rules, sarifRule{
			ID: string(kind), Short: sarifText{strings.ReplaceAll(string(kind), "-", " ")}, HelpURI: help,
		})
	}
	return rules
}

func changeResult(c Change) sarifResult {
	message := c.Subject + " " + c.What() + ": " + c.Reason
	if c.Caution != "" {
		message += "; but " + c.Caution
	}
	properties := map[string]any{"level": c.Level, "breaks": c.Breaks, "needs": c.Needs}
	return sarifResult{
		RuleID: string(c.Kind), Level: sarifLevels[c.Level], Message: sarifText{safetext.Line(message)},
		Locations: location(c.Where, c.Subject), Fingerprints: fingerprint(string(c.Kind), c.Subject, c.Before, c.After),
		Properties: properties,
	}
}

func gapResult(g Gap) sarifResult {
	return sarifResult{
		RuleID: notRead, Level: "warning", Message: sarifText{safetext.Line(g.String())},
		Locations:    location(Where{Release: g.Release, Place: g.Place}, g.What),
		Fingerprints: fingerprint(notRead, g.Module, g.What, g.Why), Properties: map[string]any{"release": g.Release},
	}
}

func location(w Where, subject string) []sarifLocation {
	l := sarifLocation{Logical: []sarifLogical{{subject}}}
	if w.Module == "" {
		return []sarifLocation{l}
	}
	l.Physical = new(sarifPhysical)
	l.Physical.Artifact.URI, _, _ = strings.Cut(w.URL, "#")
	if w.URL == "" {
		l.Physical.Artifact.URI = (&url.URL{Path: strings.TrimLeft(w.Module, "/")}).EscapedPath()
	}
	if w.At > 0 {
		l.Physical.Region = &sarifRegion{w.At}
	}
	return []sarifLocation{l}
}

func fingerprint(parts ...string) map[string]string {
	sum := sha256.Sum256([]byte(strings.Join(parts, "\x00")))
	return map[string]string{"vllmVcrWire/v1": hex.EncodeToString(sum[:16])}
}
