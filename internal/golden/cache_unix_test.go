//go:build unix

package golden

import (
	"syscall"
	"testing"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

func pipe(t *testing.T, name string) {
	t.Helper()
	require.NoError(t, syscall.Mkfifo(name, 0o600))
}
