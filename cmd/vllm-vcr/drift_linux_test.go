package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	vcr "github.com/vllm-vcr/conformance"
	"github.com/vllm-vcr/conformance/internal/check/httpdiff"
	"github.com/vllm-vcr/conformance/internal/testenv"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/internal/upstream/drift"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// An indexOf is a package index of wheels, by version; a "-" before one says that it was yanked.
type indexOf struct {
	wheels    map[string][]byte
	noDigests bool // it lists none, as that of the main branch

	mu       sync.Mutex
	requests []string // for wheels
	digests  map[string]string
}

// digest is the sha256 of a wheel, computed once.
func (x *indexOf) digest(version string) string {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.digests[version] == "" {
		sum := sha256.Sum256(x.wheels[version])
		if x.digests == nil {
			x.digests = map[string]string{}
		}
		x.digests[version] = hex.EncodeToString(sum[:])
	}
	return x.digests[version]
}

// name is that of the wheel of a version.
func (x *indexOf) name(version string) string {
	return fmt.Sprintf("vllm-%s-cp38-abi3-manylinux_2_28_%s.whl", version, map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[runtime.GOARCH])
}

func (x *indexOf) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if name, isWheel := strings.CutPrefix(r.URL.Path, "/files/"); isWheel {
		x.mu.Lock()
		x.requests = append(x.requests, name)
		x.mu.Unlock()
		version := strings.Split(name, "-")[1]
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(append(x.wheels[version], x.wheels["-"+version]...)))
		return
	}
	var files []map[string]any
	for key, wheel := range x.wheels {
		version, yanked := strings.CutPrefix(key, "-")
		name := x.name(version)
		hashes := map[string]string{"sha256": x.digest(key)}
		if x.noDigests {
			clear(hashes)
		}
		files = append(files, map[string]any{
			"filename": name, "url": "/files/" + name, "hashes": hashes,
			"size": len(wheel), "yanked": yanked, "upload-time": "2026-12-01T00:00:00Z",
		})
	}
	w.Header().Set("Content-Type", "application/vnd.pypi.simple.v1+json")
	_ = json.NewEncoder(w).Encode(map[string]any{"meta": map[string]any{"api-version": "1.1"}, "files": files})
}

// frontendScript runs the frontend of 0.33.0.
func frontendScript(t *testing.T) []byte {
	t.Helper()
	return []byte("#!/bin/sh\nexec '" + testenv.Frontend(t, "0.33.0") + "' \"$@\"\n")
}

// driftOf runs drift check in a folder without a checkout, and returns what it printed and its exit code.
func driftOf(t *testing.T, cache string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "vllm-vcr", append([]string{"drift", "check", "--cache-dir", cache}, args...)...)
	cmd.Dir = t.TempDir()
	cmd.Env = append(os.Environ(),
		"VLLM_API_KEY=of-somebody-else", // which would have the frontend refuse every request
		"VLLM_VCR_PEERS="+cache,         // where no engine is
	)
	var out, log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &log
	if err := cmd.Run(); cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return out.String(), log.String(), cmd.ProcessState.ExitCode()
}

// A driftCase is one run of drift check.
type driftCase struct {
	name   string
	args   []string
	code   int
	want   []string // of stdout
	wheels string   // the version whose wheel was asked for
}

// run runs the case in a cache, with more arguments, and returns what it printed.
func (c driftCase) run(t *testing.T, cache string, args ...string) (stdout, stderr string) {
	t.Helper()
	stdout, stderr, code := driftOf(t, cache, append(c.args, args...)...)
	require.Equal(t, code, c.code, "exit code")
	for _, want := range c.want {
		require.Contains(t, stdout, want)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("stdout:\n%s\nstderr:\n%s", stdout, stderr)
		}
	})
	return stdout, stderr
}

// runOn runs the case with releases of an index.
func (c driftCase) runOn(t *testing.T, index *indexOf, cache string, args ...string) {
	t.Helper()
	index.requests = nil
	if _, stderr := c.run(t, cache, args...); stderr != "" {
		t.Error("something is on stderr")
	}
	asked := slices.Compact(slices.Sorted(slices.Values(index.requests)))
	require.True(t, (c.wheels != "" || len(asked) == 0) && (c.wheels == "" || (len(asked) == 1 && strings.Contains(asked[0], "-"+c.wheels+"-"))), "asked for %q, want %q", asked, c.wheels)
}

const (
	speaks33 = "static none: 0 changes; live none: 15 cases passed, 1742 tokens compared; goldens none: 10 cases passed, 41738 tokens compared; "
)

