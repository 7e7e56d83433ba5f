package recorder

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/vllm-vcr/conformance/internal/frontends/coreclient"
	"github.com/vllm-vcr/conformance/internal/testenv"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/internal/wire/pack"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/internal/wire/zmq"
	"github.com/vllm-vcr/conformance/player"
	"github.com/vllm-vcr/conformance/trace"
)

// tapPatience ends tests that hang; nothing that works comes near it.
const tapPatience = 60 * time.Second

// A running tap, and how it ended.
type running struct {
	t      *testing.T
	cancel context.CancelFunc
	done   chan struct{}
	sum    Summary
	err    error
	engine string // what the engine dials
	dir    string
}

// freeEndpoint is a port that was free a moment ago.
func freeEndpoint(t *testing.T) string {
	return fmt.Sprintf("tcp://127.0.0.1:%d", testenv.FreePort(t))
}

// noLeaks fails a test that leaves a goroutine behind. Called first, it looks last.
func noLeaks(t *testing.T) {
	t.Helper()
	existing := goleak.IgnoreCurrent()
	t.Cleanup(func() { goleak.VerifyNone(t, existing) })
}

// startTap runs a tap before frontendAddress with all outputs.
func startTap(t *testing.T, frontendAddress string, change func(*Config)) *running {
	t.Helper()
	r := &running{t: t, done: make(chan struct{}), engine: freeEndpoint(t), dir: t.TempDir()}
	cfg := Config{
		Frontend: frontendAddress, Listen: r.engine, HandshakeTimeout: tapPatience,
		Observe: Options{RecordTokens: true, RecordPrompts: true, Model: "tiny"},
		Trace:   Destination{Path: r.path("run.jsonl.gz")},
		Steps:   Destination{Path: r.path("steps.jsonl")},
		Frames:  Destination{Path: r.path("frames.jsonl.gz")},
	}
	if change != nil {
		change(&cfg)
	}
	ctx, cancel := context.WithCancel(context.Background())
	r.cancel = cancel
	go func() {
		defer close(r.done)
		r.sum, r.err = Run(ctx, cfg)
	}()
	t.Cleanup(func() { r.cancel(); <-r.done })
	return r
}

func (r *running) path(name string) string { return filepath.Join(r.dir, name) }

// end waits for the tap to end by itself.
func (r *running) end() error {
	r.t.Helper()
	select {
	case <-r.done:
	case <-time.After(tapPatience):
		r.t.Fatal("the tap did not end")
	}
	return r.err
}

// stop ends the tap, and fails the test if its recording is not whole.
func (r *running) stop() {
	r.t.Helper()
	r.cancel()
	require.NoError(r.t, r.end())
}

// fails waits for the tap to end by an error with all these words.
func (r *running) fails(words ...string) {
	r.t.Helper()
	require.ErrorContains(r.t, r.end(), words...)
}

// recorded checks how many records the trace has.
func (r *running) recorded(want int) {
	r.t.Helper()
	if n := countRecords(r.t, r.path("run.jsonl.gz")); n != want {
		r.t.Errorf("%d records, want %d", n, want)
	}
}

// noted checks that the frames file has one note, with this text.
func (r *running) noted(text string) {
	r.t.Helper()
	var notes []string
	for _, m := range readFrames(r.t, r.path("frames.jsonl.gz")) {
		if m.Note != "" {
			notes = append(notes, m.Note)
		}
	}
	if len(notes) != 1 || !strings.Contains(notes[0], text) {
		r.t.Errorf("notes %q, want one with %q", notes, text)
	}
}

func patient(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), tapPatience)
	t.Cleanup(cancel)
	return ctx
}

// codec is that of the line the tests speak.
func codec(t *testing.T) *protocol.Codec {
	t.Helper()
	c, err := protocol.CodecFor("0.33")
	require.NoError(t, err)
	return c
}

// startPlayer runs an engine until the test ends.
func startPlayer(t *testing.T, opt player.Options) (ended <-chan error, stop func()) {
	t.Helper()
	opt.Codec, opt.VLLMVersion = codec(t), "v0.33.0"
	p, err := player.New(opt)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	end := make(chan error, 1)
	go func() { end <- p.Run(ctx); close(end) }()
	t.Cleanup(func() {
		cancel()
		for range end { //nolint:revive // until it has ended
		}
	})
	return end, cancel
}

func listenFrontend(t *testing.T, clients int) *coreclient.Frontend {
	t.Helper()
	f, err := coreclient.Listen(coreclient.Options{Codec: codec(t), Clients: clients})
	require.NoError(t, err)
	t.Cleanup(func() { f.Close() })
	return f
}

