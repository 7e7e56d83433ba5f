package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// TestKVEventVectors: the module vectors has what golden export writes.
func TestKVEventVectors(t *testing.T) {
	dir := t.TempDir()
	if code, _, stderr := runApp("golden", "export", "--kv-events", dir); code != 0 {
		t.Fatalf("exit code %d: %s", code, stderr)
	}
	read := func(dir string) map[string]string {
		files := map[string]string{}
		require.NoError(t, fs.WalkDir(os.DirFS(dir), ".", func(path string, d fs.DirEntry, err error) error {
			if err == nil && !d.IsDir() {
				var data []byte
				data, err = os.ReadFile(filepath.Join(dir, path))
				files[path] = string(data)
			}
			return err
		}))
		return files
	}
	if diff := cmp.Diff(read(dir), read("../../vectors/kvevents")); diff != "" {
		t.Errorf("go generate ./cmd/vllm-vcr writes them (-want +got):\n%.2000s", diff)
	}
}
