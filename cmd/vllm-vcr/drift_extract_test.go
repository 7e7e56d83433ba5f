package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

const (
	tinyRelease    = "../../internal/upstream/extract/testdata/tiny"
	extractedWheel = "../../internal/upstream/extract/testdata/wheels/vllm-0.33.0-cp38-abi3-manylinux_2_28_x86_64.whl"
)

// damagedRelease is a folder with the sources of the tiny release, of which one text is another.
func damagedRelease(t *testing.T, file, old, replacement string) string {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, os.CopyFS(dir, os.DirFS(tinyRelease)))
	path := filepath.Join(dir, file)
	text, err := os.ReadFile(path)
	if err != nil || !strings.Contains(string(text), old) {
		t.Fatalf("%s holds no %q: %v", path, old, err)
	}
	require.NoError(t, os.WriteFile(path, []byte(strings.ReplaceAll(string(text), old, replacement)), 0o644))
	return dir
}

func TestDriftExtract(t *testing.T) {
	index := indexServer(t, map[string]string{
		"vllm-0.33.0-cp38-abi3-manylinux1_x86_64.whl": "4ba787ec9", "vllm-0.32.0-cp38-abi3-manylinux1_x86_64.whl": "5df63a720!",
	}) + "/simple"
	computed := damagedRelease(t, "vllm/v1/engine/__init__.py", "logprobs: Logprobs | None", "logprobs: make('::error::x') | None")
	nothing := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(nothing, "vllm"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(nothing, "vllm", "_version.py"), []byte("__version__ = '0.33.0'\n"), 0o644))
	for _, test := range []struct {
		name   string
		args   []string
		code   int
		stdout []string // parts of it; nothing may be printed if there are none
		stderr []string
	}{
		{"a folder as text", []string{"--format", "text", tinyRelease}, conformance.ExitOK, []string{
			"vLLM 9.9.0, line 9.9, commit 012345678\n", "vllm/v1/engine/core.py:19         status, local, hash?\n",
			"\nEngineCoreRequest (array) vllm/v1/engine/__init__.py:41\n  0  request_id  RequestId", "  1  prompt      list[int] | None          required\n",
		}, nil},
		{"what cannot be read", []string{computed}, conformance.ExitInfra, nil, []string{
			"not read: vllm/v1/engine/__init__.py:54: EngineCoreOutput.logprobs: its type make(", "is known only when it runs\n",
			"vllm-vcr: error: release 9.9.0 could not be read completely: 1 part of its protocol is not known, see above\n",
		}},
		{"half of it", []string{"--partial", computed}, conformance.ExitInfra, []string{`"EngineCoreOutputs": {`}, []string{"not read: "}},
		{"a folder without the module of the wire", []string{nothing}, conformance.ExitInfra, nil, []string{
			"not read: class EngineCoreRequest: there is no module vllm.v1.engine: ", "release 0.33.0 could not be read completely: 18 parts",
		}},
		{"a version that the sources contradict", []string{"--vllm-version", "0.34.0", tinyRelease}, conformance.ExitInfra, nil, []string{
			"it is of release 0.34.0, and its vllm/_version.py of 9.9.0+cpu: one of them is wrong",
		}},
		{"a yanked release", []string{"--index", index, "0.32.0"}, conformance.ExitInfra, nil, []string{"release 0.32.0: it was yanked (no reason is given): ", "pass --yanked"}},
		{"another format", []string{"--format", "yaml", tinyRelease}, conformance.ExitUsage, nil, []string{`--format "yaml": want one of json, text`}},
		{"no name", []string{"newest"}, conformance.ExitUsage, nil, []string{`"newest" is not a version, and there is no such file`}},
		{"no argument", nil, conformance.ExitUsage, nil, []string{"the argument WHEEL|VERSION|DIR|URL is missing"}},
		{"an output that cannot be written", []string{tinyRelease, "-o", t.TempDir()}, conformance.ExitInfra, nil, []string{"is a directory"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			env := newEnvironment(&stdout, &stderr, func(string) (string, bool) { return "", false })
			if code := env.main(t.Context(), append([]string{"drift", "extract"}, test.args...)); code != test.code {
				t.Errorf("exit code %d, want %d", code, test.code)
			}
			for _, want := range test.stdout {
				require.Contains(t, stdout.String(), want)
			}
			require.True(t, len(test.stdout) != 0 || stdout.Len() == 0, "stdout has %s", stdout.String())
			for _, want := range test.stderr {
				require.Contains(t, stderr.String(), want)
			}
			for line := range strings.Lines(stdout.String() + stderr.String()) {
				require.True(t, !strings.HasPrefix(strings.TrimSpace(line), "::"), "a line is a command to a CI: %s", line)
			}
		})
	}
}

// TestDriftExtractWritesTheProfile: the file is the profile that the binary has.
func TestDriftExtractWritesTheProfile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "0.33.json")
	var stdout, stderr bytes.Buffer
	env := newEnvironment(&stdout, &stderr, func(string) (string, bool) { return "", false })
	if code := env.main(t.Context(), []string{"drift", "extract", "-o", path, extractedWheel}); code != conformance.ExitOK {
		t.Fatalf("exit code %d: %s", code, stderr.String())
	}
	got, err := os.ReadFile(path)
	require.NoError(t, err)
	want, err := os.ReadFile("../../internal/wire/protocol/profiles/0.33.json")
	require.NoError(t, err)
	if diff := cmp.Diff(string(want), string(got)); diff != "" || stdout.Len() > 0 {
		t.Errorf("-want +got:\n%s\nstdout %q", diff, stdout.String())
	}
}
