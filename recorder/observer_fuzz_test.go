package recorder

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/trace"
)

// obsMemory is an output of an observer into memory.
func obsMemory(t testing.TB, name string, to io.Writer) *File {
	t.Helper()
	f, err := Create(Destination{Path: os.DevNull})
	require.NoError(t, err)
	f.dest.Path, f.w = name, to
	return f
}

// obsScript turns bytes into a session: each first byte chooses what happens, the
// next ones to whom and how. The bytes also stand for frames as they are.
type obsScript struct {
	*obsSession
	data      []byte
	immediate uint64 // requests that were aborted as they came: they have no record
}

// next takes one byte, 0 when there are none left.
func (s *obsScript) next() byte {
	if len(s.data) == 0 {
		return 0
	}
	b := s.data[0]
	s.data = s.data[1:]
	return b
}

func (s *obsScript) id() string { return fmt.Sprintf("r%c", 'a'+s.next()%6) }

// act does one thing. The odds favour what a real session has.
func (s *obsScript) act() {
	switch op := s.next(); op % 16 {
	case 0, 1, 2, 3:
		r := obsRequest(s.id(), int(op))
		r.AbortImmediately = op > 250
		r.Resumable = op > 240
		r.ClientIndex = int(op % 3)
		r.Sampling.ExtraArgs = s.chunk(3)
		before := s.counts.Aborted.Load()
		s.o.Observe(s.sent(protocol.TypeAdd, s.codec.AppendRequest(nil, r), int(op%3)))
		s.immediate += s.counts.Aborted.Load() - before
	case 4:
		s.abort(s.id(), s.id())
	case 5:
		s.raw(Input, FromFrontend, []byte{s.next() % 5}, s.chunk(8))
	case 6:
		s.raw(Output, FromEngine, s.chunk(12))
	case 7:
		frame := s.envelope(1, obsTokens(s.id(), 1), obsEnd(s.id(), protocol.FinishStop, 2))
		if at := int(s.next()); at < len(frame) {
			frame[at] ^= s.next()
		}
		s.raw(Output, FromEngine, frame)
	case 8:
		s.o.Observe(&Event{At: s.at, Channel: Channel(s.next() % 6), Client: int(s.next() % 3), Elided: 5})
	case 9:
		s.at -= time.Duration(s.next()) * time.Millisecond
	case 10:
		s.o.Note(s.at, string(s.chunk(4)))
	case 11:
		s.raw(Channel(s.next()), Direction(s.next()), s.chunk(2), s.chunk(2))
	default:
		s.step(op)
	}
}

func (s *obsScript) sent(kind byte, payload []byte, client int) *Event {
	s.at += time.Millisecond
	return &Event{At: s.at, Channel: Input, Client: client, Direction: FromFrontend, Frames: [][]byte{{kind}, payload}}
}

func (s *obsScript) raw(ch Channel, dir Direction, frames ...[]byte) {
	s.o.Observe(&Event{At: s.at, Channel: ch, Client: int(s.next() % 3), Direction: dir, Frames: frames})
}

// chunk takes up to n bytes.
func (s *obsScript) chunk(n int) []byte {
	n = min(n, len(s.data))
	part := s.data[:n:n]
	s.data = s.data[n:]
	return part
}

// step is an envelope of some outputs, and of statistics at odds.
func (s *obsScript) step(op byte) {
	var outs []obsOut
	for range 1 + op>>6 {
		o := obsEnd(s.id(), protocol.FinishReason(0), make([]uint32, s.next()%4)...)
		if b := s.next(); b%4 == 0 {
			o.Finish = protocol.FinishReason(b / 4 % 6)
		}
		if s.next()%3 == 0 {
			o.Prefill = &protocol.PrefillStats{LocalCached: int(s.next()), ExternalCached: int(s.next())}
		}
		outs = append(outs, o)
	}
	s.out(int(op%8)-1, outs...)
}

// obsPlay runs a script and checks what must hold of every session.
func obsPlay(t *testing.T, opt Options, data []byte) {
	codec, err := protocol.CodecFor("0.33")
	require.NoError(t, err)
	var records, steps, frames bytes.Buffer
	s := &obsScript{obsSession: &obsSession{t: t, codec: codec, at: time.Second}, data: data}
	open := func(name string, to *bytes.Buffer) *File { return obsMemory(t, name, to) }
	s.o = NewObserver(opt, Sinks{open("a.jsonl", &records), open("b.jsonl", &steps), open("c.jsonl", &frames)}, &s.counts, slog.New(slog.DiscardHandler))
	s.register("0.33.0")
	for len(s.data) > 0 {
		s.act()
	}
	in := len(s.o.tracked)
	require.NoError(t, s.o.Close())
	c := s.counts.Snapshot()
	require.True(t, c.Requests == c.Done+c.Aborted+c.Lost+uint64(in) && c.InFlight == int64(in), "%d in flight, counts %+v", in, c)
	want := c.Done + c.Aborted - c.Unrecorded
	require.True(t, !opt.RecordAborted || c.Unrecorded == s.immediate, "want %d aborted requests without a record, counts %+v", s.immediate, c)
	// Statistics of a wrong type are refused; a record never is.
	require.True(t, c.Records == want && c.Stopped == 0, "want %d records, counts %+v", want, c)
	got, err := trace.NewReader(bytes.NewReader(records.Bytes()), "a", false, trace.Options{Strict: true})
	require.NoError(t, err)
	all, err := got.ReadAll()
	if err != nil || uint64(len(all.Records)) != c.Records {
		t.Errorf("%d records counted, %v in\n%s", c.Records, err, records.Bytes())
	}
	obsWhole(t, trace.NewStepReader(&steps, "b", false, trace.Options{Strict: true}).Next, c.Steps)
	fr, err := trace.NewFrameReader(&frames, "c", false, trace.Options{Strict: true})
	require.NoError(t, err)
	obsWhole(t, fr.Next, 0)
}

// obsWhole reads to the end; want 0 does not care how far it is.
func obsWhole[T any](t *testing.T, next func(*T) error, want uint64) {
	t.Helper()
	var v T
	for n := uint64(0); ; n++ {
		switch err := next(&v); {
		case err == io.EOF && (n == want || want == 0):
			return
		case err != nil:
			t.Fatalf("line %d, want %d: %v", n, want, err)
		}
	}
}

// TestRandomSessions plays many random sessions.
func TestRandomSessions(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 1))
	sessions := 300
	if testing.Short() {
		sessions = 30
	}
	for i := range sessions {
		data := make([]byte, 20+random.IntN(3000))
		for j := range data {
			data[j] = byte(random.Uint32())
		}
		obsPlay(t, Options{RecordAborted: i%2 == 0, RecordTokens: i%3 == 0, RecordPrompts: i%5 == 0}, data)
		if t.Failed() {
			return
		}
	}
}

// FuzzObserve: whatever happens on the wire, nothing panics, the files are
// readable and the counts add up.
func FuzzObserve(f *testing.F) {
	f.Add([]byte{0, 0, 12, 0, 1, 4, 0, 3}, uint8(7))
	f.Add([]byte("\x00\x00\x00\x01\x0c\x00\x01\x04\x00\x04\x00\x01"), uint8(1))
	f.Fuzz(func(t *testing.T, data []byte, opt uint8) {
		obsPlay(t, Options{RecordAborted: opt&1 != 0, RecordTokens: opt&2 != 0, RecordPrompts: opt&4 != 0}, data)
	})
}
