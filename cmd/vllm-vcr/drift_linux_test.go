package main

import (
	"archive/zip"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vllm-vcr/conformance/internal/testenv"
)

// An indexOf is a package index of wheels, by version; a "-" before one says that it was yanked.
type indexOf struct {
	wheels   map[string][]byte
	requests []string // for wheels
}

func (x *indexOf) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if name, isWheel := strings.CutPrefix(r.URL.Path, "/files/"); isWheel {
		x.requests = append(x.requests, name)
		version := strings.Split(name, "-")[1]
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(append(x.wheels[version], x.wheels["-"+version]...)))
		return
	}
	var files []map[string]any
	for version, wheel := range x.wheels {
		version, yanked := strings.CutPrefix(version, "-")
		name := fmt.Sprintf("vllm-%s-cp38-abi3-manylinux_2_28_%s.whl", version, map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[runtime.GOARCH])
		sum := sha256.Sum256(wheel)
		files = append(files, map[string]any{
			"filename": name, "url": "/files/" + name, "hashes": map[string]string{"sha256": hex.EncodeToString(sum[:])},
			"size": len(wheel), "yanked": yanked, "upload-time": "2026-12-01T00:00:00Z",
		})
	}
	w.Header().Set("Content-Type", "application/vnd.pypi.simple.v1+json")
	_ = json.NewEncoder(w).Encode(map[string]any{"meta": map[string]any{"api-version": "1.1"}, "files": files})
}

// wheelWith makes a wheel of a frontend; without one it has none.
func wheelWith(t *testing.T, frontend []byte) []byte {
	t.Helper()
	var data bytes.Buffer
	archive := zip.NewWriter(&data)
	members := map[string][]byte{"vllm/_version.py": []byte("__commit_id__ = commit_id = 'g0123456789'\n")}
	if frontend != nil {
		members["vllm/vllm-rs"] = frontend
	}
	for name, content := range members {
		w, err := archive.CreateHeader(&zip.FileHeader{Name: name, Method: zip.Store})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(content); err != nil {
			t.Fatal(err)
		}
	}
	if err := archive.Close(); err != nil {
		t.Fatal(err)
	}
	return data.Bytes()
}

// driftOf runs drift check in a folder without a checkout, and returns what it printed and its exit code.
func driftOf(t *testing.T, cache string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "vllm-vcr", append([]string{"drift", "check", "--cache", cache}, args...)...)
	cmd.Dir = t.TempDir()
	cmd.Env = append(os.Environ(), "VLLM_API_KEY=of-somebody-else") // which would have the frontend refuse every request
	var out, log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &log
	if err := cmd.Run(); cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return out.String(), log.String(), cmd.ProcessState.ExitCode()
}

