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
	require.NoError(t, setOutputs(outputsTo(path), output{"matrix", `[{"line":"0.33"}]`}, output{"note", "two\nlines"}))
	got, err := os.ReadFile(path)
	require.NoError(t, err)
	want := "matrix<<" + outputFence + "\n[{\"line\":\"0.33\"}]\n" + outputFence + "\nnote<<" + outputFence + "\ntwo\nlines\n" + outputFence + "\n"
	if strings.ReplaceAll(string(got), "\r\n", "\n") != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestSetOutputsRefuses(t *testing.T) {
	dir := t.TempDir()
	tests := []struct{ name, path, value, want string }{
		{name: "no workflow", value: "x", want: "GITHUB_OUTPUT is not set"},
		{name: "no file", path: dir, value: "x", want: "GITHUB_OUTPUT: "},
		{name: "a fence", path: filepath.Join(dir, "output"), value: "x\n" + outputFence + "\nverdict=pass", want: "has " + outputFence + " in it"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			err := setOutputs(outputsTo(test.path), output{"a", test.value})
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
}
