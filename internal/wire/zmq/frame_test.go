package zmq

import (
	"bytes"
	"errors"
	"io"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

const testMax = 200_000

// transcript is everything a stream holds.
type transcript struct {
	Messages []Message
	Commands [][]byte
	End      string
	err      error
}

// read reads r to its end. Deadlines are passed over, as a caller of Recv does.
func read(r io.Reader, maxMessage int64) transcript {
	var got transcript
	for fr := newFrameReader(r, maxMessage); ; {
		msg, command, err := fr.next()
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
		case err != nil:
			got.End, got.err = err.Error(), err
			return got
		case msg != nil:
			if slices.ContainsFunc(msg, func(f []byte) bool { return f == nil }) {
				panic("a nil frame")
			}
			got.Messages = append(got.Messages, msg)
		default:
			got.Commands = append(got.Commands, command)
		}
	}
}

func TestFrameReader(t *testing.T) {
	big := strings.Repeat("b", 100_000)
	tests := []struct {
		name     string
		stream   string
		messages []Message
		commands [][]byte
		err      error
		text     string
	}{
		{name: "nothing", err: io.EOF},
		{name: "empty frame", stream: short(0, ""), messages: []Message{{{}}}, err: io.EOF},
		{
			name:     "two messages",
			stream:   short(flagMore, "a") + short(0, "") + short(0, "b"),
			messages: []Message{{{'a'}, {}}, {{'b'}}}, err: io.EOF,
		},
		{
			name:     "long header on a short frame",
			stream:   long(0, 2, "ab"),
			messages: []Message{{[]byte("ab")}}, err: io.EOF,
		},
		{
			name:     "beyond every buffer",
			stream:   long(flagMore, uint64(len(big)), big) + short(0, "z"),
			messages: []Message{{[]byte(big), {'z'}}}, err: io.EOF,
		},
		{
			name:     "command inside a message",
			stream:   short(flagMore, "a") + short(flagCommand, "\x04PING\x00\x00") + short(0, "b"),
			messages: []Message{{{'a'}, {'b'}}}, commands: [][]byte{[]byte("\x04PING\x00\x00")}, err: io.EOF,
		},
		{name: "exactly the limit", stream: long(0, testMax, strings.Repeat("x", testMax)), messages: []Message{{bytes.Repeat([]byte("x"), testMax)}}, err: io.EOF},
		{
			name: "above the limit", stream: long(0, testMax+1, ""),
			err: ErrTooLarge, text: "frame 1 of a message has 200001 bytes after 0 before it, the limit is 200000",
		},
		{
			name: "message above the limit", stream: long(flagMore, testMax, strings.Repeat("x", testMax)) + short(0, "y"),
			err: ErrTooLarge, text: "frame 2 of a message has 1 bytes after 200000 before it",
		},
		{name: "length with the sign bit", stream: long(0, 1<<63, ""), err: ErrTooLarge},
		{name: "all bits of a length", stream: long(0, 1<<64-1, "x"), err: ErrTooLarge},
		{name: "too many frames", stream: strings.Repeat(short(flagMore, ""), maxFrames+1), err: ErrTooLarge, text: "more than 65536 frames"},
		{name: "reserved flag", stream: short(0x08, "a"), err: ErrProtocol, text: "bits 0x08 are reserved"},
		{name: "command of several frames", stream: short(flagCommand|flagMore, "a"), err: ErrProtocol},
		{name: "large command", stream: long(flagCommand, maxCommand+1, ""), err: ErrTooLarge, text: "command of 8193 bytes"},
		{name: "ends in a header", stream: "\x00", err: io.ErrUnexpectedEOF, text: "in the header of frame 1"},
		{name: "ends in a long header", stream: "\x02\x00\x00", err: io.ErrUnexpectedEOF, text: "in the header of frame 1"},
		{name: "ends in a frame", stream: short(0, "abc")[:4], err: io.ErrUnexpectedEOF, text: "after 2 of 3 bytes of frame 1"},
		{name: "ends between frames", stream: short(flagMore, "a"), err: io.ErrUnexpectedEOF, text: "in the header of frame 2"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			for _, pace := range paces {
				got := read(pace.reader(tt.stream), testMax)
				require.NoDiff(t, diff(tt.messages, got.Messages), "%s: messages (-want +got)", pace.name)
				require.NoDiff(t, cmp.Diff(tt.commands, got.Commands), "%s: commands (-want +got)", pace.name)
				require.True(t, errors.Is(got.err, tt.err) && strings.Contains(got.End, tt.text), "%s: ended with %v, want %v saying %q", pace.name, got.err, tt.err, tt.text)
			}
		})
	}
}

