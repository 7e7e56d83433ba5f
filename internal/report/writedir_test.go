package report

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
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
	require.NoError(t, err)
	return names
}

// writeDir writes the files of formats into a directory.
func writeDir(path string, d *Document, formats []Format) error {
	dir, err := OpenDir(path)
	if err != nil {
		return err
	}
	defer dir.Close()
	return dir.Write(d, formats)
}

func TestWriteDir(t *testing.T) {
	d := runs()["wrong"]
	dir := filepath.Join(t.TempDir(), "not", "there")
	for range 2 { // over what is there
		require.NoError(t, writeDir(dir, d, Formats()))
	}
	want := []string{"badges/0.27.json", "badges/0.33.json", "junit.xml", "report.html", "report.json", "report.sarif", "summary.md"}
	require.NoDiff(t, cmp.Diff(want, filesBelow(t, dir)), "-want +got")
	written, err := os.ReadFile(filepath.Join(dir, "report.json"))
	require.True(t, err == nil && bytes.Equal(written, render(t, JSON, d)), "report.json is another: %v", err)
	var badge Badge
	data, err := os.ReadFile(filepath.Join(dir, "badges", "0.33.json"))
	require.True(t, err == nil && json.Unmarshal(data, &badge) == nil && badge == BadgeOf(d.Lines[0]), "%s: %v", data, err)
}

func TestWriteDirChooses(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, writeDir(dir, runs()["passed"], []Format{FormatSARIF, FormatJSON, FormatSARIF}))
	require.NoDiff(t, cmp.Diff([]string{"report.json", "report.sarif"}, filesBelow(t, dir)), "-want +got")
	require.ErrorContains(t, writeDir(dir, runs()["passed"], []Format{"pdf"}), `unknown report format "pdf"`)
}

// TestWriteDirBlocked: what cannot be written is named, and does not keep the
// others from being.
func TestWriteDirBlocked(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "report.html", "in the way"), 0o755))
	err := writeDir(dir, runs()["passed"], Formats())
	require.True(t, err != nil && strings.HasPrefix(err.Error(), "write "+filepath.Join(dir, "report.html")+": ") && !strings.Contains(err.Error(), "\n"), "%v", err)
	names := filesBelow(t, dir)
	require.True(t, slices.Contains(names, "report.sarif") && slices.Contains(names, "summary.md"), "only %v", names)
	require.True(t, !slices.ContainsFunc(names, func(name string) bool { return strings.Contains(name, ".new") }), "a temporary file is left: %v", names)
}

// TestWriteDirLinks: who can write into the directory, as an engine under test may, does not choose what is overwritten.
func TestWriteDirLinks(t *testing.T) {
	for _, tt := range []struct {
		name  string
		plant func(dir, outside string) error
	}{
		{"a file", func(dir, outside string) error {
			return os.Symlink(filepath.Join(outside, "victim"), filepath.Join(dir, "report.json"))
		}},
		{"a file that is not there yet", func(dir, outside string) error {
			return os.Symlink(filepath.Join(outside, "new"), filepath.Join(dir, "junit.xml"))
		}},
		{"the folder of the badges", func(dir, outside string) error {
			return os.Symlink(outside, filepath.Join(dir, "badges"))
		}},
		{"the directory itself", func(dir, outside string) error {
			return errors.Join(os.Remove(dir), os.Symlink(outside, dir))
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			path, outside := filepath.Join(t.TempDir(), "report"), t.TempDir()
			require.NoError(t, os.WriteFile(filepath.Join(outside, "victim"), []byte("untouched"), 0o600))
			dir, err := OpenDir(path)
			require.NoError(t, err)
			defer dir.Close()
			if err := tt.plant(path, outside); err != nil {
				t.Skip(err) // a system where this cannot be done
			}
			err = dir.Write(runs()["passed"], Formats())
			if removed := tt.name == "the directory itself"; removed != (err != nil) {
				t.Errorf("error %v", err)
			}
			require.NoDiff(t, cmp.Diff([]string{"victim"}, filesBelow(t, outside)), "written outside (-want +got)")
			if data, err := os.ReadFile(filepath.Join(outside, "victim")); string(data) != "untouched" {
				t.Errorf("the file outside is %q, %v", data, err)
			}
		})
	}
}
