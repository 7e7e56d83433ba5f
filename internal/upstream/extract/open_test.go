package extract

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/internal/upstream/pypi"
)

// index is a package index with the releases 0.33.0, whose wheel is that of testdata, 0.27.1, which was yanked, and
// 0.28.0, whose wheel ends early.
func index(t *testing.T) *pypi.Index {
	t.Helper()
	mux := http.NewServeMux()
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	type file struct {
		Name   string            `json:"filename"`
		URL    string            `json:"url"`
		Hashes map[string]string `json:"hashes"`
		Yanked any               `json:"yanked"`
	}
	cut := "vllm-0.28.0-cp38-abi3-manylinux_2_28_x86_64.whl"
	files := []file{
		{path.Base(wheelPath("0.33.0")), server.URL + "/" + path.Base(wheelPath("0.33.0")), map[string]string{}, false},
		{path.Base(wheelPath("0.27.1")), server.URL + "/" + path.Base(wheelPath("0.27.1")), map[string]string{}, "it loses tokens"},
		{cut, server.URL + "/" + cut, map[string]string{}, false},
	}
	mux.HandleFunc("/simple/vllm/", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/vnd.pypi.simple.v1+json")
		_ = json.NewEncoder(w).Encode(map[string]any{
			"meta": map[string]string{"api-version": "1.0"}, "name": "vllm", "files": files,
		})
	})
	mux.HandleFunc("/forbidden/vllm/", func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusForbidden) })
	mux.Handle("/", http.FileServer(http.Dir("testdata/wheels")))
	mux.HandleFunc("/"+cut, func(w http.ResponseWriter, r *http.Request) {
		text := readText(t, wheelPath("0.33.0"))
		http.ServeContent(w, r, "", time.Time{}, strings.NewReader(text[:len(text)/2]))
	})
	return &pypi.Index{URL: server.URL + "/simple", Backoff: func(int) time.Duration { return 0 }}
}

func TestOpen(t *testing.T) {
	x := index(t)
	site := t.TempDir() // without _version.py, as a checkout
	require.NoError(t, os.CopyFS(site, os.DirFS("testdata/tiny")))
	require.NoError(t, os.Remove(filepath.Join(site, "vllm", "_version.py")))
	empty := t.TempDir()
	base := strings.TrimSuffix(x.URL, "/simple")
	for _, test := range []struct {
		name, arg string
		request   Request
		index     *pypi.Index // default that of the releases
		version   string      // of the profile
		warning   string
		wantErr   string
		is        error
	}{
		{name: "a version", arg: "0.33.0", version: "0.33.0"},
		{name: "a tag", arg: "v0.33.0", version: "0.33.0"},
		{name: "a URL", arg: base + "/" + path.Base(wheelPath("0.27.1")), version: "0.27.1"},
		{name: "a wheel on disk", arg: wheelPath("0.27.1"), version: "0.27.1"},
		{name: "a folder", arg: "testdata/tiny", version: "9.9.0"},
		{name: "a checkout", arg: site, request: Request{Version: "0.34.0"}, version: "0.34.0"},
		{name: "a yanked release that is wanted", arg: "0.27.1", request: Request{Yanked: true}, version: "0.27.1", warning: "release 0.27.1 was yanked: it loses tokens"},
		{name: "a yanked release", arg: "0.27.1", wantErr: "it was yanked (it loses tokens)"},
		{name: "no such release", arg: "0.99.0", wantErr: "release 0.99.0 is not among the 3 of the index, whose newest is 0.33.0"},
		{name: "a wheel that ends early", arg: "0.28.0", wantErr: "vllm-0.28.0"},
		{name: "an index that refuses", arg: "0.33.0", index: &pypi.Index{URL: base + "/forbidden"}, wantErr: "403"},
		{name: "no name", arg: "the newest one", wantErr: `"the newest one" is not a version, and there is no such file`, is: ErrNotNamed},
		{name: "a wheel that is not there", arg: "none.whl", wantErr: "none.whl: no such file"},
		{name: "a file that is not a wheel", arg: "open_test.go", wantErr: "open_test.go cannot be read as a wheel"},
		{name: "a folder without vllm", arg: empty, wantErr: "it has no folder vllm: want a checkout"},
		{name: "a checkout without a version", arg: site, wantErr: "give it with --vllm-version"},
		{name: "a version beside a version", arg: "0.33.0", request: Request{Version: "0.33.0"}, wantErr: "only a folder may need one", is: ErrNotNamed},
	} {
		t.Run(test.name, func(t *testing.T) {
			test.request.Name = test.arg
			version, warning, err := openAndExtract(t, cmp.Or(test.index, x), test.request)
			if test.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), test.wantErr) || test.is != nil && !errors.Is(err, test.is) {
					t.Fatalf("error %v, want %q", err, test.wantErr)
				}
				return
			}
			require.True(t, err == nil && version == test.version && warning == test.warning, "version %q, warning %q, %v, want %q and %q", version, warning, err, test.version, test.warning)
		})
	}
}

func openAndExtract(t *testing.T, index *pypi.Index, r Request) (version, warning string, err error) {
	release, err := open(t.Context(), index, r)
	if err != nil {
		return "", "", err
	}
	defer release.close()
	p, gaps, err := extractFrom(t, release)
	if err != nil {
		return "", "", err
	}
	if len(gaps) > 0 {
		return "", "", fmt.Errorf("gaps: %v", gaps)
	}
	return p.Version, release.warning, nil
}

func TestFolderWithAnImpossibleFile(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "vllm", "_version.py"), 0o755))
	if _, _, err := openAndExtract(t, nil, Request{Name: dir}); err == nil || !strings.Contains(err.Error(), "vllm/_version.py is not a regular file") {
		t.Errorf("error %v, want one that names the file", err)
	}
}

func TestInstalledVersion(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.CopyFS(dir, os.DirFS("testdata/tiny")))
	require.NoError(t, os.Remove(filepath.Join(dir, "vllm", "_version.py")))
	require.NoError(t, os.Mkdir(filepath.Join(dir, "vllm-0.35.1+cpu.dist-info"), 0o755))
	if version, _, err := openAndExtract(t, nil, Request{Name: dir}); err != nil || version != "0.35.1" {
		t.Errorf("version %q, %v, want that of the dist-info", version, err)
	}
}
