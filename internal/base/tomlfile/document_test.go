package tomlfile

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

var testCodes = Codes{Unreadable: "T001", Syntax: "T002", UnknownKey: "T003", WrongType: "T004"}

// visit reads a table of the format that the tests use.
func visit(t *Table) {
	t.Required("name", "T005")
	t.Int("size")
	t.Bool("valid")
	t.Time("at")
	t.Strings("tags")
}

// diagnosticsOf parses src as a file of [[golden]] tables and returns its diagnostics.
func diagnosticsOf(src string) []string {
	d := Parse("f.toml", []byte(src), testCodes)
	if d.Root() != nil {
		for _, g := range d.Root().Tables("golden") {
			visit(g)
		}
	}
	return render(d.Diagnostics())
}

func render(diagnostics []Diagnostic) []string {
	var out []string
	for _, f := range diagnostics {
		out = append(out, f.String())
	}
	return out
}

func TestFindings(t *testing.T) {
	const own = "keys of your own start with x_"
	tests := []struct {
		name string
		src  string
		want []string
	}{
		{name: "clean", src: "x_top = 1\n[x_table]\na = 1\n[[golden]]\nname = 'a'\nsize = 3\nvalid = true\nat = 2026-01-31T12:00:00Z\ntags = ['x']\nx_mine = {b = 1}\n"},
		{name: "clean, inline", src: "golden = [\n {name = 'a', at = '2026-01-31T12:00:00+02:00'},\n {name = 'b', tags = []},\n]\n"},
		{name: "no tables at all", src: "golden = []\n"},
		{
			name: "unknown keys", src: "golden_ = 1\n[[golden]]\nname = 'a'\n\n[[golden]]\nname = 'b'\nvlaid = true\nzzzzzzzz = 1\nNAME = 'c'\n",
			want: []string{
				`f.toml:1: T003 error: unknown key "golden_" in the top level; did you mean "golden"? ` + own,
				`f.toml:7: T003 error: unknown key "vlaid" in [[golden]]; did you mean "valid"? ` + own,
				`f.toml:8: T003 error: unknown key "zzzzzzzz" in [[golden]]; known are at, name, size, tags, valid; ` + own,
				`f.toml:9: T003 error: unknown key "NAME" in [[golden]]; did you mean "name"? ` + own,
			},
		},
		{
			name: "an unknown table is one diagnostic", src: "[other]\na = 1\nb = 2\n",
			want: []string{`f.toml:1: T003 error: unknown key "other" in the top level; known are golden; ` + own},
		},
		{
			name: "every wrong type", src: "[[golden]]\nname = 1\nsize = 1.5\nvalid = 'true'\nat = 2026-01-31\ntags = ['a', 2]\n[[golden]]\nname = {}\nsize = [1]\nat = 'now'\n",
			want: []string{
				`f.toml:2: T004 error: name must be a string, but is an integer; write name = "..."`,
				`f.toml:3: T004 error: size must be an integer, but is a float; write size = 1`,
				`f.toml:4: T004 error: valid must be a boolean, but is a string; write valid = true`,
				`f.toml:5: T004 error: at must be a date and time with an offset, but is a date or time; write at = "2026-01-31T12:00:00Z"`,
				`f.toml:6: T004 error: tags must be an array of strings, but is an array; write tags = ["...", "..."]`,
				`f.toml:8: T004 error: name must be a string, but is a table; write name = "..."`,
				`f.toml:9: T004 error: size must be an integer, but is an array; write size = 1`,
				`f.toml:10: T004 error: at must be a date and time with an offset, but is a string; write at = "2026-01-31T12:00:00Z"`,
			},
		},
		{name: "a table for an array of tables", src: "\n[golden]\nname = 'a'\n", want: []string{
			`f.toml:2: T004 error: golden must be an array of tables, but is a table; write [[golden]]`,
		}},
		{name: "numbers for tables", src: "golden = [1, 2]", want: []string{
			`f.toml:1: T004 error: golden must be an array of tables, but is an array; write [[golden]]`,
		}},
		{name: "a boolean for tables", src: "golden = true", want: []string{
			`f.toml:1: T004 error: golden must be an array of tables, but is a boolean; write [[golden]]`,
		}},
		{name: "array of tables for a string", src: "[[golden]]\n[[golden.name]]\n", want: []string{
			`f.toml:2: T004 error: name must be a string, but is an array of tables; write name = "..."`,
		}},
		{name: "missing and empty", src: "[[golden]]\nsize = 1\n[[golden]]\n\nname = ''\n", want: []string{
			`f.toml:1: T005 error: [[golden]] has no name; add name = "..."`,
			`f.toml:5: T005 error: name is empty`,
		}},
		{name: "missing in an inline table", src: "golden = [\n {name = 'a'},\n {size = 1},\n]", want: []string{
			`f.toml:3: T005 error: [[golden]] has no name; add name = "..."`,
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			require.NoDiff(t, cmp.Diff(tt.want, diagnosticsOf(tt.src)), "diagnostics (-want +got)")
		})
	}
}

