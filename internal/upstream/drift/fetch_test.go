package drift_test

import (
	"archive/zip"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/internal/upstream/drift"
	"github.com/vllm-vcr/conformance/internal/upstream/pinned"
	"github.com/vllm-vcr/conformance/internal/upstream/pypi"
)

const binary = "#!/bin/sh\necho I am vllm-rs\n"

// wheel serves a wheel with the given members, and counts the requests for it.
func wheel(t *testing.T, members map[string]string) (f pypi.File, requests *int) {
	t.Helper()
	var data bytes.Buffer
	archive := zip.NewWriter(&data)
	for name, content := range members {
		w, err := archive.Create(name)
		require.NoError(t, err)
		if _, err := w.Write([]byte(content)); err != nil {
			t.Fatal(err)
		}
	}
	require.NoError(t, archive.Close())
	requests = new(int)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		*requests++
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(data.Bytes()))
	}))
	t.Cleanup(server.Close)
	sum := sha256.Sum256(data.Bytes())
	return pypi.File{Name: "w.whl", URL: server.URL + "/w.whl", SHA256: hex.EncodeToString(sum[:]), Size: int64(data.Len())}, requests
}

var whole = map[string]string{"vllm/vllm-rs": binary, "vllm/_version.py": "__commit_id__ = commit_id = 'g0123456789'\n"}

// TestFetch: what is in the cache is used while it is whole, and otherwise replaced.
func TestFetch(t *testing.T) {
	tests := []struct {
		name    string
		change  func(dir string) error // of the entry, after the first fetch
		fetches bool                   // again
		warns   bool
		want    string // of the error
	}{
		{name: "untouched"},
		{name: "other bytes", change: func(dir string) error { return os.WriteFile(dir+"/vllm-rs", []byte("x"), 0o755) }, fetches: true, warns: true},
		{name: "no facts", change: func(dir string) error { return os.Remove(dir + "/facts.json") }, fetches: true},
		{name: "bad facts", change: func(dir string) error { return os.WriteFile(dir+"/facts.json", []byte("{"), 0o755) }, fetches: true, warns: true},
		{name: "no binary", change: func(dir string) error { return os.Remove(dir + "/vllm-rs") }, fetches: true},
		{name: "a folder in its place", change: func(dir string) error {
			return errors.Join(os.Remove(dir+"/vllm-rs"), os.Mkdir(dir+"/vllm-rs", 0o755), os.Remove(dir+"/facts.json"))
		}, fetches: true, want: "vllm-rs"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			file, requests := wheel(t, whole)
			cache := t.TempDir()
			var log bytes.Buffer
			fetch := func() (drift.Frontend, error) {
				return drift.Fetch(t.Context(), pinned.Source{Index: &pypi.Index{}, File: file}, cache, slog.New(slog.NewTextHandler(&log, nil)))
			}
			first, err := fetch()
			require.NoError(t, err)
			check(t, first)
			asked := *requests
			if test.change != nil {
				require.NoError(t, test.change(filepath.Dir(first.Binary)))
			}
			second, err := fetch()
			switch {
			case test.want != "":
				require.ErrorContains(t, err, test.want)
			case err != nil:
				t.Fatal(err)
			default:
				check(t, second)
				require.Equal(t, second.Downloaded > 0, test.fetches, "downloaded %d bytes", second.Downloaded)
				require.NoDiff(t, cmp.Diff(first, second, cmpopts.IgnoreFields(drift.Frontend{}, "Downloaded")), "(-first +second)")
			}
			require.Equal(t, *requests > asked, test.fetches, "fetched again")
			require.Equal(t, strings.Contains(log.String(), "level=WARN"), test.warns, "warned: %s", &log)
		})
	}
}

