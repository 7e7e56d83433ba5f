package kvevents

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/vllm-vcr/conformance/internal/engine/kvcache"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/internal/wire/pack"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/internal/wire/zmq"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience ends tests that hang; nothing that works comes near it.
const patience = 60 * time.Second

// A pub is a publisher and its log.
type pub struct {
	*Publisher
	t   testing.TB
	log chan string
}

func publisher(t testing.TB, profile *protocol.Profile, o Options) *pub {
	t.Helper()
	p := &pub{t: t, log: make(chan string, 1024)}
	o.Log = slog.New(slog.NewTextHandler(p, nil))
	var err error
	p.Publisher, err = New(profile, o)
	require.NoError(t, err)
	t.Cleanup(func() { p.Publisher.Close() })
	return p
}

func (p *pub) Write(line []byte) (int, error) {
	p.log <- string(line)
	return len(line), nil
}

// await waits until the log says text.
func (p *pub) await(text string) {
	p.t.Helper()
	for deadline := time.After(patience); ; {
		select {
		case line := <-p.log:
			if strings.Contains(line, text) {
				return
			}
		case <-deadline:
			p.t.Fatalf("the log does not say %q", text)
		}
	}
}

// subscribe returns a subscriber that the publisher knows of.
func (p *pub) subscribe(prefix string) *zmq.Conn {
	p.t.Helper()
	c := dial(p.t, p.Endpoint(), zmq.Sub)
	require.NoError(p.t, c.Subscribe([]byte(prefix)))
	p.await("subscribed to")
	return c
}

