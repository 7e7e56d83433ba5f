package player

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/internal/wire/pack"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/internal/wire/zmq"
)

// unixFrontend listens on Unix sockets, whose buffers are small, and reads no
// socket unless told to.
type unixFrontend struct {
	t       *testing.T
	ctx     context.Context
	player  *Player
	stop    context.CancelFunc // of the player
	ended   chan error         // what Run of the player returned
	codec   *protocol.Codec
	steps   protocol.FrontendHandshake
	shake   *zmq.Listener
	inputs  []*zmq.Listener
	outputs []*zmq.Listener
}

func listenUnix(t *testing.T, clients int) *unixFrontend {
	t.Helper()
	t.Cleanup(func() { goleak.VerifyNone(t) })
	ctx, done := context.WithTimeout(context.Background(), patience)
	t.Cleanup(done)
	dir, err := os.MkdirTemp("", "player") // shorter than that of t, as a socket's path must be
	must(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	f := &unixFrontend{t: t, ctx: ctx, ended: make(chan error, 1)}
	if f.codec, err = protocol.CodecFor(protocol.Newest()); err != nil {
		t.Fatal(err)
	}
	listen := func(name string, typ zmq.Type) *zmq.Listener {
		l, err := zmq.Listen("ipc://"+filepath.Join(dir, name), typ, zmq.Options{})
		must(t, err)
		t.Cleanup(func() { l.Close() })
		return l
	}
	f.shake = listen("handshake", zmq.Router)
	for i := range clients {
		f.inputs = append(f.inputs, listen(fmt.Sprint("in", i), zmq.Router))
		f.outputs = append(f.outputs, listen(fmt.Sprint("out", i), zmq.Pull))
		f.steps.Addresses.Inputs = append(f.steps.Addresses.Inputs, f.inputs[i].Endpoint())
		f.steps.Addresses.Outputs = append(f.steps.Addresses.Outputs, f.outputs[i].Endpoint())
	}
	return f
}

// run starts a player behind the frontend.
func (f *unixFrontend) run(opt Options) {
	f.t.Helper()
	opt.Handshake = f.shake.Endpoint()
	f.player, f.stop = run(f.t, f.ctx, opt, f.ended)
}

// end stops the player, which ends without an error.
func (f *unixFrontend) end() {
	f.t.Helper()
	f.stop()
	if err := <-f.ended; err != nil {
		f.t.Errorf("Run: %v", err)
	}
}

// receive returns the next message on a socket.
func (f *unixFrontend) receive(l *zmq.Listener) zmq.Delivery {
	f.t.Helper()
	for {
		d, err := l.Recv(f.ctx)
		must(f.t, err)
		if d.Kind == zmq.Received {
			return d
		}
	}
}

// accept makes the handshake and returns the last registration.
func (f *unixFrontend) accept() (ready protocol.ReadyResponse) {
	f.t.Helper()
	f.answerHello()
	var err error
	for i, l := range f.inputs {
		if ready, err = f.steps.OnRegister(i, f.receive(l).Message); err != nil {
			f.t.Fatal(err)
		}
	}
	if _, err := f.steps.OnStatus(f.receive(f.shake).Message[0]); err != nil {
		f.t.Fatal(err)
	}
	return ready
}

// answerHello sends the addresses.
func (f *unixFrontend) answerHello() {
	f.t.Helper()
	d := f.receive(f.shake)
	init, err := f.steps.OnStatus(d.Message[0])
	must(f.t, err)
	must(f.t, f.shake.Send(d.Peer.Identity, init))
}

func (f *unixFrontend) send(client int, kind byte, payload []byte) {
	f.t.Helper()
	must(f.t, f.inputs[client].Send(protocol.Identity(0), []byte{kind}, payload))
}

func (f *unixFrontend) submit(r *protocol.Request) {
	f.t.Helper()
	f.send(r.ClientIndex, protocol.TypeAdd, f.codec.AppendRequest(nil, r))
}

// call makes a utility call and waits for its answer, which must come next.
func (f *unixFrontend) call(client int, method string, args ...[]byte) {
	f.t.Helper()
	f.send(client, protocol.TypeUtility, protocol.AppendUtilityCall(nil, protocol.UtilityCall{
		ClientIndex: client, CallID: 1, Method: method, Args: args,
	}))
	var o protocol.Outputs
	if err := f.codec.DecodeOutputs(f.receive(f.outputs[client]).Message[0], &o); err != nil || o.Utility == nil || o.Utility.Failed {
		f.t.Fatalf("%s: %+v, %v", method, o.Utility, err)
	}
}

// read reads a client's messages until a request ends, and returns its tokens.
// each is called with the bytes of every message.
func (f *unixFrontend) read(client int, id string, each func(size int)) []uint32 {
	f.t.Helper()
	var tokens []uint32
	for {
		message := f.receive(f.outputs[client]).Message
		var o protocol.Outputs
		must(f.t, f.codec.DecodeOutputs(message[0], &o))
		size := 0
		for _, frame := range message {
			size += len(frame)
		}
		each(size)
		for _, out := range o.Outputs {
			if string(out.ID) != id {
				f.t.Fatalf("client %d got an output of %s", client, out.ID)
			}
			if tokens = append(tokens, out.Tokens...); out.Finish != protocol.Unfinished {
				return tokens
			}
		}
	}
}

// A client that reads nothing is told no more when too much is kept for it, while the
// other client is served to the end. When the first one reads again, nothing is missing.
func TestWhatIsKeptForAClientIsBounded(t *testing.T) {
	const (
		said  = 10_000 // messages, more than the sockets have room for
		limit = 1000
	)
	front := listenUnix(t, 2)
	front.run(Options{MaxUnread: limit})
	front.accept()

	front.submit(ask("deaf-x", count(0, 4), said))
	front.submit(ask("other-x", count(0, 4), 2*said, toClient(1)))
	got := front.read(1, "other-x", func(int) {})
	equal(t, "tokens of the other client", randomTokens(0, defaultVocab, "other-x", 2*said), got)
	if kept := unread(front.player, 0); kept <= limit/2 {
		t.Errorf("%d bytes are kept for the client that reads nothing, want more than %d", kept, limit/2)
	}
	// The message that crosses the limit is kept whole, so the bound is the limit and the longest message.
	most, longest := 0, 0
	got = front.read(0, "deaf-x", func(size int) {
		most, longest = max(most, unread(front.player, 0)), max(longest, size)
	})
	if want := limit + longest + 16; most > want { // 16: the headers of its frames
		t.Errorf("up to %d bytes were kept for the client that stopped reading, want at most %d", most, want)
	}
	equal(t, "tokens of the client that stopped reading", randomTokens(0, defaultVocab, "deaf-x", said), got)
	front.end()
}

// unread is how many bytes are kept for a client.
func unread(p *Player, client int) int {
	out := p.links[client].out
	out.mu.Lock()
	defer out.mu.Unlock()
	return out.size
}

// An engine that a client holds up stops all the same.
func TestShutdownWhileAClientReadsNothing(t *testing.T) {
	const open = 8000 // more aborts than the buffers between the two have room for
	front := listenUnix(t, 2)
	front.run(Options{Linger: 20 * time.Millisecond})
	front.accept()
	front.call(0, "pause_scheduler", pack.AppendString(nil, "keep"))
	for i := range open {
		front.submit(ask(fmt.Sprintf("r%d-x", i), count(0, 4), 1))
	}
	front.call(0, "is_sleeping")
	front.stop()
	select {
	case err := <-front.ended:
		require.NoErrorf(t, err, "Run")
	case <-front.ctx.Done():
		t.Error("Run does not return")
	}
}

// A client that leaves takes its requests with it; the others are served.
func TestAClientThatLeavesMakesRoom(t *testing.T) {
	front := listenUnix(t, 2)
	tr := traceOf(t, hourAway(), take{prompt: count(0, 4), output: []uint32{7}})
	front.run(Options{Trace: tr, Timing: Timing{Pace: PaceRecorded}, Limits: Limits{MaxNumSeqs: 1}})
	front.accept()
	front.submit(ask("replay-0", count(0, 4), 1))
	front.call(0, "is_sleeping")
	front.submit(ask("replay-1", count(0, 4), 1, toClient(1)))
	front.inputs[0].Close()
	if got := front.read(1, "replay-1", func(int) {}); len(got) != 1 || got[0] != 7 {
		t.Errorf("the other client got %v, want [7]", got)
	}
	front.inputs[1].Close()
	require.ErrorIs(t, <-front.ended, ErrFrontendGone)
}

func TestRegistrationRepeatsWhereStatisticsArePublished(t *testing.T) {
	front := listenUnix(t, 1)
	address := "tcp://127.0.0.1:9"
	front.steps.Addresses.FrontendStatsPublish = &address
	front.run(Options{})
	if got := front.accept().DPStatsAddress; got == nil || *got != address {
		t.Errorf("dp_stats_address %v, want %s as in INIT", got, address)
	}
}