func accept(t *testing.T, f *coreclient.Frontend) {
	t.Helper()
	_, err := f.Accept(patient(t))
	require.NoError(t, err)
}

// startPlayed is a tap between a frontend and the player.
func startPlayed(t *testing.T, clients int, change func(*Config)) (*coreclient.Frontend, *running) {
	t.Helper()
	f := listenFrontend(t, clients)
	tap := startTap(t, f.Handshake(), change)
	startPlayer(t, player.Options{Handshake: tap.engine})
	accept(t, f)
	return f, tap
}

func tapRequest(client int, id string, prompt []uint32, n int) *protocol.Request {
	return &protocol.Request{
		ID: id, PromptTokenIDs: prompt, ClientIndex: client, DataParallelRank: -1, HasSampling: true,
		Sampling: protocol.Sampling{
			MaxTokens: n, HasMaxTokens: true, IgnoreEOS: true, EOSTokenID: -1,
			Logprobs: protocol.NoLogprobs, PromptLogprobs: protocol.NoLogprobs,
		},
	}
}

// oneToken is the whole answer of an engine to a request for one token.
func oneToken(t *testing.T, rank int, id string) []byte {
	t.Helper()
	batch := codec(t).NewBatch(rank)
	stream := codec(t).NewStream(tapRequest(0, id, []uint32{7}, 1))
	err := batch.Add(stream, &protocol.Output{Tokens: []uint32{5}, Finish: protocol.FinishLength, Prefill: &protocol.PrefillStats{}})
	require.NoError(t, err)
	msg, err := batch.Finish(nil, 1)
	require.NoError(t, err)
	return bytes.Clone(msg[0])
}

// ask sends a request and reads its answer to the end.
func ask(t *testing.T, f *coreclient.Frontend, client int, id string, prompt []uint32, n int) []uint32 {
	t.Helper()
	require.NoError(t, f.Submit(tapRequest(client, id, prompt, n)))
	var said []uint32
	var out protocol.Outputs
	for {
		if _, err := f.Next(patient(t), client, &out); err != nil {
			t.Fatal(err)
		}
		for _, o := range out.Outputs {
			said = append(said, o.Tokens...)
			if o.Finish != protocol.Unfinished {
				return said
			}
		}
	}
}

func TestTapBetweenFrontendAndPlayer(t *testing.T) {
	noLeaks(t)
	for _, clients := range []int{1, 3} {
		t.Run(fmt.Sprintf("clients=%d", clients), func(t *testing.T) {
			f, tap := startPlayed(t, clients, func(c *Config) { c.Observe.VLLMVersion = "v0.33.0" })
			want := map[string][]uint32{}
			for i := range 9 {
				id := fmt.Sprintf("r-%d", i)
				want[id] = ask(t, f, i%clients, id, []uint32{1, 2, 3, uint32(i)}, 5+i)
			}
			tap.stop()
			got, err := trace.Read(tap.path("run.jsonl.gz"), trace.Options{Strict: true, KeepExtra: true})
			require.NoError(t, err)
			if len(got.Records) != len(want) {
				t.Fatalf("%d records, want %d", len(got.Records), len(want))
			}
			for _, rec := range got.Records {
				id := strings.Trim(string(rec.Extra["request_id"]), `"`)
				if fmt.Sprint(rec.OutputTokenIDs) != fmt.Sprint(want[id]) {
					t.Errorf("%s: recorded %v, said %v", id, rec.OutputTokenIDs, want[id])
				}
			}
		})
	}
}

// TestTapOfAddresses: a frontend that gives its engine addresses, a tap that gives it its own, and an engine that makes no handshake.
func TestTapOfAddresses(t *testing.T) {
	noLeaks(t)
	f := listenFrontend(t, 1)
	f.WithoutHandshake()
	inputs, outputs := f.Addresses()
	dir := t.TempDir()
	mine := [2]string{"ipc://" + filepath.Join(dir, "in"), "ipc://" + filepath.Join(dir, "out")}
	tap := startTap(t, "", func(c *Config) {
		c.FrontendAddresses, c.EngineAddresses = [2]string{inputs[0], outputs[0]}, mine
	})
	startPlayer(t, player.Options{EngineIndex: 1, InputAddresses: mine[:1], OutputAddresses: mine[1:]})
	engine, err := f.Accept(patient(t))
	require.NoError(t, err)
	require.True(t, engine.Index == 1 && len(engine.Statuses) == 0, "engine %d with %d statuses, want 1 without", engine.Index, len(engine.Statuses))
	ask(t, f, 0, "r", []uint32{1, 2, 3}, 5)
	tap.stop()
	require.Equal(t, countRecords(t, RankPath(tap.path("run.jsonl.gz"), 1)), 1, "records")
}

