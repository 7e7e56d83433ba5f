package acceptance

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/vllm-vcr/conformance/compat"
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
	Frontend string // "vllm-rs" or "python"
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
		t.set(p.Place, p.Variant, outcomes[i])
	}
	return t
}

func (t *Table) set(at, variant string, o Outcome) {
	if n := len(t.places); n == 0 || t.places[n-1] != at {
		t.places = append(t.places, at)
	}
	t.outcomes[place{at, variant}] = o
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

// Text is the file: the places with the same outcomes are listed together, after these. Of a table with a base, an
// older release's of the same frontend, it has the places that differ, and those that are gone.
func (t *Table) Text(base *Table) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "# What becomes of %s of vLLM %s that gets a message with one place changed.\n# Written by: vllm-vcr drift accept %[2]s%s\n", t.name(), t.Version, Flag(t.Frontend))
	groups := map[string][]string{}
	var signatures []string
	group := func(s, at string) {
		if groups[s] == nil {
			signatures = append(signatures, s)
		}
		groups[s] = append(groups[s], at)
	}
	variants, before := t.signatures(), map[string]string{}
	if base != nil {
		fmt.Fprintf(&b, "\nbase %s\n", base.Version)
		before = base.signatures()
		for _, at := range sortedKeys(before) {
			if variants[at] == "" {
				group(gone, at)
			}
		}
	}
	for _, at := range t.places {
		if s := variants[at]; s != before[at] {
			group(s, at)
		}
	}
	for _, s := range signatures {
		fmt.Fprintf(&b, "\n[%s]\n", s)
		within := ""
		for i, at := range groups[s] {
			// Of a place next to the one before it, its last part is enough.
			dot := max(strings.LastIndexByte(at, '.'), 0)
			switch {
			case dot > 0 && at[:dot] == within:
				b.WriteString(" " + at[dot:])
				continue
			case i > 0:
				b.WriteByte('\n')
			}
			b.WriteString(at)
			within = at[:dot]
		}
		b.WriteByte('\n')
	}
	return b.Bytes()
}

// gone marks the outcomes of a place that a release no longer has.
const gone = "gone"