func dial(t testing.TB, endpoint string, typ zmq.Type) *zmq.Conn {
	t.Helper()
	c, err := zmq.Dial(t.Context(), endpoint, typ, zmq.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

func receive(t testing.TB, c *zmq.Conn) zmq.Message {
	t.Helper()
	require.NoError(t, c.SetReadDeadline(time.Now().Add(patience)))
	m, err := c.Recv()
	require.NoError(t, err)
	return m
}

// askAgain returns the answers to one who asks for the batches from start on.
func (p *pub) askAgain(start uint64) (answers [][][]byte) {
	p.t.Helper()
	c := dial(p.t, p.ReplayEndpoint(), zmq.Dealer)
	defer c.Close()
	require.NoError(p.t, c.Send([]byte{}, binary8(start)))
	return p.answers(c)
}

func (p *pub) answers(c *zmq.Conn) (answers [][][]byte) {
	p.t.Helper()
	for {
		m := receive(p.t, c)
		answers = append(answers, m)
		if len(m[len(m)-1]) == 0 {
			return answers
		}
	}
}

// stored is n events of one block each.
func stored(n int) (events []kvcache.Event) {
	for i := range n {
		tokens := make([]uint32, 16)
		for j := range tokens {
			tokens[j] = uint32(i*1000 + j)
		}
		events = append(events, kvcache.BlockStored{
			Hashes: [][]byte{bytes.Repeat([]byte{byte(i + 1)}, 32)}, Parent: bytes.Repeat([]byte{byte(i)}, 32), Tokens: tokens,
			BlockSize: 16, Keys: [][]kvcache.Key{nil},
		})
	}
	return events
}

func TestNumbers(t *testing.T) {
	p := publisher(t, profile(t, "0.33"), Options{Endpoint: "tcp://127.0.0.1:0", Topic: "kv", Rank: 2})
	publish := func(n int) {
		t.Helper()
		require.NoError(t, p.Publish(1, stored(n)))
	}
	publish(1) // nobody hears number 0
	publish(0) // and what is empty has none
	sub := p.subscribe("")
	publish(3)
	publish(2)
	for i, events := range []int{3, 2} {
		m := receive(t, sub)
		if len(m) != 3 || string(m[0]) != "kv" || !bytes.Equal(m[1], binary8(uint64(i+1))) {
			t.Errorf("frames %q, want the topic, number %d and a batch", m, i+1)
		}
		if got := bytes.Count(m[2], []byte("BlockStored")); got != events || m[2][len(m[2])-1] != 2 {
			t.Errorf("%d events, want %d; batch %x, want it to end with rank 2", got, events, m[2])
		}
	}
}

// The lines differ in what they answer to those who ask again.
func TestReplayOfLines(t *testing.T) {
	tests := []struct {
		line  string
		entry []string // frames; # stands for number and batch
		end   []string
	}{
		{line: "0.25", entry: []string{"", "#", "#"}, end: []string{"", "-1", ""}},
		{line: "0.26", entry: []string{"", "kv", "#", "#"}, end: []string{"", "", "-1", ""}},
		{line: "0.33", entry: []string{"", "kv", "#", "#"}, end: []string{"", "", "-1", ""}},
	}
	for _, tt := range tests {
		t.Run(tt.line, func(t *testing.T) {
			p := publisher(t, profile(t, tt.line), Options{
				Endpoint: "tcp://127.0.0.1:0", ReplayEndpoint: "tcp://127.0.0.1:0", Topic: "kv", BufferSteps: 4,
			})
			for n := range 10 {
				require.NoError(t, p.Publish(float64(n), stored(1)))
			}
			for _, ask := range []struct {
				start uint64
				want  []uint64
			}{
				{start: 0, want: []uint64{6, 7, 8, 9}},
				{start: 8, want: []uint64{8, 9}},
				{start: 10},
				{start: 1<<64 - 1},
			} {
				var want, got [][]string
				for _, n := range ask.want {
					want = append(want, replace(tt.entry, n))
				}
				want = append(want, replace(tt.end, 0))
				for _, m := range p.askAgain(ask.start) {
					got = append(got, abbreviate(m))
				}
				require.NoDiff(t, cmp.Diff(want, got), "from %d on (-want +got)", ask.start)
			}
		})
	}
}

// replace puts the number of a batch for each #: its frame, and its time.
func replace(frames []string, n uint64) []string {
	frames = slices.Clone(frames)
	for i, f := range frames {
		if f == "#" {
			frames[i] = fmt.Sprint(n)
		}
	}
	return frames
}

func abbreviate(m [][]byte) (texts []string) {
	for _, frame := range m {
		switch {
		case len(frame) == seqSize:
			texts = append(texts, fmt.Sprint(int64(binary.BigEndian.Uint64(frame))))
		case len(frame) > seqSize:
			text, _, _ := strings.Cut(strings.TrimPrefix(pack.Format(frame), "["), ".0,")
			texts = append(texts, text)
		default:
			texts = append(texts, string(frame))
		}
	}
	return texts
}

// What is no request is told and answered by nothing; the asker may go on.
func TestAskersMistakes(t *testing.T) {
	tests := []struct {
		name   string
		frames zmq.Message
		start  int // of the answers; -1 for none
	}{
		{name: "one frame", frames: zmq.Message{binary8(0)}, start: -1},
		{name: "no empty frame", frames: zmq.Message{[]byte("x"), binary8(0)}, start: -1},
		{name: "three frames", frames: zmq.Message{{}, binary8(0), {}}, start: -1},
		{name: "no number", frames: zmq.Message{{}, {}}, start: 0},
		{name: "one byte", frames: zmq.Message{{}, {2}}, start: 2},
		{name: "ten bytes", frames: zmq.Message{{}, {0, 0, 0, 0, 0, 0, 0, 0, 0, 1}}, start: 1},
		{name: "a number too large", frames: zmq.Message{{}, {1, 0, 0, 0, 0, 0, 0, 0, 0}}, start: 3},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			// Its own, as one publisher logs only the first of several refusals at once.
			p := publisher(t, profile(t, "0.33"), Options{Endpoint: "tcp://127.0.0.1:0", ReplayEndpoint: "tcp://127.0.0.1:0"})
			for range 3 {
				require.NoError(t, p.Publish(0, stored(1)))
			}
			c := dial(t, p.ReplayEndpoint(), zmq.Dealer)
			require.NoError(t, c.Send(tt.frames...))
			if tt.start < 0 {
				p.await("request for KV events ignored")
				require.NoError(t, c.Send([]byte{}, binary8(1)))
				tt.start = 1
			}
			if got := len(p.answers(c)); got != 3-tt.start+1 {
				t.Errorf("%d answers, want %d batches and the end", got, 3-tt.start)
			}
		})
	}
}

// One who asks for much and does not read holds up neither others nor Close.
func TestSlowAsker(t *testing.T) {
	p := publisher(t, profile(t, "0.33"), Options{Endpoint: "tcp://127.0.0.1:0", ReplayEndpoint: "tcp://127.0.0.1:0"})
	events := stored(1000)
	for range 300 {
		require.NoError(t, p.Publish(0, events))
	}
	slow := dial(t, p.ReplayEndpoint(), zmq.Dealer)
	require.NoError(t, slow.Send([]byte{}, binary8(0)))
	receive(t, slow)
	require.Equal(t, len(p.askAgain(299)), 2, "answers: a batch and the end")
	require.NoError(t, p.Close())
	require.ErrorIs(t, p.Publish(0, events), net.ErrClosed)
}

