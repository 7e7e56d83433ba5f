package recorder

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"testing"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/trace"
)

// TestRecordsOfOneMessage: all records that one message completes are readable when
// the next is observed, and reach the file in one write.
func TestRecordsOfOneMessage(t *testing.T) {
	for _, name := range []string{"a.jsonl", "a.jsonl.gz"} {
		out := &obsWrites{}
		s := &obsSession{t: t, at: 1}
		s.codec, _ = protocol.CodecFor("0.33")
		s.o = NewObserver(Options{RecordTokens: true}, Sinks{Trace: obsMemory(t, name, out)}, &s.counts, slog.New(slog.DiscardHandler))
		s.register("0.33.0")
		for round := range 3 {
			var outs []obsOut
			for i := range 20 {
				id := fmt.Sprint(i)
				s.add(obsRequest(id, 10))
				outs = append(outs, obsEnd(id, protocol.FinishStop, 1))
			}
			before := out.writes
			s.out(1, outs...)
			if n := obsWhatReads(t, out.data, trace.IsGzip(name)); n != 20*(round+1) || out.writes != before+1 || s.counts.Records.Load() != uint64(n) {
				t.Errorf("%s: %d records are readable, %d are counted, in %d writes", name, n, s.counts.Records.Load(), out.writes-before)
			}
		}
	}
}

// obsWrites keeps what is written and counts the writes.
type obsWrites struct {
	data   []byte
	writes int
}

func (w *obsWrites) Write(p []byte) (int, error) {
	w.data = append(w.data, p...)
	w.writes++
	return len(p), nil
}

func obsWhatReads(t *testing.T, data []byte, gz bool) (n int) {
	t.Helper()
	r, err := trace.NewReader(bytes.NewReader(data), "a", gz, trace.Options{})
	require.NoError(t, err)
	var rec trace.Record
	for ; ; n++ {
		if err := r.Next(&rec); err == io.EOF {
			return n
		} else if err != nil {
			t.Fatal(err)
		}
	}
}
