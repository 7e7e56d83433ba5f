package pyclient_test

import (
	"archive/zip"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/vllm-vcr/conformance/internal/testenv"

	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/internal/frontends/pyclient"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/internal/upstream/pypi"
)

// wheel serves a wheel with the given members, and counts the requests for it.
func wheel(t *testing.T, members map[string]string) (f pypi.File, requests *int) {
	t.Helper()
	data := archive(t, members)
	requests = new(int)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		*requests++
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(data))
	}))
	t.Cleanup(server.Close)
	sum := sha256.Sum256(data)
	return pypi.File{Name: "w.whl", URL: server.URL + "/w.whl", SHA256: hex.EncodeToString(sum[:]), Size: int64(len(data))}, requests
}

func archive(t *testing.T, members map[string]string) []byte {
	t.Helper()
	var data bytes.Buffer
	writer := zip.NewWriter(&data)
	for name, content := range members {
		w, err := writer.Create(name)
		require.NoError(t, err)
		if _, err := w.Write([]byte(content)); err != nil {
			t.Fatal(err)
		}
	}
	require.NoError(t, writer.Close())
	return data.Bytes()
}

// members are of a wheel, of which only the first five are Python of the release.
var members = map[string]string{
	"vllm/__init__.py": "a", "vllm/v1/engine/core_client.py": "b", "vllm/v1.py": "c", "vllm/v1/engine/__init__.py": "",
	"vllm/platforms/x.py": "d", "vllm/_C.abi3.so": "ELF", "vllm/config.json": "{}", "torch/__init__.py": "e",
	"vllm-9.9.9.data/x.py": "g",
}

func fetch(t *testing.T, f pypi.File, cache string) (pyclient.Tree, error) {
	t.Helper()
	open := func(ctx context.Context) (*pypi.Wheel, error) { return new(pypi.Index).OpenWheel(ctx, f) }
	return sources(t, pyclient.Wheel{Key: f.SHA256, Sure: true, Open: open}, cache)
}

func sources(t *testing.T, w pyclient.Wheel, cache string) (pyclient.Tree, error) {
	t.Helper()
	return pyclient.Sources(t.Context(), w, cache, slog.New(slog.NewTextHandler(t.Output(), nil)))
}

// TestSourcesOnDisk: a wheel on disk is read as one of an index, and one that may be another the next time is read
// anew.
func TestSourcesOnDisk(t *testing.T) {
	path := filepath.Join(t.TempDir(), "vllm.whl")
	for _, sure := range []bool{true, false} {
		cache, opened := t.TempDir(), 0
		w := pyclient.Wheel{Key: "k", Sure: sure, Open: func(context.Context) (*pypi.Wheel, error) {
			opened++
			return pypi.OpenFile(path)
		}}
		for _, client := range []string{"old", "new"} {
			data := archive(t, map[string]string{"vllm/v1/engine/core_client.py": client})
			require.NoError(t, os.WriteFile(path, data, 0o644))
			want := map[bool]string{true: "old", false: client}[sure]
			tree, err := sources(t, w, cache)
			if diff := cmp.Diff(map[string]string{"vllm/v1/engine/core_client.py": want}, testenv.Files(t, tree.Dir)); err != nil || diff != "" {
				t.Errorf("sure %v: %v (-want +got):\n%s", sure, err, diff)
			}
			require.True(t, tree.Downloaded == 0 && tree.Wheel == "vllm.whl", "got %+v", tree)
		}
		if want := map[bool]int{true: 1, false: 2}[sure]; opened != want {
			t.Errorf("sure %v: opened %d times, want %d", sure, opened, want)
		}
	}
}

// TestSources: the Python of the release is there, and nothing else; what is in the cache is used while it is whole.
func TestSources(t *testing.T) {
	write := func(name, text string) func(*testing.T, string) {
		return func(t *testing.T, dir string) {
			require.NoError(t, os.WriteFile(filepath.Join(dir, filepath.FromSlash(name)), []byte(text), 0o644))
		}
	}
	tests := []struct {
		name    string
		change  func(t *testing.T, dir string) // of the tree, after the first fetch
		fetched bool                           // again
	}{
		{name: "untouched", change: func(*testing.T, string) {}},
		{name: "state of the release beside it", change: func(t *testing.T, dir string) {
			require.NoError(t, os.MkdirAll(filepath.Join(filepath.Dir(dir), "state", "modelinfos"), 0o755))
		}},
		{name: "a file changed", change: write("vllm/v1.py", "C"), fetched: true},
		{name: "a file added", change: write("vllm/v2.py", ""), fetched: true},
		{name: "a file moved", change: func(t *testing.T, dir string) {
			require.NoError(t, os.Rename(filepath.Join(dir, "vllm", "v1.py"), filepath.Join(dir, "vllm", "v2.py")))
		}, fetched: true},
		{name: "a link instead of a file", change: func(t *testing.T, dir string) {
			path := filepath.Join(dir, "vllm", "v1.py")
			require.NoError(t, os.Rename(path, filepath.Join(dir, "..", "c")))
			if err := os.Symlink(filepath.Join(dir, "..", "c"), path); err != nil {
				t.Skip(err)
			}
		}, fetched: true},
		{name: "the tree gone", change: func(t *testing.T, dir string) {
			require.NoError(t, os.RemoveAll(dir))
		}, fetched: true},
		{name: "facts broken", change: write("../facts.json", "{"), fetched: true},
		{name: "facts gone", change: func(t *testing.T, dir string) {
			require.NoError(t, os.Remove(filepath.Join(dir, "..", "facts.json")))
		}, fetched: true},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			f, requests := wheel(t, members)
			cache := t.TempDir()
			first, err := fetch(t, f, cache)
			require.NoError(t, err)
			test.change(t, first.Dir)
			before := *requests
			tree, err := fetch(t, f, cache)
			require.NoError(t, err)
			if again := *requests > before; again != test.fetched || again != (tree.Downloaded > 0) {
				t.Errorf("fetched again: %v (%d bytes), want %v", again, tree.Downloaded, test.fetched)
			}
			want := map[string]string{}
			for _, name := range []string{"__init__.py", "v1.py", "v1/engine/core_client.py", "v1/engine/__init__.py", "platforms/x.py"} {
				want["vllm/"+name] = members["vllm/"+name]
			}
			require.NoDiff(t, cmp.Diff(want, testenv.Files(t, tree.Dir)), "(-want +got)")
			require.True(t, tree.Files == 5 && tree.Bytes == 4 && tree.Wheel == "w.whl" && tree.SHA256 == first.SHA256, "got %+v after %+v", tree, first)
		})
	}
}