// The layer builtin finds what is in no table, and nothing else.
func TestDriftBuiltin(t *testing.T) {
	program, err := exec.LookPath("vllm-vcr")
	require.NoError(t, err)
	files, err := fs.Sub(vcr.Files, vcr.ModelPath)
	require.NoError(t, err)
	model, err := drift.Model(files, t.TempDir())
	require.NoError(t, err)
	layer := drift.Builtin{VCR: program, Binary: testenv.Frontend(t, "0.33.0"), Line: "0.33", Model: model, Requests: httpdiff.Corpus()[:4], Known: httpdiff.BuiltinKnown()}
	if got := layer.Run(t.Context()); got.Verdict == drift.Found || len(got.Cases) > 0 || !strings.Contains(got.Compared, "4 requests") {
		t.Errorf("%s: %s: %+v", got.Verdict, got.Reason, got.Cases)
	}
	layer.Known = nil
	if got := layer.Run(t.Context()); got.Verdict != drift.Found || !strings.Contains(got.Reason, "(header x-request-id)") || len(got.Cases) != 4 {
		t.Errorf("without a table: %s: %s: %+v", got.Verdict, got.Reason, got.Cases)
	}
}

// TestDriftCheckRelease goes the whole way from an index to a verdict with the real frontend and the real sources of 0.33
// in the wheels.
func TestDriftCheckRelease(t *testing.T) {
	t.Parallel()
	real, err := os.ReadFile(testenv.Frontend(t, "0.33.0"))
	require.NoError(t, err)
	// One wheel has the frontend itself, the others a script that runs it, which is hashed and copied sooner.
	small := frontendScript(t)
	started := filepath.Join(t.TempDir(), "started")
	corrupt := releaseWheel(t, "0.33.5", small)
	corrupt[bytes.Index(corrupt, small)+len(small)/2] ^= 1
	index := &indexOf{wheels: map[string][]byte{
		"0.32.1": releaseWheel(t, "0.32.1", real[:1<<20]), // ends in the middle: a program that does not run
		"0.33.0": releaseWheel(t, "0.33.0", []byte("#!/bin/sh\ntouch "+started+"\n")),
		"0.33.5": corrupt, "0.34.0": releaseWheel(t, "0.34.0", real), "-0.36.0": releaseWheel(t, "0.36.0", small),
		"0.35.0rc1": releaseWheel(t, "0.35.0rc1", nil, lacks("vllm/vllm-rs")),
		"0.33.2":    releaseWheel(t, "0.33.2", small, lacks(engineModule)),
		"0.33.3":    releaseWheel(t, "0.33.3", small, replaces(engineModule, "    client_index: int = 0\n", "    brand_new: int = 0\n    client_index: int = 0\n")),
		"0.33.4":    releaseWheel(t, "0.33.4", small, replaces(engineModule, "class EngineCoreRequest(", "if True:\n  class EngineCoreRequest(")),
	}}
	server := httptest.NewServer(index)
	defer server.Close()
	cache := t.TempDir()
	tests := []driftCase{
		{
			name: "newest", wheels: "0.34.0", args: []string{"--layers", "static,live,goldens,engine,python"},
			want: []string{
				"release: 0.34.0\nuploaded: 2026-12-01\ncommit: https://github.com/vllm-project/vllm/commit/012345678\n",
				"judged as: line 0.33, as (embedded) compat.toml has no line 0.34 with goldens\n",
				"0.34 is not a line of (embedded) compat.toml: vllm-vcr drift adopt 0.34.0\n",
				"health\n", // what live asserted, to the last case
				"a player that is taught its profile serves it: 14 cases passed, ",
				"\ndrift: none: vLLM 0.34.0 works as line 0.33: " + speaks33 + "not run: engine, python, builtin\n",
			},
		},
		{
			name: "frontend from the cache", args: []string{"--layers", "live"}, want: []string{"commit/012345678\n", "\ndrift: none: vLLM 0.34.0 "},
		},
		{
			name: "no frontend", args: []string{"--pre"}, code: 3, wheels: "0.35.0rc1",
			want: []string{"static    none ", "drift: unknown: vLLM 0.35.0rc1 could not be judged: live unknown: http://", " holds no vllm/vllm-rs: file does not exist; static none: "},
		},
		{name: "yanked", args: []string{"0.36.0"}, code: 3, want: []string{"release 0.36.0 was yanked from the index"}},
		{
			name: "not what was published", args: []string{"0.33.0", "--layers", "live,goldens"}, code: 3, wheels: "0.33.0",
			want: []string{"drift: unknown: vLLM 0.33.0 could not be judged: live unknown: vllm-rs of vLLM 0.33.0 has sha256 "},
		},
		{name: "corrupt wheel", args: []string{"0.33.5"}, code: 3, wheels: "0.33.5", want: []string{"drift: unknown: ", "vllm/vllm-rs: ", "zip: checksum error"}},
		{name: "does not run", args: []string{"0.32.1", "--layers", "live,goldens"}, code: 3, wheels: "0.32.1", want: []string{"drift: unknown: vLLM 0.32.1 could not be judged: live unknown: ", "vllm-rs does not run here: "}},
		{name: "not there", args: []string{"0.31.0"}, code: 3, want: []string{"release 0.31.0 is not among the 9 of the index, whose newest is 0.36.0"}},
		{
			name: "no module of the engine", args: []string{"0.33.2", "--layers", "static,goldens"}, code: 3, wheels: "0.33.2",
			want: []string{"goldens   none ", "drift: unknown: vLLM 0.33.2 could not be judged: static ", "could not be read", engineModule},
		},
		{
			name: "a new field", args: []string{"0.33.3", "--layers", "static,live"}, code: 1, wheels: "0.33.3",
			want: []string{"live      none ", "EngineCoreRequest.brand_new", "drift: found: vLLM 0.33.3 does not work as line 0.33: static found: ", "breaking; first EngineCoreRequest.brand_new"},
		},
		{
			name: "a struct under a condition", args: []string{"0.33.4", "--layers", "static"}, code: 3, wheels: "0.33.4",
			want: []string{"drift: unknown: vLLM 0.33.4 could not be judged: static unknown: ", "EngineCoreRequest"},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) { test.runOn(t, index, cache, "--index", server.URL+"/simple") })
	}
	require.True(t, !exists(started), "a vllm-rs that was never published was started")
	// Of 0.34.0, 0.33.2, 0.33.3 and 0.32.1; of the others there is no whole frontend, or nobody wanted it.
	whole, err := filepath.Glob(filepath.Join(cache, "frontends", "*", "*"))
	require.True(t, err == nil && len(whole) == 2*4, "the cache has %q, %v", whole, err)
}

