package github_test

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/forge/github"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

func TestReadFiles(t *testing.T) {
	outside := filepath.Join(t.TempDir(), "secret")
	write(t, outside, "secret")
	tests := []struct {
		name     string
		patterns []string
		want     []string
		failed   string
	}{
		{name: "a file", patterns: []string{"compat.toml"}, want: []string{"compat.toml"}},
		{name: "wildcards", patterns: []string{"goldens/*/*.gz", "c*.toml"}, want: []string{"compat.toml", "goldens/0.33/a.gz", "goldens/0.33/b.gz"}},
		{name: "twice", patterns: []string{"*.toml", "compat.toml"}, want: []string{"compat.toml"}},
		{name: "none", failed: "no files are named"},
		{name: "absent", patterns: []string{"compat.tml"}, failed: "there is none in"},
		{name: "wildcard without a match", patterns: []string{"*.gz"}, failed: "there is none in"},
		{name: "up", patterns: []string{"../secret"}, failed: "want a path from the top"},
		{name: "up inside", patterns: []string{"goldens/../compat.toml"}, failed: "want a path from the top"},
		{name: "absolute", patterns: []string{outside}, failed: "want a path from the top"},
		{name: "backslash", patterns: []string{`goldens\a`}, failed: "want a path from the top"},
		{name: "empty", patterns: []string{""}, failed: "want a path from the top"},
		{name: "all", patterns: []string{"."}, failed: "want a path from the top"},
		{name: "bad wildcard", patterns: []string{"goldens/[a"}, failed: "syntax error in pattern"},
		{name: "git", patterns: []string{".git/config"}, failed: ".git is not of the work tree"},
		{name: "git by wildcard", patterns: []string{".g*/config"}, failed: "there is none in"},
		{name: "link", patterns: []string{"links/file"}, failed: "links/file is a link"},
		{name: "link by wildcard", patterns: []string{"links/*"}, failed: "is a link"},
		{name: "link to a folder", patterns: []string{"folder/a.gz"}, failed: "folder is a link"},
		{name: "folder", patterns: []string{"goldens"}, failed: "goldens is not a file"},
		{name: "file for a folder", patterns: []string{"compat.toml/x"}, failed: "not a file"},
		{name: "large", patterns: []string{"large"}, failed: "larger than 25 MB"},
		{name: "large together", patterns: []string{"half*"}, failed: "larger than 25 MB"},
	}
	dir := t.TempDir()
	for _, name := range []string{"compat.toml", "goldens/0.33/a.gz", "goldens/0.33/b.gz", ".git/config"} {
		write(t, filepath.Join(dir, name), name)
	}
	write(t, filepath.Join(dir, "large"), strings.Repeat("x", 25<<20+1))
	write(t, filepath.Join(dir, "half1"), strings.Repeat("x", 13<<20))
	write(t, filepath.Join(dir, "half2"), strings.Repeat("x", 13<<20))
	write(t, filepath.Join(dir, "links/x"), "x")
	for link, target := range map[string]string{"links/file": outside, "folder": "goldens/0.33"} {
		if err := os.Symlink(target, filepath.Join(dir, link)); err != nil {
			t.Skip(err) // Windows without the right to make one
		}
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got, err := github.ReadFiles(dir, test.patterns)
			if (err != nil) != (test.failed != "") || err != nil && !strings.Contains(err.Error(), test.failed) {
				t.Fatalf("got error %v, want %q", err, test.failed)
			}
			require.NoDiff(t, cmp.Diff(test.want, slices.Sorted(maps.Keys(got.Content))), "files (-want +got)")
			for name, content := range got.Content {
				require.True(t, string(content) == name, "%s: got %q", name, content)
			}
		})
	}
}

func write(t *testing.T, path, content string) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
	require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
}
