package golden

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// fullDisk is a directory on a file system with so many bytes of room.
func fullDisk(t *testing.T, room int) string {
	t.Helper()
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%d", room)); err != nil {
		t.Skipf("mounting a tmpfs needs rights that this user has not: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// A full cache costs a warning where the golden can do without, and is an error where it cannot. It holds no halves.
func TestCacheOnAFullDisk(t *testing.T) {
	large := append(make([]byte, 1<<20), content...)
	server := newScript(t, true, serve(large))
	dir := fullDisk(t, 256<<10)
	s := newStore(t)
	s.Cache, s.HTTP = dir, server.Client()
	out := logTo(s)
	o := Object{Location: server.URL, SHA256: digest(large), Size: int64(len(large))}

	data, err := s.Fetch(t.Context(), o)
	require.True(t, err == nil && digest(data) == o.SHA256, "got %d bytes, %v; want all of them in spite of the disk", len(data), err)
	require.True(t, strings.Contains(out.String(), "golden not cached") && strings.Contains(out.String(), dir), "log does not name the directory:\n%s", out)

	pulled := s.Pull(t.Context(), []Object{o})[0]
	wantFetchError(t, pulled.Err, "cache "+dir+": ", "no space left on device", "make room")
	require.True(t, errors.Is(pulled.Err, syscall.ENOSPC), "%v is not ENOSPC", pulled.Err)
	require.Equal(t, server.Asked(), 2, "requests: a full disk does not empty by another try")
	wantNoFiles(t, dir)
}

func wantNoFiles(t *testing.T, dir string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		require.True(t, err != nil || d.IsDir(), "left behind: %s", path)
		return err
	})
	require.NoError(t, err)
}
