package acceptance

import (
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// What nobody tampered with is exactly what the line declares, and every declared field has probes.
func TestSamplesAreOfTheLine(t *testing.T) {
	for _, line := range protocol.Lines() {
		m, err := New(line)
		require.NoError(t, err)
		f := facts{id: "a", callID: 7, finish: protocol.FinishLength, ready: m.ready}
		if found := m.Codec.CheckReady(m.register.clean(f)); len(found) > 0 {
			t.Errorf("line %s: registration: %v", line, found)
		}
		probed := map[string]bool{}
		for _, p := range m.Probes {
			if p.tamper.at != nil {
				probed[p.tamper.at.field] = true
			}
			if p.scenario.method == "" || p.Variant != "sample" || p.scenario.raw != nil || strings.Contains(p.Place, "cu_num_generated") {
				continue
			}
			for _, message := range [][]byte{p.scenario.clean(f), p.message(f)[0]} {
				if found := m.Codec.CheckOutputs(message); len(found) > 0 {
					t.Errorf("line %s: %s: %v", line, p.Place, found)
				}
			}
		}
		for _, name := range []string{"EngineCoreOutputs", "EngineCoreOutput", "SchedulerStats", "EngineCoreReadyResponse", "UtilityOutput", "PrefixCacheStats"} {
			for _, field := range m.Codec.Profile().Structs[name].Fields {
				require.True(t, probed[name+"."+field.Name], "line %s: %s.%s is not probed", line, name, field.Name)
			}
		}
	}
}

// Each variant is another message than the sample, or stands for it.
func TestVariantsDiffer(t *testing.T) {
	m, err := New("0.33")
	require.NoError(t, err)
	f := facts{id: "a", callID: 7, finish: protocol.FinishLength, ready: m.ready}
	seen := map[string]bool{}
	for _, p := range m.Probes {
		if key := p.Place + " " + p.Variant; seen[key] {
			t.Errorf("%s: twice", key)
		} else {
			seen[key] = true
		}
		if p.scenario.raw != nil || p.Variant == "sample" || p.Variant == "nil" {
			continue
		}
		sample := tamper{at: p.tamper.at, open: p.tamper.open}
		if before, after := sample.encode(nil, p.scenario.root, f), p.message(f)[0]; string(before) == string(after) {
			t.Errorf("%s, %s: the message is that of the sample", p.Place, p.Variant)
		}
	}
}

func TestTableText(t *testing.T) {
	m, err := New("0.33")
	require.NoError(t, err)
	outcomes := make([]Outcome, len(m.Probes))
	for i := range outcomes {
		outcomes[i] = Outcomes[(i/7)%len(Outcomes)]
	}
	outcomes[len(outcomes)-1] = "" // was not measured
	table := NewTable(RustFrontend, "0.33.0", m, outcomes)
	read, err := readTable(table.Name(), table.Text())
	require.NoError(t, err)
	require.NoDiff(t, cmp.Diff(table.outcomes, read.outcomes, cmp.AllowUnexported(place{})), "outcomes (-written +read)")
	for _, wrong := range []string{"place\n", "place: eaten nil\n"} {
		if _, err := readTable(table.Name(), []byte(wrong)); err == nil {
			t.Errorf("%q is read", wrong)
		}
	}
}

// The tables of this build are of places that their lines have, and small.
func TestTables(t *testing.T) {
	tables, err := readTables(os.DirFS("tables"))
	require.NoError(t, err)
	for _, table := range tables {
		probes := New
		if table.Frontend == EngineCore {
			probes = NewRequests
		}
		m, err := probes(protocol.LineOf(table.Version))
		if err != nil {
			t.Error(err)
			continue
		}
		left := maps.Clone(table.outcomes)
		for _, p := range m.Probes {
			delete(left, place{p.Place, p.Variant})
		}
		for p := range left {
			t.Errorf("%s: %s, %s is no probe of the line: vllm-vcr drift accept %s", table.Name(), p.at, p.variant, table.Version)
		}
	}
}

// Of returns what became of the frontend, and whether that was looked at.
func (t *Table) Of(p Probe) (Outcome, bool) {
	o, is := t.outcomes[place{p.Place, p.Variant}]
	return o, is
}

// readTable reads what [Table.Text] wrote, under its name.
func readTable(name string, text []byte) (*Table, error) {
	version, frontend, ok := strings.Cut(strings.TrimSuffix(name, ".txt"), "-")
	if !ok {
		return nil, fmt.Errorf("%s: want a name such as 0.33.0-vllm-rs.txt", name)
	}
	t := &Table{Frontend: frontend, Version: version, outcomes: map[place]Outcome{}}
	for i, line := range strings.Split(strings.TrimSpace(string(text)), "\n") {
		if strings.HasPrefix(line, "#") {
			continue
		}
		at, groups, _ := strings.Cut(line, ": ")
		t.places = append(t.places, at)
		for _, group := range strings.Split(groups, "; ") {
			outcome, variants, _ := strings.Cut(group, " ")
			if !slices.Contains(Outcomes, Outcome(outcome)) {
				return nil, fmt.Errorf("%s:%d: outcome %q: want one of %v", name, i+1, outcome, Outcomes)
			}
			for _, v := range strings.Fields(variants) {
				t.outcomes[place{at, v}] = Outcome(outcome)
			}
		}
	}
	return t, nil
}

// readTables are those of a folder.
func readTables(files fs.FS) ([]*Table, error) {
	names, err := fs.Glob(files, "*.txt")
	if err != nil {
		return nil, err
	}
	var all []*Table
	for _, name := range names {
		text, err := fs.ReadFile(files, name)
		if err != nil {
			return nil, err
		}
		t, err := readTable(name, text)
		if err != nil {
			return nil, err
		}
		all = append(all, t)
	}
	return all, nil
}
