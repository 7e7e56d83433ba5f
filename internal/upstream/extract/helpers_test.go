package extract

import (
	"archive/zip"
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/vllm-vcr/conformance/internal/testenv"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

var update = flag.Bool("update", false, "rewrite the expected files, and from the index the profiles of all lines and the wheels of testdata")

// A read is what was extracted of a release.
type read struct {
	profile *protocol.Profile
	gaps    []Gap
	err     error
}

func extractFrom(t testing.TB, s source) (*protocol.Profile, []Gap, error) {
	t.Helper()
	testenv.Python3(t)
	return extract(t.Context(), s)
}

// extractAll extracts releases in one process of Python, whose start takes longer than a small release.
func extractAll(t testing.TB, releases []memory) []read {
	t.Helper()
	input, err := json.Marshal([]any{script, releases})
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), testenv.Python3(t), "-I", "-S", "testdata/batch.py")
	cmd.Stdin, cmd.Stderr = bytes.NewReader(input), os.Stderr
	output, err := cmd.Output()
	require.NoError(t, err)
	var results []json.RawMessage
	require.NoError(t, json.Unmarshal(output, &results))
	if len(results) != len(releases) {
		t.Fatalf("%d results of %d releases", len(results), len(releases))
	}
	var all []read
	for i, result := range results {
		var r read
		r.profile, r.gaps, r.err = finish(releases[i], result)
		all = append(all, r)
	}
	return all
}

// memory is a source of files that are in memory.
type memory map[string]string

func (m memory) read(_ context.Context, paths []string) (map[string][]byte, error) {
	files := map[string][]byte{}
	for _, p := range paths {
		if text, found := m[p]; found {
			files[p] = []byte(text)
		}
	}
	return files, nil
}

func (memory) version() (string, error) { return "", nil }
func (memory) where() string            { return "memory" }

// tiny is a release that has a little of everything, as real ones have it.
func tiny(t testing.TB) memory {
	t.Helper()
	files := memory{}
	root := os.DirFS("testdata/tiny")
	err := fs.WalkDir(root, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".py") {
			return err
		}
		text, err := fs.ReadFile(root, path)
		files[path] = string(text)
		return err
	})
	if err != nil || len(files) < 10 {
		t.Fatalf("testdata/tiny has %d files: %v", len(files), err)
	}
	return files
}

// spied notes what of a source is read.
type spied struct {
	source
	files map[string][]byte
}

func (s *spied) read(ctx context.Context, paths []string) (map[string][]byte, error) {
	files, err := s.source.read(ctx, paths)
	maps.Copy(s.files, files)
	return files, err
}

func profileText(t testing.TB, p *protocol.Profile) string {
	t.Helper()
	var b bytes.Buffer
	require.NoError(t, protocol.WriteProfile(&b, p))
	return b.String()
}

func readText(t testing.TB, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	return string(text)
}

// writeWheel writes members in a form that depends on nothing else.
func writeWheel(t *testing.T, path string, members map[string][]byte) {
	t.Helper()
	var b bytes.Buffer
	archive := zip.NewWriter(&b)
	for _, name := range slices.Sorted(maps.Keys(members)) {
		w, err := archive.CreateHeader(&zip.FileHeader{Name: name, Method: zip.Deflate})
		if err == nil {
			_, err = w.Write(members[name])
		}
		require.NoError(t, err)
	}
	require.NoError(t, archive.Close())
	require.NoError(t, os.WriteFile(path, b.Bytes(), 0o644))
}