func (t *Table) name() string {
	switch t.Frontend {
	case PythonFrontend:
		return "the Python client"
	case EngineCore:
		return "the engine core"
	}
	return t.Frontend
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

// signatures are the outcomes of each place, in the words of the file.
func (t *Table) signatures() map[string]string {
	variants := map[string]map[Outcome][]string{}
	for p, o := range t.outcomes {
		if variants[p.at] == nil {
			variants[p.at] = map[Outcome][]string{}
		}
		variants[p.at][o] = append(variants[p.at][o], p.variant)
	}
	all := map[string]string{}
	for at, of := range variants {
		var parts []string
		for _, o := range Outcomes {
			if names := of[o]; len(names) > 0 {
				slices.SortFunc(names, order)
				parts = append(parts, string(o)+" "+strings.Join(names, " "))
			}
		}
		all[at] = strings.Join(parts, "; ")
	}
	return all
}

// ReadTable reads what [Table.Text] wrote, under its name. base returns the table of another release of the frontend.
func ReadTable(name string, text []byte, base func(name string) (*Table, error)) (*Table, error) {
	version, frontend, ok := strings.Cut(strings.TrimSuffix(path.Base(name), ".txt"), "-")
	if !ok {
		return nil, fmt.Errorf("%s: want a name such as 0.33.0-vllm-rs.txt", name)
	}
	t := &Table{Frontend: frontend, Version: version, outcomes: map[place]Outcome{}}
	var group []string
	lines := bufio.NewScanner(bytes.NewReader(text))
	lines.Buffer(nil, 1<<20)
	for number := 1; lines.Scan(); number++ {
		line := strings.TrimSpace(lines.Text())
		of, isBase := strings.CutPrefix(line, "base ")
		switch {
		case line == "" || line[0] == '#':
		case isBase:
			older, err := base((&Table{Frontend: frontend, Version: of}).Name())
			if err != nil {
				return nil, fmt.Errorf("%s:%d: %w", name, number, err)
			}
			maps.Copy(t.outcomes, older.outcomes)
			t.places = slices.Clone(older.places)
		case line[0] == '[' && strings.HasSuffix(line, "]"):
			group = strings.Split(line[1:len(line)-1], "; ")
		case group == nil:
			return nil, fmt.Errorf("%s:%d: a place before any outcome", name, number)
		default:
			if err := t.add(line, group); err != nil {
				return nil, fmt.Errorf("%s:%d: %w", name, number, err)
			}
		}
	}
	return t, lines.Err()
}

// add takes in a line of places, which have the outcomes of a group instead of those that they had.
func (t *Table) add(line string, group []string) error {
	within := ""
	for _, at := range places(line) {
		if at[0] == '.' {
			at = within + at
		}
		within = at[:max(strings.LastIndexByte(at, '.'), 0)]
		maps.DeleteFunc(t.outcomes, func(p place, _ Outcome) bool { return p.at == at })
		t.places = slices.DeleteFunc(t.places, func(other string) bool { return other == at })
		if len(group) == 1 && group[0] == gone {
			continue
		}
		for _, part := range group {
			outcome, variants, _ := strings.Cut(part, " ")
			if !slices.Contains(Outcomes, Outcome(outcome)) {
				return fmt.Errorf("outcome %q: want one of %v", outcome, Outcomes)
			}
			for _, v := range strings.Fields(variants) {
				t.set(at, v, Outcome(outcome))
			}
		}
	}
	return nil
}

// places are those of a line. "result of is_sleeping" is one.
func places(line string) []string {
	for _, of := range []string{"result of ", "call of "} {
		if after, is := strings.CutPrefix(line, of); is {
			words := strings.Fields(after)
			words[0] = of + words[0]
			return words
		}
	}
	return strings.Fields(line)
}

// ReadTables are those of a folder, the oldest first.
func ReadTables(files fs.FS) ([]*Table, error) {
	names, err := fs.Glob(files, "*.txt")
	if err != nil {
		return nil, err
	}
	read := map[string]*Table{}
	var load func(name string) (*Table, error)
	load = func(name string) (*Table, error) {
		if t, is := read[name]; is {
			if t == nil {
				return nil, fmt.Errorf("%s is the base of itself", name)
			}
			return t, nil
		}
		read[name] = nil
		text, err := fs.ReadFile(files, name)
		if err != nil {
			return nil, err
		}
		read[name], err = ReadTable(name, text, load)
		return read[name], err
	}
	var all []*Table
	for _, name := range names {
		t, err := load(name)
		if err != nil {
			return nil, err
		}
		all = append(all, t)
	}
	slices.SortFunc(all, func(a, b *Table) int {
		return cmp.Or(CompareVersions(a.Version, b.Version), strings.Compare(a.Frontend, b.Frontend))
	})
	return all, nil
}

// BaseOf is the table of the newest older release of a frontend, nil if there is none.
func BaseOf(tables []*Table, frontend, version string) (base *Table) {
	for _, t := range tables {
		if t.Frontend == frontend && CompareVersions(t.Version, version) < 0 {
			base = t
		}
	}
	return base
}

// CompareVersions orders releases, the oldest first.
func CompareVersions(a, b string) int {
	one, errA := compat.ParseVersion(a)
	other, errB := compat.ParseVersion(b)
	if errA != nil || errB != nil {
		return strings.Compare(a, b)
	}
	return one.Compare(other)
}

// Keep writes a table into a folder of tables, unless it is only to be compared, and reports whether the folder has it
// already.
func (t *Table) Keep(folder string, compare bool) (path string, same bool, err error) {
	path = filepath.Join(folder, t.Name())
	others, err := ReadTables(os.DirFS(folder))
	if err != nil {
		return path, false, fmt.Errorf("%s: %w", folder, err)
	}
	text := t.Text(BaseOf(others, t.Frontend, t.Version))
	before, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return path, false, err
	}
	if same = bytes.Equal(before, text); same || compare {
		return path, same, nil
	}
	return path, false, errors.Join(os.MkdirAll(folder, 0o755), atomicfile.Write(path, text, 0o644))
}
