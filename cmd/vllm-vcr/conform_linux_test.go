package main

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// TestConformOnTerminal: a person sees how a run goes on the last line of a real
// terminal, and nothing of it is left when the report is printed. TestNoBar has where there is none.
func TestConformOnTerminal(t *testing.T) {
	screen, programs := terminal(t, 100)
	cmd := exec.CommandContext(t.Context(), "vllm-vcr", "conform", "--run", "0.33/multiturn-s7/**")
	cmd.Dir = "../.."
	cmd.Env = append(os.Environ(), "CI=", "NO_COLOR=", "TERM=xterm")
	var stdout bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, programs
	require.NoError(t, cmd.Start())
	programs.Close()
	seen, _ := io.ReadAll(screen) // ends in EIO when the program has closed its end
	require.NoErrorf(t, cmd.Wait(), "%s", &stdout)
	const during = "\r\x1b[K[######..................] 2/8 0.33/multiturn-s7/provenance"
	if got := string(seen); !strings.Contains(got, during) || !strings.HasSuffix(got, "8/8\r\x1b[K") {
		t.Errorf("the terminal got %q, want %q in it, and nothing of the bar at its end", got, during)
	}
	require.Contains(t, stdout.String(), "\nPASS: every gate holds: 8 passed; ")
}
