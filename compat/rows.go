package compat

import (
	"fmt"
	"slices"
	"strings"

	"github.com/vllm-vcr/conformance/internal/base/tomlfile"
)

// CIRow is a line as a job of a test matrix.
type CIRow struct {
	Line              string `json:"line"`
	Tag               string `json:"tag"`
	ProtocolRev       string `json:"protocol_rev"`
	FidelityValidated bool   `json:"fidelity_validated"`
	Default           bool   `json:"default"`
	HasGoldens        bool   `json:"has_goldens"`
	Gating            bool   `json:"gating"`  // a failure of the line fails the run
	Goldens           int    `json:"goldens"` // registered for the line
}

// DockerRow is a line as the names of an image. The image is the same for every line:
// one binary speaks all of them.
type DockerRow struct {
	CIRow
	PatchRepo string   `json:"patch_repo"` // empty when the line is of no fork
	PatchRev  string   `json:"patch_rev"`
	ImageTags []string `json:"image_tags"`
}

// CaptureRow is a stable line as a job that captures goldens of it.
type CaptureRow struct {
	CIRow
	// Version of vLLM to install, the frontend's and the engine's, such as "0.33.0".
	Version string `json:"version"`
}

// Select returns the lines of these names or tags in the order of the file, and all
// lines when none is named.
func (m *Matrix) Select(names []string) ([]Line, error) {
	if len(names) == 0 {
		return m.Lines, nil
	}
	selected := map[string]bool{}
	for _, name := range names {
		l, ok := m.Lookup(name)
		switch v, err := ParseVersion(strings.TrimSpace(name)); {
		case !ok:
			return nil, m.noLine(name)
		case err == nil && v.Tag() != l.Tag && !l.IsTracker():
			return nil, fmt.Errorf("%s has no release %s: line %s stands for %s; select it as %s or %s", m.File, v.Tag(), l.Name, l.Tag, l.Name, l.Tag)
		}
		selected[l.Name] = true
	}
	return slices.DeleteFunc(slices.Clone(m.Lines), func(l Line) bool { return !selected[l.Name] }), nil
}

// noLine is the error of a name that is not a line. To a release that is well-formed nothing is near: 0.34 is not 0.33 with a slip.
func (m *Matrix) noLine(name string) error {
	has := "it has " + strings.Join(m.names(), ", ")
	if _, err := ParseVersion(name + ".0"); err == nil {
		return fmt.Errorf("%s has no line %q: %s", m.File, name, has)
	}
	return fmt.Errorf("%s has no line %q%s", m.File, name, tomlfile.DidYouMean(name, m.names(), has))
}

// CIRows are the rows of a test matrix. Goldens counts those of each line.
func CIRows(lines []Line, goldens map[string]int) []CIRow {
	rows := make([]CIRow, len(lines))
	for i, l := range lines {
		rows[i] = ciRow(l, goldens)
	}
	return rows
}

func ciRow(l Line, goldens map[string]int) CIRow {
	return CIRow{
		Line: l.Name, Tag: l.Tag, ProtocolRev: l.ProtocolRev, FidelityValidated: l.FidelityValidated, Default: l.Default,
		HasGoldens: goldens[l.Name] > 0, Gating: l.FidelityValidated, Goldens: goldens[l.Name],
	}
}

// DockerRows are the rows of a matrix of images; version is that of this project, such
// as "1.0.0", and never mixed up with that of vLLM.
func DockerRows(lines []Line, goldens map[string]int, version string) []DockerRow {
	rows := make([]DockerRow, len(lines))
	for i, l := range lines {
		tags := []string{version + "-vllm" + l.Name, "vllm" + l.Name}
		if l.Default {
			tags = append(tags, "latest")
		}
		rows[i] = DockerRow{CIRow: ciRow(l, goldens), PatchRepo: l.PatchRepo, PatchRev: l.PatchRev, ImageTags: tags}
	}
	return rows
}

// CaptureRows are the stable lines among these: of a tracker there is nothing that can
// be installed.
func CaptureRows(lines []Line, goldens map[string]int) []CaptureRow {
	rows := []CaptureRow{}
	for _, l := range lines {
		if v, err := ParseVersion(l.Tag); err == nil && !l.IsTracker() {
			rows = append(rows, CaptureRow{CIRow: ciRow(l, goldens), Version: v.String()})
		}
	}
	return rows
}