// rawFrontend is a frontend for one engine of which the test writes every frame.
type rawFrontend struct {
	shake, in, out *zmq.Listener
	coordinator    protocol.Addresses // of which only the coordinator's are used
	outAt          string             // instead of out
	strangers      func(told protocol.Addresses)
	identity       []byte
}

func newRawFrontend(t *testing.T) *rawFrontend {
	t.Helper()
	listen := func(typ zmq.Type) *zmq.Listener {
		l, err := zmq.Listen("tcp://127.0.0.1:0", typ, zmq.Options{})
		require.NoError(t, err)
		t.Cleanup(func() { l.Close() })
		return l
	}
	return &rawFrontend{shake: listen(zmq.Router), in: listen(zmq.Router), out: listen(zmq.Pull)}
}

// startRaw is a tap between such a frontend and such an engine.
func startRaw(t *testing.T, change func(*Config)) (*rawFrontend, *running, *rawEngine) {
	t.Helper()
	f := newRawFrontend(t)
	tap := startTap(t, f.shake.Endpoint(), change)
	return f, tap, f.dialRaw(t, tap.engine, 0)
}

func (f *rawFrontend) addresses() protocol.Addresses {
	return protocol.Addresses{Inputs: []string{f.in.Endpoint()}, Outputs: []string{f.out.Endpoint()}}
}

// next is the next message on l.
func next(t *testing.T, l *zmq.Listener) zmq.Delivery {
	t.Helper()
	for {
		d, err := l.Recv(patient(t))
		require.NoError(t, err)
		if d.Kind == zmq.Received {
			return d
		}
	}
}

// rawEngine is an engine of which the test writes every frame.
type rawEngine struct {
	shake, in, out *zmq.Conn
	told           protocol.Addresses // by the tap
}

func (e *rawEngine) hangUp() {
	for _, c := range []*zmq.Conn{e.in, e.out, e.shake} {
		c.Close()
	}
}

// dialRaw shakes hands through the tap at endpoint with everything that is optional or
// unknown in it, and returns what the frontend saw.
func (f *rawFrontend) dialRaw(t *testing.T, endpoint string, index int) *rawEngine {
	t.Helper()
	registration := codec(t).AppendReady(nil, ptr(protocol.DefaultReady("0.33.0")))
	ctx := patient(t)
	id := protocol.Identity(index)
	dial := func(endpoint string, typ zmq.Type) *zmq.Conn {
		c, err := zmq.Dial(ctx, endpoint, typ, zmq.Options{Identity: id})
		require.NoError(t, err)
		t.Cleanup(func() { c.Close() })
		return c
	}
	e := &rawEngine{shake: dial(endpoint, zmq.Dealer)}
	hello := protocol.EngineHandshake{ParallelConfigHash: "abc"}.Hello()
	mustSend(t, e.shake, hello)
	d := next(t, f.shake)
	if !bytes.Equal(d.Message[0], hello) || !bytes.Equal(d.Peer.Identity, id) {
		t.Fatalf("the frontend heard %x of %x", d.Message, d.Peer.Identity)
	}
	f.identity = d.Peer.Identity
	addresses := f.coordinator
	addresses.Inputs, addresses.Outputs = []string{f.in.Endpoint()}, []string{cmp.Or(f.outAt, f.out.Endpoint())}
	require.NoError(t, f.shake.Send(id, protocol.AppendInit(nil, addresses)))
	answer, err := e.shake.Recv()
	require.NoError(t, err)
	a, err := protocol.DecodeInit(answer[0])
	require.NoError(t, err)
	if a.Inputs[0] == f.in.Endpoint() || a.Outputs[0] == f.out.Endpoint() {
		t.Fatal("the engine was told the frontend's own addresses")
	}
	e.told = a
	if f.strangers != nil {
		f.strangers(a)
	}
	e.in, e.out = dial(a.Inputs[0], zmq.Dealer), dial(a.Outputs[0], zmq.Push)
	mustSend(t, e.in, registration)
	if got := next(t, f.in).Message[0]; !bytes.Equal(got, registration) {
		t.Fatalf("registration %x, want %x", got, registration)
	}
	ready := protocol.EngineHandshake{ParallelConfigHash: "abc"}.Ready()
	mustSend(t, e.shake, ready)
	if got := next(t, f.shake).Message[0]; !bytes.Equal(got, ready) {
		t.Fatalf("READY %x, want %x", got, ready)
	}
	return e
}

func mustSend(t *testing.T, c *zmq.Conn, frames ...[]byte) {
	t.Helper()
	require.NoError(t, c.Send(frames...))
}

