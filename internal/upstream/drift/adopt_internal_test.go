package drift

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/internal/upstream/pinned"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// newest is the text of the newest profile of this build, before any test teaches another.
var newest = func() []byte {
	p, err := protocol.LoadProfile(protocol.Newest())
	if err != nil {
		panic(err)
	}
	var text bytes.Buffer
	_ = protocol.WriteProfile(&text, p) // a Buffer takes everything
	return text.Bytes()
}()

// released makes the profile of a release out of the newest one, with a field more at the end of each output.
func released(t *testing.T, version string) *protocol.Profile {
	t.Helper()
	p, err := protocol.ReadProfile(bytes.NewReader(newest))
	require.NoError(t, err)
	p.Line, p.Version, p.Commit = protocol.LineOf(version), version, "0123456789"
	if known, err := protocol.LoadProfile(p.Line); err == nil { // what is adopted is taught to the process
		t.Cleanup(func() { require.NoError(t, protocol.Learn(known)) })
	}
	s := p.Structs["EngineCoreOutput"]
	s.Fields = append(slices.Clone(s.Fields), protocol.Field{Name: "brand_new", Type: "int | None"})
	p.Structs["EngineCoreOutput"] = s
	return p
}

// A matrix is written as "LINE TAG REV" lines; the first stable one is the default, and "!" behind it says it is
// validated.
func matrix(head string, entries ...string) string {
	text, isDefault := head, true
	for _, e := range entries {
		var line, tag, rev string
		e, validated := strings.CutSuffix(e, " !")
		_, _ = fmt.Sscan(e, &line, &tag, &rev)
		remark := ""
		if line == "nightly" {
			remark = " # that of 0.33, the newest release"
		}
		text += fmt.Sprintf("\n[[vllm]]\nline = %q\ntag = %q\nprotocol_rev = %q%s\n", line, tag, rev, remark)
		if strings.HasPrefix(tag, "v0") && !strings.Contains(tag, "rc") {
			text += fmt.Sprintf("fidelity_validated = %v\n", validated)
			if isDefault {
				text, isDefault = text+"default = true\n", false
			}
		}
	}
	return text
}

const header = "# Ours.\n"

// tree lays files into a folder.
func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
	}
	return dir
}

const (
	rev33 = "333333333"
	rev32 = "222222222"
	rev31 = "111111111"
)

