package compat

import (
	"fmt"
	"strings"

	"github.com/vllm-vcr/conformance/internal/base/tomlfile"
)

// Facts is what the checks of a matrix need to know from elsewhere. A nil field
// is a fact that is not known; the rules that need it are then not checked.
type Facts struct {
	// Goldens are the captures pinned for each line, by line name.
	Goldens map[string][]Capture
	// HasProfile reports whether the wire profile of a line exists.
	HasProfile func(Line) bool
}

// Capture is what a golden says about its origin.
type Capture struct {
	ID          string // name of the golden, unique in its line
	VLLMVersion string // version that the captured engine reported; empty when not recorded
	Fidelity    bool   // the golden pins token streams
}

// Check checks a matrix against facts from outside its file: C019, C020 and C021.
// Its diagnostics come on top of those of [Policy.Load].
func (p Policy) Check(m *Matrix, facts Facts) []Diagnostic {
	var diagnostics []Diagnostic
	report := func(code string, severity Severity, l Line, message, hint string) {
		diagnostics = append(diagnostics, Diagnostic{Code: code, Severity: severity, File: m.File, Line: l.Pos, Message: message, Hint: hint})
	}
	for _, l := range m.Lines {
		if facts.HasProfile != nil && !facts.HasProfile(l) {
			report(CodeNoProfile, Error, l, fmt.Sprintf("line %s has no wire profile, so its messages cannot be decoded", l.Name),
				"upgrade to a version that knows the line, or remove it")
		}
		if facts.Goldens == nil || !l.FidelityValidated {
			continue
		}
		captures := fidelity(facts.Goldens[l.Name])
		if len(captures) == 0 {
			report(codeNoGoldens, Error, l, fmt.Sprintf("line %s is validated, but has no fidelity golden", l.Name),
				"register one, or set fidelity_validated = false")
		}
		if other := fromOtherPatch(l.Tag, captures); len(other) > 0 {
			report(codeOtherPatch, p.drift(), l, fmt.Sprintf("line %s stands for %s, but was captured from another release: %s",
				l.Name, l.Tag, strings.Join(other, ", ")), "capture them again, or set fidelity_validated = false")
		}
	}
	tomlfile.Sort(diagnostics)
	return diagnostics
}

// drift is the severity of a rule that only a strict policy insists on.
func (p Policy) drift() Severity {
	if p.Strict {
		return Error
	}
	return Warning
}

func fidelity(captures []Capture) []Capture {
	var found []Capture
	for _, c := range captures {
		if c.Fidelity {
			found = append(found, c)
		}
	}
	return found
}

// fromOtherPatch names the captures whose engine was not of the given tag. The
// local part of a version (0.33.0+cpu) names a build, not a release.
func fromOtherPatch(tag string, captures []Capture) []string {
	var other []string
	want, err := ParseVersion(tag)
	if err != nil {
		return nil // C011 says so
	}
	for _, c := range captures {
		if c.VLLMVersion == "" {
			continue
		}
		release, _, _ := strings.Cut(c.VLLMVersion, "+")
		if got, err := ParseVersion(release); err != nil || got != want {
			other = append(other, fmt.Sprintf("%s (%s)", c.ID, c.VLLMVersion))
		}
	}
	return other
}