func ptr[T any](v T) *T { return &v }

func TestTapForwardsVerbatim(t *testing.T) {
	noLeaks(t)
	size := 10 << 20
	if testing.Short() {
		size = 1 << 20
	}
	big := make([]byte, size)
	_, _ = rand.Read(big)
	messages := []zmq.Message{
		{{0}, []byte("no msgpack at all \xc1\xff")},
		{{0}, {}, {}, big[:300]},
		{{9}, big[:1], big, big[1 : size/2], []byte("tail")},
		{{}, {}},
		{[]byte("one frame")},
		{[]byte(protocol.EngineDead)},
	}
	f, tap, e := startRaw(t, nil)
	for i, msg := range messages {
		// A large message fills what lies between: it is sent while it is received.
		sent := make(chan error, 2)
		go func() { sent <- f.in.Send(f.identity, msg...) }()
		go func() { sent <- e.out.Send(msg...) }()
		got, err := e.in.Recv()
		require.NoError(t, err)
		same(t, fmt.Sprintf("message %d to the engine", i), got, msg)
		same(t, fmt.Sprintf("message %d to the frontend", i), next(t, f.out).Message, msg)
		require.NoError(t, errors.Join(<-sent, <-sent))
	}
	e.hangUp()
	err := tap.end()
	require.ErrorContains(t, err, "ENGINE_CORE_DEAD")
	if got := tap.sum.Stats.Undecodable; got < 8 {
		t.Errorf("%d messages reported as undecodable, of about 10", got)
	}
	// The raw frames hold all of it.
	seen := readFrames(t, tap.path("frames.jsonl.gz"))
	want := 4 + 2*len(messages) + 1 // and HELLO, INIT, the registration, READY; the hang-up
	require.True(t, len(seen) == want, "%d messages in the frames file, want %d", len(seen), want)
	for _, direction := range []string{trace.FrontendToEngine, trace.EngineToFrontend} {
		for i, msg := range messages {
			if !slices.ContainsFunc(seen, func(m trace.Message) bool {
				return m.Direction == direction && slices.EqualFunc(m.Frames, msg, bytes.Equal)
			}) {
				t.Errorf("message %d (%v) is not in the frames file as it was", i, direction)
			}
		}
	}
}

func same(t *testing.T, what string, got, want zmq.Message) {
	t.Helper()
	if len(got) != len(want) {
		t.Errorf("%s: %d frames, want %d", what, len(got), len(want))
		return
	}
	for i := range got {
		if !bytes.Equal(got[i], want[i]) {
			t.Errorf("%s: frame %d of %d bytes differs, want %d bytes", what, i, len(got[i]), len(want[i]))
		}
	}
}

func readFrames(t *testing.T, path string) []trace.Message {
	t.Helper()
	r, err := trace.OpenFrames(path, trace.Options{Strict: true})
	require.NoError(t, err)
	defer r.Close()
	var all []trace.Message
	for {
		var m trace.Message
		if err := r.Next(&m); err != nil {
			return all
		}
		for i, frame := range m.Frames { // valid until the next call
			m.Frames[i] = bytes.Clone(frame)
		}
		all = append(all, m)
	}
}

func TestTapGuardsTheLine(t *testing.T) {
	noLeaks(t)
	f := newRawFrontend(t)
	tap := startTap(t, f.shake.Endpoint(), func(c *Config) { c.Observe.VLLMVersion = "v0.32.1" })
	ctx := patient(t)
	go func() {
		for {
			d, err := f.shake.Recv(ctx)
			if err != nil {
				return
			}
			if d.Kind == zmq.Received {
				_ = f.shake.Send(d.Peer.Identity, protocol.AppendInit(nil,
					f.addresses()))
			}
		}
	}()
	startPlayer(t, player.Options{Handshake: tap.engine, HandshakeTimeout: tapPatience})
	var mismatch *LineError
	if err := tap.end(); !errors.As(err, &mismatch) {
		t.Fatalf("error %v, want a line mismatch", err)
	}
	if want := (&LineError{Want: "v0.32.1", Got: "0.33.0"}); *mismatch != *want {
		t.Errorf("got %+v, want %+v", mismatch, want)
	}
	// Nothing of it has reached the frontend.
	for range 2 { // the connection came and went
		d, err := f.in.Recv(ctx)
		require.NoError(t, err)
		require.True(t, d.Kind != zmq.Received, "the frontend was sent %x", d.Message)
	}
}

// lines are what was written, line by line.
type lines chan string

func (l lines) Write(p []byte) (int, error) {
	l <- string(p)
	return len(p), nil
}

