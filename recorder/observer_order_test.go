package recorder

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/trace"
)

// TestOrderOfOutputs: whoever an output is for is found by its id, in whatever order,
// from whatever client, with requests that come, end, are given up and come again
// under another's id.
func TestOrderOfOutputs(t *testing.T) {
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 0))
	s := obsStart(t, Options{RecordTokens: true})
	want := map[string][]uint32{} // by id, of the requests in flight
	clients := map[string]int{}
	var records [][]uint32
	var unknown, aborted, unrecorded uint64
	for range 3000 {
		switch id := fmt.Sprintf("r%d", random.IntN(12)); random.IntN(8) {
		case 0, 1:
			if want[id] == nil {
				want[id], clients[id] = []uint32{}, random.IntN(3)
				s.add(obsRequest(id, 4))
			}
		case 2:
			if want[id] != nil && random.IntN(4) == 0 {
				if len(want[id]) > 0 {
					records = append(records, want[id])
				} else {
					unrecorded++
				}
				delete(want, id)
				s.abort(id)
				aborted++
			}
		default:
			client := random.IntN(3)
			var outs []obsOut
			for id, tokens := range want { // in any order
				if clients[id] != client || random.IntN(5) == 0 {
					continue
				}
				token := random.Uint32N(100_000)
				want[id] = append(tokens, token)
				out := obsTokens(id, token)
				if random.IntN(10) == 0 {
					out = obsEnd(id, protocol.FinishStop, token)
					records = append(records, want[id])
					delete(want, id)
				}
				outs = append(outs, out)
			}
			if random.IntN(10) == 0 { // the empty id is that of storage nobody uses
				outs = slices.Insert(outs, random.IntN(len(outs)+1), obsTokens([]string{"", "nobody"}[random.IntN(2)], 1))
				unknown++
			}
			if len(outs) > 0 {
				s.o.Observe(&Event{At: s.at, Channel: Output, Client: client, Frames: [][]byte{s.envelope(-1, outs...)}})
				s.at++
			}
		}
	}
	var got [][]uint32
	for _, rec := range s.finish().Records {
		got = append(got, rec.OutputTokenIDs)
	}
	require.NoDiff(t, cmp.Diff(records, got), "seed %d: (-said +recorded)", seed)
	if c := s.counts.Snapshot(); c.Unknown != unknown || c.Aborted != aborted || c.Unrecorded != unrecorded || c.Late != 0 || c.Records != uint64(len(records)) {
		t.Errorf("seed %d: want %d unknown outputs, %d aborted requests, %d records: %+v", seed, unknown, aborted, len(records), c)
	}
}

// TestOrderOfRequests: the requests of a step are found where they stood in the one before it,
// without a look at the ids in flight, also when one has gone.
func TestOrderOfRequests(t *testing.T) {
	s := obsStart(t, Options{})
	var outs []obsOut
	for i := range 6 {
		id := fmt.Sprint(i)
		s.add(obsRequest(id, 10))
		outs = append(outs, obsTokens(id, 1))
	}
	s.out(1, outs...)
	clear(s.o.tracked)
	s.out(1, outs...)
	s.out(1, slices.Delete(slices.Clone(outs), 2, 3)...)
	if c := s.counts.Snapshot(); c.Unknown != 0 || c.Tokens != 6+6+5 {
		t.Errorf("want 17 tokens: %+v", c)
	}
}

// TestOrderAfterAnAbort: a request that was given up is not the one that comes under the
// same id, though its storage is used by nobody.
func TestOrderAfterAnAbort(t *testing.T) {
	s := obsStart(t, Options{RecordTokens: true})
	s.add(obsRequest("a", 4))
	s.add(obsRequest("b", 4))
	frame := s.envelope(-1, obsTokens("a", 1), obsTokens("b", 1))
	for range keptGaps + 2 { // too much to be kept
		s.event(Output, FromEngine, frame)
	}
	s.abort("b")
	s.add(obsRequest("b", 4))
	s.out(-1, obsTokens("b", 7))
	s.out(-1, obsEnd("b", protocol.FinishStop, 8))
	records := s.finish().Records
	if len(records) != 2 || records[0].OutputTokens != keptGaps+2 || !slices.Equal(records[1].OutputTokenIDs, []uint32{7, 8}) {
		t.Errorf("%d records; want the one that was given up, and one of the tokens 7 and 8", len(records))
	}
}

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
