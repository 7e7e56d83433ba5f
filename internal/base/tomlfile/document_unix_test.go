//go:build unix

package tomlfile

import (
	"path/filepath"
	"syscall"
	"testing"
)

// Opening a pipe would wait for a writer that may never come.
func TestLoadPipeWithoutWriter(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	checkUnreadable(t, pipe, "it is not a regular file")
}
