package zmq

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"strings"
	"testing"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// pieces is a connection whose reads are cut where the test wants, and which keeps
// what is written to it.
type pieces struct {
	net.Conn
	stream string
	next   func() int // size of the next read at most, 0 for all there is
	heard  bytes.Buffer
}

func (c *pieces) Read(p []byte) (int, error) {
	if c.stream == "" {
		return 0, io.EOF
	}
	n := len(p)
	if most := c.next(); most > 0 {
		n = min(n, most)
	}
	n = copy(p[:n], c.stream)
	c.stream = c.stream[n:]
	return n, nil
}

func (c *pieces) Write(p []byte) (int, error) { return c.heard.Write(p) }

// A observed message is a Relayed that can be compared.
type observed struct {
	Wire         string
	None         bool // Wire is nil
	Size, Elided int64
}

// notes is a observer that keeps everything, and gives every copy back at once.
type notes struct {
	limit  int64
	tails  bool
	seen   []observed
	passed int
	t      testing.TB
}

func (n *notes) Limits() (int64, bool) { return n.limit, n.tails }
func (n *notes) HungUp()               {}
func (n *notes) Passed()               { n.passed = len(n.seen) }

func (n *notes) Message(s Relayed) {
	if s.At.IsZero() {
		n.t.Error("a message without its time")
	}
	if s.Owned != (s.Release != nil) {
		n.t.Errorf("%d bytes: owned %v, with release %v", len(s.Wire), s.Owned, s.Release != nil)
	}
	n.seen = append(n.seen, observed{Wire: string(s.Wire), None: s.Wire == nil, Size: s.Size, Elided: s.Elided})
	if s.Release != nil {
		s.Release()
	}
}

// walk lets stream through a passage.
func walk(t testing.TB, stream string, limit int64, tails bool, next func() int) (seen []observed, heard string, err error) {
	t.Helper()
	opt, _ := Options{}.withDefaults()
	from, to := &pieces{stream: stream, next: next}, &pieces{}
	n := &notes{limit: limit, tails: tails, t: t}
	p := newPassage(newConn(from, Router, opt, "a"), newConn(to, Dealer, opt, "b"), n)
	err = p.run()
	require.True(t, n.passed == len(n.seen), "Passed after %d of %d messages", n.passed, len(n.seen))
	return n.seen, to.heard.String(), err
}

// cuts are ways to cut a stream of n bytes.
func cuts(n int) map[string]func() int {
	few, splits := 1, 300
	if n > 10_000 {
		few, splits = 17, 30
	}
	all := map[string]func() int{"few bytes": func() int { return few }}
	for at := 1; at < n; at += max(1, n/splits) {
		first := true
		all[fmt.Sprintf("at %d", at)] = func() int {
			if !first {
				return 0
			}
			first = false
			return at
		}
	}
	for seed := range uint64(10) {
		r := rand.New(rand.NewPCG(seed, 1))
		most := 1 + r.IntN(n+1)
		all[fmt.Sprintf("random %d", seed)] = func() int { return 1 + r.IntN(most) }
	}
	return all
}

func whole() int { return 0 }

func message(wire string, size int) observed { return observed{Wire: wire, Size: int64(size)} }

