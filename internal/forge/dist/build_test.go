package main

import (
	"encoding/json"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/testenv"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

func TestBuild(t *testing.T) {
	dir := builtFixture(t)
	built := files(t, filepath.Join(dir, "dist"))
	want := []string{
		"checksums.txt", "vllm-vcr_1.2.3_linux_amd64.cdx.json", "vllm-vcr_1.2.3_linux_amd64.tar.gz",
		"vllm-vcr_1.2.3_windows_arm64.cdx.json", "vllm-vcr_1.2.3_windows_arm64.tar.gz",
		"vllm_vcr-1.2.3-py3-none-manylinux_2_17_x86_64.manylinux2014_x86_64.musllinux_1_1_x86_64.whl", "vllm_vcr-1.2.3-py3-none-win_arm64.whl",
	}
	require.NoDiff(t, cmp.Diff(want, names(built)), "dist (-want +got)")
	list, contents := members(t, filepath.Join(dir, "dist", "vllm-vcr_1.2.3_linux_amd64.tar.gz"))
	wantList := []string{`644 0:0 "":"" 0 LICENSE`, `644 0:0 "":"" 0 README.md`, `644 0:0 "":"" 0 man/man1/vllm-vcr-say.1`, `644 0:0 "":"" 0 man/man1/vllm-vcr.1`, `755 0:0 "":"" 0 vllm-vcr`, `755 0:0 "":"" 0 vllm-vcr-cluster`, `755 0:0 "":"" 0 vllm-vcr-dataset`}
	require.NoDiff(t, cmp.Diff(wantList, list), "linux archive (-want +got)")
	if said := runBinary(t, contents["vllm-vcr"]); said != "" && said != "1.2.3" {
		t.Errorf("the binary says %q, want its version alone", said)
	}
	list, _ = members(t, filepath.Join(dir, "dist", "vllm-vcr_1.2.3_windows_arm64.tar.gz"))
	if want := []string{`755 0:0 "":"" 0 vllm-vcr-cluster.exe`, `755 0:0 "":"" 0 vllm-vcr-dataset.exe`, `755 0:0 "":"" 0 vllm-vcr.exe`}; !slices.Equal(list[4:], want) {
		t.Errorf("windows archive holds %q, want %q", list[4:], want)
	}
	listed, err := readChecksums(filepath.Join(dir, "dist", checksumsName))
	require.NoError(t, err)
	maps.DeleteFunc(built, func(name, _ string) bool {
		return !strings.HasSuffix(name, archiveSuffix) && !strings.HasSuffix(name, wheelSuffix)
	})
	require.NoDiff(t, cmp.Diff(built, listed), "checksums.txt (-archives and wheels +listed)")
	checkSBOM(t, filepath.Join(dir, "dist", want[1]))
}

var (
	fixtureOnce sync.Once
	fixtureDir  string
)

// builtFixture is a fixture with the archives of two systems in dist/, built once for all tests, which leave it as it is.
func builtFixture(t *testing.T) string {
	t.Helper()
	testenv.Slow(t, "compiles releases")
	fixtureOnce.Do(func() {
		dir := fixture(t)
		mustDist(t, dir, "build", "-version", "1.2.3", "-targets", "linux/amd64,windows/arm64")
		fixtureDir = filepath.Join(sharedDir(t), "fixture")
		require.NoError(t, os.CopyFS(fixtureDir, os.DirFS(dir)))
	})
	return fixtureDir
}

// runBinary runs what was built for this system, and returns "" where it was built for another.
func runBinary(t *testing.T, binary []byte) string {
	t.Helper()
	if runtime.GOOS+"/"+runtime.GOARCH != "linux/amd64" {
		return ""
	}
	path := filepath.Join(t.TempDir(), "binary")
	testenv.WriteProgram(t, path, binary)
	out, err := exec.Command(path).Output()
	require.NoError(t, err)
	return string(out)
}

func names(sums checksums) []string {
	var list []string
	for line := range strings.Lines(sums.String()) {
		list = append(list, strings.TrimSpace(line[64:]))
	}
	return list
}

// What the environment of a machine says, or the file that `go env -w` writes, and when files were written, changes no
// byte.
func TestBuildIsTheSameAnywhere(t *testing.T) {
	tests := []struct {
		name  string
		setGo func(t *testing.T)
	}{
		{name: "environment", setGo: func(t *testing.T) {
			t.Setenv("GOFLAGS", "-tags=evil")
			t.Setenv("GOAMD64", "v3")
		}},
		{name: "file of settings", setGo: func(t *testing.T) {
			config := t.TempDir()
			write(t, config, map[string]string{"go/env": "GOFLAGS=-tags=evil\n"})
			t.Setenv("XDG_CONFIG_HOME", config) // where Linux has it
			t.Setenv("GOFLAGS", "")
			t.Setenv("GOENV", "")
		}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) { sameAnywhere(t, test.setGo) })
	}
}

