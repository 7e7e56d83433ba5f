package trace

import (
	"bytes"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/klauspost/compress/gzip"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// However the lines of a golden were compressed, the archive is the same, and
// archiving that changes nothing.
func TestArchive(t *testing.T) {
	for _, path := range goldenPaths(t) {
		text := inflate(t, path)
		stored, err := os.ReadFile(path)
		require.NoError(t, err)
		want := archive(t, text, false)
		if got := archive(t, stored, true); !bytes.Equal(got, want) {
			t.Errorf("%s: the archive depends on how it was compressed", path)
		}
		if got := archive(t, want, true); !bytes.Equal(got, want) {
			t.Errorf("%s: the archive of the archive is another", path)
		}
		z, err := gzip.NewReader(bytes.NewReader(want))
		require.NoError(t, err)
		got, err := io.ReadAll(z)
		require.True(t, err == nil && bytes.Equal(got, text), "%s: the archive has other lines, %v", path, err)
		require.True(t, z.Name == "" && z.ModTime.Unix() == 0, "%s: name %q, time %v", path, z.Name, z.ModTime)
	}
}

func archive(t *testing.T, data []byte, gzipped bool) []byte {
	t.Helper()
	var b bytes.Buffer
	require.NoError(t, Archive(&b, bytes.NewReader(data), gzipped))
	return b.Bytes()
}

func TestArchiveRefuses(t *testing.T) {
	whole := archive(t, []byte("{}\n"), false)
	tests := []struct {
		name string
		data []byte
		want string
	}{
		{"cut", whole[:len(whole)-1], "ends without its trailer"},
		{"two members", append(bytes.Clone(whole), whole...), "bytes after the end of the gzip stream"},
		{"no gzip", []byte("{\"meta\":{}}\n"), "not gzip data"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			err := Archive(io.Discard, bytes.NewReader(test.data), true)
			require.ErrorContains(t, err, test.want)
		})
	}
	if err := Archive(errorWriter{}, strings.NewReader(strings.Repeat("x", 1<<20)), false); err == nil {
		t.Error("a failing writer is no error")
	}
}

type errorWriter struct{}

func (errorWriter) Write([]byte) (int, error) { return 0, io.ErrShortWrite }
