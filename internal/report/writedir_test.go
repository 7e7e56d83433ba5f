package report

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func filesBelow(t *testing.T, dir string) []string {
	t.Helper()
	var names []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			name, _ := filepath.Rel(dir, path)
			names = append(names, filepath.ToSlash(name))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

func TestWriteDir(t *testing.T) {
	d := runs()["wrong"]
	dir := filepath.Join(t.TempDir(), "not", "there")
	for range 2 { // over what is there
		if err := WriteDir(dir, d, Formats()); err != nil {
			t.Fatal(err)
		}
	}
	want := []string{"badges/0.27.json", "badges/0.33.json", "junit.xml", "report.html", "report.json", "report.sarif", "summary.md"}
	if diff := cmp.Diff(want, filesBelow(t, dir)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	written, err := os.ReadFile(filepath.Join(dir, "report.json"))
	if err != nil || !bytes.Equal(written, render(t, JSON, d)) {
		t.Errorf("report.json is another: %v", err)
	}
	var badge Badge
	data, err := os.ReadFile(filepath.Join(dir, "badges", "0.33.json"))
	if err != nil || json.Unmarshal(data, &badge) != nil || badge != BadgeOf(d.Lines[0]) {
		t.Errorf("%s: %v", data, err)
	}
}

func TestWriteDirChooses(t *testing.T) {
	dir := t.TempDir()
	if err := WriteDir(dir, runs()["passed"], []Format{FormatSARIF, FormatJSON, FormatSARIF}); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"report.json", "report.sarif"}, filesBelow(t, dir)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if err := WriteDir(dir, runs()["passed"], []Format{"pdf"}); err == nil || !strings.Contains(err.Error(), `unknown report format "pdf"`) {
		t.Errorf("%v", err)
	}
}

// TestWriteDirBlocked: what cannot be written is named, and does not keep the
// others from being.
func TestWriteDirBlocked(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "report.html", "in the way"), 0o755); err != nil {
		t.Fatal(err)
	}
	err := WriteDir(dir, runs()["passed"], Formats())
	if err == nil || !strings.HasPrefix(err.Error(), "write "+filepath.Join(dir, "report.html")+": ") || strings.Contains(err.Error(), "\n") {
		t.Errorf("%v", err)
	}
	names := filesBelow(t, dir)
	if !slices.Contains(names, "report.sarif") || !slices.Contains(names, "summary.md") {
		t.Errorf("only %v", names)
	}
	if slices.ContainsFunc(names, func(name string) bool { return strings.Contains(name, ".vllm-vcr-") }) {
		t.Errorf("a temporary file is left: %v", names)
	}
}

func TestWriteDirIsAFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := WriteDir(path, runs()["passed"], []Format{FormatJSON}); !errors.Is(err, syscall.ENOTDIR) {
		t.Errorf("%v", err)
	}
}

// TestWriteFileWhole: a write that fails leaves what was there.
func TestWriteFileWhole(t *testing.T) {
	path := filepath.Join(t.TempDir(), "report.json")
	if err := os.WriteFile(path, []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	err := WriteFile(path, func(w io.Writer) error {
		if _, err := io.WriteString(w, strings.Repeat("new", 1<<16)); err != nil {
			return err
		}
		return errFull
	})
	if !errors.Is(err, errFull) || !strings.Contains(err.Error(), path) {
		t.Errorf("%v", err)
	}
	data, err := os.ReadFile(path)
	if err != nil || string(data) != "old" {
		t.Errorf("%q, %v", data, err)
	}
	if names := filesBelow(t, filepath.Dir(path)); len(names) != 1 {
		t.Errorf("left: %v", names)
	}
}
