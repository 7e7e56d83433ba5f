package atomicfile_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/vllm-vcr/conformance/internal/base/atomicfile"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

func TestSHA256(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(path, []byte("abc"), 0o600))
	// The digest of "abc" is the first example of FIPS 180-4.
	const want = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
	if got, err := atomicfile.SHA256(path); err != nil || got != want {
		t.Errorf("SHA256(abc) = %s, %v, want %s", got, err, want)
	}
	if _, err := atomicfile.SHA256(filepath.Dir(path)); err == nil {
		t.Error("a folder has a digest")
	}
}
