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
	if err != nil {
		t.Fatalf("%s: %v", file.Name(), err)
	}
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

// TestWholeHistory: over all lines at once, everything is found that is found line
// by line, but what later changes undo or change once more.
func TestWholeHistory(t *testing.T) {
	folded := []string{
		// Came and went in between.
		"constant-added MEDIUM_FS", "constant-added MEDIUM_OBJ", "constant-removed MEDIUM_FS", "constant-removed MEDIUM_OBJ",
		// Changes of what was not there at the beginning.
		"field-type SamplingMaskLists.offsets", "field-required SamplingMaskLists.offsets", "field-type SamplingParams.watermarking",
		"field-default SamplingParams.watermarking", "field-type SamplingParams.prompt_logprob_token_ids",
	}
	want := map[string]bool{}
	for _, rows := range historic(t) {
		for _, row := range rows {
			want[nameOf(row)] = true
		}
	}
	for _, name := range folded {
		if !want[name] {
			t.Errorf("%s is no change that could be folded", name)
		}
		delete(want, name)
	}
	got := map[string]bool{}
	d := wirediff.Compare(load(t, "0.23"), load(t, "0.33"))
	for _, c := range d.Changes {
		got[nameOf(saying(c))] = true
	}
	require.NoDiff(t, cmp.Diff(want, got), "-want +got")
	if got := d.Verdict(); got != wirediff.Breaks {
		t.Errorf("verdict %s", got)
	}
}

// nameOf is a saying without its level, position and parties.
func nameOf(saying string) string {
	_, rest, _ := strings.Cut(saying, " ")
	rest, _, _ = strings.Cut(rest, " [")
	rest, _, _ = strings.Cut(rest, "@")
	return rest
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

// TestEveryPair: any two profiles can be compared, one with itself shows nothing, and what a comparison says is
// complete. This build speaks all its lines, so that no struct of one asks anything of it.
func TestEveryPair(t *testing.T) {
	for _, from := range lines {
		for _, to := range lines {
			d := wirediff.Compare(load(t, from), load(t, to))
			if (from == to || from == "0.24" && to == "0.25" || from == "0.25" && to == "0.24") != (len(d.Changes) == 0) {
				t.Errorf("%s to %s: %d changes", from, to, len(d.Changes))
			}
			isKnown := slices.Contains(protocol.Lines(), from) && slices.Contains(protocol.Lines(), to)
			if isKnown && d.Codec != "" {
				t.Errorf("%s: %s", to, d.Codec)
			}
			for _, c := range d.Changes {
				isStruct := strings.HasPrefix(string(c.Kind), "field") || strings.HasPrefix(string(c.Kind), "struct")
				if isKnown && isStruct && c.Needs.Player != wirediff.FromProfile {
					t.Errorf("%s to %s, %s: %s", from, to, c.Subject, c.Needs.Player)
				}
				if c.Reason == "" || c.Breaks == nil || c.Needs.Player == "" || c.Needs.Recorder == "" || c.Where.URL == "" ||
					c.Where.At == 0 || c.Where.Release == "" || strings.Contains(c.What(), "%") {
					t.Errorf("%s to %s: incomplete: %+v", from, to, c)
				}
				if (len(c.Breaks) > 0) != (c.Level == wirediff.Breaking) {
					t.Errorf("%s to %s: level %s, breaks %v: %s", from, to, c.Level, c.Breaks, c.Subject)
				}
			}
		}
	}
}
