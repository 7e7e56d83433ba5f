package main

import (
	"archive/zip"
	"bytes"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/vllm-vcr/conformance/internal/testenv"

	vcr "github.com/vllm-vcr/conformance"
	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// engineModule declares the messages of the engine.
const engineModule = "vllm/v1/engine/__init__.py"

// newRelease makes a release that nobody has published: the newest one, with an optional field more at the end of each output.
func newRelease(t *testing.T, version string) (path string) {
	t.Helper()
	p, err := protocol.LoadProfile(protocol.Newest())
	require.NoError(t, err)
	p.Line, p.Version, p.Commit = protocol.LineOf(version), version, "0123456789abcdef"
	s := p.Structs["EngineCoreOutput"]
	s.Fields = append(slices.Clone(s.Fields), protocol.Field{Name: "brand_new", Type: "int | None"})
	p.Structs["EngineCoreOutput"] = s
	path = filepath.Join(t.TempDir(), "profile.json")
	var text bytes.Buffer
	require.NoError(t, protocol.WriteProfile(&text, p))
	require.NoError(t, os.WriteFile(path, text.Bytes(), 0o644))
	return path
}

// A wheelChange changes the members of a wheel.
type wheelChange func(t *testing.T, members map[string][]byte)

// lacks takes a member out.
func lacks(name string) wheelChange {
	return func(t *testing.T, members map[string][]byte) {
		t.Helper()
		if _, ok := members[name]; !ok {
			t.Fatalf("there is no %s", name)
		}
		delete(members, name)
	}
}

// replaces puts another text in the place of a part of a member.
func replaces(name, before, after string) wheelChange {
	return func(t *testing.T, members map[string][]byte) {
		t.Helper()
		changed := strings.Replace(string(members[name]), before, after, 1)
		if changed == string(members[name]) {
			t.Fatalf("%s has no %q", name, before)
		}
		members[name] = []byte(changed)
	}
}

// releaseWheel makes a wheel that calls itself of a version: a frontend, and the Python sources of 0.33.0, with changes.
func releaseWheel(t *testing.T, version string, frontend []byte, changes ...wheelChange) []byte {
	t.Helper()
	sources, err := zip.OpenReader(extractedWheel)
	require.NoError(t, err)
	defer sources.Close()
	members := map[string][]byte{}
	for _, file := range sources.File {
		if strings.HasSuffix(file.Name, "/METADATA") {
			continue
		}
		members[file.Name], err = fs.ReadFile(sources, file.Name)
		require.NoError(t, err)
	}
	members["vllm/_version.py"] = []byte("__version__ = version = '" + version + "'\n__commit_id__ = commit_id = 'g0123456789'\n")
	members["vllm-"+version+".dist-info/METADATA"] = []byte("Metadata-Version: 2.1\nName: vllm\nVersion: " + version + "\n")
	members["vllm/vllm-rs"] = frontend
	for _, change := range changes {
		change(t, members)
	}
	var data bytes.Buffer
	archive := zip.NewWriter(&data)
	for _, name := range slices.Sorted(maps.Keys(members)) {
		w, err := archive.CreateHeader(&zip.FileHeader{Name: name, Method: zip.Store})
		require.NoError(t, err)
		_, err = w.Write(members[name])
		require.NoError(t, err)
	}
	require.NoError(t, archive.Close())
	return data.Bytes()
}

// newWheel makes a wheel of a release that nobody has published: the sources of 0.33.0 with an optional field more at the end
// of each output.
func newWheel(t *testing.T, version string) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "vllm-"+version+"-cp38-abi3-manylinux_2_28_x86_64.whl")
	wheel := releaseWheel(t, version, nil, lacks("vllm/vllm-rs"), func(t *testing.T, members map[string][]byte) {
		t.Helper()
		head, output, _ := strings.Cut(string(members[engineModule]), "class EngineCoreOutput(")
		members[engineModule] = []byte(output)
		replaces(engineModule, "\n    @property\n", "\n    brand_new: int | None = None\n\n    @property\n")(t, members)
		members[engineModule] = slices.Concat([]byte(head+"class EngineCoreOutput("), members[engineModule])
	})
	require.NoError(t, os.WriteFile(path, wheel, 0o644))
	return path
}