func sameAnywhere(t *testing.T, setGo func(t *testing.T)) {
	here := builtFixture(t)
	setGo(t)
	there := filepath.Join(t.TempDir(), "a", "longer", "path")
	require.NoError(t, os.CopyFS(there, os.DirFS(here)))
	for _, name := range []string{"LICENSE", "README.md", "cmd/vllm-vcr/say.go"} {
		require.NoError(t, os.Chtimes(filepath.Join(there, name), time.Time{}, time.Unix(1e9, 0)))
		require.NoError(t, os.Chmod(filepath.Join(there, name), 0o600))
	}
	require.NoError(t, os.RemoveAll(filepath.Join(there, "dist")))
	mustDist(t, there, "build", "-version", "1.2.3", "-targets", "linux/amd64")
	first := files(t, filepath.Join(here, "dist"))
	maps.DeleteFunc(first, func(name, _ string) bool {
		return !strings.Contains(name, "_linux_amd64.") && !strings.Contains(name, "linux_2_17_x86_64.")
	})
	second := files(t, filepath.Join(there, "dist"))
	delete(second, checksumsName) // of one archive, not two
	if diff := cmp.Diff(first, second); diff != "" || len(first) != 3 {
		t.Errorf("built in another folder (-first +second):\n%s", diff)
	}
}

func TestReproduce(t *testing.T) {
	testenv.Slow(t, "compiles releases")
	dir := fixture(t)
	write(t, dir, map[string]string{"cmd/vllm-vcr/new.go": "package main\n"}) // as git does not know it yet
	if err := os.Remove(filepath.Join(dir, "CHANGELOG.md")); err != nil {     // deleted, but not yet committed as such
		t.Fatal(err)
	}
	said := mustDist(t, dir, "reproduce", "-share-cache", "-targets", "linux/amd64")
	if want := "reproducible: 4 files are the same from two folders\n"; !strings.HasSuffix(said, want) {
		t.Errorf("got %q, want it to end with %q", said, want)
	}
}

func TestBuildReplacesAllOrNothing(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.CopyFS(dir, os.DirFS(builtFixture(t))))
	out := filepath.Join(dir, "dist")
	before := files(t, out)
	write(t, dir, map[string]string{"cmd/vllm-vcr/broken.go": "package main\n\nvar broken = missing\n"})
	code, _, stderr := dist(t, dir, "build", "-version", "1.2.4", "-targets", "linux/amd64")
	if code != exitInfra || !strings.Contains(stderr, "linux/amd64: go build: ") || !strings.Contains(stderr, "undefined: missing") {
		t.Errorf("exit code %d, want %d and what the compiler said: %s", code, exitInfra, stderr)
	}
	require.NoDiff(t, cmp.Diff(before, files(t, out)), "a build that failed (-before +after)")
	write(t, dir, map[string]string{"cmd/vllm-vcr/broken.go": "package main\n", "dist/mine.txt": "mine\n"})
	mustDist(t, dir, "build", "-version", "1.2.4", "-targets", "linux/amd64")
	want := []string{
		"checksums.txt", "mine.txt", "vllm-vcr_1.2.4_linux_amd64.cdx.json", "vllm-vcr_1.2.4_linux_amd64.tar.gz",
		"vllm_vcr-1.2.4-py3-none-manylinux_2_17_x86_64.manylinux2014_x86_64.musllinux_1_1_x86_64.whl",
	}
	require.NoDiff(t, cmp.Diff(want, names(files(t, out))), "the next build (-want +got)")
}