func TestSourcesFail(t *testing.T) {
	other, _ := wheel(t, map[string]string{"vllm/__init__.py": "", "vllm/v1/engine/client.py": ""})
	outside, _ := wheel(t, map[string]string{"vllm/v1/engine/core_client.py": "", "vllm/../../x.py": ""})
	gone, _ := wheel(t, members)
	gone.URL += "/"
	gone.URL = strings.Replace(gone.URL, "http://127.0.0.1", "https://no-such-host.invalid", 1)
	short, _ := wheel(t, members)
	short.Size -= 10
	tests := []struct {
		name, want string
		file       pypi.File
	}{
		{"client moved", "python of w.whl: it has no vllm/v1/engine/core_client.py among its 2 Python files", other},
		{"a place outside", `names "vllm/../../x.py"`, outside},
		{"no host", "python of the release: package index https://no-such-host.invalid", gone},
		{"other size", "python of the release: package index http://", short},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			cache := t.TempDir()
			tree, err := fetch(t, test.file, cache)
			checkError(t, err, test.want)
			require.Equal(t, tree.Dir, "", "got %+v", tree)
			if left := testenv.Files(t, cache); len(left) > 0 {
				t.Errorf("it left %v", left)
			}
		})
	}
}

// TestSourcesAreChecked: files are compared before they are laid, and those of the cache before they are used.
func TestSourcesAreChecked(t *testing.T) {
	f, _ := wheel(t, members)
	cache := t.TempDir()
	sources := func(check func(string) error) (pyclient.Tree, error) {
		return pyclient.Sources(t.Context(), pyclient.Wheel{
			Key: f.SHA256, Sure: true, Check: check,
			Open: func(ctx context.Context) (*pypi.Wheel, error) { return (&pypi.Index{}).OpenWheel(ctx, f) },
		}, cache, slog.New(slog.DiscardHandler))
	}
	refuse := func(string) error { return errors.New("this is something else") }
	_, err := sources(refuse)
	checkError(t, err, "python of w.whl: this is something else")
	if left := testenv.Files(t, cache); len(left) > 0 {
		t.Errorf("it left %v", left)
	}
	tree, err := sources(nil)
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "w.whl")
	require.NoError(t, os.WriteFile(path, archive(t, members), 0o644))
	onDisk, err := pypi.OpenFile(path)
	require.NoError(t, err)
	defer onDisk.Close()
	if digest, err := pyclient.Digest(onDisk); err != nil || digest != tree.SHA256 {
		t.Errorf("the wheel has the digest %s, %v, the tree %s", digest, err, tree.SHA256)
	}
	_, err = sources(refuse)
	checkError(t, err, "this is something else")
}

func TestNearest(t *testing.T) {
	dir := t.TempDir()
	lay := func(release string, files ...string) {
		for _, name := range files {
			path := filepath.Join(dir, "engines", release, filepath.FromSlash(name))
			require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
			require.NoError(t, os.WriteFile(path, nil, 0o755))
		}
	}
	if _, err := pyclient.Nearest(dir, compat.Version{}); err == nil || !strings.Contains(err.Error(), "no environment with torch is installed in "+dir) {
		t.Errorf("error %v", err)
	}
	for _, release := range []string{"0.27.1", "0.30.0", "0.33.0"} {
		lay(release, "whole", "bin/python")
	}
	lay("0.31.0", "bin/python") // not finished
	lay("0.29.0", "whole")      // without an interpreter
	lay("party", "whole", "bin/python")
	for release, want := range map[string]string{
		"0.25.1": "0.27.1", "0.27.0": "0.27.1", "0.27.1": "0.27.1", "0.29.0": "0.27.1", "0.31.0": "0.30.0", "0.33.0": "0.33.0",
		"0.34.0rc1": "0.33.0", "0.33.0rc1": "0.30.0",
	} {
		version, err := compat.ParseVersion(release)
		require.NoError(t, err)
		got, err := pyclient.Nearest(dir, version)
		wanted := pyclient.Environment{Release: want, Python: filepath.Join(dir, "engines", want, "bin", "python")}
		require.True(t, err == nil && got == wanted, "%s: got %+v, %v, want %s", release, got, err, want)
	}
}
