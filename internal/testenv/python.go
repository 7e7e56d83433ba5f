package testenv

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"
)

// Python3 returns the path of a Python 3.11 or newer on PATH, with which `vllm-vcr drift` reads the sources of a release.
func Python3(t testing.TB) string {
	t.Helper()
	path, err := exec.LookPath("python3")
	var version [2]int
	if err == nil {
		var out []byte
		out, err = exec.CommandContext(t.Context(), path, "--version").Output()
		if _, scanErr := fmt.Sscanf(string(out), "Python %d.%d", &version[0], &version[1]); err == nil {
			err = scanErr
		}
		if err == nil && (version[0] < 3 || version[0] == 3 && version[1] < 11) {
			err = fmt.Errorf("%s is %s", path, strings.TrimSpace(string(out)))
		}
	}
	switch {
	case err == nil:
	case required():
		t.Fatalf("needs python3 of version 3.11 or newer: %v", err)
	default:
		t.Skipf("needs python3 of version 3.11 or newer: %v", err)
	}
	return path
}
