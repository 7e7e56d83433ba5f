package trace

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/klauspost/compress/gzip"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// readText reads a plain trace from text.
func readText(text string, opt Options) (*Trace, error) {
	return readBytes([]byte(text), false, opt)
}

func readBytes(data []byte, gz bool, opt Options) (*Trace, error) {
	r, err := NewReader(bytes.NewReader(data), "t.jsonl", gz, opt)
	if err != nil {
		return nil, err
	}
	return r.ReadAll()
}

// writeTrace writes a whole trace.
func writeTrace(tb testing.TB, gz bool, meta Meta, records ...Record) []byte {
	tb.Helper()
	var out bytes.Buffer
	w, err := NewWriter(&out, gz, meta)
	require.NoError(tb, err)
	for i := range records {
		require.NoError(tb, w.Write(&records[i]))
	}
	require.NoError(tb, w.Close())
	return out.Bytes()
}

// pack gzips text as one member.
func pack(tb testing.TB, text string) []byte {
	tb.Helper()
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	if _, err := io.WriteString(z, text); err != nil {
		tb.Fatal(err)
	}
	require.NoError(tb, z.Close())
	return out.Bytes()
}

// small is a record without anything optional.
func small(prompt int) Record {
	return Record{PromptTokens: prompt, OutputTokens: 1, TTFTMs: 5, Concurrency: 1, FinishReason: FinishAbsent}
}

// wantError fails unless err is an *Error that says all of parts.
func wantError(tb testing.TB, err error, parts ...string) {
	tb.Helper()
	var e *Error
	if !errors.As(err, &e) {
		tb.Fatalf("want an *Error, got %v", err)
	}
	for _, part := range parts {
		require.True(tb, strings.Contains(err.Error(), part), "want %q in the error %q", part, err)
	}
}