// paces are the ways bytes may trickle in.
var paces = []struct {
	name   string
	reader func(string) io.Reader
}{
	{name: "at once", reader: func(s string) io.Reader { return strings.NewReader(s) }},
	{name: "byte by byte", reader: func(s string) io.Reader { return iotest.OneByteReader(strings.NewReader(s)) }},
	{name: "with deadlines", reader: func(s string) io.Reader { return &interrupted{r: strings.NewReader(s)} }},
}

// interrupted runs into a deadline before each read of up to 1000 bytes.
type interrupted struct {
	r    io.Reader
	late bool
}

func (i *interrupted) Read(p []byte) (int, error) {
	if i.late = !i.late; i.late {
		return 0, os.ErrDeadlineExceeded
	}
	return i.r.Read(p[:min(len(p), 1000)])
}

// A length is a claim: memory follows what arrives.
func TestFrameReaderGrowsByWhatArrives(t *testing.T) {
	for _, arrived := range []int{0, 1, firstGrow - 1, firstGrow, firstGrow + 1, 1 << 20} {
		stream := long(0, 1<<30, strings.Repeat("x", arrived))
		fr := newFrameReader(strings.NewReader(stream), 1<<31)
		if _, _, err := fr.next(); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Fatalf("%d bytes: %v", arrived, err)
		}
		if limit := max(firstGrow, growth*arrived); cap(fr.body) > limit {
			t.Errorf("%d bytes arrived, %d are allocated, want at most %d", arrived, cap(fr.body), limit)
		}
	}
}

// A message is the receiver's alone, whatever it does to it.
func TestMessagesShareNothing(t *testing.T) {
	fr := newFrameReader(strings.NewReader(strings.Repeat(short(0, "abc"), 3)), testMax)
	first, _, _ := fr.next()
	second, _, _ := fr.next()
	first = append(first, []byte("more"))
	first[0] = append(first[0], "defghi"...)
	first[0][0] = 'X'
	third, _, _ := fr.next()
	for _, m := range []Message{second, third} {
		require.True(t, len(m) == 1 && string(m[0]) == "abc", "message is %q, want one frame abc", m)
	}
}

func FuzzFrameReader(f *testing.F) {
	for _, seed := range []string{
		"", short(0, ""), short(flagMore, "a") + short(0, "b"), long(0, 300, strings.Repeat("x", 300)),
		short(flagCommand, "\x04PING\x00\x00ctx"), long(0, 1<<63, "x"), short(0x80, ""), short(flagMore, "a")[:1],
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, stream []byte) {
		const limit = 4096
		want := read(bytes.NewReader(stream), limit)
		var again []byte
		for _, m := range want.Messages {
			if m.size() > limit {
				t.Fatalf("message of %d bytes, the limit is %d", m.size(), limit)
			}
			again = appendMessage(again, m)
		}
		for _, pace := range paces {
			got := read(pace.reader(string(stream)), limit)
			if d := diff(want.Messages, got.Messages); d != "" || got.End != want.End {
				t.Fatalf("%s: ended %q and %q (-want +got):\n%s", pace.name, want.End, got.End, d)
			}
		}
		if d := diff(want.Messages, read(bytes.NewReader(again), limit).Messages); d != "" {
			t.Fatalf("written again (-want +got):\n%s", d)
		}
		for _, c := range want.Commands {
			_, _ = pong(c)
			_, _ = parseReady(c)
		}
	})
}

// appendMessage writes m as a connection does.
func appendMessage(b []byte, m Message) []byte {
	for i, frame := range m {
		var h [longHeader]byte
		flags := byte(0)
		if i < len(m)-1 {
			flags = flagMore
		}
		b = append(append(b, h[:putHeader(&h, flags, len(frame))]...), frame...)
	}
	return b
}