func TestMatrix(t *testing.T) {
	const rev = "0123456789" // of what is adopted
	lines := func(first, second string, others []string) []string {
		return append([]string{first, second}, others...)
	}
	usual := []string{"nightly nightly " + rev33, "0.33 v0.33.0 " + rev33, "0.32 v0.32.0 " + rev32, "0.31 v0.31.0 " + rev31}
	tests := []struct {
		name, release string
		matrix        int
		before, after []string
		newest        string // that nightly is said to follow
		dropped       []string
		want          string // in the error
		toDo          string // in what a person has to do, if there is something
	}{
		{name: "a new line", release: "0.34.0", before: usual, newest: "0.34", after: lines("nightly nightly "+rev, "0.34 v0.34.0 "+rev, usual[1:])},
		{
			name: "the oldest goes", release: "0.34.0", matrix: 3, before: usual, newest: "0.34", dropped: []string{"0.31"},
			after: lines("nightly nightly "+rev, "0.34 v0.34.0 "+rev, usual[1:3]),
		},
		{name: "a patch of the newest", release: "0.33.1", before: usual, newest: "0.33", after: lines("nightly nightly "+rev, "0.33 v0.33.1 "+rev, usual[2:])},
		{name: "a patch of an older one", release: "0.32.1", before: usual, newest: "0.33", after: lines(usual[0], usual[1], []string{"0.32 v0.32.1 " + rev, usual[3]})},
		{
			name: "nightly follows somebody else", release: "0.34.0", newest: "0.33", before: lines("nightly nightly 999999999", usual[1], usual[2:]),
			after: lines("nightly nightly 999999999", "0.34 v0.34.0 "+rev, usual[1:]),
		},
		{
			name: "the candidate that led to it", release: "0.34.0", newest: "0.34", before: lines(usual[0], "rc v0.34.0rc1 444444444", usual[1:]),
			after: lines("nightly nightly "+rev, "0.34 v0.34.0 "+rev, usual[1:]),
		},
		{
			name: "the candidate of the next", release: "0.33.1", newest: "0.33", before: lines(usual[0], "rc v0.34.0rc1 444444444", usual[1:]),
			after: lines("nightly nightly "+rev, "rc v0.34.0rc1 444444444", lines("0.33 v0.33.1 "+rev, usual[2], usual[3:])),
		},
		{
			name: "a line between is missing", release: "0.35.0", before: usual, toDo: "the matrix has 0.35 and 0.33, but nothing between them", newest: "0.35",
			after: lines("nightly nightly "+rev, "0.35 v0.35.0 "+rev, usual[1:]),
		},
		{name: "older than what there is", release: "0.33.0", before: []string{"0.33 v0.33.2 " + rev33}, want: "line 0.33 has v0.33.2, which is newer than 0.33.0"},
		{name: "older than the matrix", release: "0.30.0", matrix: 3, before: usual, want: "is of a line before the oldest"},
		{name: "a candidate", release: "0.34.0rc1", before: usual, want: "is not a release that a line can have"},
		{name: "no matrix", release: "0.34.0", want: "cannot be used as it is"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			dir := tree(t, map[string]string{"compat.toml": matrix(header, test.before...)})
			plan, err := PrepareAdoption(AdoptOptions{Tree: FindTree(dir, ""), Profile: released(t, test.release), Lines: test.matrix})
			if test.want != "" {
				require.ErrorContains(t, err, test.want)
				return
			}
			require.NoError(t, err)
			require.NoError(t, plan.Write())
			got, err := os.ReadFile(filepath.Join(dir, "compat.toml"))
			want := strings.ReplaceAll(matrix(header, test.after...), "that of 0.33,", "that of "+test.newest+",")
			if diff := cmp.Diff(want, string(got)); err != nil || diff != "" {
				t.Errorf("compat.toml (-want +got): %v\n%s", err, diff)
			}
			if diff := cmp.Diff(test.dropped, plan.Dropped); diff != "" && len(plan.Dropped)+len(test.dropped) > 0 {
				t.Errorf("dropped (-want +got):\n%s", diff)
			}
			checkAdopted(t, filepath.Join(dir, "profiles"), test.release)
			if toDo := strings.Join(plan.ToDo, "\n"); !strings.Contains(toDo, test.toDo) || test.toDo == "" && toDo != "" {
				t.Errorf("to do: %q, want %q", toDo, test.toDo)
			}
		})
	}
}

func checkAdopted(t *testing.T, dir, release string) {
	t.Helper()
	file, err := os.Open(filepath.Join(dir, protocol.LineOf(release)+".json"))
	require.NoError(t, err)
	defer file.Close()
	p, err := protocol.ReadProfile(file)
	require.True(t, err == nil && p.Version == release && p.Structs["EngineCoreOutput"].Index("brand_new") >= 0, "the profile is of %v, %v", p, err)
}

// TestAgain: what is adopted already changes no file, and a longer name of the commit stays.
func TestAgain(t *testing.T) {
	dir := tree(t, map[string]string{"compat.toml": matrix(header, "0.33 v0.33.1 0123456789abcdef")})
	for i := range 2 {
		plan, err := PrepareAdoption(AdoptOptions{Tree: FindTree(dir, ""), Profile: released(t, "0.33.1")})
		require.NoError(t, err)
		if want := 1 - i; len(plan.Files) != want {
			t.Errorf("time %d: %d files are edited, want %d: %v", i, len(plan.Files), want, plan.Files)
		}
		require.NoError(t, plan.Write())
	}
}

const models = `
[models.tiny]
source = "tiny/tiny"
gpu = "cpu"
unprefixed = true

[models.large]
source = "large/large"
gpu = "H200"

[lines."0.33"]
engine_image = "docker.io/vllm/vllm-openai:v0.33.0@sha256:0000000000000000000000000000000000000000000000000000000000000000"
tap_image = "registry.example.com/vllm-vcr:1@sha256:0000000000000000000000000000000000000000000000000000000000000000"
`

// asks is a block of targets, with what stands at it.
func asks(lines, model string) string {
	return "\n# why\n[[target]]\nlines = [" + lines + "] # these\nmodels = [\"" + model + "\"]\nscenarios = [\"baseline\"]\n" +
		"workloads = [\"multiturn\"]\nseeds = [7, 13]\n"
}

