package atomicfile_test

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vllm-vcr/conformance/internal/base/atomicfile"
)

func TestWrite(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "file")
	for _, text := range []string{"one", "two, longer"} {
		if err := atomicfile.Write(path, []byte(text), 0o640); err != nil {
			t.Fatal(err)
		}
		wantFile(t, path, text, 0o640)
	}

	linked := filepath.Join(dir, "link")
	if err := os.Symlink(path, linked); err != nil {
		t.Fatal(err)
	}
	if err := atomicfile.Write(linked, []byte("in place of the link"), 0o600); err != nil {
		t.Fatal(err)
	}
	wantFile(t, path, "two, longer", 0o640)
	wantFile(t, linked, "in place of the link", 0o600)

	broken := errors.New("broken")
	err := atomicfile.WriteFunc(path, 0o644, func(w io.Writer) error {
		_, _ = io.WriteString(w, strings.Repeat("half", 1<<20))
		return broken
	})
	if !errors.Is(err, broken) {
		t.Errorf("got %v, want that of the content", err)
	}
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
	if err := atomicfile.Write("/dev/null", []byte("x"), 0o644); err != nil {
		t.Errorf("a device: %v", err)
	}
	wantEntries(t, dir, "file", "link")
}

func TestCreate(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "file")
	content := func(w io.Writer) error {
		_, err := io.WriteString(w, "text")
		return err
	}
	if err := atomicfile.Create(path, 0o600, content); err != nil {
		t.Fatal(err)
	}
	wantFile(t, path, "text", 0o600)
	late := filepath.Join(dir, "late")
	for _, taken := range []struct {
		path    string
		content func(io.Writer) error
	}{
		{path, func(io.Writer) error { return errors.New("written although it exists") }},
		{late, func(io.Writer) error { return os.Symlink("nowhere", late) }}, // somebody was faster
	} {
		if err := atomicfile.Create(taken.path, 0o600, taken.content); !errors.Is(err, fs.ErrExist) {
			t.Errorf("%s: got %v, want that it exists", taken.path, err)
		}
	}
	wantEntries(t, dir, "file", "late")
}

func TestReplace(t *testing.T) {
	dir := t.TempDir()
	path, linked := filepath.Join(dir, "file"), filepath.Join(dir, "link")
	if err := errors.Join(os.WriteFile(path, []byte("before"), 0o604), os.Symlink("file", linked)); err != nil {
		t.Fatal(err)
	}
	if err := atomicfile.Replace(linked, []byte("after")); err != nil {
		t.Fatal(err)
	}
	wantFile(t, path, "after", 0o604)
	if target, err := os.Readlink(linked); target != "file" {
		t.Errorf("the link leads to %q, %v", target, err)
	}
	if err := atomicfile.Replace(filepath.Join(dir, "absent"), nil); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("absent: %v", err)
	}
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
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	if strings.Join(names, " ") != strings.Join(want, " ") {
		t.Errorf("%s holds %q, want %q", dir, names, want)
	}
}
