package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// TestBadRealFrontend: whatever a frontend does that goldens are replayed behind, the command ends with a report, says what
// happened and exits by it, and no process is left.
func TestBadRealFrontend(t *testing.T) {
	tests := []struct {
		name, script string
		code         int
		stdout       string
	}{
		{"ends", "echo no such model; exit 1", 3, `^  R009 .*: exit status 1; the last of its output:\n      \| no such model$`},
		{"never calls back", "echo loading; sleep 600 & wait", 3, `^  R009 .*\n      \| loading$`},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "vllm-rs")
			require.NoError(t, os.WriteFile(path, []byte("#!/bin/sh\n"+test.script+"\n"), 0o755))
			s, code := runSpied(t, nil, "conform", "--line", "0.33", "--golden", "edge-s1", "--run", "**/fidelity-frontend-index-16",
				"--start-timeout", "1s", "--frontend", path, "--model", "testdata/model/tiny")
			if code != test.code {
				t.Errorf("exit code %d, want %d", code, test.code)
			}
			says(t, s.stdout.text(), test.stdout)
		})
	}
}
