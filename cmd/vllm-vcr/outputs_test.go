package main

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

func outputsTo(path string) *environment {
	return newEnvironment(io.Discard, io.Discard, func(name string) (string, bool) { return path, name == "GITHUB_OUTPUT" && path != "" })
}

func TestSetOutputs(t *testing.T) {
	path := filepath.Join(t.TempDir(), "output")
	require.NoError(t, setOutputs(outputsTo(path), output{"matrix", `[{"line":"0.33"}]`}, output{"note", "two\nlines" + outputFence}))
	got, err := os.ReadFile(path)
	require.NoError(t, err)
	want := "matrix<<" + outputFence + "\n[{\"line\":\"0.33\"}]\n" + outputFence + "\nnote<<" + outputFence + "\ntwo\nlines(fence)\n" + outputFence + "\n"
	require.True(t, strings.ReplaceAll(string(got), "\r\n", "\n") == want, "got %q, want %q", got, want)
}

func TestSetOutputsRefuses(t *testing.T) {
	for path, want := range map[string]string{"": "GITHUB_OUTPUT is not set", t.TempDir(): "GITHUB_OUTPUT: "} {
		require.ErrorContains(t, setOutputs(outputsTo(path), output{"a", "x"}), want)
	}
}
