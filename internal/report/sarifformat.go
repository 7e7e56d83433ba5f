package report

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"net/url"
	"slices"
	"strings"

	"github.com/vllm-vcr/conformance/internal/base/safetext"
)

// Project is where the source and the documentation of the program are.
const Project = "https://github.com/vllm-vcr/conformance"

// root names the root of the repository in places.
const root = "%SRCROOT%"

// SARIFRun is what is written: one run of the program.
type SARIFRun struct {
	ID      string // of the kind of run: "vllm-vcr/conform/"
	Version string // of the program, may be empty
	Rules   []SARIFRule
	Results []SARIFResult
}

// SARIFText is a text in plain.
type SARIFText struct {
	Text string `json:"text"`
}

// SARIFRule is a kind of result.
type SARIFRule struct {
	ID       string         `json:"id"`
	Name     string         `json:"name,omitempty"`
	Short    SARIFText      `json:"shortDescription"`
	Full     SARIFText      `json:"fullDescription"` // [WriteSARIF] sets it
	HelpURI  string         `json:"helpUri"`
	Help     SARIFText      `json:"help"` // "": [WriteSARIF] names the HelpURI
	Defaults *SARIFDefaults `json:"defaultConfiguration,omitempty"`
}

// SARIFDefaults are what results of a rule have unless they say otherwise.
type SARIFDefaults struct {
	Level string `json:"level"`
}

// SARIFResult is one result. [WriteSARIF] sets its RuleIndex.
type SARIFResult struct {
	RuleID       string            `json:"ruleId"`
	RuleIndex    int               `json:"ruleIndex"`
	Level        string            `json:"level"` // error, warning or note
	Message      SARIFText         `json:"message"`
	Locations    []SARIFLocation   `json:"locations"`
	Fingerprints map[string]string `json:"partialFingerprints"`
	Properties   any               `json:"properties"`
}

// SARIFLocation is a place in a file, or a name within a program, or both.
type SARIFLocation struct {
	Physical *SARIFPhysical `json:"physicalLocation,omitempty"`
	Logical  []SARIFLogical `json:"logicalLocations,omitempty"`
}

// SARIFPhysical is a place in a file.
type SARIFPhysical struct {
	Artifact SARIFArtifact `json:"artifactLocation"`
	Region   SARIFRegion   `json:"region"`
}

// SARIFArtifact is a file: a URI, relative to BaseID.
type SARIFArtifact struct {
	URI    string `json:"uri"`
	BaseID string `json:"uriBaseId"`
}

// SARIFRegion is where in a file.
type SARIFRegion struct {
	StartLine int `json:"startLine"` // from 1
}

// SARIFLogical is a name.
type SARIFLogical struct {
	FullName string `json:"fullyQualifiedName"`
}

// SARIFAt is a line of a file below the root of the repository.
func SARIFAt(file string, line int) SARIFLocation {
	return SARIFLocation{Physical: &SARIFPhysical{SARIFArtifact{PathURI(strings.ReplaceAll(file, `\`, "/")), root}, SARIFRegion{max(line, 1)}}}
}

// PathURI is the path of a file as a URI.
func PathURI(path string) string { return (&url.URL{Path: path}).EscapedPath() }

// SARIFFingerprint makes a result known as the same in every run that has it: kind names the way in which it is computed, such
// as "vllmVcrCase/v1", and the parts are what makes the result the one it is. GitHub looks at primaryLocationLineHash alone,
// which it otherwise computes of the line that is shown, so that results at the same line would be one.
func SARIFFingerprint(kind string, parts ...string) map[string]string {
	sum := sha256.Sum256([]byte(strings.Join(parts, "\x00")))
	text := hex.EncodeToString(sum[:16])
	return map[string]string{kind: text, "primaryLocationLineHash": text}
}

// WriteSARIF writes a run. Nothing in it is a command for a terminal or a CI service.
func WriteSARIF(w io.Writer, r SARIFRun) error {
	results, rules := append([]SARIFResult{}, r.Results...), append([]SARIFRule{}, r.Rules...)
	for i := range rules {
		rules[i].Full, rules[i].Help.Text = rules[i].Short, cmp.Or(rules[i].Help.Text, "See "+rules[i].HelpURI)
	}
	for i := range results {
		results[i].RuleIndex = slices.IndexFunc(r.Rules, func(rule SARIFRule) bool { return rule.ID == results[i].RuleID })
	}
	var log struct {
		Schema  string `json:"$schema"`
		Version string `json:"version"`
		Runs    [1]struct {
			Tool struct {
				Driver struct {
					Name           string      `json:"name"`
					Version        string      `json:"version,omitempty"`
					InformationURI string      `json:"informationUri"`
					Rules          []SARIFRule `json:"rules"`
				} `json:"driver"`
			} `json:"tool"`
			AutomationDetails struct {
				ID string `json:"id"`
			} `json:"automationDetails"`
			BaseIDs    map[string]struct{} `json:"originalUriBaseIds"`
			ColumnKind string              `json:"columnKind"`
			Results    []SARIFResult       `json:"results"`
		} `json:"runs"`
	}
	log.Schema, log.Version = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json", "2.1.0"
	written := &log.Runs[0]
	driver := &written.Tool.Driver
	driver.Name, driver.Version, driver.InformationURI, driver.Rules = "vllm-vcr", r.Version, Project, rules
	written.AutomationDetails.ID, written.ColumnKind, written.Results = r.ID, "utf16CodeUnits", results
	written.BaseIDs = map[string]struct{}{root: {}}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetIndent("", " ")
	enc.SetEscapeHTML(false)
	err := enc.Encode(log)
	if err != nil {
		return err
	}
	_, err = w.Write(safetext.JSON(b.Bytes()))
	return err
}
