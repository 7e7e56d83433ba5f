package acceptance

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/vllm-vcr/conformance/internal/base/atomicfile"
)

// Folder is that of the tables in the repository of this program.
const Folder = "internal/upstream/acceptance/tables"

// The frontends that tables are of.
const (
	RustFrontend   = "vllm-rs"
	PythonFrontend = "python"
	// EngineCore is not a frontend: its tables are of the messages of [NewRequests].
	EngineCore = "engine"
)

// A Table is what a released frontend makes of the messages of its line.
type Table struct {
	Frontend string // "vllm-rs", "python" or "engine"
	Version  string // of the release, "0.33.0"
	outcomes map[place]Outcome
	places   []string // in their order
}

type place struct{ at, variant string }

// NewTable puts down what was measured. A probe without an outcome was not: the frontend has no such route.
func NewTable(frontend, version string, m *Messages, outcomes []Outcome) *Table {
	t := &Table{Frontend: frontend, Version: version, outcomes: map[place]Outcome{}}
	for i, p := range m.Probes {
		if outcomes[i] == "" {
			continue
		}
		if n := len(t.places); n == 0 || t.places[n-1] != p.Place {
			t.places = append(t.places, p.Place)
		}
		t.outcomes[place{p.Place, p.Variant}] = outcomes[i]
	}
	return t
}

// Count is how many messages had an outcome.
func (t *Table) Count(o Outcome) (n int) {
	for _, each := range t.outcomes {
		if each == o {
			n++
		}
	}
	return n
}

// Name is that of the file.
func (t *Table) Name() string { return t.Version + "-" + t.Frontend + ".txt" }

// Text is the file. It has a line for each place: "PLACE: OUTCOME VARIANT VARIANT; OUTCOME VARIANT".
func (t *Table) Text() []byte {
	what := t.Frontend
	switch what {
	case PythonFrontend:
		what = "the Python client"
	case EngineCore:
		what = "the engine core"
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, "# What becomes of %s of vLLM %s that gets a message with one place changed.\n# Written by: vllm-vcr drift accept %[2]s%s\n", what, t.Version, Flag(t.Frontend))
	variants := map[place][]string{} // by place and outcome
	for p, o := range t.outcomes {
		key := place{p.at, string(o)}
		variants[key] = append(variants[key], p.variant)
	}
	for _, at := range t.places {
		var parts []string
		for _, o := range Outcomes {
			if names := variants[place{at, string(o)}]; len(names) > 0 {
				slices.SortFunc(names, order)
				parts = append(parts, string(o)+" "+strings.Join(names, " "))
			}
		}
		fmt.Fprintf(&b, "%s: %s\n", at, strings.Join(parts, "; "))
	}
	return b.Bytes()
}

// Flag is that of drift accept that measures a frontend, or an engine core, after a space.
func Flag(frontend string) string {
	switch frontend {
	case PythonFrontend:
		return " --frontend " + PythonFrontend
	case EngineCore:
		return " --engine-core"
	}
	return ""
}

// Keep writes a table into a folder of tables, unless it is only to be compared, and reports whether the folder has it
// already.
func (t *Table) Keep(folder string, compare bool) (path string, same bool, err error) {
	path = filepath.Join(folder, t.Name())
	before, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return path, false, err
	}
	text := t.Text()
	if same = bytes.Equal(before, text); same || compare {
		return path, same, nil
	}
	return path, false, errors.Join(os.MkdirAll(folder, 0o755), atomicfile.Write(path, text, 0o644))
}