// checkSBOM checks the list of what the fixture is made of.
func checkSBOM(t *testing.T, path string) {
	t.Helper()
	var bom struct {
		BOMFormat, SerialNumber string
		Metadata                struct {
			Timestamp string
			Component struct{ Name, Version string }
			Tools     []struct{ Name string }
		}
		Components []struct{ Name, Version string }
	}
	require.NoError(t, json.Unmarshal([]byte(read(t, path)), &bom))
	if bom.BOMFormat != "CycloneDX" || bom.SerialNumber != "" || bom.Metadata.Timestamp != "" || len(bom.Metadata.Tools) != 1 {
		t.Errorf("got %+v, want CycloneDX without serial number and time", bom)
	}
	if c := bom.Metadata.Component; c.Name != "example.org/small" || c.Version != "v1.2.3" {
		t.Errorf("it is about %+v, want example.org/small v1.2.3", c)
	}
	if len(bom.Components) != 1 || bom.Components[0].Name != "std" || bom.Components[0].Version != runtime.Version() {
		t.Errorf("components %+v, want the standard library of %s", bom.Components, runtime.Version())
	}
}

func TestSettleSBOMRefuses(t *testing.T) {
	for _, text := range []string{"", "{}", `{"metadata":{},"components":[]}`, `{"components":[{}]}`} {
		if got, err := settleSBOM([]byte(text)); err == nil {
			t.Errorf("settleSBOM(%q) = %q, want an error", text, got)
		}
	}
}

func TestBuildRefuses(t *testing.T) {
	toolchain := "\ntoolchain " + runtime.Version() + "\n"
	tests := []struct {
		name  string
		gomod func(string) string
		args  []string
		want  string // part of the error
	}{
		{
			name: "another compiler", gomod: func(s string) string { return strings.Replace(s, toolchain, "\ntoolchain go1.26.1\n", 1) },
			args: []string{"build", "-version", "1.2.3"}, want: "the compiler is " + runtime.Version() + ", but go.mod says toolchain go1.26.1, ",
		},
		{
			name: "no exact compiler", gomod: func(s string) string { return strings.Replace(s, toolchain, "", 1) },
			args: []string{"build", "-version", "1.2.3"}, want: "go.mod has no toolchain line: ",
		},
		{name: "no version", args: []string{"build"}, want: "VERSION is missing: this commit is not a release, so give a version"},
		{name: "a v", args: []string{"build", "-version", "v1.2.3"}, want: `version "v1.2.3": want MAJOR.MINOR.PATCH`},
		{name: "a flag in the version", args: []string{"build", "-version", "1.2.3 -X main.x=1"}, want: "want MAJOR.MINOR.PATCH"},
		{name: "another system", args: []string{"build", "-version", "1.2.3", "-targets", "plan9/amd64"}, want: `no target "plan9/amd64": want some of [darwin/amd64 `},
		{name: "another command", args: []string{"biuld"}, want: `no command "biuld": want one of build, check, compare, `},
		{name: "nothing", args: nil, want: "want a command: one of build, "},
		{name: "an argument", args: []string{"build", "all"}, want: "build: got 1 arguments, want 0"},
		{name: "files of no version", args: []string{"files"}, want: "files: want -version 1.2.3"},
		{name: "files of some targets", args: []string{"files", "-version", "1.2.3", "-targets", "linux/amd64"}, want: "leave -targets out"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			dir := fixture(t)
			if test.gomod != nil {
				write(t, dir, map[string]string{"go.mod": test.gomod(read(t, filepath.Join(dir, "go.mod")))})
			}
			code, _, stderr := dist(t, dir, test.args...)
			require.True(t, code == exitUsage && strings.Contains(stderr, test.want), "exit code %d, want %d and %q: %s", code, exitUsage, test.want, stderr)
			if _, err := os.Stat(filepath.Join(dir, "dist")); err == nil && test.name != "no exact compiler" {
				t.Error("it left a folder dist")
			}
		})
	}
}
