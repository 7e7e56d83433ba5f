package trace

import (
	"bytes"
	"strings"
	"testing"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// TestGzipCutAnywhere cuts a written trace at every byte. Whatever the place,
// the default reader keeps the records that were whole and says so, and the
// strict reader refuses.
func TestGzipCutAnywhere(t *testing.T) {
	records := []Record{small(1), small(2), small(3)}
	var ends []int // the length of the stream after each record
	var out bytes.Buffer
	w, err := NewWriter(&out, true, Meta{})
	require.NoError(t, err)
	for i := range records {
		require.NoError(t, w.Write(&records[i]))
		ends = append(ends, out.Len())
	}
	require.NoError(t, w.Close())
	whole := out.Bytes()
	for n := range len(whole) {
		want := 0
		for _, end := range ends {
			if n >= end {
				want++
			}
		}
		r, err := NewReader(bytes.NewReader(whole[:n]), "cut.gz", true, Options{})
		require.NoErrorf(t, err, "cut at %d", n)
		tr, err := r.ReadAll()
		require.NoErrorf(t, err, "cut at %d", n)
		require.True(t, len(tr.Records) >= want && (n != ends[len(ends)-1] || len(tr.Records) == len(records)), "cut at %d: want at least %d records, got %d", n, want, len(tr.Records))
		if !r.Truncated() || len(tr.Warnings) != 1 || !strings.HasPrefix(tr.Warnings[0], "cut.gz: line ") {
			t.Errorf("cut at %d: truncated %v, warnings %q", n, r.Truncated(), tr.Warnings)
		}
		_, err = readBytes(whole[:n], true, Options{Strict: true})
		wantError(t, err, "t.jsonl: line", errCut.Error())
	}
	if tr, err := readBytes(whole, true, Options{Strict: true}); err != nil || len(tr.Records) != 3 || tr.Warnings != nil {
		t.Errorf("whole: %+v, %v", tr, err)
	}
}

func TestStrict(t *testing.T) {
	meta := `{"meta":{"block_size":4}}` + "\n"
	tests := []struct{ name, line, refused string }{
		{"plain", `{"prompt_tokens":9,"output_tokens":2,"ttft_ms":1,"itl_ms":[1],"block_hashes":[1,2]}`, ""},
		{"no hashes", `{"prompt_tokens":9,"output_tokens":1,"ttft_ms":1}`, ""},
		{"wide first chunk", `{"prompt_tokens":9,"output_tokens":64,"ttft_ms":1,"itl_ms":[]}`, ""},
		{"more gaps than tokens", `{"prompt_tokens":9,"output_tokens":2,"ttft_ms":1,"itl_ms":[1,1]}`, "itl_ms: the gaps deliver 2 tokens"},
		{"gaps without output", `{"prompt_tokens":9,"output_tokens":0,"ttft_ms":1,"itl_ms":[1]}`, "itl_ms"},
		{"a hash too few", `{"prompt_tokens":9,"output_tokens":1,"ttft_ms":1,"block_hashes":[1]}`, "block_hashes: want 2 entries for 9 prompt tokens in blocks of 4, got 1"},
		{"a hash too many", `{"prompt_tokens":9,"output_tokens":1,"ttft_ms":1,"block_hashes":[1,2,3]}`, "block_hashes"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := readText(meta+tt.line+"\n", Options{}); err != nil {
				t.Fatalf("the default reader refuses: %v", err)
			}
			_, err := readText(meta+tt.line+"\n", Options{Strict: true})
			if tt.refused == "" && err != nil {
				t.Fatal(err)
			}
			if tt.refused != "" {
				wantError(t, err, "line 2", tt.refused)
			}
		})
	}
	if _, err := readText(tests[0].line, Options{Strict: true}); err == nil {
		t.Error("no line feed at the end of a plain trace: accepted")
	}
}
