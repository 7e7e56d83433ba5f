package pypi

import (
	"bufio"
	"bytes"
	"fmt"
	"strings"

	"github.com/vllm-vcr/conformance/compat"
)

const maxMetadata = 4 << 20 // bytes

// Version returns the version that the wheel says of itself in its METADATA, as [compat.Build] writes it. A wheel whose
// file name says another project or version is an error, as nobody can tell what is in it.
func (w *Wheel) Version() (string, error) {
	name, err := w.metadataFile()
	if err != nil {
		return "", err
	}
	text, err := w.ReadFile(name, maxMetadata)
	if err != nil {
		return "", err
	}
	project, said := fieldsOf(text)
	if project == "" || said == "" {
		return "", fmt.Errorf("%s: %s names no project and version", w.where, name)
	}
	build, err := compat.ParseBuild(said)
	if err != nil {
		return "", fmt.Errorf("%s: %s: %w", w.where, name, err)
	}
	if err := w.agrees(project, build); err != nil {
		return "", err
	}
	return build.String(), nil
}

// agrees tells whether the name of the file, if it is that of a wheel, says what its METADATA says.
func (w *Wheel) agrees(project string, build compat.Build) error {
	n, ok := parseWheelName(w.File.Name)
	if !ok {
		return nil
	}
	named, err := compat.ParseBuild(n.version)
	if err != nil || named != build || normalName(n.project) != normalName(project) {
		return fmt.Errorf("%s: its METADATA says that it is %q %s, its name %q %q",
			w.where, project, build, n.project, n.version)
	}
	return nil
}

// metadataFile is the one member that says what the wheel is.
func (w *Wheel) metadataFile() (string, error) {
	var found []string
	for _, name := range w.Names() {
		folder, isMetadata := strings.CutSuffix(name, ".dist-info/METADATA")
		if isMetadata && !strings.Contains(folder, "/") {
			found = append(found, name)
		}
	}
	if len(found) != 1 {
		return "", fmt.Errorf("%s is no wheel: it has %d members *.dist-info/METADATA, want 1", w.where, len(found))
	}
	return found[0], nil
}

// fieldsOf reads what the head of a METADATA says. A field that goes on in the next line is none of these.
func fieldsOf(text []byte) (project, version string) {
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan() && lines.Text() != ""; {
		switch key, value, _ := strings.Cut(lines.Text(), ":"); strings.ToLower(key) {
		case "name":
			project = strings.TrimSpace(value)
		case "version":
			version = strings.TrimSpace(value)
		}
	}
	return project, version
}