func TestFindingsOfTextThatIsNotTOML(t *testing.T) {
	tests := []struct {
		name string
		src  string
		want []string
	}{
		{name: "syntax", src: "[[golden]]\nname = \"a\nsize = 1\n", want: []string{
			`f.toml:2:10: T002 error: not valid TOML: basic strings cannot have new lines`,
		}},
		{name: "syntax at the end of the text", src: "[[golden]]\nname = 'a'\nsize = ", want: []string{
			`f.toml:3:7: T002 error: not valid TOML: expected value, not end of input`,
		}},
		{name: "duplicate key", src: "[[golden]]\nname = 'a'\nname = 'b'\n", want: []string{
			`f.toml:3:1: T002 error: not valid TOML: Key 'golden.name' has already been defined.`,
		}},
		{name: "column in characters", src: "é = 'é' x", want: []string{
			`f.toml:1:1: T002 error: not valid TOML: invalid character at start of key: U+00C3 'Ã'`,
		}},
		{name: "binary", src: "a = 1\nb\x00", want: []string{
			`f.toml:2: T001 error: is not UTF-8 text: byte 0x00; is this the right file?`,
		}},
		{name: "gzip", src: "\x1f\x8b\x08", want: []string{
			`f.toml:1: T001 error: is not UTF-8 text: byte 0x8b; is this the right file?`,
		}},
		{name: "UTF-16", src: "\xff\xfea\x00", want: []string{
			`f.toml:1: T001 error: is not UTF-8 text: byte 0x00; is this the right file?`,
		}},
		{name: "byte order mark", src: "\xef\xbb\xbf[[golden]]\nname = 1", want: []string{
			`f.toml:2: T004 error: name must be a string, but is an integer; write name = "..."`,
		}},
		{name: "two byte order marks", src: "\xef\xbb\xbf\xef\xbb\xbfa = 1", want: []string{
			`f.toml:1:1: T002 error: not valid TOML: invalid character at start of key: U+00EF 'ï'`,
		}},
		{name: "too large", src: strings.Repeat("#", maxBytes+1), want: []string{
			`f.toml: T001 error: is larger than 1048576 bytes; is this the right file?`,
		}},
		{name: "largest", src: strings.Repeat("#", maxBytes)},
		{name: "too deep", src: "\na = " + strings.Repeat("[", 1<<19), want: []string{
			`f.toml:2:10005: T002 error: not valid TOML: arrays and inline tables are nested more than the maximum of 10000 levels deep`,
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			require.NoDiff(t, cmp.Diff(tt.want, diagnosticsOf(tt.src)), "diagnostics (-want +got)")
		})
	}
}

func TestDate(t *testing.T) {
	tests := []struct{ name, value, want string }{
		{"a date", "2026-01-31", "2026-01-31 00:00:00 +0000 UTC"},
		{"a string", "'2026-01-31'", "2026-01-31 00:00:00 +0000 UTC"},
		{"a string that is none", "'soon'", "f.toml:2: T004 error: on must be a date, but is a string; write on = 2026-01-31"},
		{"a day that is none", "'2026-02-30'", "f.toml:2: T004 error: on must be a date, but is a string; write on = 2026-01-31"},
		{"a time with an offset", "2026-01-31T12:00:00Z", "f.toml:2: T004 error: on must be a date, but is a date or time; write on = 2026-01-31"},
		{"a time without", "2026-01-31T12:00:00", "f.toml:2: T004 error: on must be a date, but is a date or time; write on = 2026-01-31"},
		{"a number", "3", "f.toml:2: T004 error: on must be a date, but is an integer; write on = 2026-01-31"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			d := Parse("f.toml", []byte("[[golden]]\non = "+test.value+"\n"), testCodes)
			g := d.Root().Tables("golden")[0]
			got := g.Date("on").String()
			if diagnostics := d.Diagnostics(); len(diagnostics) > 0 {
				got = diagnostics[0].String()
			}
			require.Equal(t, got, test.want, "got")
			require.True(t, g.Date("absent").IsZero(), "an absent date is not zero")
		})
	}
}

func TestLoad(t *testing.T) {
	dir := t.TempDir()
	good := filepath.Join(dir, "good.toml")
	require.NoError(t, os.WriteFile(good, []byte("[[golden]]\nname = 'a'\n"), 0o600))
	d := Load(good, testCodes)
	if d.Root() == nil {
		t.Fatalf("no root: %v", d.Diagnostics())
	}
	require.Equal(t, d.Root().Tables("golden")[0].String("name"), "a", "name")
	if f := d.Diagnostics(); len(f) != 0 {
		t.Errorf("diagnostics %v, want none", f)
	}
	checkUnreadable(t, filepath.Join(dir, "none.toml"), "no such file or directory")
	checkUnreadable(t, dir, "it is not a regular file")
}

// checkUnreadable demands that Load refuses the file for the given reason.
func checkUnreadable(t *testing.T, path, reason string) {
	t.Helper()
	d := Load(path, testCodes)
	want := []string{path + ": T001 error: cannot be read: " + reason + "; check the path and its permissions"}
	require.NoDiff(t, cmp.Diff(want, render(d.Diagnostics())), "diagnostics (-want +got)")
	require.True(t, d.Root() == nil, "%s has a root, want none", path)
}

func TestNearest(t *testing.T) {
	known := []string{"line", "tag", "protocol_rev", "patch_repo", "patch_rev", "fidelity_validated", "default", "0.33"}
	tests := []struct {
		name, word, want string
	}{
		{name: "one letter less", word: "fidelity_validate", want: "fidelity_validated"},
		{name: "two neighbours swapped", word: "lien", want: "line"},
		{name: "other case", word: "TAG", want: "tag"},
		{name: "a hyphen", word: "protocol-rev", want: "protocol_rev"},
		{name: "between two", word: "patch_rep", want: "patch_repo"},
		{name: "the end of a version", word: "33", want: "0.33"},
		{name: "much shorter", word: "fidelity"},
		{name: "nothing alike", word: "zzz"},
		{name: "one letter", word: "x"},
		{name: "half of a short word", word: "lift"},
		{name: "all but one letter of a short word", word: "tea"},
		{name: "a short word with a slip", word: "tog", want: "tag"},
		{name: "two letters of seven", word: "defalts", want: "default"},
		{name: "empty", word: ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, ok := Nearest(tt.word, known)
			if !ok {
				got = ""
			}
			require.Equal(t, got, tt.want, "Nearest(%q)", tt.word)
		})
	}
}