// TestDriftCheckWheel looks at wheels that are no release of an index: on disk, at a URL, and built of the main branch.
func TestDriftCheckWheel(t *testing.T) {
	t.Parallel()
	real, err := os.ReadFile(testenv.Frontend(t, "0.33.0"))
	require.NoError(t, err)
	const nightly = "0.34.0.dev12+g0123456"
	index := &indexOf{wheels: map[string][]byte{nightly: releaseWheel(t, nightly, frontendScript(t)), "0.33.0": releaseWheel(t, "0.33.0", real)}}
	server := httptest.NewServer(index)
	defer server.Close()
	bare := httptest.NewServer(&indexOf{wheels: map[string][]byte{nightly: index.wheels[nightly]}, noDigests: true})
	defer bare.Close()
	sum := sha256.Sum256(index.wheels[nightly])
	digest := hex.EncodeToString(sum[:])
	path := filepath.Join(t.TempDir(), "vllm-0.33.0-cp38-abi3-manylinux_2_28_x86_64.whl")
	require.NoError(t, os.WriteFile(path, index.wheels["0.33.0"], 0o644))
	at := []string{"--index", server.URL + "/simple"}
	tests := []driftCase{
		{name: "on disk", args: []string{path, "--layers", "static"}, want: []string{"release: 0.33.0\n", "drift: none: vLLM 0.33.0 works as line 0.33: static none: 0 changes"}},
		{
			name: "at a URL", args: []string{"--layers", "static,live,goldens", server.URL + "/files/" + index.name("0.33.0") + "?key=hunter2"}, wheels: "0.33.0",
			want: []string{"drift: none: vLLM 0.33.0 works as line 0.33: " + speaks33 + "not run: engine, python, builtin\n"},
		},
		{
			name: "nightly", args: append(at, "--nightly", "--layers", "static,live"), wheels: nightly,
			want: []string{"release: " + nightly + "\n", "0.34 is not a line of ", "drift: none: vLLM " + nightly + " works as line 0.33: static none: 0 changes; live none: 15 cases passed, "},
		},
		{
			name: "nightly without digests", args: append([]string{"--index", bare.URL + "/simple"}, "--nightly"),
			want: []string{"live      not run", "no sha256 of the wheel is known, and nothing in it is run", "drift: none: vLLM " + nightly + " works as line 0.33: static none: 0 changes; not run: live, goldens, engine, python, builtin\n"},
		},
		{
			name: "at a URL, of no known release", args: []string{server.URL + "/files/" + index.name(nightly), "--layers", "live"}, code: 4, wheels: nightly,
			want: []string{"no sha256 of the wheel is known, and nothing in it is run"},
		},
		{
			name: "at a URL with its digest", args: []string{server.URL + "/files/" + index.name(nightly) + "#sha256=" + digest, "--layers", "live"}, wheels: nightly,
			want: []string{"drift: none: vLLM " + nightly + " works as line 0.33: live none: "},
		},
		{name: "nightly by its name", args: append(at, "--nightly", nightly, "--layers", "static"), wheels: nightly, want: []string{"drift: none: vLLM " + nightly}},
		{name: "without --nightly", args: append(at, "--layers", "static"), wheels: "0.33.0", want: []string{"drift: none: vLLM 0.33.0"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) { test.runOn(t, index, t.TempDir()) })
	}
}

