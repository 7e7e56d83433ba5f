package tokenizer

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/testenv"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// Each file of testdata/vectors is what the Rust library makes of texts with a tokenizer of testdata/tokenizers, or the
// one of the tiny model. testdata/vectors.py makes both.
func TestAsTheRustLibrary(t *testing.T) {
	files, err := filepath.Glob("testdata/vectors/*.jsonl.gz")
	if err != nil || len(files) < 8 {
		t.Fatalf("%d files of vectors, %v: want at least 8", len(files), err)
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".jsonl.gz")
		t.Run(name, func(t *testing.T) {
			path := filepath.Join("testdata", "tokenizers", name+".json")
			if name == "tiny" {
				path = testenv.ModelDir(t)
			}
			tok, err := Load(path)
			require.NoError(t, err)
			n := 0
			testenv.GzipLines(t, file, func(line []byte) {
				checkVector(t, tok, line)
				n++
			})
			require.True(t, n >= 400, "%d texts: want at least 400", n)
		})
	}
}

// checkVector compares one text, its ids and what they decode to.
func checkVector(t *testing.T, tok *Tokenizer, line []byte) {
	t.Helper()
	var v struct {
		Text    string
		IDs     []uint32
		Decoded string
		// Drawn are any ids, some of them not in use.
		Drawn     []uint32
		DrawnText string
	}
	require.NoError(t, json.Unmarshal(line, &v))
	got := tok.Encode(v.Text)
	if diff := cmp.Diff(v.IDs, append([]uint32{}, got...)); diff != "" {
		t.Fatalf("ids of %q (-want +got):\n%s", v.Text, diff)
	}
	if got := tok.Decode(v.IDs); got != v.Decoded {
		t.Fatalf("text of %v: got %q, want %q", v.IDs, got, v.Decoded)
	}
	if got := tok.Decode(v.Drawn); got != v.DrawnText {
		t.Fatalf("text of %v: got %q, want %q", v.Drawn, got, v.DrawnText)
	}
}