func TestTargets(t *testing.T) {
	tests := []struct {
		name          string
		before, after string
		toDo          []string // parts
	}{
		{name: "all lines", before: asks(`"*"`, "tiny"), after: asks(`"*"`, "tiny")},
		{name: "all lines, and one by its name", before: asks(`"*", "0.33"`, "tiny"), after: asks(`"*", "0.33"`, "tiny")},
		{name: "the line before", before: asks(`"0.33", "0.32"`, "tiny"), after: asks(`"0.34", "0.33", "0.32"`, "tiny")},
		{name: "an older line", before: asks(`"0.32"`, "tiny"), after: asks(`"0.32"`, "tiny")},
		{name: "one that leaves", before: asks(`"0.32", "0.31"`, "tiny"), after: asks(`"0.32"`, "tiny")},
		{name: "only one that leaves", before: asks(`"0.33"`, "tiny") + asks(`"0.31"`, "tiny"), after: asks(`"0.34", "0.33"`, "tiny")},
		{
			name: "needs an image", before: asks(`"0.33"`, "large"), after: asks(`"0.33"`, "large"),
			toDo: []string{"[[target]] 1 asks for line 0.33, and could not be made to ask for 0.34 too", "a GPU needs images, and line 0.34 has none"},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			dir := tree(t, map[string]string{
				"compat.toml":          matrix(header, "0.33 v0.33.0 "+rev33, "0.32 v0.32.0 "+rev32, "0.31 v0.31.0 "+rev31),
				"capture/targets.toml": models + test.before,
			})
			plan, err := PrepareAdoption(AdoptOptions{Tree: FindTree(dir, ""), Profile: released(t, "0.34.0"), Lines: 3})
			require.NoError(t, err)
			require.NoError(t, plan.Write())
			got, err := os.ReadFile(filepath.Join(dir, "capture/targets.toml"))
			if diff := cmp.Diff(models+test.after, string(got)); err != nil || diff != "" {
				t.Errorf("targets.toml (-want +got): %v\n%s", err, diff)
			}
			for _, want := range test.toDo {
				require.True(t, strings.Contains(strings.Join(plan.ToDo, "\n"), want), "no %q is to do: %q", want, plan.ToDo)
			}
			require.True(t, len(test.toDo) != 0 || len(plan.ToDo) == 0, "to do: %q", plan.ToDo)
		})
	}
}

// golden is an entry of a manifest.
func golden(line, tag, id string) string {
	digest := fmt.Sprintf("%064x", len(line)*1000+len(id)*10+int(line[len(line)-1]))
	return fmt.Sprintf("[[golden]]\nline = %q\nid = %q\nbucket_path = \"conformance/%s/%s.jsonl.gz\"\nsha256 = %q\nconfig_hash = %q\n"+
		"workload = %q\nrole = \"schema\"\n\n", line, id, tag, id, digest, digest, id)
}

func TestGoldensOfALineThatLeaves(t *testing.T) {
	const stays = "# BEGIN 0.33 GOLDENS\n\n# END 0.33 GOLDENS\n"
	mf := "# Ours.\n\n" + stays + "\n# BEGIN 0.31 GOLDENS\n\n" + golden("0.31", "v0.31.0", "a-s7") + golden("0.31", "v0.31.0", "ab-s7") + "# END 0.31 GOLDENS\n"
	for _, prune := range []bool{false, true} {
		t.Run(fmt.Sprint("prune ", prune), func(t *testing.T) {
			const kept, lost = "testdata/goldens/conformance/v0.31.0/a-s7.jsonl.gz", "testdata/goldens/conformance/v0.31.0/ab-s7.jsonl.gz"
			dir := tree(t, map[string]string{
				"compat.toml":   matrix(header, "0.33 v0.33.0 "+rev33, "0.32 v0.32.0 "+rev32, "0.31 v0.31.0 "+rev31),
				"manifest.toml": mf, kept: "bytes",
			})
			plan, err := PrepareAdoption(AdoptOptions{Tree: FindTree(dir, ""), Profile: released(t, "0.34.0"), Lines: 3, Prune: prune})
			require.NoError(t, err)
			require.NoError(t, plan.Write())
			got, err := os.ReadFile(filepath.Join(dir, "manifest.toml"))
			if diff := cmp.Diff("# Ours.\n\n"+stays, string(got)); err != nil || diff != "" {
				t.Errorf("manifest.toml (-want +got): %v\n%s", err, diff)
			}
			toDo := strings.Join(plan.ToDo, "\n")
			if !strings.Contains(toDo, lost) || strings.Contains(toDo, kept) == prune || exists(filepath.Join(dir, kept)) == prune {
				t.Errorf("to do: %q, %s is there: %v", toDo, kept, exists(filepath.Join(dir, kept)))
			}
		})
	}
}

