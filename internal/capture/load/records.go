package load

import (
	"bufio"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"os"

	"github.com/vllm-vcr/conformance/internal/frontends/openai"
	"github.com/vllm-vcr/conformance/trace"
)

// An Outcome is how a request ended: see [Report].
type Outcome string

// The outcomes.
const (
	Completed  Outcome = "completed"
	Aborted    Outcome = "aborted"
	Refused    Outcome = "refused"
	Failed     Outcome = "failed"
	Unfinished Outcome = "unfinished"
)

// A Record is what the client saw of one request.
type Record struct {
	// ID is the request's header X-Request-Id, "load-000017", which is a part of the engine's id of it: "cmpl-load-000017-"
	// and 8 hex digits. A call that asks for no answer has one too.
	ID   string `json:"id"`
	Name string `json:"name"` // for people
	// SentMs is when it was sent, ms since the load began, and DueMs when it should have been, of a workload that has times.
	SentMs float64  `json:"sent_ms"`
	DueMs  *float64 `json:"due_ms,omitempty"`
	// DurationMs is from sending to the end, ms.
	DurationMs float64 `json:"duration_ms"`
	Outcome    Outcome `json:"outcome"`
	// Status is that of HTTP, 0 if there was no answer. Error is why the outcome is no other.
	Status int    `json:"status,omitempty"`
	Error  string `json:"error,omitempty"`
	// Choices is how many answers there are, 0 for a call.
	Choices int `json:"choices,omitempty"`
	// TTFTMs is from sending to the first event with text, or with an end if there was none, and ITLMs the gaps between
	// such events, ms. An answer in one piece has neither.
	TTFTMs *float64  `json:"ttft_ms,omitempty"`
	ITLMs  []float64 `json:"itl_ms,omitempty"`
	// PromptTokens and CompletionTokens are the server's usage.
	PromptTokens     int `json:"prompt_tokens,omitempty"`
	CompletionTokens int `json:"completion_tokens,omitempty"`
	// FinishReason is that of the last choice that ended.
	FinishReason string `json:"finish_reason,omitempty"`
	// StopText marks a request with stop strings. The frontend looks for them, and then aborts the engine's request.
	StopText bool `json:"stop_text,omitempty"`
}

// A RecordWriter writes records as lines of JSON. Of what it was given nothing is missing once Close has returned nil.
type RecordWriter struct {
	buf *bufio.Writer
	z   *gzip.Writer // nil if plain
	enc *json.Encoder
}

// NewRecordWriter returns a writer to w, which it does not close.
func NewRecordWriter(w io.Writer, gzipped bool) *RecordWriter {
	r := &RecordWriter{buf: bufio.NewWriterSize(w, 64<<10)}
	if gzipped {
		r.z = gzip.NewWriter(r.buf) // without a name or a time: the same records are the same bytes
		r.enc = json.NewEncoder(r.z)
	} else {
		r.enc = json.NewEncoder(r.buf)
	}
	return r
}

// Write writes a record, at the latest when Close is called.
func (w *RecordWriter) Write(rec Record) error { return w.enc.Encode(rec) }

// Close writes what is left.
func (w *RecordWriter) Close() error {
	if w.z != nil {
		if err := w.z.Close(); err != nil {
			return err
		}
	}
	return w.buf.Flush()
}

// ReadRecords reads a whole file of records, gzipped if its name ends in .gz. A file that is cut off is an error.
func ReadRecords(path string) ([]Record, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	var r io.Reader = bufio.NewReader(file)
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	left := trace.InflatedLimit(info.Size())
	if trace.IsGzip(path) {
		if r, err = gzip.NewReader(r); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
	}
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, openai.MaxAnswer)
	var all []Record
	for lines.Scan() {
		if left -= int64(len(lines.Bytes())) + 1; left < 0 {
			return nil, fmt.Errorf("%s:%d: the %d bytes of the file inflate to more than %d, which capture load does not write",
				path, len(all)+1, info.Size(), trace.InflatedLimit(info.Size()))
		}
		var rec Record
		if err := json.Unmarshal(lines.Bytes(), &rec); err != nil {
			return nil, fmt.Errorf("%s:%d: %w", path, len(all)+1, err)
		}
		if rec.ID == "" || rec.Outcome == "" {
			return nil, fmt.Errorf("%s:%d: no id or no outcome: want a line that capture load wrote", path, len(all)+1)
		}
		all = append(all, rec)
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("%s:%d: %w", path, len(all)+1, err)
	}
	return all, nil
}