func TestPassage(t *testing.T) {
	ping := short(flagCommand, "\x04PING\x00\x00ctx")
	big := strings.Repeat("b", 3*bigBody)
	owned := short(flagMore, "head") + long(0, uint64(len(big)), big)
	tests := []struct {
		name   string
		stream string
		limit  int64 // 0: none
		heads  bool  // tails are left out
		want   []observed
		heard  int // bytes that are passed on, if not all
		err    error
	}{
		{name: "nothing"},
		{name: "empty frame", stream: short(0, ""), want: []observed{message(short(0, ""), 0)}},
		{name: "short", stream: short(0, "abc"), want: []observed{message(short(0, "abc"), 3)}},
		{name: "long", stream: long(0, 300, big[:300]), want: []observed{message(long(0, 300, big[:300]), 300)}},
		{name: "long header, small body", stream: long(0, 2, "ab"), want: []observed{message(long(0, 2, "ab"), 2)}},
		{name: "long header, no body", stream: long(0, 0, ""), want: []observed{message(long(0, 0, ""), 0)}},
		{
			name: "many", stream: strings.Repeat(short(flagMore, "a")+short(0, "bc"), 3),
			want: []observed{message(short(flagMore, "a")+short(0, "bc"), 3), message(short(flagMore, "a")+short(0, "bc"), 3), message(short(flagMore, "a")+short(0, "bc"), 3)},
		},
		{
			name: "empty frames", stream: short(flagMore, "") + long(flagMore, 0, "") + short(0, ""),
			want: []observed{message(short(flagMore, "")+long(flagMore, 0, "")+short(0, ""), 0)},
		},
		{
			name: "commands around messages", stream: ping + short(0, "a") + ping + ping + short(0, "b") + ping,
			want: []observed{message(short(0, "a"), 1), message(short(0, "b"), 1)},
		},
		{
			name: "commands inside a message", stream: short(flagMore, "a") + ping + short(flagMore, "") + long(flagCommand, 300, big[:300]) + short(0, "b"),
			want: []observed{message(short(flagMore, "a")+short(flagMore, "")+short(0, "b"), 2)},
		},
		{name: "owned", stream: owned + short(0, "z") + owned, want: []observed{message(owned, 4+len(big)), message(short(0, "z"), 1), message(owned, 4+len(big))}},
		{
			name: "elided tails", heads: true,
			stream: short(flagMore, "a") + short(flagMore, "b") + short(flagMore, "tail") + long(flagMore, 0, "") + long(0, 300, big[:300]) + short(0, "z"),
			want: []observed{
				{Wire: short(flagMore, "a") + short(flagMore, "b") + short(flagMore, "") + long(flagMore, 0, "") + short(0, ""), Size: 306, Elided: 304},
				message(short(0, "z"), 1),
			},
		},
		{
			name: "elided owned tail", heads: true, stream: short(flagMore, "a") + short(flagMore, "") + long(0, uint64(len(big)), big) + short(0, "z"),
			want: []observed{{Wire: short(flagMore, "a") + short(flagMore, "") + short(0, ""), Size: 1 + int64(len(big)), Elided: int64(len(big))}, message(short(0, "z"), 1)},
		},
		{
			name: "tails do not count", heads: true, limit: 4, stream: short(flagMore, "ab") + short(flagMore, "cd") + short(0, "tail"),
			want: []observed{{Wire: short(flagMore, "ab") + short(flagMore, "cd") + short(0, ""), Size: 8, Elided: 4}},
		},
		{name: "at the limit", limit: 4, stream: short(flagMore, "ab") + short(0, "cd"), want: []observed{message(short(flagMore, "ab")+short(0, "cd"), 4)}},
		{
			name: "above the limit", limit: 4, stream: short(flagMore, "ab") + short(flagMore, "cde") + short(0, "f") + short(0, "fine"),
			want: []observed{{None: true, Size: 6, Elided: 6}, message(short(0, "fine"), 4)},
		},
		{
			name: "big above the limit", limit: 4, stream: owned + short(0, "fine"),
			want: []observed{{None: true, Size: 4 + int64(len(big)), Elided: 4 + int64(len(big))}, message(short(0, "fine"), 4)},
		},
		{name: "half a header", stream: short(0, "a") + "\x00", want: []observed{message(short(0, "a"), 1)}, err: ErrPeerGone},
		{name: "half a body", stream: short(0, "a") + "\x00\x02b", want: []observed{message(short(0, "a"), 1)}, err: ErrPeerGone},
		{name: "half a message", stream: short(flagMore, "a"), err: ErrPeerGone},
		{name: "half a command", stream: short(0, "a") + ping[:4], want: []observed{message(short(0, "a"), 1)}, err: ErrPeerGone},
		{name: "claim", stream: long(0, 1<<62, "x"), err: ErrPeerGone},
		{name: "largest claim", stream: long(flagMore, math.MaxUint64, "x"), err: ErrPeerGone},
		{name: "claim above the limit", limit: 4, stream: long(flagMore, math.MaxUint64, "x"), err: ErrPeerGone},
		{name: "claim of a command", stream: long(flagCommand, 1<<62, "x"), err: ErrPeerGone},
		{name: "claim of a tail", heads: true, stream: short(flagMore, "") + short(flagMore, "") + long(0, math.MaxUint64, "x"), err: ErrPeerGone},
		{name: "reserved flag", stream: short(0, "a") + short(0x08, "b"), want: []observed{message(short(0, "a"), 1)}, heard: 3, err: ErrProtocol},
		{name: "reserved flag inside a message", stream: short(flagMore, "a") + short(0x80, "b"), heard: 3, err: ErrProtocol},
		{name: "command of several frames", stream: short(flagCommand|flagMore, "b"), heard: -1, err: ErrProtocol},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			limit, heard := tt.limit, tt.stream
			if limit == 0 {
				limit = math.MaxInt64
			}
			if tt.heard != 0 {
				heard = tt.stream[:max(0, tt.heard)]
			}
			all := cuts(len(tt.stream))
			all["whole"] = whole
			for name, next := range all {
				seen, got, err := walk(t, tt.stream, limit, !tt.heads, next)
				if d := diff(tt.want, seen); d != "" {
					t.Fatalf("%s: observed (-want +got):\n%.2000s", name, d)
				}
				if got != heard {
					t.Fatalf("%s: %d bytes were passed on, want %d, or other ones", name, len(got), len(heard))
				}
				require.ErrorIs(t, err, tt.err)
				require.True(t, err == nil || strings.Contains(err.Error(), "from peer at a"), "%s: error %q does not name the peer", name, err)
			}
		})
	}
}