func TestTapWithoutPeers(t *testing.T) {
	noLeaks(t)
	short := func(c *Config) { c.HandshakeTimeout = 100 * time.Millisecond }
	t.Run("no engine", func(t *testing.T) {
		tap := startTap(t, freeEndpoint(t), short)
		tap.fails("no engine sent HELLO to " + tap.engine)
	})
	t.Run("no frontend", func(t *testing.T) {
		tap := startTap(t, freeEndpoint(t), short)
		startPlayer(t, player.Options{Handshake: tap.engine, HandshakeTimeout: tapPatience})
		tap.fails("engine 0: the frontend's handshake: connect to tcp://")
	})
	t.Run("an engine that never registers", func(t *testing.T) {
		f := newRawFrontend(t)
		tap := startTap(t, f.shake.Endpoint(), func(c *Config) { c.HandshakeTimeout = 500 * time.Millisecond })
		e, err := zmq.Dial(patient(t), tap.engine, zmq.Dealer, zmq.Options{Identity: protocol.Identity(0)})
		require.NoError(t, err)
		defer e.Close()
		mustSend(t, e, protocol.EngineHandshake{}.Hello())
		next(t, f.shake)
		init := protocol.AppendInit(nil, f.addresses())
		require.NoError(t, f.shake.Send(protocol.Identity(0), init))
		tap.fails("the engine did not connect its", "the handshake took more than 500ms")
	})
	t.Run("an engine that leaves before it registers", func(t *testing.T) {
		f := newRawFrontend(t)
		logged := make(lines, 100)
		tap := startTap(t, f.shake.Endpoint(), func(c *Config) { c.Log = slog.New(slog.NewTextHandler(logged, nil)) })
		e, err := zmq.Dial(patient(t), tap.engine, zmq.Dealer, zmq.Options{Identity: protocol.Identity(0)})
		require.NoError(t, err)
		mustSend(t, e, protocol.EngineHandshake{}.Hello())
		next(t, f.shake)
		init := protocol.AppendInit(nil, f.addresses())
		require.NoError(t, f.shake.Send(protocol.Identity(0), init))
		_, err = e.Recv()
		require.NoError(t, err)
		e.Close()
		for line := range logged {
			if strings.Contains(line, "the engine closed the handshake before it was ready") {
				break
			}
		}
		tap.cancel()
	})
	for _, stage := range []string{"before the engine", "before the frontend"} {
		t.Run("told to end "+stage, func(t *testing.T) {
			tap := startTap(t, freeEndpoint(t), nil)
			if stage == "before the frontend" {
				startPlayer(t, player.Options{Handshake: tap.engine, HandshakeTimeout: tapPatience})
			}
			tap.stop()
		})
	}
}

func TestTapSeesHangUps(t *testing.T) {
	noLeaks(t)
	t.Run("frontend, idle", func(t *testing.T) {
		f, tap := startPlayed(t, 1, nil)
		ask(t, f, 0, "a", []uint32{1}, 3)
		f.Close()
		require.NoErrorf(t, tap.end(), "error: want none: nothing was lost")
		tap.recorded(1)
		tap.noted("the frontend hung up")
	})
	t.Run("frontend, without reading all", func(t *testing.T) {
		f := newRawFrontend(t)
		out, err := zmq.OpenGate("tcp://127.0.0.1:0", zmq.Pull, zmq.Options{}, nil)
		require.NoError(t, err)
		defer out.Close()
		f.outAt = out.Endpoint()
		tap := startTap(t, f.shake.Endpoint(), nil)
		e := f.dialRaw(t, tap.engine, 0)
		pull, err := out.Accept(patient(t))
		require.NoError(t, err)
		mustSend(t, e.out, oneToken(t, 0, "read"), []byte("unread"))
		if _, err := pull.Recv(); err != nil {
			t.Fatal(err)
		}
		mustSend(t, e.out, make([]byte, 1<<20)) // more than is read ahead
		pull.Close()                            // with input unread, which the kernel tells as a reset
		require.NoErrorf(t, tap.end(), "error: want none: no request was in flight")
		tap.noted("the frontend hung up")
	})
	t.Run("engine, with a request in flight", func(t *testing.T) {
		f, tap, e := startRaw(t, nil)
		require.NoError(t, f.in.Send(f.identity, []byte{protocol.TypeAdd}, codec(t).AppendRequest(nil, tapRequest(0, "a", []uint32{1}, 5))))
		_, err := e.in.Recv()
		require.NoError(t, err)
		e.hangUp()
		tap.fails("requests in flight at the end, which are not in the recording: 1")
		tap.noted("the engine hung up")
	})
}

func countRecords(t *testing.T, path string) int {
	t.Helper()
	tr, err := trace.Read(path, trace.Options{})
	require.NoError(t, err)
	return len(tr.Records)
}

