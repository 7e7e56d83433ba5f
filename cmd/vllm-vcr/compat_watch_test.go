package main

import (
	"archive/zip"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// watchedFile is a matrix that gates nothing, so that it needs no goldens.
const watchedFile = `# The matrix.
[[vllm]]
line = "0.33"
tag = "v0.33.0"
protocol_rev = "4ba787ec9" # nine digits
default = true

[[vllm]]
line = "0.32"
tag = "v0.32.0"
protocol_rev = "5df63a720"
`

// An indexServer is a package index of vLLM: files by name, with their commit; a yanked
// file has a "!" behind its commit, and one with the commit "" is no wheel.
func indexServer(t *testing.T, commits map[string]string) string {
	t.Helper()
	mux := http.NewServeMux()
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	files := []map[string]any{}
	for name, commit := range commits {
		commit, yanked := strings.CutSuffix(commit, "!")
		data := []byte("no wheel")
		if commit != "" {
			data = wheelOf(t, commit)
		}
		files = append(files, map[string]any{"filename": name, "url": server.URL + "/files/" + name, "hashes": map[string]string{}, "size": len(data), "yanked": yanked})
		mux.HandleFunc("/files/"+name, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Etag", `"1"`)
			http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(data))
		})
	}
	text, err := json.Marshal(map[string]any{"meta": map[string]string{"api-version": "1.1"}, "name": "vllm", "files": files})
	require.NoError(t, err)
	mux.HandleFunc("/simple/vllm/", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/vnd.pypi.simple.v1+json")
		_, _ = w.Write(text)
	})
	return server.URL
}

func wheelOf(t *testing.T, commit string) []byte {
	t.Helper()
	var data bytes.Buffer
	archive := zip.NewWriter(&data)
	w, err := archive.Create("vllm/_version.py")
	if err == nil {
		_, err = fmt.Fprintf(w, "__commit_id__ = commit_id = 'g%s'\n", commit)
	}
	if err == nil {
		err = archive.Close()
	}
	require.NoError(t, err)
	return data.Bytes()
}

func TestWatchIndex(t *testing.T) {
	const wheel = "-cp38-abi3-manylinux1_x86_64.whl"
	known := map[string]string{"vllm-0.32.0" + wheel: "5df63a720", "vllm-0.33.0" + wheel: "4ba787ec9"}
	moved := strings.NewReplacer(`v0.33.0"`, `v0.33.1"`, "4ba787ec9", "123456789").Replace(watchedFile)
	tests := []struct {
		name, path string
		more       map[string]string
		code       int
		said       string // is in stdout, or in stderr of a failure
		file       string // what the matrix is then; empty for what it was
	}{
		{name: "nothing new", path: "/simple", said: "changed: false\n"},
		{name: "a patch, with its commit", path: "/simple", more: map[string]string{"vllm-0.33.1" + wheel: "123456789abc"}, said: "rev: 123456789\n", file: moved},
		{name: "a yanked patch", path: "/simple", more: map[string]string{"vllm-0.33.1" + wheel: "123456789!"}, said: "changed: false\n"},
		{name: "no such index", path: "/none", code: conformance.ExitInfra, said: "/none has no project"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			commits := map[string]string{}
			for _, files := range []map[string]string{known, test.more} {
				for name, commit := range files {
					commits[name] = commit
				}
			}
			path := filepath.Join(t.TempDir(), "compat.toml")
			require.NoError(t, os.WriteFile(path, []byte(watchedFile), 0o644))
			var stdout, stderr bytes.Buffer
			env := newEnvironment(&stdout, &stderr, func(string) (string, bool) { return "", false })
			code := env.main(context.Background(), []string{"compat", "watch", "stable", "--compat", path, "--write", "--index=" + indexServer(t, commits) + test.path})
			said := stdout.String()
			if test.code != conformance.ExitOK {
				require.True(t, said == "", "stdout has %q, want nothing", said)
				said = stderr.String()
			}
			require.True(t, code == test.code && strings.Contains(said, test.said), "exit code %d, %q, want %d, %q", code, said, test.code, test.said)
			checkFile(t, path, test.file)
		})
	}
}

func checkFile(t *testing.T, path, want string) {
	t.Helper()
	if want == "" {
		want = watchedFile
	}
	got, err := os.ReadFile(path)
	require.NoError(t, err)
	require.NoDiff(t, cmp.Diff(want, string(got)), "window (-want +got)")
}

// An interrupted look at the index is no answer.
func TestWatchInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { cancel() }))
	t.Cleanup(server.Close)
	var stdout bytes.Buffer
	env := newEnvironment(&stdout, &bytes.Buffer{}, func(string) (string, bool) { return "", false })
	if code := env.main(ctx, []string{"compat", "watch", "rc", "--index=" + server.URL}); code != conformance.ExitInfra || stdout.Len() > 0 {
		t.Errorf("exit code %d, %q, want %d and nothing", code, stdout.String(), conformance.ExitInfra)
	}
}

// A file that somebody else has changed in the meantime is left to them.
func TestEditYields(t *testing.T) {
	path := filepath.Join(t.TempDir(), "compat.toml")
	require.NoError(t, os.WriteFile(path, []byte(watchedFile), 0o644))
	edit := matrixEdit{Matrix: &compat.Matrix{File: path}, before: []byte("as it was read"), after: []byte("edited")}
	require.ErrorContains(t, edit.write(), "was changed by another process")
	checkFile(t, path, "")
}
