package protocol

import (
	"bufio"
	"compress/gzip"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vllm-vcr/conformance/internal/pack"
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
	eachLine(t, "testdata/vectors.jsonl.gz", func(line []byte) {
		var raw struct {
			Release, Name string
			Frames        []string
		}
		if err := json.Unmarshal(line, &raw); err != nil {
			t.Fatal(err)
		}
		v := vector{Release: raw.Release, Name: raw.Name}
		for _, f := range raw.Frames {
			b, err := hex.DecodeString(f)
			if err != nil {
				t.Fatal(err)
			}
			v.Frames = append(v.Frames, b)
		}
		vectors = append(vectors, v)
	})
	return vectors
}

// codecOf returns the codec of a release. 0.23 and 0.24 have no line of their
// own; every struct tested here is as in 0.25.
func codecOf(t testing.TB, release string) *Codec {
	t.Helper()
	if strings.HasPrefix(release, "0.23.") || strings.HasPrefix(release, "0.24.") {
		release = "0.25.1"
	}
	c, err := CodecFor(release)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// message is one captured message of a real session.
type message struct {
	Channel   string // handshake, input0, output0
	Direction string // e2f engine to frontend, f2e frontend to engine
	Frames    [][]byte
}

func loadCapture(t testing.TB, name string) []message {
	t.Helper()
	var messages []message
	eachLine(t, filepath.Join("..", "..", "testdata", "captures", name), func(line []byte) {
		var raw struct {
			Ch, Dir string
			Frames  []string
		}
		if err := json.Unmarshal(line, &raw); err != nil {
			t.Fatal(err)
		}
		m := message{Channel: raw.Ch, Direction: raw.Dir}
		for _, f := range raw.Frames {
			b, err := base64.StdEncoding.DecodeString(f)
			if err != nil {
				t.Fatal(err)
			}
			m.Frames = append(m.Frames, b)
		}
		messages = append(messages, m)
	})
	return messages
}

func eachLine(t testing.TB, path string, f func([]byte)) {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	zr, err := gzip.NewReader(file)
	if err != nil {
		t.Fatal(err)
	}
	r := bufio.NewReader(zr)
	for {
		line, err := r.ReadBytes('\n')
		if len(line) > 0 {
			f(line)
		}
		if err == io.EOF {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// sameValue fails unless two messages are equal by value.
func sameValue(t *testing.T, c *Codec, root, where string, want, got []byte) {
	t.Helper()
	diffs, err := pack.Diff(root, want, got, pack.DiffOptions{Names: c.FieldName})
	if err != nil {
		t.Fatalf("%s: %v", where, err)
	}
	for _, d := range diffs {
		t.Errorf("%s: %s: want %s, got %s", where, d.Path, d.Want, d.Got)
	}
}