func TestTapKeepsEnginesApart(t *testing.T) {
	noLeaks(t)
	f := newRawFrontend(t)
	tap := startTap(t, f.shake.Endpoint(), nil)
	engines := []*rawEngine{
		f.dialRaw(t, tap.engine, 0),
		f.dialRaw(t, tap.engine, 3),
	}
	for i, rank := range []int{0, 3} {
		for k := range i + 1 { // one request to engine 0, two to engine 3
			id := fmt.Sprintf("r%d-%d", rank, k)
			require.NoError(t, f.in.Send(protocol.Identity(rank), []byte{protocol.TypeAdd}, codec(t).AppendRequest(nil, tapRequest(0, id, []uint32{7}, 1))))
			if _, err := engines[i].in.Recv(); err != nil {
				t.Fatal(err)
			}
			mustSend(t, engines[i].out, oneToken(t, rank, id))
			next(t, f.out)
		}
	}
	tap.stop()
	for i, path := range []string{"run.jsonl.gz", "run.rank3.jsonl.gz"} {
		if n := countRecords(t, tap.path(path)); n != i+1 {
			t.Errorf("%s: %d records, want %d", path, n, i+1)
		}
	}
	require.Equal(t, len(readFrames(t, tap.path("frames.rank3.jsonl.gz"))), 8, "messages of engine 3: HELLO, INIT, registration, READY, two requests and their answers")
}

func TestTapRecordsNothingButForwards(t *testing.T) {
	noLeaks(t)
	f, tap := startPlayed(t, 1, func(c *Config) { c.Trace.Path = "/dev/full" })
	if got := ask(t, f, 0, "a", []uint32{1}, 20); len(got) != 20 {
		t.Errorf("%d tokens came through, want 20", len(got))
	}
	tap.cancel()
	tap.fails("no space left on device")
	require.Equal(t, tap.sum.Stats.Done, 1, "requests seen")
}

func TestTapRelaysTheCoordinator(t *testing.T) {
	noLeaks(t)
	f := newRawFrontend(t)
	in, err := zmq.OpenGate("tcp://127.0.0.1:0", zmq.XPub, zmq.Options{}, nil)
	require.NoError(t, err)
	defer in.Close()
	out, err := zmq.Listen("tcp://127.0.0.1:0", zmq.Pull, zmq.Options{})
	require.NoError(t, err)
	defer out.Close()
	f.coordinator = protocol.Addresses{
		CoordinatorInput: ptr(in.Endpoint()), CoordinatorOutput: ptr(out.Endpoint()), FrontendStatsPublish: ptr("tcp://127.0.0.1:9"),
	}
	tap := startTap(t, f.shake.Endpoint(), nil)
	var told []protocol.Addresses
	for rank := range 2 {
		e := f.dialRaw(t, tap.engine, rank)
		told = append(told, e.told)
		sub, err := zmq.DialAs(patient(t), *e.told.CoordinatorInput, zmq.Peer{Type: zmq.XSub}, zmq.Options{})
		require.NoError(t, err)
		defer sub.Close()
		pub, err := in.Accept(patient(t))
		require.NoError(t, err)
		defer pub.Close()
		if pub.Peer().Type != zmq.XSub {
			t.Errorf("the coordinator sees a %s", pub.Peer())
		}
		push, err := zmq.DialAs(patient(t), *e.told.CoordinatorOutput, zmq.Peer{Type: zmq.Push}, zmq.Options{})
		require.NoError(t, err)
		defer push.Close()

		mustSend(t, sub, []byte{1}) // subscribes to everything
		if got, err := pub.Recv(); err != nil || string(got[0]) != "\x01" {
			t.Errorf("the coordinator got %q, %v", got, err)
		}
		mustSend(t, pub, []byte("READY"))
		if got, err := sub.Recv(); err != nil || string(got[0]) != "READY" {
			t.Errorf("the engine got %q, %v", got, err)
		}
		counts := fmt.Appendf(nil, "counts of %d", rank)
		mustSend(t, push, counts)
		same(t, "to the coordinator", next(t, out).Message, zmq.Message{counts})
	}
	if *told[0].CoordinatorInput != *told[1].CoordinatorInput || *told[0].CoordinatorOutput != *told[1].CoordinatorOutput {
		t.Error("two engines were told different addresses of one coordinator")
	}
	if *told[0].CoordinatorInput == in.Endpoint() || *told[0].FrontendStatsPublish != "tcp://127.0.0.1:9" {
		t.Errorf("the engine was told %v", told[0])
	}
	tap.stop()
	said := map[string]int{}
	for _, m := range readFrames(t, tap.path("frames.jsonl.gz")) {
		said[m.Channel+" "+m.Direction]++
	}
	for _, channel := range []string{"coordinator_input e2f", "coordinator_input f2e", "coordinator_output e2f"} {
		require.Equal(t, said[channel], 2, "messages of %s in the frames of the first engine", channel)
	}
}