func check(t *testing.T, f drift.Frontend) {
	t.Helper()
	sum := sha256.Sum256([]byte(binary))
	want := drift.Frontend{
		Binary: f.Binary, SHA256: hex.EncodeToString(sum[:]), Commit: "012345678", Wheel: "w.whl", Downloaded: f.Downloaded,
	}
	require.NoDiff(t, cmp.Diff(want, f), "(-want +got)")
	if got, err := os.ReadFile(f.Binary); err != nil || string(got) != binary {
		t.Errorf("the binary is %q, %v", got, err)
	}
	if err := drift.Runs(t.Context(), f.Binary); err != nil && runtime.GOOS != "windows" { // which has no such scripts
		t.Error(err)
	}
}

// TestFetchKnown: of a release whose vllm-rs is known, a cache that was changed as a whole is no proof, nor is the
// index.
func TestFetchKnown(t *testing.T) {
	evil := maps.Clone(whole)
	evil["vllm/vllm-rs"] = "#!/bin/sh\necho I am none\n"
	file, _ := wheel(t, whole)
	other, _ := wheel(t, evil)
	file.Name, other.Name = "vllm-9.9.9-py3-none-any.whl", "vllm-9.9.9-py3-none-any.whl"
	sum := sha256.Sum256([]byte(binary))
	pinned.Learn(&pinned.Release{Version: "9.9.9", Wheels: []pinned.Wheel{{Frontend: hex.EncodeToString(sum[:])}}})
	cache := t.TempDir()
	fetch := func(f pypi.File) (drift.Frontend, error) {
		return drift.Fetch(t.Context(), pinned.Source{Index: &pypi.Index{}, File: f}, cache, slog.New(slog.DiscardHandler))
	}
	first, err := fetch(file)
	require.NoError(t, err)
	sum = sha256.Sum256([]byte(evil["vllm/vllm-rs"]))
	dir := filepath.Dir(first.Binary)
	require.NoError(t, os.WriteFile(first.Binary, []byte(evil["vllm/vllm-rs"]), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "facts.json"), []byte(`{"sha256":"`+hex.EncodeToString(sum[:])+`"}`), 0o644))
	again, err := fetch(file)
	require.NoError(t, err)
	if text, err := os.ReadFile(again.Binary); err != nil || string(text) != binary || again.Downloaded == 0 {
		t.Errorf("the binary is %q, %v", text, err)
	}
	if _, err := fetch(other); err == nil || !strings.Contains(err.Error(), "vllm-rs of vLLM 9.9.9 has sha256 ") {
		t.Errorf("error %v", err)
	}
}

// TestFetchFails: nothing is left behind of what could not be fetched whole.
func TestFetchFails(t *testing.T) {
	for _, absent := range []string{"vllm/vllm-rs", "vllm/_version.py"} {
		t.Run(absent, func(t *testing.T) {
			members := maps.Clone(whole)
			delete(members, absent)
			file, _ := wheel(t, members)
			cache := t.TempDir()
			_, err := drift.Fetch(t.Context(), pinned.Source{Index: &pypi.Index{}, File: file}, cache, slog.New(slog.DiscardHandler))
			require.ErrorContains(t, err, "holds no "+absent)
			if left, err := filepath.Glob(filepath.Join(cache, "*", "*", "*")); err != nil || len(left) > 0 {
				t.Errorf("left behind: %q, %v", left, err)
			}
		})
	}
}

// TestModel: the folder has the files, whatever was in it before, and another content has another folder.
func TestModel(t *testing.T) {
	files := fstest.MapFS{"config.json": {Data: []byte("{}")}, "tokenizer.json": {Data: []byte("[]")}}
	cache := t.TempDir()
	first, err := drift.Model(files, cache)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(first, "config.json"), []byte("spoilt"), 0o644))
	again, err := drift.Model(files, cache)
	require.True(t, err == nil && again == first, "got %s, %v, want %s", again, err, first)
	for name, file := range files {
		if got, err := os.ReadFile(filepath.Join(first, name)); err != nil || string(got) != string(file.Data) {
			t.Errorf("%s is %q, %v", name, got, err)
		}
	}
	files["config.json"] = &fstest.MapFile{Data: []byte("{ }")}
	if other, err := drift.Model(files, cache); err != nil || other == first {
		t.Errorf("another content is in %s, %v", other, err)
	}
}
