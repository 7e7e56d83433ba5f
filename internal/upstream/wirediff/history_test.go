package wirediff_test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/internal/upstream/wirediff"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// lines are those that history is known of, oldest first.
var lines = []string{"0.23", "0.24", "0.25", "0.26", "0.27", "0.28", "0.29", "0.30", "0.31", "0.32", "0.33"}

// load returns the profile of a line or release: of this build, else of the older
// ones that are kept for tests.
func load(t testing.TB, name string) *protocol.Profile {
	t.Helper()
	if protocol.HasProfile(name) && strings.Count(name, ".") == 1 {
		p, err := protocol.LoadProfile(name)
		require.NoError(t, err)
		return p
	}
	if strings.Count(name, ".") == 1 {
		name += ".0"
	}
	file, err := os.Open("testdata/profiles/" + name + ".json")
	require.NoError(t, err)
	defer file.Close()
	p, err := protocol.ReadProfile(file)
	require.NoErrorf(t, err, "%s", file.Name())
	return p
}

// readTable returns the rows of a table under testdata, each with its cells.
func readTable(t *testing.T, name string, cells int) [][]string {
	t.Helper()
	text, err := os.ReadFile("testdata/" + name)
	require.NoError(t, err)
	var rows [][]string
	for i, line := range strings.Split(string(text), "\n") {
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		row := strings.Split(line, " | ")
		if len(row) != cells {
			t.Fatalf("%s:%d: %d cells, want %d", name, i+1, len(row), cells)
		}
		rows = append(rows, row)
	}
	return rows
}

// historic are the rows of changes.txt as sayings, by line.
func historic(t *testing.T) map[string][]string {
	t.Helper()
	byLine := map[string][]string{}
	for _, row := range readTable(t, "changes.txt", 5) {
		level, breaks := wirediff.Breaking, row[4]
		switch breaks {
		case "-":
			level, breaks = wirediff.Compatible, ""
		case "(":
			level, breaks = wirediff.Informational, ""
		}
		subject := row[1]
		if row[3] != "-" {
			subject += "@" + row[3]
		}
		byLine[row[0]] = append(byLine[row[0]], fmt.Sprintf("%s %s %s [%s]", level, row[2], subject, breaks))
	}
	for _, rows := range byLine {
		slices.Sort(rows)
	}
	return byLine
}

// TestHistory: between neighbouring lines, what is known to have changed is found,
// and nothing else.
func TestHistory(t *testing.T) {
	want := historic(t)
	for i, line := range lines[1:] {
		got := sayings(wirediff.Compare(load(t, lines[i]), load(t, line)))
		slices.Sort(got)
		require.NoDiff(t, cmp.Diff(want[line], got), "%s to %s, -want +got", lines[i], line)
	}
}

// TestUndeclared: what is known to have changed and is not in changes.txt is of a
// kind that no profile shows, and is not found.
func TestUndeclared(t *testing.T) {
	for _, row := range readTable(t, "undeclared.txt", 4) {
		line, word := row[0], row[2]
		before := lines[slices.Index(lines, line)-1]
		for _, got := range sayings(wirediff.Compare(load(t, before), load(t, line))) {
			if strings.Contains(got, word) {
				t.Errorf("%s, %s: it is declared after all: %s", line, row[1], got)
			}
		}
	}
}

// TestPatchReleases: no false alarm between releases of one line.
func TestPatchReleases(t *testing.T) {
	for _, release := range []string{"0.25.0", "0.27.0"} {
		older, newer := load(t, release), load(t, protocol.LineOf(release))
		if older.Version == newer.Version || older.Commit == newer.Commit {
			t.Fatalf("%s and %s are one release", older.Version, newer.Version)
		}
		d := wirediff.Compare(older, newer)
		if got := sayings(d); len(got) > 0 || d.Verdict() != wirediff.None {
			t.Errorf("%s to %s: %s %q", older.Version, newer.Version, d.Verdict(), got)
		}
	}
}
