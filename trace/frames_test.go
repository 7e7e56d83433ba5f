package trace

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// sampleMessages is one message of every form.
func sampleMessages() []Message {
	return []Message{
		{At: 1, Channel: "handshake", Direction: EngineToFrontend, Frames: [][]byte{[]byte("HELLO")}},
		{At: 5 * time.Second, Channel: "input", Direction: FrontendToEngine, Frames: [][]byte{{0}, {0x93, 1, 2}, {}}, Elided: 4096},
		{At: 3, Rank: 7, Channel: "output", Client: 12, Direction: EngineToFrontend, Frames: [][]byte{}},
		{At: 1<<63 - 1, Channel: "coordinator_input", Direction: FrontendToEngine, Frames: [][]byte{{255}}},
		{At: 6, Rank: 1, Channel: "coordinator_output", Direction: EngineToFrontend, Elided: 1 << 40},
		{At: 7, Rank: 1, Note: "the engine \"hung\" up\n"},
	}
}

func writeFrames(tb testing.TB, gz bool, meta string, messages ...Message) []byte {
	tb.Helper()
	var out bytes.Buffer
	w, err := NewFrameWriter(&out, gz, rawOrNil(meta))
	require.NoError(tb, err)
	for i := range messages {
		require.NoError(tb, w.Write(&messages[i]))
	}
	require.NoError(tb, w.Close())
	return out.Bytes()
}

// readFrames reads all messages, in storage of their own.
func readFrames(data []byte, gz bool, opt Options) (r *FrameReader, all []Message, err error) {
	if r, err = NewFrameReader(bytes.NewReader(data), "f.jsonl", gz, opt); err != nil {
		return nil, nil, err
	}
	var m Message
	for {
		if err := r.Next(&m); err == io.EOF {
			return r, all, nil
		} else if err != nil {
			return r, all, err
		}
		own := m
		own.Line = 0
		if m.Frames != nil {
			own.Frames = [][]byte{}
		}
		for _, frame := range m.Frames {
			own.Frames = append(own.Frames, append([]byte{}, frame...))
		}
		all = append(all, own)
	}
}

func TestFramesRoundTrip(t *testing.T) {
	for _, gz := range []bool{false, true} {
		t.Run(fmt.Sprintf("gzip=%v", gz), func(t *testing.T) {
			data := writeFrames(t, gz, `{"model":"tiny","n":[1]}`, sampleMessages()...)
			r, got, err := readFrames(data, gz, Options{Strict: true})
			require.NoError(t, err)
			require.NoDiff(t, cmp.Diff(sampleMessages(), got), "messages (-want +got)")
			if string(r.Meta()) != `{"model":"tiny","n":[1]}` {
				t.Errorf("meta %s", r.Meta())
			}
			if again := writeFrames(t, gz, string(r.Meta()), got...); !bytes.Equal(again, data) {
				t.Error("the same messages give other bytes")
			}
		})
	}
}

func TestFramesRefuse(t *testing.T) {
	const ok = `{"t":1,"ch":"input0","dir":"f2e","frames":["AA=="]}`
	for _, test := range []struct{ name, text, want string }{
		{"no object", `[]`, "line 1"},
		{"meta is not an object", `{"meta":1}`, "meta"},
		{"meta twice in a line", `{"meta":{},"meta":{}}`, "twice"},
		{"a second meta line", `{"meta":{}}` + "\n" + ok + "\n" + `{"meta":{}}`, "line 3: t: missing: a meta line"},
		{"no t", `{"ch":"input0","dir":"f2e"}`, "t: missing"},
		{"no ch", ok + "\n" + `{"t":1,"dir":"f2e"}`, "line 2: ch: missing"},
		{"no dir", `{"t":1,"ch":"input0"}`, "dir: missing"},
		{"t is negative", `{"t":-1,"ch":"input0","dir":"f2e"}`, "t: want an integer"},
		{"t has a fraction", `{"t":1.5,"ch":"input0","dir":"f2e"}`, "fraction"},
		{"t is too large", `{"t":9223372036854775808,"ch":"input0","dir":"f2e"}`, "t: "},
		{"unknown channel", `{"t":1,"ch":"inputs","dir":"f2e"}`, "ch: want handshake"},
		{"channel without index", `{"t":1,"ch":"output","dir":"f2e"}`, "ch: want"},
		{"channel with a zero in front", `{"t":1,"ch":"output01","dir":"f2e"}`, "ch: want"},
		{"handshake with index", `{"t":1,"ch":"handshake0","dir":"f2e"}`, "ch: want"},
		{"unknown direction", `{"t":1,"ch":"input0","dir":"up"}`, "dir: want e2f or f2e, got up"},
		{"not base64", `{"t":1,"ch":"input0","dir":"f2e","frames":["AA==","A"]}`, "frame 1 is not base64"},
		{"base64 with loose ends", `{"t":1,"ch":"input0","dir":"f2e","frames":["AB=="]}`, "not base64"},
		{"frames are numbers", `{"t":1,"ch":"input0","dir":"f2e","frames":[1]}`, "frames: want a string"},
		{"key twice", `{"t":1,"t":2,"ch":"input0","dir":"f2e"}`, "t: the key occurs twice"},
		{"rank out of range", `{"t":1,"ch":"input0","dir":"f2e","rank":65536}`, "rank"},
		{"elided is negative", `{"t":1,"ch":"input0","dir":"f2e","elided":-1}`, "elided"},
		{"a note with frames", `{"t":1,"note":"x","frames":[]}`, "note: a note has no"},
		{"a note without time", `{"note":"x"}`, "t: missing"},
		{"an empty note", `{"t":1,"note":""}`, "note: want some text"},
		{"two on a line", ok + ok, "one JSON object a line"},
		{"cut", ok[:20], "line 1"},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, _, err := readFrames([]byte(test.text+"\n"), false, Options{})
			wantError(t, err, "f.jsonl", "line ", test.want)
		})
	}
}

