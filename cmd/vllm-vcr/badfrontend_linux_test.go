package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vllm-vcr/conformance/internal/testenv"
)

// TestBadFrontend: whatever a frontend does, the command ends with a report, says what
// happened and exits by it, and no process is left.
func TestBadFrontend(t *testing.T) {
	t.Parallel()
	command := "'" + testenv.Python(t) + "' -u testdata/engines/frontend.py "
	address := freeAddress(t)
	tests := []struct {
		name   string
		args   []string
		code   int
		stdout string
	}{
		{"never calls back", []string{"--frontend-command", command + "nothing {http_port} {handshake}"}, 1, `^  H001 the frontend did not answer HELLO .*it does not serve within 1s; GET /health: .*connection refused; the last of its output:$`},
		{"ends", []string{"--frontend-command", command + "ends {http_port} {handshake}"}, 1, `^  H001 the frontend did not answer HELLO .* ended: exit status 1; the last of its output:$`},
		{"serves HTTP, and never an engine", []string{"--run", "**/handshake", "--run", "**/requests", "--frontend-command", command + "http {http_port} {handshake}"}, 1, `^FAIL 0.33/frontend/handshake$`},
		{"is not there", []string{"--frontend-command", "/no/such/frontend {http_port} {handshake}"}, 3, `^  R009 frontend: start frontend: .*/no/such/frontend: no such file or directory`},
		{"is somewhere else", []string{"--frontend-url", strings.Replace(address, "tcp", "http", 1), "--frontend-handshake", address}, 1, `^  H001 .*it does not serve within 1s; .*it was started by somebody else, so its output is not known`},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			args := append([]string{"conform", "--line", "0.33", "--connect-timeout", "1s", "--idle-timeout", "1s"}, test.args...)
			s, code := runSpied(t, nil, args...)
			if code != test.code {
				t.Errorf("exit code %d, want %d:\n%s", code, test.code, s.stderr.text())
			}
			says(t, s.stdout.text(), test.stdout, `^(FAIL|ERROR): `)
		})
	}
}

// TestBadRealFrontend: so it is with one that goldens are replayed behind.
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
			if err := os.WriteFile(path, []byte("#!/bin/sh\n"+test.script+"\n"), 0o755); err != nil {
				t.Fatal(err)
			}
			s, code := runSpied(t, nil, "conform", "--line", "0.33", "--golden", "edge-s1", "--run", "**/fidelity-frontend-index-16",
				"--connect-timeout", "1s", "--frontend", path, "--model", "testdata/model/tiny")
			if code != test.code {
				t.Errorf("exit code %d, want %d", code, test.code)
			}
			says(t, s.stdout.text(), test.stdout)
		})
	}
}