// TestWriteAllOrNone: what was written before a failure is as it was.
func TestWriteAllOrNone(t *testing.T) {
	dir := tree(t, map[string]string{"edited": "before", "deleted": "bytes"})
	in := func(name string) string { return filepath.Join(dir, name) }
	plan := &AdoptPlan{Files: []PlannedFile{
		{in("edited"), []byte("before"), []byte("after")},
		{in("new/made"), nil, []byte("made")},
		{in("deleted"), []byte("bytes"), nil},
		{in("new/made/below"), nil, []byte("cannot be, below a file")},
	}}
	require.ErrorContains(t, plan.Write(), "write "+in("new/made/below"))
	for name, want := range map[string]string{"edited": "before", "deleted": "bytes"} {
		if got, err := os.ReadFile(in(name)); err != nil || string(got) != want {
			t.Errorf("%s is %q, %v", name, got, err)
		}
	}
	require.True(t, !exists(in("new/made")), "a file was left behind")
	plan.Files = plan.Files[:1]
	plan.Files[0].Before = []byte("otherwise")
	require.ErrorContains(t, plan.Write(), "was changed in the meantime")
}

func TestSetValidated(t *testing.T) {
	dir := tree(t, map[string]string{"compat.toml": matrix(header, "0.33 v0.33.0 "+rev33, "0.32 v0.32.0 "+rev32)})
	path := filepath.Join(dir, "compat.toml")
	got, err := SetValidated(path, "0.33", true)
	require.NoError(t, err)
	written, findings := compat.Load(path)
	line, _ := written.ByName("0.33")
	if same, _ := got.ByName("0.33"); len(findings) > 0 || !line.FidelityValidated || !same.FidelityValidated {
		t.Errorf("%v, %v", line, findings)
	}
}

// TestReport: foreign text is no line of its own and no command, and what does not fit is counted.
func TestReport(t *testing.T) {
	r := &AdoptReport{Schema: AdoptSchema, Release: "0.34.0", Line: "0.34", Outcome: Red, Reason: "x\n::error::y", ToDo: []string{"::warning::`a`\nb"}}
	for range 100 {
		r.Files = append(r.Files, strings.Repeat("f", 50))
	}
	var text, short, object strings.Builder
	require.NoError(t, errors.Join(r.Text(&text), r.Markdown(&short, 2000), r.JSON(&object)))
	for _, out := range []string{text.String(), short.String()} {
		for line := range strings.SplitSeq(out, "\n") {
			require.True(t, !strings.HasPrefix(strings.TrimSpace(line), "::"), "a command: %q", line)
		}
	}
	if got := short.String(); len(got) > 2000 || !strings.Contains(got, " more\n") {
		t.Errorf("%d bytes:\n%s", len(got), got)
	}
	var back AdoptReport
	if err := json.Unmarshal([]byte(object.String()), &back); err != nil || back.ToDo[0] != r.ToDo[0] {
		t.Errorf("JSON: %v, %v", back, err)
	}
}

// TestReleaseIsWritten: what may run of a release goes to where every command finds it.
func TestReleaseIsWritten(t *testing.T) {
	for folder, want := range map[string]string{"x": "profiles/0.34.0.toml", "internal/wire/protocol/profiles": pinned.Folder + "/0.34.0.toml"} {
		dir := tree(t, map[string]string{"compat.toml": matrix(header, "0.33 v0.33.0 "+rev33), folder + "/y": ""})
		release := &pinned.Release{Version: "0.34.0", Wheels: []pinned.Wheel{{
			Name: "vllm-0.34.0-x.whl", SHA256: strings.Repeat("a", 64), Frontend: strings.Repeat("b", 64),
		}}}
		plan, err := PrepareAdoption(AdoptOptions{Tree: FindTree(dir, ""), Profile: released(t, "0.34.0"), Release: release})
		require.NoError(t, err)
		require.NoError(t, plan.Write())
		text, err := os.ReadFile(filepath.Join(dir, want))
		require.NoError(t, err)
		got, err := pinned.Parse(text)
		if diff := cmp.Diff(release, got); diff != "" || err != nil {
			t.Errorf("%s (-want +got):\n%s%v", want, diff, err)
		}
	}
}
