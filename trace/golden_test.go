package trace

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// bomb is a gzip member of so many copies of a text.
func bomb(t *testing.T, text string, copies int) []byte {
	t.Helper()
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	chunk := strings.Repeat(text, 1000)
	for range copies / 1000 {
		if _, err := io.WriteString(w, chunk); err != nil {
			t.Fatal(err)
		}
	}
	require.NoError(t, w.Close())
	return out.Bytes()
}

// readGolden reads a golden to its end, and returns what its reading allocated.
func readGolden(data []byte, name string) (allocated uint64, err error) {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	opt, err := GoldenOptions(data, name, IsGzip(name))
	if err == nil {
		var r *Reader
		if r, err = NewReader(bytes.NewReader(data), name, IsGzip(name), opt); err == nil {
			_, err = r.ReadAll()
		}
	}
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc, err
}

func TestGoldenThatInflates(t *testing.T) {
	record := `{"request_id":"r","output_tokens":0}` + "\n"
	tests := []struct {
		name   string
		text   string
		copies int
	}{
		{name: "small, one line", text: " ", copies: 20 << 20},
		{name: "small, blank lines", text: "\n", copies: 20 << 20},
		{name: "large, one line", text: " ", copies: 100 << 20},
		{name: "large, records", text: record, copies: 3 << 20},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			data := bomb(t, test.text, test.copies)
			allocated, err := readGolden(data, "bomb.jsonl.gz")
			wantError(t, err, "bomb.jsonl.gz", "bytes of the golden inflate to more than", "the limit is 64 times its size plus 1 MiB")
			t.Logf("%d bytes were stored, %d allocated", len(data), allocated)
			require.True(t, allocated <= 64<<20, "%d bytes were allocated for it", allocated)
		})
	}
}

// A file that nobody has pinned is bounded too, whoever opens it: `play` and `inspect` read what they are given.
func TestFileThatInflates(t *testing.T) {
	bombs := map[string][]byte{"one line": bomb(t, " ", 70<<20), "blank lines": bomb(t, "\n", 70<<20)}
	readers := map[string]func(path string) error{
		"trace":  func(path string) error { _, err := Read(path, Options{}); return err },
		"stream": func(path string) error { return drain(Open(path, Options{})) },
		"frames": func(path string) error {
			r, err := OpenFrames(path, Options{})
			for f := (Message{}); err == nil; err = r.Next(&f) {
			}
			return err
		},
		"steps": func(path string) error {
			r, err := OpenSteps(path, Options{})
			for s := (StepStats{}); err == nil; err = r.Next(&s) {
			}
			return err
		},
	}
	for name, read := range readers {
		for kind, data := range bombs {
			if kind == "one line" && name != "stream" {
				continue // lines are read in one way
			}
			t.Run(name+"/"+kind, func(t *testing.T) {
				path := filepath.Join(t.TempDir(), "bomb.jsonl.gz")
				require.NoError(t, os.WriteFile(path, data, 0o600))
				wantError(t, read(path), path, fmt.Sprintf("the %d bytes of the file inflate to more than %d", len(data), InflatedLimit(int64(len(data)))), "gunzip")
			})
		}
	}
	path := filepath.Join(t.TempDir(), "bomb.jsonl.gz")
	require.NoError(t, os.WriteFile(path, bomb(t, `{"prompt_tokens":1,"output_tokens":0}`+"\n", 2<<20), 0o600))
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := Read(path, Options{})
	runtime.ReadMemStats(&after)
	if took := after.TotalAlloc - before.TotalAlloc; err == nil || took > 8<<20 {
		t.Errorf("%d bytes were allocated for it, error %v", took, err)
	}
}

// drain reads a trace record by record.
func drain(r *Reader, err error) error {
	for rec := (Record{}); err == nil; err = r.Next(&rec) {
	}
	return err
}

// No golden comes near the bound, whether it is gzipped or not.
func TestGoldensStayWithinBounds(t *testing.T) {
	worst := 0.0
	for _, path := range goldenPaths(t) {
		data, err := os.ReadFile(path)
		require.NoError(t, err)
		plain := inflate(t, path)
		worst = max(worst, float64(len(plain))/float64(len(data)))
		for name, data := range map[string][]byte{path: data, strings.TrimSuffix(path, ".gz"): plain} {
			opt, err := GoldenOptions(data, name, IsGzip(name))
			require.True(t, err == nil && int64(len(plain)) <= opt.MaxBytes, "%s: %d bytes, limit %d, %v", name, len(plain), opt.MaxBytes, err)
		}
	}
	require.True(t, worst != 0 && worst <= goldenRatio/4, "a golden inflates to %.1f times its size: the bound of %d is too tight for comfort", worst, goldenRatio)
}

func TestGoldenOptionsBounds(t *testing.T) {
	opt, err := GoldenOptions(make([]byte, 100), "a", false)
	if want := int64(1<<20 + 64*100); err != nil || opt.MaxBytes != want || !opt.Strict {
		t.Errorf("got %+v, %v; want a limit of %d", opt, err, want)
	}
}
