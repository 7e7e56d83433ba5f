package compat

import (
	"strings"

	"github.com/vllm-vcr/conformance/internal/base/tomlfile"
)

// The names of the trackers.
const (
	Nightly = "nightly" // the main branch of vLLM
	RC      = "rc"      // the newest release candidate
)

// Line is one entry of the compat matrix.
type Line struct {
	Name              string // major.minor, or the name of a tracker
	Tag               string // release tag of vLLM; "nightly" for that tracker
	ProtocolRev       string // commit of vllm.git, 7 to 40 hexadecimal digits
	PatchRepo         string // URL of a fork to read the protocol from, or empty
	PatchRev          string // commit in that fork; empty exactly when PatchRepo is
	FidelityValidated bool   // failing goldens of the line fail the run
	Default           bool   // the line that is used when none is named
	Pos               int    // 1-based line of the entry in the file
}

// IsTracker reports whether the line follows something unreleased.
func (l Line) IsTracker() bool { return IsTracker(l.Name) }

// IsTracker reports whether name is that of a tracker: nightly or rc.
func IsTracker(name string) bool { return name == Nightly || name == RC }

// Matrix is the compat matrix: the lines in the order of the file.
type Matrix struct {
	File  string // path as given to Load
	Lines []Line
}

// The diagnostics of a file, and their severities.
type (
	// Diagnostic is one defect of a file, with its place.
	Diagnostic = tomlfile.Diagnostic
	// Severity is Error or Warning.
	Severity = tomlfile.Severity
)

const (
	// Error means that the file cannot be used as it is.
	Error = tomlfile.Error
	// Warning means that the file can be used, but somebody should look.
	Warning = tomlfile.Warning
)

// Default returns the default line.
func (m *Matrix) Default() (Line, bool) {
	return m.first(func(l Line) bool { return l.Default })
}

// ByName returns the line of that name.
func (m *Matrix) ByName(name string) (Line, bool) {
	return m.first(func(l Line) bool { return l.Name == name })
}

// ByTag returns the line of exactly that tag.
func (m *Matrix) ByTag(tag string) (Line, bool) {
	return m.first(func(l Line) bool { return l.Tag == tag })
}

// Lookup returns the line that a user names: by its name or its tag, or by another release or candidate of it, each with
// or without the v of tags: 0.33, v0.33, 0.33.0, v0.33.0.
func (m *Matrix) Lookup(name string) (Line, bool) {
	bare := strings.TrimPrefix(strings.TrimSpace(name), "v")
	for _, exact := range []string{bare, "v" + bare} {
		if l, ok := m.ByTag(exact); ok {
			return l, true
		}
	}
	if v, err := ParseVersion(bare); err == nil {
		bare = v.Line()
	}
	return m.ByName(bare)
}

func (m *Matrix) first(match func(Line) bool) (Line, bool) {
	for _, l := range m.Lines {
		if match(l) {
			return l, true
		}
	}
	return Line{}, false
}