// A message of more frames than any real one is above every limit, however its bytes
// come: its headers would be a copy without end.
func TestPassageCountsFrames(t *testing.T) {
	for _, frames := range []int{maxFrames, maxFrames + 1} {
		stream := strings.Repeat(short(flagMore, ""), frames-1) + short(0, "")
		want := []observed{{None: frames > maxFrames, Wire: stream}}
		if frames > maxFrames {
			want[0].Wire = ""
		}
		for _, piece := range []int{0, 1, 1000} {
			seen, heard, err := walk(t, stream, math.MaxInt64, true, func() int { return piece })
			if len(seen) != 1 || seen[0] != want[0] || heard != stream || err != nil {
				t.Errorf("%d frames in pieces of %d: %d messages, %d of %d bytes heard, %v", frames, piece, len(seen), len(heard), len(stream), err)
			}
		}
	}
}

// A length is a claim: memory follows what arrives.
func TestPassageGrowsByWhatArrives(t *testing.T) {
	for _, arrived := range []int{0, 1, bigBody, 4*bigBody + 1, 1 << 20} {
		for _, claimed := range []uint64{1 << 30, 1 << 62, math.MaxUint64} {
			opt, _ := Options{}.withDefaults()
			from := &pieces{stream: long(0, claimed, strings.Repeat("x", arrived)), next: whole}
			p := newPassage(newConn(from, Router, opt, "a"), newConn(&pieces{}, Dealer, opt, "b"), &notes{limit: math.MaxInt64, tails: true, t: t})
			require.ErrorIs(t, p.run(), io.ErrUnexpectedEOF)
			if limit := max(5*64<<10, 65*arrived); cap(p.part) > limit || len(p.part) < arrived {
				t.Errorf("%d bytes arrived of %d, %d are kept in %d, want at most %d", arrived, claimed, len(p.part), cap(p.part), limit)
			}
		}
	}
}

// What a observer gives back is used again.
func TestPassageReusesCopies(t *testing.T) {
	body := strings.Repeat("x", 4<<20)
	stream := strings.Repeat(long(0, uint64(len(body)), body), 4)
	per := testing.AllocsPerRun(3, func() {
		opt, _ := Options{}.withDefaults()
		n := &notes{limit: 1, tails: true, t: t}
		p := newPassage(newConn(&pieces{stream: stream, next: whole}, Router, opt, "a"), newConn(discarding{}, Dealer, opt, "b"), n)
		n.limit, p.limit = math.MaxInt64, math.MaxInt64
		p.observer = releasing{n}
		if err := p.run(); err != nil {
			t.Error(err)
		}
	})
	// Some 20 for the connections and the first copy, 2 a message for giving it back.
	if per > 40 {
		t.Errorf("%v allocations for 4 messages", per)
	}
}

type discarding struct{ net.Conn }

func (discarding) Write(p []byte) (int, error) { return len(p), nil }

type releasing struct{ *notes }

func (r releasing) Message(s Relayed) { s.Release() }