// TestDriftCheckRelease goes the whole way from an index to a verdict with the real frontend of 0.33 in the wheels.
func TestDriftCheckRelease(t *testing.T) {
	real, err := os.ReadFile(testenv.Frontend(t, "0.33.0"))
	if err != nil {
		t.Fatal(err)
	}
	corrupt := wheelWith(t, real)
	corrupt[bytes.Index(corrupt, real)+len(real)/2] ^= 1
	index := &indexOf{wheels: map[string][]byte{
		"0.32.0": wheelWith(t, real[:len(real)/2]), // ends in the middle: a program that does not run
		"0.33.0": corrupt, "0.34.0": wheelWith(t, real), "0.35.0rc1": wheelWith(t, nil), "-0.36.0": wheelWith(t, real),
	}}
	server := httptest.NewServer(index)
	defer server.Close()
	cache := t.TempDir()
	tests := []struct {
		name   string
		args   []string
		code   int
		want   []string // of stdout
		wheels string   // the version whose wheel was asked for
	}{
		{
			name: "newest", wheels: "0.34.0",
			want: []string{
				"release: 0.34.0\nuploaded: 2026-12-01\ncommit: https://github.com/vllm-project/vllm/commit/012345678\n",
				"judged as: line 0.33, as (embedded) compat.toml has no line 0.34 with goldens\n",
				"\ndrift: none: vLLM 0.34.0 speaks as line 0.33: 23 cases passed, ",
			},
		},
		{
			name: "from the cache", want: []string{"commit/012345678\n", "\ndrift: none: vLLM 0.34.0 "},
		},
		{name: "candidate", args: []string{"--pre"}, code: 3, wheels: "0.35.0rc1", want: []string{"drift: unknown: vLLM 0.35.0rc1 could not be judged: http://", " holds no vllm/vllm-rs"}},
		{name: "yanked", args: []string{"0.36.0"}, code: 3, want: []string{"release 0.36.0 was yanked from the index"}},
		{name: "corrupt wheel", args: []string{"0.33.0"}, code: 3, wheels: "0.33.0", want: []string{"drift: unknown: ", "vllm/vllm-rs: http://", "zip: checksum error"}},
		{name: "does not run", args: []string{"0.32.0"}, code: 3, wheels: "0.32.0", want: []string{"drift: unknown: vLLM 0.32.0 could not be judged: ", "vllm-rs does not run here: "}},
		{name: "not there", args: []string{"0.31.0"}, code: 3, want: []string{"release 0.31.0 is not among the 5 of the index, whose newest is 0.36.0"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			index.requests = nil
			stdout, stderr, code := driftOf(t, cache, append(test.args, "--index", server.URL+"/simple")...)
			if code != test.code {
				t.Errorf("exit code %d, want %d", code, test.code)
			}
			for _, want := range test.want {
				if !strings.Contains(stdout, want) {
					t.Errorf("stdout has no %q", want)
				}
			}
			if stderr != "" {
				t.Error("something is on stderr")
			}
			asked := slices.Compact(index.requests)
			if test.wheels == "" && len(asked) > 0 || test.wheels != "" && (len(asked) != 1 || !strings.Contains(asked[0], "-"+test.wheels+"-")) {
				t.Errorf("asked for %q, want %q", asked, test.wheels)
			}
			if t.Failed() {
				t.Logf("stdout:\n%s\nstderr:\n%s", stdout, stderr)
			}
		})
	}
	// Of 0.34.0 and 0.32.0; of the others there is no whole frontend.
	whole, err := filepath.Glob(filepath.Join(cache, "frontends", "*", "*"))
	if err != nil || len(whole) != 4 {
		t.Errorf("the cache has %q, %v", whole, err)
	}
}

// TestDriftCheckLocal looks at real frontends that are at hand.
func TestDriftCheckLocal(t *testing.T) {
	expectations, err := filepath.Abs("../../testdata/expectations/vllm-rs.toml")
	if err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name    string
		version string // of the frontend
		args    []string
		code    int
		want    string
	}{
		{name: "told", version: "0.27.1", args: []string{"0.27.1"}, want: "\ndrift: none: vLLM 0.27.1 speaks as line 0.27: 23 cases passed, "},
		{name: "not told", version: "0.27.1", code: 3, want: "drift: unknown: vLLM could not be judged: --frontend: its release is not known: name it"},
		{name: "of another line", version: "0.27.1", args: []string{"0.34.0"}, code: 1, want: "\ndrift: found: vLLM 0.34.0 does not speak as line 0.33: "},
		{name: "expected to fail", version: "0.32.0", args: []string{"--expectations", expectations}, want: "\ndrift: none: vLLM 0.32.0 speaks as line 0.32: 22 cases passed, "},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			args := append([]string{"--frontend", testenv.Frontend(t, test.version)}, test.args...)
			stdout, stderr, code := driftOf(t, t.TempDir(), args...)
			if code != test.code || !strings.Contains(stdout, test.want) {
				t.Errorf("exit code %d, want %d and %q\nstdout:\n%s\nstderr:\n%s", code, test.code, test.want, stdout, stderr)
			}
		})
	}
}
