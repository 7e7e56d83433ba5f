package atomicfile_test

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vllm-vcr/conformance/internal/base/atomicfile"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

func TestWrite(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "file")
	for _, text := range []string{"one", "two, longer"} {
		require.NoError(t, atomicfile.Write(path, []byte(text), 0o640))
		wantFile(t, path, text, 0o640)
	}

	linked := filepath.Join(dir, "link")
	require.NoError(t, os.Symlink(path, linked))
	require.NoError(t, atomicfile.Write(linked, []byte("in place of the link"), 0o600))
	wantFile(t, path, "two, longer", 0o640)
	wantFile(t, linked, "in place of the link", 0o600)

	broken := errors.New("broken")
	err := atomicfile.WriteFunc(path, 0o644, func(w io.Writer) error {
		_, _ = io.WriteString(w, strings.Repeat("half", 1<<20))
		return broken
	})
	require.ErrorIs(t, err, broken)
	wantFile(t, path, "two, longer", 0o640)

	if err := atomicfile.Write(dir, nil, 0o644); err == nil || !strings.HasPrefix(err.Error(), "write "+dir+": ") {
		t.Errorf("a folder: %v", err)
	}
	if err := atomicfile.Write(filepath.Join(dir, "absent", "x"), nil, 0o644); !errors.Is(err, fs.ErrNotExist) || strings.Contains(err.Error(), ".new") {
		t.Errorf("no folder: %v", err)
	}
	if err := atomicfile.Write("/dev/full", []byte("x"), 0o644); err == nil || !strings.HasPrefix(err.Error(), "write /dev/full: ") {
		t.Errorf("full: %v", err)
	}
	require.NoErrorf(t, atomicfile.Write("/dev/null", []byte("x"), 0o644), "a device")
	wantEntries(t, dir, "file", "link")
}

// TestWriteIn lays links in the way: the files that they lead to stay as they are.
func TestWriteIn(t *testing.T) {
	dir, outside := t.TempDir(), t.TempDir()
	victim := filepath.Join(outside, "victim")
	require.NoError(t, os.WriteFile(victim, []byte("untouched"), 0o600))
	for name, target := range map[string]string{"file": victim, "absent": filepath.Join(outside, "new"), "folder": outside} {
		require.NoError(t, os.Symlink(target, filepath.Join(dir, name)))
	}
	root, err := os.OpenRoot(dir)
	require.NoError(t, err)
	defer root.Close()
	for _, name := range []string{"file", "absent", "folder/within", "other/within"} {
		err := atomicfile.WriteIn(root, name, 0o640, func(w io.Writer) error { _, err := io.WriteString(w, name); return err })
		require.NoErrorf(t, err, "%s", name)
		wantFile(t, filepath.Join(dir, name), name, 0o640)
	}
	wantFile(t, victim, "untouched", 0o600)
	wantEntries(t, outside, "victim")
	wantEntries(t, dir, "absent", "file", "folder", "other")
	wantEntries(t, filepath.Join(dir, "folder"), "within")

	broken := errors.New("broken")
	require.ErrorIs(t, atomicfile.WriteIn(root, "file", 0o644, func(io.Writer) error { return broken }), broken)
	if err := atomicfile.WriteIn(root, "folder", 0o644, func(io.Writer) error { return nil }); err == nil || !strings.HasPrefix(err.Error(), "write "+filepath.Join(dir, "folder")+": ") {
		t.Errorf("a folder: %v", err)
	}
	wantFile(t, filepath.Join(dir, "file"), "file", 0o640)
	wantEntries(t, dir, "absent", "file", "folder", "other")
}

// TestWriteRedirected: /dev/stdout leads to a regular file where a shell has redirected it, and is not replaced by another.
func TestWriteRedirected(t *testing.T) {
	if _, err := os.Stat("/proc/self/fd"); err != nil {
		t.Skip("there is no /proc")
	}
	file, err := os.Create(filepath.Join(t.TempDir(), "redirected"))
	require.NoError(t, err)
	defer file.Close()
	require.NoError(t, atomicfile.Write(fmt.Sprintf("/proc/self/fd/%d", file.Fd()), []byte("text"), 0o644))
	if data, err := os.ReadFile(file.Name()); string(data) != "text" {
		t.Errorf("%q, %v", data, err)
	}
}

func TestCreate(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "file")
	content := func(w io.Writer) error {
		_, err := io.WriteString(w, "text")
		return err
	}
	require.NoError(t, atomicfile.Create(path, 0o600, content))
	wantFile(t, path, "text", 0o600)
	late := filepath.Join(dir, "late")
	for _, taken := range []struct {
		path    string
		content func(io.Writer) error
	}{
		{path, func(io.Writer) error { return errors.New("written although it exists") }},
		{late, func(io.Writer) error { return os.Symlink("nowhere", late) }}, // somebody was faster
	} {
		require.ErrorIs(t, atomicfile.Create(taken.path, 0o600, taken.content), fs.ErrExist)
	}
	wantEntries(t, dir, "file", "late")
}

func TestReplace(t *testing.T) {
	dir := t.TempDir()
	path, linked := filepath.Join(dir, "file"), filepath.Join(dir, "link")
	require.NoError(t, errors.Join(os.WriteFile(path, []byte("before"), 0o604), os.Symlink("file", linked)))
	require.NoError(t, atomicfile.Replace(linked, []byte("after")))
	wantFile(t, path, "after", 0o604)
	if target, err := os.Readlink(linked); target != "file" {
		t.Errorf("the link leads to %q, %v", target, err)
	}
	require.ErrorIs(t, atomicfile.Replace(filepath.Join(dir, "absent"), nil), fs.ErrNotExist)
	wantEntries(t, dir, "file", "link")
}

func wantFile(t *testing.T, path, text string, perm fs.FileMode) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil || string(data) != text {
		t.Fatalf("%s is %.40q, %v, want %q", path, data, err, text)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != perm {
		t.Errorf("%s has the mode %v, %v, want %v", path, info.Mode(), err, perm)
	}
}

func wantEntries(t *testing.T, dir string, want ...string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	var names []string
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	require.Equal(t, strings.Join(names, " "), strings.Join(want, " "), "files of %s", dir)
}