// Closed with a linger, nothing that was published is lost.
func TestCloseLingers(t *testing.T) {
	p := publisher(t, profile(t, "0.33"), Options{Endpoint: "tcp://127.0.0.1:0", Linger: patience})
	sub := p.subscribe("")
	events := stored(1000)
	go func() {
		for range 50 {
			if err := p.Publish(0, events); err != nil {
				t.Error(err)
			}
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}()
	for n := range uint64(50) {
		if m := receive(t, sub); !bytes.Equal(m[1], binary8(n)) {
			t.Fatalf("batch %x, want %d", m[1], n)
		}
	}
	if _, err := sub.Recv(); !errors.Is(err, io.EOF) {
		t.Errorf("after the last: %v", err)
	}
}

// An engine whose endpoint names a host dials whoever listens there.
func TestDials(t *testing.T) {
	gate, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer gate.Close()
	endpoint := "tcp://" + gate.Addr().String()
	p := publisher(t, profile(t, "0.33"), Options{Endpoint: endpoint})
	if p.Endpoint() != endpoint || p.Config().Endpoint != endpoint {
		t.Errorf("endpoint %s, reported %s, want %s", p.Endpoint(), p.Config().Endpoint, endpoint)
	}
	c, err := gate.Accept()
	require.NoError(t, err)
	defer c.Close()
	greeting := make([]byte, 10)
	if _, err := io.ReadFull(c, greeting); err != nil || greeting[0] != 0xff || greeting[9] != 0x7f {
		t.Errorf("greeting %x: %v", greeting, err)
	}
}

func TestConfig(t *testing.T) {
	dir, err := os.MkdirTemp("", "kv")
	require.NoError(t, err)
	defer os.RemoveAll(dir)
	socket := "ipc://" + filepath.Join(dir, "s")
	text := func(s string) *string { return &s }
	tests := []struct {
		name string
		o    Options
		want protocol.KVEventsConfig
	}{
		{
			name: "all defaults but the endpoint", o: Options{Endpoint: socket},
			want: protocol.KVEventsConfig{Endpoint: socket, BufferSteps: 10_000, HWM: 100_000, MaxQueueSize: 100_000},
		},
		{
			name: "all set",
			o: Options{
				Endpoint: "tcp://*:0", ReplayEndpoint: "tcp://127.0.0.1:0", BufferSteps: 1, HWM: 2, MaxQueueSize: 3, Topic: "kv@p@m", Rank: 7,
			},
			want: protocol.KVEventsConfig{
				Endpoint: "tcp://" + nodeIP() + ":#", ReplayEndpoint: text("tcp://127.0.0.1:#"), BufferSteps: 1, HWM: 2, MaxQueueSize: 3, Topic: "kv@p@m",
			},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := publisher(t, profile(t, "0.33"), tt.o)
			got := p.Config()
			got.Endpoint = hidePort(t, got.Endpoint)
			if got.ReplayEndpoint != nil {
				got.ReplayEndpoint = text(hidePort(t, *got.ReplayEndpoint))
			}
			tt.want.Enable, tt.want.Publisher = true, "zmq"
			require.NoDiff(t, cmp.Diff(&tt.want, got), "(-want +got)")
			dial(t, p.Endpoint(), zmq.Sub)
		})
	}
}

// hidePort puts # for the port, which is none that was asked for.
func hidePort(t *testing.T, endpoint string) string {
	t.Helper()
	if !strings.HasPrefix(endpoint, "tcp://") {
		return endpoint
	}
	at := strings.LastIndexByte(endpoint, ':')
	if port := endpoint[at+1:]; port == "0" || port == "*" {
		t.Errorf("endpoint %s: no port", endpoint)
	}
	return endpoint[:at] + ":#"
}

func TestEndpoints(t *testing.T) {
	tests := []struct {
		name, endpoint string
		rank           int
		want, err      string
		binds          bool
	}{
		{name: "rank 0", endpoint: "tcp://*:5557", want: "tcp://*:5557", binds: true},
		{name: "rank 3", endpoint: "tcp://*:5557", rank: 3, want: "tcp://*:5560", binds: true},
		{name: "any port", endpoint: "tcp://*:0", rank: 3, want: "tcp://*:0", binds: true},
		{name: "any port of an address", endpoint: "tcp://10.0.0.1:0", want: "tcp://10.0.0.1:0", binds: true},
		{name: "all of IPv6", endpoint: "tcp://[::]:5557", rank: 1, want: "tcp://[::]:5558", binds: true},
		{name: "a host", endpoint: "tcp://indexer:5557", rank: 1, want: "tcp://indexer:5558"},
		{name: "a path", endpoint: "ipc:///run/kv", want: "ipc:///run/kv", binds: true},
		{name: "a path of two", endpoint: "ipc:///run/kv", rank: 1, err: "rank 1 needs one of its own"},
		{name: "no port", endpoint: "tcp://host", rank: 1, err: "with a number for data-parallel rank 1"},
		{name: "ports at an end", endpoint: "tcp://*:65535", rank: 1, err: "no port 65536"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := protocol.KVEventsOfRank(tt.endpoint, tt.rank)
			if tt.err != "" {
				require.ErrorContains(t, err, tt.err, tt.endpoint)
				return
			}
			if err != nil || got != tt.want || Binds(got) != tt.binds {
				t.Errorf("%s, bound: %v, %v; want %s, %v", got, Binds(got), err, tt.want, tt.binds)
			}
		})
	}
}