func TestRankPath(t *testing.T) {
	for _, tt := range []struct {
		path string
		rank int
		want string
	}{
		{"run.jsonl.gz", 0, "run.jsonl.gz"},
		{"a/run.jsonl.gz", 3, "a/run.rank3.jsonl.gz"},
		{"a.b/run", 1, "a.b/run.rank1"},
		{"run.jsonl", 12, "run.rank12.jsonl"},
		{"r{rank}.jsonl.gz", 0, "r0.jsonl.gz"},
		{"{rank}/r{rank}.gz", 2, "2/r2.gz"},
	} {
		require.Equal(t, RankPath(tt.path, tt.rank), tt.want, "RankPath(%q, %d)", tt.path, tt.rank)
	}
}

func TestTapForwardsWhatIsTooLargeToObserve(t *testing.T) {
	noLeaks(t)
	f, tap, e := startRaw(t, func(c *Config) { c.MaxObserved = 1000 })
	prompts := map[string][]uint32{"small": {1, 2, 3}, "large": make([]uint32, 2000)}
	for _, id := range []string{"large", "small"} {
		want := codec(t).AppendRequest(nil, tapRequest(0, id, prompts[id], 1))
		require.NoError(t, f.in.Send(f.identity, []byte{protocol.TypeAdd}, want))
		got, err := e.in.Recv()
		require.NoError(t, err)
		same(t, id, got, zmq.Message{{protocol.TypeAdd}, want})
		mustSend(t, e.out, oneToken(t, 0, id))
		next(t, f.out)
	}
	tap.stop()
	if s := tap.sum.Stats; s.TooLarge != 1 || s.Records != 1 || s.Unknown != 1 {
		t.Errorf("%d too large, %d records, %d outputs for unknown requests, want 1 of each", s.TooLarge, s.Records, s.Unknown)
	}
}

func TestTapRefusesAnEngineTwice(t *testing.T) {
	noLeaks(t)
	f, tap, e := startRaw(t, nil)
	e.shake.Close() // as an engine that has shaken hands does
	twin, err := zmq.Dial(patient(t), tap.engine, zmq.Dealer, zmq.Options{Identity: protocol.Identity(0)})
	require.NoError(t, err)
	defer twin.Close()
	mustSend(t, twin, protocol.EngineHandshake{}.Hello())
	if _, err := twin.Recv(); !errors.Is(err, zmq.ErrPeerGone) {
		t.Errorf("a second engine 0 got %v, want a hang-up", err)
	}
	// The first goes on.
	mustSend(t, e.out, oneToken(t, 0, "a"))
	next(t, f.out)
	tap.stop()
}

// Strangers on every socket that the tap opens change nothing for the engine: no files and no ranks come of them, and what
// they send is not kept.
func TestTapAmongStrangers(t *testing.T) {
	noLeaks(t)
	f := newRawFrontend(t)
	tap := startTap(t, f.shake.Endpoint(), nil)
	stranger := func(endpoint string, typ zmq.Type, identity []byte) *zmq.Conn {
		c, err := zmq.Dial(patient(t), endpoint, typ, zmq.Options{Identity: identity})
		require.NoError(t, err)
		t.Cleanup(func() { c.Close() })
		return c
	}
	refused := func(c *zmq.Conn, what string) {
		t.Helper()
		if _, err := c.Recv(); !errors.Is(err, zmq.ErrPeerGone) {
			t.Errorf("%s got %v, want a hang-up", what, err)
		}
	}
	hello := protocol.EngineHandshake{}.Hello()
	stranger(tap.engine, zmq.Dealer, protocol.Identity(0)) // says nothing
	for _, wrong := range []struct {
		what     string
		identity []byte
		message  []byte
	}{
		{"a large message", protocol.Identity(0), make([]byte, protocol.MaxStatus+1)},
		{"no HELLO", protocol.Identity(0), protocol.EngineHandshake{}.Ready()},
		{"no engine's identity", []byte("engine"), hello},
	} {
		c := stranger(tap.engine, zmq.Dealer, wrong.identity)
		_ = c.Send(wrong.message) // it is hung up on in the middle
		refused(c, wrong.what)
	}
	// The frontend does not answer these, and the tap asks it for the second one only when it has given up the first.
	left := stranger(tap.engine, zmq.Dealer, protocol.Identity(0))
	mustSend(t, left, hello)
	next(t, f.shake)
	left.Close()
	for d := event(t, f.shake); d.Kind != zmq.Gone; d = event(t, f.shake) {
	}
	mustSend(t, stranger(tap.engine, zmq.Dealer, protocol.Identity(9)), hello)
	next(t, f.shake)
	if files, err := filepath.Glob(tap.path("*")); err != nil || len(files) > 0 {
		t.Errorf("files of strangers: %v, %v", files, err)
	}

	f.strangers = func(told protocol.Addresses) {
		stranger(told.Inputs[0], zmq.Dealer, protocol.Identity(0)) // says nothing
		refused(stranger(told.Inputs[0], zmq.Dealer, protocol.Identity(1)), "another identity on the input")
		c := stranger(told.Inputs[0], zmq.Dealer, protocol.Identity(0))
		_ = c.Send(make([]byte, protocol.MaxStatus+1))
		refused(c, "a large registration")
	}
	e := f.dialRaw(t, tap.engine, 0)
	mustSend(t, e.out, oneToken(t, 0, "a"))
	next(t, f.out)
	tap.stop()
	require.True(t, len(tap.sum.Ranks) == 1 && tap.sum.Ranks[0].Rank == 0, "recorded engines %+v, want engine 0 alone", tap.sum.Ranks)
}