// repositoryCopy is a copy of the files of this repository that commands read, in a folder of its own.
func repositoryCopy(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, os.CopyFS(dir, vcr.Files))
	err := fs.WalkDir(os.DirFS(dir), ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		return os.Chmod(filepath.Join(dir, path), 0o600) // embedded files are read-only
	})
	require.NoError(t, err)
	return dir
}

// in runs the command in a folder.
func in(t *testing.T, dir string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "vllm-vcr", args...)
	cmd.Dir = dir
	var out, log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &log
	if err := cmd.Run(); cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return out.String(), log.String(), cmd.ProcessState.ExitCode()
}

// nextLine is the line after the newest of this build.
func nextLine(t *testing.T) string {
	t.Helper()
	newest, err := compat.ParseVersion(protocol.Newest() + ".0")
	require.NoError(t, err)
	return fmt.Sprintf("%d.%d", newest.Major, newest.Minor+1)
}

// TestDriftAdopt brings a release that this binary has never heard of into a repository, and conforms with the same binary.
func TestDriftAdopt(t *testing.T) {
	t.Parallel()
	line := nextLine(t)
	release, dir := newWheel(t, line+".0"), repositoryCopy(t)
	before := testenv.Files(t, dir)
	stdout, stderr, code := in(t, dir, "drift", "adopt", release, "--dry-run")
	if code != 0 || !strings.Contains(stdout, "\nadopt: planned: nothing was written\n") {
		t.Fatalf("exit code %d\n%s%s", code, stdout, stderr)
	}
	if changed := differing(before, testenv.Files(t, dir)); len(changed) > 0 {
		t.Errorf("--dry-run changed %q", changed)
	}
	stdout, stderr, code = in(t, dir, "drift", "adopt", release, "--engine", "never", "--prune")
	if code != 0 {
		t.Fatalf("exit code %d\n%s%s", code, stdout, stderr)
	}
	for _, want := range []string{
		"EngineCoreOutput.brand_new", "conform: PASS: every gate holds: ", "capture 13 targets of line " + line + " (--engine never)",
		"\nadopt: green: line " + line + " is in, and the tree conforms; 2 left to do\n",
		"write the digests of what may run of " + line + ".0 once the index has it: vllm-vcr capture engine --lock " + line + ".0",
	} {
		require.Contains(t, stdout, want)
	}
	checkAdopted(t, line, dir, before)
	if t.Failed() {
		t.Logf("%s%s", stdout, stderr)
	}
}

