// Package sarif writes SARIF 2.1.0, the format in which code scanning services take results.
package sarif

import (
	"bytes"
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

// Run is what is written: one run of the program.
type Run struct {
	ID      string // of the kind of run: "vllm-vcr/conform/"
	Version string // of the program, may be empty
	Below   bool   // places are below the root of the repository, as those of [At] are
	Rules   []Rule
	Results []Result
}

// Text is a text in plain.
type Text struct {
	Text string `json:"text"`
}

// Rule is a kind of result.
type Rule struct {
	ID       string    `json:"id"`
	Name     string    `json:"name,omitempty"`
	Short    Text      `json:"shortDescription"`
	HelpURI  string    `json:"helpUri"`
	Help     *Text     `json:"help,omitempty"`
	Defaults *Defaults `json:"defaultConfiguration,omitempty"`
}

// Defaults are what results of a rule have unless they say otherwise.
type Defaults struct {
	Level string `json:"level"`
}

// Result is one result. [Write] sets its RuleIndex.
type Result struct {
	RuleID       string            `json:"ruleId"`
	RuleIndex    int               `json:"ruleIndex"`
	Level        string            `json:"level"` // error, warning or note
	Message      Text              `json:"message"`
	Locations    []Location        `json:"locations"`
	Fingerprints map[string]string `json:"partialFingerprints"`
	Properties   any               `json:"properties"`
}

// Location is a place in a file, or a name within a program, or both.
type Location struct {
	Physical *Physical `json:"physicalLocation,omitempty"`
	Logical  []Logical `json:"logicalLocations,omitempty"`
}

// Physical is a place in a file.
type Physical struct {
	Artifact Artifact `json:"artifactLocation"`
	Region   *Region  `json:"region,omitempty"`
}

// Artifact is a file: a URI, relative to BaseID where that is given.
type Artifact struct {
	URI    string `json:"uri"`
	BaseID string `json:"uriBaseId,omitempty"`
}

// Region is where in a file.
type Region struct {
	StartLine int `json:"startLine"` // from 1
}

// Logical is a name.
type Logical struct {
	FullName string `json:"fullyQualifiedName"`
}

// At is a line of a file below the root of the repository.
func At(file string, line int) Location {
	return Location{Physical: &Physical{Artifact{PathURI(strings.ReplaceAll(file, `\`, "/")), root}, &Region{max(line, 1)}}}
}

// PathURI is the path of a file as a URI.
func PathURI(path string) string { return (&url.URL{Path: path}).EscapedPath() }

// Fingerprint makes a result known as the same in every run that has it: kind names the way in which it is computed, such
// as "vllmVcrCase/v1", and the parts are what makes the result the one it is.
func Fingerprint(kind string, parts ...string) map[string]string {
	sum := sha256.Sum256([]byte(strings.Join(parts, "\x00")))
	return map[string]string{kind: hex.EncodeToString(sum[:16])}
}

type document struct {
	Schema  string `json:"$schema"`
	Version string `json:"version"`
	Runs    []run  `json:"runs"`
}

type run struct {
	Tool              tool                `json:"tool"`
	AutomationDetails automation          `json:"automationDetails"`
	BaseIDs           map[string]struct{} `json:"originalUriBaseIds,omitempty"`
	ColumnKind        string              `json:"columnKind"`
	Results           []Result            `json:"results"`
}

type automation struct {
	ID string `json:"id"`
}

type tool struct {
	Driver driver `json:"driver"`
}

type driver struct {
	Name           string `json:"name"`
	Version        string `json:"version,omitempty"`
	InformationURI string `json:"informationUri"`
	Rules          []Rule `json:"rules"`
}

// Write writes a run. Nothing in it is a command for a terminal or a CI service.
func Write(w io.Writer, r Run) error {
	results := append([]Result{}, r.Results...)
	for i := range results {
		results[i].RuleIndex = slices.IndexFunc(r.Rules, func(rule Rule) bool { return rule.ID == results[i].RuleID })
	}
	var bases map[string]struct{}
	if r.Below {
		bases = map[string]struct{}{root: {}}
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetIndent("", " ")
	enc.SetEscapeHTML(false)
	err := enc.Encode(document{
		Schema:  "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json",
		Version: "2.1.0",
		Runs: []run{{
			Tool:              tool{driver{Name: "vllm-vcr", Version: r.Version, InformationURI: Project, Rules: append([]Rule{}, r.Rules...)}},
			AutomationDetails: automation{r.ID}, BaseIDs: bases, ColumnKind: "utf16CodeUnits", Results: results,
		}},
	})
	if err != nil {
		return err
	}
	_, err = w.Write(safetext.JSON(b.Bytes()))
	return err
}