func TestMistakes(t *testing.T) {
	taken := publisher(t, profile(t, "0.33"), Options{Endpoint: "tcp://127.0.0.1:0"})
	// A replay endpoint is always bound.
	tests := []struct {
		name, text string
		o          Options
		change     func(*protocol.Profile)
	}{
		{name: "no scheme", o: Options{Endpoint: "5557"}, text: "want tcp://"},
		{name: "negative", o: Options{HWM: -1}, text: "hwm -1"},
		{name: "a port that is taken", o: Options{Endpoint: "tcp://127.0.0.1:0", ReplayEndpoint: taken.Endpoint()}, text: taken.Endpoint()},
		{name: "a replay endpoint of no rank", o: Options{Endpoint: "tcp://127.0.0.1:0", ReplayEndpoint: "ipc:///x", Rank: 1}, text: "rank 1"},
		{name: "a batch of more", text: "KVEventBatch", change: func(p *protocol.Profile) {
			s := p.Structs["KVEventBatch"]
			s.Fields = append(slices.Clone(s.Fields), protocol.Field{Name: "more"})
			p.Structs["KVEventBatch"] = s
		}},
		{name: "a field that must be there", text: "BlockRemoved.why is required", change: func(p *protocol.Profile) {
			s := p.Structs["BlockRemoved"]
			s.Fields = append(slices.Clone(s.Fields), protocol.Field{Name: "why", Required: true})
			p.Structs["BlockRemoved"] = s
		}},
		{name: "no event", text: "no struct BlockStored", change: func(p *protocol.Profile) { delete(p.Structs, "BlockStored") }},
		{name: "no frames", text: `the frames of "KV events"`, change: func(p *protocol.Profile) { delete(p.Messages, "KV events") }},
		{name: "another frame", text: `frame 3 of "KV events" is signature`, change: func(p *protocol.Profile) {
			m := p.Messages["KV events"]
			m.Keys = append(slices.Clone(m.Keys), protocol.Key{Name: "signature"})
			p.Messages["KV events"] = m
		}},
		{
			name: "no answers", text: `the frames of "KV events replay"`, o: Options{Endpoint: "tcp://127.0.0.1:0", ReplayEndpoint: "tcp://127.0.0.1:0"},
			change: func(p *protocol.Profile) { delete(p.Messages, "KV events replay") },
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			profile := profile(t, "0.33")
			if tt.change != nil {
				tt.change(profile)
			}
			if _, err := New(profile, tt.o); err == nil || !strings.Contains(err.Error(), tt.text) {
				t.Errorf("%v, want %q", err, tt.text)
			}
		})
	}
}

// Every line's profile says all that is needed, and a line of arrays would too.
func TestAllLines(t *testing.T) {
	for _, line := range protocol.Lines() {
		t.Run(line, func(t *testing.T) {
			p := publisher(t, profile(t, line), Options{Endpoint: "tcp://127.0.0.1:0", ReplayEndpoint: "tcp://127.0.0.1:0"})
			require.NoError(t, p.Publish(1, stored(1)))
			text := pack.Format(p.scratch[seqSize:])
			for _, want := range []string{`"type": "BlockStored"`, `"group_idx": 0`, `"medium": "GPU"`, `"extra_keys": [nil]`, `"lora_name": nil`} {
				require.Contains(t, text, want)
			}
		})
	}
	arrays := profile(t, "0.25")
	for _, name := range []string{"BlockStored", "BlockRemoved", "AllBlocksCleared"} {
		s := arrays.Structs[name]
		s.Encoding = "array"
		arrays.Structs[name] = s
	}
	c, err := newCodec(arrays, Options{Digests: true})
	require.NoError(t, err)
	b := c.appendBatch(nil, 1, []kvcache.Event{
		kvcache.BlockStored{Hashes: [][]byte{{1}}, Tokens: []uint32{7}, BlockSize: 1, Keys: [][]kvcache.Key{nil}},
		kvcache.BlockRemoved{Hash: []byte{2}},
		kvcache.AllBlocksCleared{},
	})
	want := `[1.0, [["BlockStored", [bin(1 byte)], nil, [7], 1, nil, "GPU", nil, [nil], 0, "full_attention", nil], ` +
		`["BlockRemoved", [bin(1 byte)], "GPU", 0], ["AllBlocksCleared"]], 0]`
	require.NoDiff(t, cmp.Diff(want, pack.Format(b)), "arrays (-want +got)")
}