// event is the next event on l.
func event(t *testing.T, l *zmq.Listener) zmq.Delivery {
	t.Helper()
	d, err := l.Recv(patient(t))
	require.NoError(t, err)
	return d
}

// A frontend that says how many engines it has is not asked for others.
func TestTapTakesTheEnginesThatAreAnnounced(t *testing.T) {
	noLeaks(t)
	f := newRawFrontend(t)
	tap := startTap(t, f.shake.Endpoint(), nil)
	dial := func(index int) *zmq.Conn {
		c, err := zmq.Dial(patient(t), tap.engine, zmq.Dealer, zmq.Options{Identity: protocol.Identity(index)})
		require.NoError(t, err)
		t.Cleanup(func() { c.Close() })
		mustSend(t, c, protocol.EngineHandshake{}.Hello())
		return c
	}
	init := protocol.AppendInit(nil, f.addresses())
	init = pack.AppendMapHeader(init[:len(init)-1], 1)
	init = pack.AppendInt(pack.AppendString(init, "data_parallel_size"), 2)
	first := dial(1)
	d := next(t, f.shake)
	require.NoError(t, f.shake.Send(d.Peer.Identity, init))
	_, err := first.Recv()
	require.NoError(t, err)
	if _, err := dial(2).Recv(); !errors.Is(err, zmq.ErrPeerGone) {
		t.Errorf("engine 2 of 2 got %v, want a hang-up", err)
	}
	dial(0)
	if d := next(t, f.shake); !bytes.Equal(d.Peer.Identity, protocol.Identity(0)) {
		t.Errorf("the frontend was asked for engine %x, want engine 0 and no other", d.Peer.Identity)
	}
	tap.stop()
	require.Equal(t, len(tap.sum.Ranks), 1, "engines that were recorded: the one that was answered")
}

func TestTapAddresses(t *testing.T) {
	noLeaks(t)
	free := freeEndpoint(t)
	port := free[strings.LastIndex(free, ":")+1:]
	socket := filepath.Join(t.TempDir(), "s")
	for _, tt := range []struct {
		name, listen, dial, data string
		wantInput                string // a prefix
	}{
		{name: "everywhere", listen: "tcp://*:" + port, dial: free, wantInput: "tcp://127.0.0.1:"},
		{name: "everywhere, IPv6", listen: "tcp://[::]:" + port, dial: free, wantInput: "tcp://127.0.0.1:"},
		{name: "ports given", listen: free, dial: free, data: "tcp://127.0.0.1:" + port[:len(port)-1], wantInput: "tcp://127.0.0.1:" + port[:len(port)-1]},
		{name: "data on ipc", listen: free, dial: free, data: "ipc://" + socket, wantInput: "ipc://" + socket + ".r0.input0"},
		{name: "all on ipc", listen: "ipc://" + socket, dial: "ipc://" + socket, wantInput: "ipc://" + socket + ".r0.input0"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := newRawFrontend(t)
			tap := startTap(t, f.shake.Endpoint(), func(c *Config) { c.Listen, c.Data = tt.listen, tt.data })
			e := f.dialRaw(t, tt.dial, 0)
			require.True(t, strings.HasPrefix(e.told.Inputs[0], tt.wantInput), "the engine was told %v, want an input at %s", e.told.Inputs, tt.wantInput)
			tap.stop()
		})
	}
}