// TestDriftCheckEngine looks at a player in place of an engine, alone and behind the tap.
func TestDriftCheckEngine(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("runs whole programs")
	}
	frontend := testenv.Frontend(t, "0.33.0")
	tests := []struct {
		engine string
		driftCase
	}{
		{testenv.PlayerForEngine, driftCase{name: "serves", want: []string{
			"tap: none: ", " requests recorded and replayed, ", "drift: none: vLLM 0.33.0 works as line 0.33: engine none: 10 cases passed, ",
		}}},
		{strings.Replace(testenv.PlayerForEngine, "0.33.0", "0.27.1", 1), driftCase{
			name: "of another line", code: 1, want: []string{"drift: found: vLLM 0.33.0 does not work as line 0.33: engine found: "},
		}},
		{"exec sleep 1000", driftCase{
			name: "hangs", args: []string{"--start-timeout", "2s"}, code: 3,
			want: []string{"drift: unknown: vLLM 0.33.0 could not be judged: engine unknown: it does not register: 0.33/live/handshake ("},
		}},
		{"echo ::error::no torch; exit 3", driftCase{
			name: "ends", code: 3,
			want: []string{"drift: unknown: vLLM 0.33.0 could not be judged: engine unknown: it does not register: 0.33/live/handshake (R005)"},
		}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			stdout, _ := test.run(t, t.TempDir(), "0.33.0", "--frontend", frontend, "--layers", "engine", "--peers", testenv.EnginePeers(t, test.engine))
			require.True(t, !regexp.MustCompile(`(?m)^ *::`).MatchString(stdout), "the engine speaks to the CI")
		})
	}
}

// TestDriftCheckEngineOfANewLine: the tap is another process, and has to know the line that this one has just learned.
func TestDriftCheckEngineOfANewLine(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("runs whole programs")
	}
	dir := t.TempDir()
	p, err := protocol.LoadProfile("0.33")
	require.NoError(t, err)
	p.Line, p.Version = "0.34", "0.34.0"
	var profile bytes.Buffer
	require.NoError(t, protocol.WriteProfile(&profile, p))
	wheel := filepath.Join(dir, "vllm-0.34.0-cp38-abi3-manylinux_2_28_x86_64.whl")
	for path, data := range map[string][]byte{
		wheel: releaseWheel(t, "0.34.0", frontendScript(t)), filepath.Join(dir, "0.34.json"): profile.Bytes(),
	} {
		require.NoError(t, os.WriteFile(path, data, 0o644))
	}
	player := strings.Replace(testenv.PlayerForEngine, "0.33.0", "0.34.0 --profiles "+dir, 1)
	home := filepath.Join(testenv.EnginePeers(t, player), "engines", "0.33.0")
	test := driftCase{args: []string{wheel, "--layers", "static,live,engine", "--engine", home}, want: []string{
		"tap: none: 12 requests recorded and replayed", "a player that is taught its profile serves it", "drift: none: vLLM 0.34.0 works as line 0.33: ",
	}}
	if _, stderr := test.run(t, t.TempDir()); !strings.Contains(stderr, "engine: tap: start frontend, tap and engine\n") {
		t.Error("stderr does not tell what takes its time")
	}
}

// TestDriftCheckLocal looks at real frontends that are at hand.
func TestDriftCheckLocal(t *testing.T) {
	t.Parallel()
	expectations, err := filepath.Abs("../../testdata/expectations/vllm-rs.toml")
	require.NoError(t, err)
	tests := []struct {
		version string // of the frontend
		driftCase
	}{
		{"0.27.1", driftCase{name: "told", args: []string{"0.27.1"}, want: []string{"\ndrift: none: vLLM 0.27.1 works as line 0.27: live none: 15 cases passed, "}}},
		{"0.27.1", driftCase{name: "not told", code: 3, want: []string{"drift: unknown: vLLM could not be judged: --frontend: the release of the binary is not known: give it"}}},
		{"0.27.1", driftCase{name: "of another line", args: []string{"0.34.0"}, code: 1, want: []string{"\ndrift: found: vLLM 0.34.0 does not work as line 0.33: live found: "}}},
		{"0.32.0", driftCase{name: "expected to fail", args: []string{"--expectations", expectations}, want: []string{"\ndrift: none: vLLM 0.32.0 works as line 0.32: live none: 14 cases passed, "}}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			test.run(t, t.TempDir(), "--frontend", testenv.Frontend(t, test.version))
		})
	}
}
