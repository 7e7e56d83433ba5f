package trace

import (
	"bytes"
	"fmt"
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
		if err != nil {
			t.Fatalf("cut at %d: %v", n, err)
		}
		tr, err := r.ReadAll()
		if err != nil {
			t.Fatalf("cut at %d: %v", n, err)
		}
		if len(tr.Records) < want || n == ends[len(ends)-1] && len(tr.Records) != len(records) {
			t.Errorf("cut at %d: want at least %d records, got %d", n, want, len(tr.Records))
		}
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

func TestGzipForms(t *testing.T) {
	rec := `{"prompt_tokens":1,"output_tokens":1,"ttft_ms":1}` + "\n"
	one := pack(t, rec)
	damaged := bytes.Clone(pack(t, strings.Repeat(rec, 3)))
	damaged[len(damaged)-6] ^= 1 // in the checksum
	join := func(parts ...[]byte) []byte { return bytes.Join(parts, nil) }
	tests := []struct {
		name            string
		data            []byte
		records         int
		reject, refused string // by the default and by the strict reader
	}{
		{"one member", one, 1, "", ""},
		{"two members", join(one, one), 2, "", "bytes after the end of the gzip stream"},
		{"member boundary inside a line", join(pack(t, rec[:20]), pack(t, rec[20:])), 1, "", "bytes after the end"},
		{"second member cut in its header", join(one, one[:5]), 1, "", "bytes after the end"},
		{"garbage behind", join(one, []byte("garbage.garbage.")), 0, "damaged gzip data", "bytes after the end"},
		{"empty", nil, 0, "", "without its trailer"},
		{"damaged", damaged, 0, "damaged gzip data", "damaged gzip data"},
		{"plain text", []byte(rec), 0, "not gzip data", "not gzip data"},
		{"no line feed at the end", pack(t, rec[:len(rec)-1]), 1, "", "last line has no line feed"},
		{"half a line, whole stream", pack(t, rec+rec[:10]), 0, "line 2", "last line has no line feed"},
	}
	for _, tt := range tests {
		for _, strict := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, strict %v", tt.name, strict), func(t *testing.T) {
				reject := tt.reject
				if strict {
					reject = tt.refused
				}
				tr, err := readBytes(tt.data, true, Options{Strict: strict})
				if reject != "" {
					wantError(t, err, "t.jsonl: line", reject)
					return
				}
				require.NoError(t, err)
				if len(tr.Records) != tt.records {
					t.Errorf("want %d records, got %d", tt.records, len(tr.Records))
				}
			})
		}
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
