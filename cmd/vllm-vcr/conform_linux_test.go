package main

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// TestConformOnTerminal: a person sees how a run goes on the last line of a real
// terminal, and nothing of it is left when the report is printed. In CI, and where
// every case is logged, there is none.
func TestConformOnTerminal(t *testing.T) {
	const last = "\r\x1b[K[######..................] 2/8 0.33/multiturn-s7/provenance"
	tests := []struct {
		name string
		env  []string
		args []string
		want bool
	}{
		{name: "bar", want: true},
		{name: "CI", env: []string{"CI=true"}},
		{name: "no colour", env: []string{"NO_COLOR=1"}},
		{name: "dumb", env: []string{"TERM=dumb"}},
		{name: "verbose", args: []string{"--verbose"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			screen, programs := terminal(t, 100)
			cmd := exec.CommandContext(t.Context(), "vllm-vcr", append([]string{"conform", "--run", "0.33/multiturn-s7/**"}, test.args...)...)
			cmd.Dir = "../.."
			cmd.Env = append(append(os.Environ(), "CI=", "NO_COLOR=", "TERM=xterm"), test.env...)
			var stdout bytes.Buffer
			cmd.Stdout, cmd.Stderr = &stdout, programs
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			programs.Close()
			seen, _ := io.ReadAll(screen) // ends in EIO when the program has closed its end
			if err := cmd.Wait(); err != nil {
				t.Fatalf("%v: %s", err, &stdout)
			}
			if got := strings.Contains(string(seen), last); got != test.want || strings.Contains(string(seen), "\x1b") != test.want {
				t.Errorf("the terminal got %q", seen)
			}
			if test.want && !strings.HasSuffix(string(seen), "8/8\r\x1b[K") {
				t.Errorf("the terminal got %q, want nothing of the bar at its end", seen)
			}
			if !strings.Contains(stdout.String(), "\nPASS: every gate holds: 8 passed; ") {
				t.Errorf("stdout %q", &stdout)
			}
		})
	}
}