// TestFramesTolerate is what is read without an error.
func TestFramesTolerate(t *testing.T) {
	for _, test := range []struct {
		name, text string
		want       []Message
	}{
		{"nothing", "", nil},
		{
			"blank lines and spaces", "\n {\"t\": 1, \"ch\": \"input0\", \"dir\": \"f2e\", \"frames\": [\"AA==\"]} \n\n",
			[]Message{{At: 1, Channel: "input", Direction: "f2e", Frames: [][]byte{{0}}}},
		},
		{"unknown keys", `{"t":1,"ch":"input0","dir":"f2e","x":[{}]}`, []Message{{At: 1, Channel: "input", Direction: "f2e"}}},
		{
			"escapes in base64", `{"t":1,"ch":"input0","dir":"f2e","frames":["\/w=\u003d"]}`,
			[]Message{{At: 1, Channel: "input", Direction: "f2e", Frames: [][]byte{{255}}}},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, got, err := readFrames([]byte(test.text), false, Options{})
			if diff := cmp.Diff(test.want, got); diff != "" || err != nil {
				t.Errorf("%v (-want +got):\n%s", err, diff)
			}
		})
	}
}

func TestFrameWriterRefuses(t *testing.T) {
	w, err := NewFrameWriter(io.Discard, false, nil)
	require.NoError(t, err)
	for _, test := range []struct {
		name string
		m    Message
		want string
	}{
		{"negative time", Message{At: -1, Note: "x"}, "t: want at least 0"},
		{"negative rank", Message{Rank: -1, Note: "x"}, "rank: want"},
		{"negative elided", Message{Elided: -1, Channel: "input", Direction: "e2f"}, "elided: want"},
		{"no direction", Message{Channel: "input"}, "dir: want"},
		{"no channel", Message{Direction: "e2f"}, "ch: no channel"},
		{"a client of the handshake", Message{Channel: "handshake", Client: 1, Direction: "e2f"}, "ch: no channel"},
		{"negative client", Message{Channel: "input", Client: -1, Direction: "e2f"}, "ch: no channel"},
	} {
		t.Run(test.name, func(t *testing.T) { wantError(t, w.Write(&test.m), test.want) })
	}
	if _, err := NewFrameWriter(io.Discard, false, json.RawMessage(`{"a":`)); err == nil {
		t.Error("a meta object that is cut was taken")
	}
	require.True(t, w.Messages() == 0 && w.Write(&Message{Note: "usable"}) == nil, "the writer is not usable after refusals")
}

func TestFrameWriterFails(t *testing.T) {
	broken := errors.New("no space left on device")
	for _, gz := range []bool{false, true} {
		t.Run(fmt.Sprintf("gzip=%v", gz), func(t *testing.T) {
			w, err := NewFrameWriter(&failAfter{n: 2, err: broken}, gz, json.RawMessage(`{}`))
			require.NoError(t, err)
			m := Message{Note: "x"}
			require.NoError(t, errors.Join(w.Write(&m), w.Flush(), w.Write(&m)))
			err = w.Flush()
			var we *WriteError
			if !errors.As(err, &we) || !errors.Is(err, broken) || we.Records != 1 || !strings.Contains(err.Error(), "message 2") {
				t.Fatalf("error %v", err)
			}
			require.True(t, errors.Is(w.Write(&m), broken) && errors.Is(w.Close(), broken), "the failure is not sticky")
		})
	}
}

// failAfter fails all but its first n writes.
type failAfter struct {
	n   int
	err error
}

func (f *failAfter) Write(p []byte) (int, error) {
	if f.n--; f.n < 0 {
		return 0, f.err
	}
	return len(p), nil
}

// FuzzFrames: whatever the bytes, reading ends, errors name a line, and what was
// read writes back and reads the same.
func FuzzFrames(f *testing.F) {
	f.Add(writeFrames(f, false, `{"a":1}`, sampleMessages()...), false)
	f.Add(writeFrames(f, true, "", sampleMessages()...), true)
	f.Add([]byte(`{"t": 1, "ch": "output3", "dir": "e2f", "frames": ["AA=="], "x": null}`), false)
	f.Fuzz(func(t *testing.T, data []byte, gz bool) {
		r, got, err := readFrames(data, gz, Options{MaxBytes: 1 << 20})
		if err != nil && !strings.Contains(err.Error(), "line ") {
			t.Fatalf("the error names no line: %v", err)
		}
		if err != nil {
			return
		}
		var meta string
		if r.Meta() != nil {
			meta = string(r.Meta())
		}
		_, again, err := readFrames(writeFrames(t, gz, meta, got...), gz, Options{Strict: true})
		if diff := cmp.Diff(got, again); diff != "" || err != nil {
			t.Fatalf("%v (-first +again):\n%s", err, diff)
		}
	})
}

func rawOrNil(meta string) json.RawMessage {
	if meta == "" {
		return nil
	}
	return json.RawMessage(meta)
}
