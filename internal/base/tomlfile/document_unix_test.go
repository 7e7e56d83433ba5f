//go:build unix

package tomlfile

import (
	"path/filepath"
	"syscall"
	"testing"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// Opening a pipe would wait for a writer that may never come.
func TestLoadPipeWithoutWriter(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "pipe")
	require.NoError(t, syscall.Mkfifo(pipe, 0o600))
	checkUnreadable(t, pipe, "it is not a regular file")
}
