package extract_test

import (
	"archive/zip"
	"bytes"
	"context"
	"flag"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/internal/upstream/extract"
	"github.com/vllm-vcr/conformance/internal/upstream/pyast"
	"github.com/vllm-vcr/conformance/internal/upstream/sources"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

var update = flag.Bool("update", false, "rewrite the expected files, and from the index the profiles of all lines and the wheels of testdata")

// newParser is one for all tests: making it takes longer than most of them.
var newParser = sync.OnceValues(func() (*pyast.Parser, error) { return pyast.New(context.Background()) })

func extractFrom(t testing.TB, source extract.Source) (*protocol.Profile, []sources.Gap, error) {
	t.Helper()
	parser, err := newParser()
	require.NoError(t, err)
	return extract.Extract(t.Context(), parser, source)
}

// memory is a source of files that are in memory.
type memory map[string]string

func (m memory) Read(_ context.Context, paths []string) (map[string][]byte, error) {
	files := map[string][]byte{}
	for _, p := range paths {
		if text, found := m[p]; found {
			files[p] = []byte(text)
		}
	}
	return files, nil
}

func (memory) Version() (string, error) { return "", nil }
func (memory) Where() string            { return "memory" }

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
	extract.Source
	read map[string][]byte
}

func (s *spied) Read(ctx context.Context, paths []string) (map[string][]byte, error) {
	files, err := s.Source.Read(ctx, paths)
	maps.Copy(s.read, files)
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