func TestSplitFrames(t *testing.T) {
	tests := []struct {
		name string
		wire string
		want [][]byte
		text string
	}{
		{name: "nothing"},
		{name: "one", wire: short(0, "a"), want: [][]byte{[]byte("a")}},
		{name: "several", wire: short(flagMore, "a") + long(flagMore, 0, "") + long(0, 1, "b"), want: [][]byte{[]byte("a"), {}, []byte("b")}},
		{name: "half a header", wire: short(flagMore, "a") + "\x00", want: [][]byte{[]byte("a")}, text: "byte 3 of 4"},
		{name: "half a long header", wire: "\x02\x00\x00", text: "byte 0 of 3"},
		{name: "half a body", wire: "\x00\x05abc", text: "byte 0 of 5"},
		{name: "claim", wire: long(0, math.MaxUint64, "abc"), text: "byte 0 of 12"},
		{name: "two messages", wire: short(0, "a") + short(0, "b"), want: [][]byte{[]byte("a")}, text: "byte 3 of 6"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := SplitFrames(nil, []byte(tt.wire))
			require.NoDiff(t, diff(tt.want, got), "frames (-want +got)")
			require.True(t, (tt.text != "" || err == nil) && (tt.text == "" || (errors.Is(err, ErrProtocol) && strings.Contains(err.Error(), tt.text))), "error %v, want one with %q", err, tt.text)
		})
	}
}

// FuzzPassage takes the reader of frames as the oracle of what a observer is to see.
func FuzzPassage(f *testing.F) {
	for _, seed := range []string{
		"", short(0, ""), short(flagMore, "a") + short(flagMore, "b") + short(0, "tail"), long(0, 300, strings.Repeat("x", 300)),
		short(flagMore, "a") + short(flagCommand, "\x04PING\x00\x00ctx") + short(0, "b"), long(0, 1<<63, "x"),
		short(0x80, ""), short(flagMore, "a")[:1], long(flagMore, 0, "") + short(0, "z"),
	} {
		f.Add([]byte(seed), uint64(1), int64(40), true)
		f.Add([]byte(seed), uint64(7), int64(3), false)
	}
	f.Fuzz(func(t *testing.T, stream []byte, seed uint64, limit int64, tails bool) {
		oracle := read(bytes.NewReader(stream), math.MaxInt64)
		if errors.Is(oracle.err, ErrTooLarge) {
			t.Skip("the reader refuses sizes, a passage does not")
		}
		r := rand.New(rand.NewPCG(seed, 2))
		for name, next := range map[string]func() int{"whole": whole, "cut": func() int { return 1 + r.IntN(20) }} {
			seen, heard, err := walk(t, string(stream), limit, tails, next)
			if !strings.HasPrefix(string(stream), heard) || !errors.Is(err, ErrProtocol) && heard != string(stream) {
				t.Fatalf("%s: passed on %q of %q", name, heard, stream)
			}
			// The reader does not judge the last byte of a stream.
			early := errors.Is(err, ErrProtocol) && len(heard) == len(stream)-1
			same := errors.Is(oracle.err, ErrProtocol) == errors.Is(err, ErrProtocol) &&
				errors.Is(oracle.err, io.ErrUnexpectedEOF) == errors.Is(err, io.ErrUnexpectedEOF)
			if !same && !early {
				t.Fatalf("%s: ended %v, the reader %v", name, err, oracle.err)
			}
			if len(seen) != len(oracle.Messages) {
				t.Fatalf("%s: %d messages, the reader saw %d", name, len(seen), len(oracle.Messages))
			}
			for i, m := range oracle.Messages {
				sameMessage(t, seen[i], m, limit, tails)
			}
		}
	})
}

// sameMessage checks a sighting of m.
func sameMessage(t *testing.T, seen observed, m Message, limit int64, tails bool) {
	t.Helper()
	want, size := make([][]byte, len(m)), int64(m.size())
	kept := int64(0)
	for i, frame := range m {
		want[i] = []byte{}
		if i < 2 || tails {
			want[i] = frame
			kept += int64(len(frame))
		}
	}
	if seen.None != (kept > limit) {
		t.Fatalf("%d bytes to keep with a limit of %d: left out is %v", kept, limit, seen.None)
	}
	if seen.None {
		want, kept = nil, 0
	}
	got, err := SplitFrames(nil, []byte(seen.Wire))
	require.NoError(t, err)
	if d := diff(want, got); d != "" || seen.Size != size || seen.Elided != size-kept {
		t.Fatalf("size %d, elided %d of %d, %d kept (-want +got):\n%s", seen.Size, seen.Elided, size, kept, d)
	}
}