// differing are the files that two trees have not in common.
func differing(before, after map[string]string) []string {
	var names []string
	for name, text := range before {
		if now, ok := after[name]; !ok || now != text {
			names = append(names, name)
		}
	}
	for name := range after {
		if _, ok := before[name]; !ok {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// checkAdopted looks at what became of the repository: only data changed, and every command knows the line.
func checkAdopted(t *testing.T, line, dir string, before map[string]string) {
	t.Helper()
	lines := protocol.Lines()
	oldest := lines[len(lines)-1]
	for _, name := range differing(before, testenv.Files(t, dir)) {
		isGolden := strings.HasPrefix(name, vcr.GoldensPath+"/conformance/v"+oldest+".")
		require.True(t, slices.Contains([]string{vcr.CompatPath, vcr.ManifestPath, "profiles/" + line + ".json"}, name) || isGolden, "%s was changed", name)
	}
	for _, test := range []struct {
		name string
		args []string
		code int
		want string // of stdout or stderr
	}{
		{name: "conform", args: []string{"conform", "--golden", "multiturn-s7", "--line", "0.33," + line}, want: "PASS: every gate holds"},
		{name: "compat check", args: []string{"compat", "check"}, want: "compat.toml: "},
		{name: "capture list", args: []string{"capture", "list", "--line", line}, want: line + "/multiturn-s7"},
		{name: "its engine", args: []string{"conform", "--line", line, "--suite", "live", "--enforce", "none", "--list"}, want: line},
		{name: "another folder is named", args: []string{"compat", "check", "--profiles", t.TempDir()}, code: 2, want: "it holds no profile"},
		{name: "no folder", args: []string{"compat", "check", "--profiles", "nowhere"}, code: 2, want: "--profiles nowhere: "},
	} {
		stdout, stderr, code := in(t, dir, test.args...)
		require.True(t, code == test.code && strings.Contains(stdout+stderr, test.want), "%s: exit code %d, want %d and %q:\n%s%s", test.name, code, test.code, test.want, stdout, stderr)
	}
	path := filepath.Join(dir, "profiles", line+".json")
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, bytes.Replace(text, []byte(`"encoding"`), []byte(`"enc"`), 1), 0o644))
	if _, stderr, code := in(t, dir, "compat", "check"); code != 2 || !strings.Contains(stderr, "profiles: "+line+".json: ") {
		t.Errorf("a broken profile: exit code %d: %s", code, stderr)
	}
}

// TestDriftAdoptRefuses: each of these changes nothing.
func TestDriftAdoptRefuses(t *testing.T) {
	line := nextLine(t)
	release, dir := newRelease(t, line+".0"), repositoryCopy(t)
	spoilt := filepath.Join(t.TempDir(), "spoilt.json")
	require.NoError(t, os.WriteFile(spoilt, []byte("{}"), 0o644))
	unfit := filepath.Join(t.TempDir(), "unfit.json")
	text, err := os.ReadFile(release)
	require.NoError(t, err)
	text = bytes.Replace(text, []byte(`"name":"brand_new","type":"int | None"`), []byte(`"name":"brand_new","type":"int","required":true`), 1)
	require.NoError(t, os.WriteFile(unfit, text, 0o644))
	half := filepath.Join(t.TempDir(), "sources")
	for name, content := range map[string]string{"_version.py": "__version__ = '" + line + ".0'\n", "__init__.py": ""} {
		require.NoError(t, os.MkdirAll(filepath.Join(half, "vllm"), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(half, "vllm", name), []byte(content), 0o644))
	}
	before := testenv.Files(t, dir)
	for _, test := range []struct {
		name string
		args []string
		code int
		want string
	}{
		{name: "no profile", args: []string{spoilt}, code: 3, want: "it is not a wire profile"},
		{name: "no release", args: []string{"main"}, code: 2, want: `"main" is not a version`},
		{name: "half a release", args: []string{half}, code: 3, want: "could not be read as a whole"},
		{name: "names what is absent", args: []string{half}, code: 3, want: "not read: class EngineCoreOutputs: there is no module vllm.v1.engine"},
		{name: "no file", args: []string{"nowhere.json"}, code: 3, want: "nowhere.json"},
		{name: "needs a person", args: []string{unfit}, code: 1, want: "adopt: unfit: vLLM " + line + ".0 cannot be adopted as it is: no codec can be made of its profile: "},
		{name: "names the field", args: []string{unfit}, code: 1, want: "brand_new"},
		{name: "no repository", args: []string{release, "--repo", t.TempDir()}, code: 2, want: "it has no compat.toml"},
		{name: "no folder", args: []string{release, "--repo", "nowhere"}, code: 2, want: "--repo: "},
		{name: "window", args: []string{release, "--max-stable", "0"}, code: 2, want: "--max-stable 0: want more than 0"},
		{name: "gates by nothing", args: []string{release, "--engine", "never", "--fidelity-validated"}, code: 2, want: "a line needs captured goldens to gate"},
		{name: "engine", args: []string{release, "--engine", "maybe"}, code: 2, want: `--engine "maybe": want one of`},
		{name: "commit", args: []string{release, "--rev", "main"}, code: 2, want: `--rev "main"`},
	} {
		t.Run(test.name, func(t *testing.T) {
			stdout, stderr, code := in(t, dir, append([]string{"drift", "adopt"}, test.args...)...)
			require.True(t, code == test.code && strings.Contains(stdout+stderr, test.want), "exit code %d, want %d and %q:\n%s%s", code, test.code, test.want, stdout, stderr)
			if changed := differing(before, testenv.Files(t, dir)); len(changed) > 0 {
				t.Errorf("changed: %q", changed)
			}
		})
	}
}
