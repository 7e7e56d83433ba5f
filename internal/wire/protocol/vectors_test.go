package protocol

import (
	"encoding/hex"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/vllm-vcr/conformance/internal/testenv"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/internal/wire/pack"
)

// vector is one real message: emitted, or accepted, by a released vLLM.
// Names: rust-* by or to the release's vllm-rs, pyfe-* by its Python frontend,
// enc-* by its msgspec encoder.
type vector struct {
	Release string
	Name    string
	Frames  [][]byte
}

func loadVectors(t testing.TB) []vector {
	t.Helper()
	var vectors []vector
	testenv.GzipLines(t, "testdata/vectors.jsonl.gz", func(line []byte) {
		var raw struct {
			Release, Name string
			Frames        []string
		}
		require.NoError(t, json.Unmarshal(line, &raw))
		v := vector{Release: raw.Release, Name: raw.Name}
		for _, f := range raw.Frames {
			b, err := hex.DecodeString(f)
			require.NoError(t, err)
			v.Frames = append(v.Frames, b)
		}
		vectors = append(vectors, v)
	})
	return vectors
}

// recorded is the newest line that real messages were recorded of for these tests. A newer one may have been adopted.
const recorded = "0.33"

// since names the lines from one on, as messages do.
func since(line string) string {
	if line == Newest() {
		return line
	}
	return line + "–" + Newest()
}

// recordedLines are the lines until then, the newest first.
func recordedLines() []string {
	lines := Lines()
	return lines[slices.Index(lines, recorded):]
}

// codecOf returns the codec of a release. 0.23 and 0.24 have no line of their
// own; every struct tested here is as in 0.25.
func codecOf(t testing.TB, release string) *Codec {
	t.Helper()
	if strings.HasPrefix(release, "0.23.") || strings.HasPrefix(release, "0.24.") {
		release = "0.25.1"
	}
	c, err := CodecFor(release)
	require.NoError(t, err)
	return c
}

// sameValue fails unless two messages are equal by value.
func sameValue(t *testing.T, c *Codec, root, where string, want, got []byte) {
	t.Helper()
	diffs, err := pack.Diff(root, want, got, pack.DiffOptions{Names: c.FieldName})
	require.NoErrorf(t, err, "%s", where)
	for _, d := range diffs {
		t.Errorf("%s: %s: want %s, got %s", where, d.Path, d.Want, d.Got)
	}
}
