package player

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/vllm-vcr/conformance/internal/base/safetext"
	"github.com/vllm-vcr/conformance/internal/wire/pack"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/internal/wire/zmq"
)

// link is the pair of sockets to one client of the frontend.
type link struct {
	input  *zmq.Conn // DEALER
	output *zmq.Conn // PUSH
	out    *outbox   // of output
	gone   bool

	done    sync.WaitGroup // the goroutines that read and write
	written chan struct{}  // closed when the writer has ended
	lost    error          // why it did not write everything; valid from then on
}

// connect runs the start-up handshake (vllm/v1/engine/core.py startup_handshake):
// HELLO, INIT, registration on every input socket, READY.
func (p *Player) connect(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, p.opt.HandshakeTimeout)
	defer cancel()
	if p.opt.Handshake == "" {
		return p.register(ctx, protocol.Addresses{Inputs: p.opt.InputAddresses, Outputs: p.opt.OutputAddresses})
	}
	opt := p.socketOptions(0)
	opt.MaxFrame = protocol.MaxInit
	shake, err := zmq.Dial(ctx, p.opt.Handshake, zmq.Dealer, opt)
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("handshake: no frontend accepted a connection within %s: start one that listens there and waits for an engine of another process: %w",
			p.opt.HandshakeTimeout, err)
	}
	if err != nil {
		return fmt.Errorf("handshake: %w", err)
	}
	defer shake.Close()
	defer context.AfterFunc(ctx, func() { shake.Close() })()
	steps := protocol.EngineHandshake{ParallelConfigHash: p.opt.ParallelConfigHash}
	if err := shake.Send(steps.Hello()); err != nil {
		return fmt.Errorf("handshake: HELLO to %s: %w", p.opt.Handshake, err)
	}
	answer, err := shake.Recv()
	if err != nil {
		return p.explainNoInit(cause(ctx, err))
	}
	addresses, err := steps.Init(lastFrame(answer))
	if err != nil {
		return err
	}
	if err := p.register(ctx, addresses); err != nil {
		return err
	}
	if err := shake.Send(steps.Ready()); err != nil {
		return fmt.Errorf("handshake: READY to %s: %w", p.opt.Handshake, err)
	}
	return nil
}

// explainNoInit adds what may have kept the frontend from answering: one that is up answers no
// new engine, and one that is greeted by an engine it has not, or has, may end.
func (p *Player) explainNoInit(err error) error {
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("handshake: no answer to HELLO from %s within %s: check that a frontend listens there and waits for an engine %d (frontends accept no engine after start-up): %w",
			p.opt.Handshake, p.opt.HandshakeTimeout, p.opt.EngineIndex, err)
	}
	return fmt.Errorf("handshake: no answer to HELLO from %s: %w: check that the frontend has %s, and that engine %d is played once only (frontends exit on an unknown or duplicate engine index)",
		p.opt.Handshake, err, safetext.Count(max(p.ready.DataParallelSize, p.opt.EngineIndex+1), "engine"), p.opt.EngineIndex)
}

// cause prefers the deadline, which closed the connection, over the error that
// the closed connection gave.
func cause(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

func lastFrame(m zmq.Message) []byte {
	if len(m) == 0 {
		return nil
	}
	return m[len(m)-1]
}

// hangUpGrace is how long a closing output socket waits for the frontend to hang
// up in turn, after it has been flushed. libzmq does so at once; vllm-rs never
// does, and then the kernel delivers what is left.
const hangUpGrace = 100 * time.Millisecond

func (p *Player) socketOptions(linger time.Duration) zmq.Options {
	return zmq.Options{Identity: protocol.Identity(p.opt.EngineIndex), Linger: linger}
}

// register connects every client's sockets and registers the engine.
func (p *Player) register(ctx context.Context, a protocol.Addresses) error {
	if err := p.dialCoordinator(ctx, a); err != nil {
		return err
	}
	ready := p.ready
	ready.DPStatsAddress = a.FrontendStatsPublish
	ready.CoordinatorInputAddress, ready.CoordinatorOutputAddress = a.CoordinatorInput, a.CoordinatorOutput
	payload := p.codec.AppendPlayerReady(nil, &ready)
	for i := range a.Inputs {
		l := &link{written: make(chan struct{})}
		var err error
		if l.input, err = zmq.Dial(ctx, a.Inputs[i], zmq.Dealer, p.socketOptions(0)); err != nil {
			return fmt.Errorf("input socket %d: %w", i, err)
		}
		p.links = append(p.links, l)
		if l.output, err = zmq.Dial(ctx, a.Outputs[i], zmq.Push, p.socketOptions(hangUpGrace)); err != nil {
			return fmt.Errorf("output socket %d: %w", i, err)
		}
		l.out = newOutbox(l.output, p.opt.MaxUnread, p.inbox.ring)
		if err := l.input.Send(payload); err != nil {
			return fmt.Errorf("input socket %d: registration: %w", i, err)
		}
	}
	p.engine.addClients(len(p.links))
	p.engine.full = func(client int) bool { return p.links[client].out.full() }
	return p.awaitCoordinator(ctx)
}

// serveLinks starts the goroutines of all sockets.
func (p *Player) serveLinks() {
	for i, l := range p.links {
		l.done.Add(3)
		go p.read(i, l)
		go p.watch(i, l)
		go p.write(i, l)
	}
	if c := p.coordinator; c != nil {
		c.done.Add(2)
		go p.readCoordinator(c)
		go p.writeCoordinator(c)
	}
}

// read hands a client's messages to the engine until the connection ends.
func (p *Player) read(client int, l *link) {
	defer l.done.Done()
	for {
		m, err := l.input.Recv()
		if err != nil {
			if !p.deaf.Load() {
				p.inbox.put(event{client: client, gone: err})
			}
			return
		}
		e, ok := p.decode(m)
		if !ok {
			continue
		}
		e.client = client
		if e.fatal && !p.stopReading() {
			return // another client's was the last one
		}
		p.inbox.put(e)
	}
}

// compareLayout logs that the first request is of the layout of other lines than the player's,
// if it is. A frontend of another line may still work, may read other fields than are meant, or
// fail at the first answer.
func (p *Player) compareLayout(m zmq.Message) {
	p.heard.Store(true)
	if len(m) < 2 || string(m[0]) != string([]byte{protocol.TypeAdd}) || !p.compared.CompareAndSwap(false, true) {
		return
	}
	found := p.codec.CheckRequest(m[1], m[2:]...)
	if len(found) == 0 || len(found[0].Fits) == 0 {
		return
	}
	fits := found[0].Fits
	p.opt.Log.Warn("the frontend is of another vLLM line than this engine: its requests have another layout",
		"engine_line", p.codec.Line(), "request_layout_of", protocol.LineRanges(fits), "difference", found[0].Difference(),
		"try", "--vllm-version "+fits[0]+", or the frontend's own version")
}

// explainLeft logs what a frontend may have missed that left before it sent anything.
func (p *Player) explainLeft() {
	if p.heard.Load() {
		return
	}
	if keys, lines := p.codec.RequiredBeyond(); len(lines) > 0 {
		p.opt.Log.Warn("the frontend left as soon as this engine had registered, and sent nothing. Frontends of newer vLLM lines end so, as they require more keys of a registration",
			"engine_line", p.codec.Line(), "required_by", protocol.LineRanges(lines), "missing_keys", strings.Join(keys, " "),
			"try", "--vllm-version "+lines[0]+", or the frontend's own version")
	}
}

// stopReading closes every socket that messages come by, and reports whether it was not done before.
func (p *Player) stopReading() bool {
	if !p.deaf.CompareAndSwap(false, true) {
		return false
	}
	for _, l := range p.links {
		l.input.Close()
	}
	if c := p.coordinator; c != nil {
		c.input.Close()
	}
	return true
}

// watch notices that a client has closed its output socket, on which it sends
// nothing.
func (p *Player) watch(client int, l *link) {
	defer l.done.Done()
	_, err := l.output.Recv()
	p.inbox.put(event{client: client, gone: fmt.Errorf("output socket: %w", err)})
}

// decode reads one message of a client: [type, payload, auxiliary frames...].
func (p *Player) decode(m zmq.Message) (event, bool) {
	p.compareLayout(m)
	e, wanted := p.decodeAny(m)
	if wanted && !p.opt.Tolerant {
		if e.request != nil && e.broken == nil && !e.request.Unverified {
			return e, true
		}
		if err := p.unreadable(m, e.broken); err != nil {
			e.broken, e.fatal = err, true
		}
	}
	return e, wanted
}

// unreadable returns why the thread that reads in an engine of the line ends with a message,
// nil if it does not. broken is why the player cannot decode it. What only the player
// cannot decode, and what the engine fails with later, it answers with an error.
func (p *Player) unreadable(m zmq.Message, broken error) error {
	if broken != nil {
		if len(m) < 2 || len(m[0]) != 1 || errors.Is(broken, errNotText) {
			return broken
		}
		if err := pack.Validate(m[1]); err != nil {
			return err
		}
	}
	switch m[0][0] {
	case protocol.TypeAdd:
		return p.codec.Undecodable(m[1], m[2:]...)
	case protocol.TypeAbort:
		return unreadableAbort(m[1])
	case protocol.TypeUtility:
		cur := pack.NewCursor(m[1])
		if n, err := cur.ArrayLen(); err == nil && n == 4 {
			return nil
		}
	}
	return broken
}

// unreadableAbort returns why an engine ends with an abort. It goes through any elements, and looks each up by its hash
// (vllm/v1/core/sched/scheduler.py finish_requests): what is none of its ids it passes over.
func unreadableAbort(payload []byte) error {
	cur := pack.NewCursor(payload)
	switch cur.Kind() {
	case pack.String: // of which each letter is one
		return checkText(&cur)
	case pack.Map: // of which each key is one
		return pack.Validate(payload)
	}
	n, err := cur.ArrayLen()
	for i := 0; err == nil && i < n; i++ {
		switch kind := cur.Kind(); kind {
		case pack.Array, pack.Map:
			return fmt.Errorf("abort: id %d is of kind %v, want a str", i, kind)
		case pack.String:
			err = checkText(&cur)
		default:
			err = cur.Skip()
		}
	}
	return err
}

// checkText reads a str, which must be text.
func checkText(cur *pack.Cursor) error {
	s, err := cur.StrString()
	if err == nil && !utf8.ValidString(s) {
		err = fmt.Errorf("abort: %q: %w", s, errNotText)
	}
	return err
}

// decodeAny reads what there is to make sense of.
func (p *Player) decodeAny(m zmq.Message) (event, bool) {
	if len(m) < 2 || len(m[0]) != 1 {
		return event{broken: fmt.Errorf("message of %d frames does not begin with a request type and a payload", len(m))}, true
	}
	switch m[0][0] {
	case protocol.TypeAdd:
		r := p.inbox.request()
		err := p.codec.DecodeRequest(m[1], r)
		if r.Aux = m[2:]; err == nil {
			err = setPrompt(r)
		}
		if !utf8.ValidString(r.ID) {
			r.ID, err = "", fmt.Errorf("EngineCoreRequest.request_id: %q: %w", r.ID, errNotText)
		}
		return event{request: r, broken: err}, true
	case protocol.TypeAbort:
		ids, err := protocol.DecodeAbort(m[1])
		return event{abort: ids, broken: err}, true
	case protocol.TypeUtility:
		call, err := protocol.DecodeUtilityCall(m[1])
		if !utf8.ValidString(call.Method) {
			return event{broken: fmt.Errorf("utility call: method %q: %w", call.Method, errNotText)}, true
		}
		return event{call: &call, broken: err}, true
	case protocol.TypeStartDPWave:
		return event{}, false // a player without a coordinator has no waves
	}
	return event{broken: fmt.Errorf("unknown request type %#02x", m[0][0])}, true
}

// errNoPrompt is a request that has nothing to go on.
var errNoPrompt = errors.New("neither prompt_token_ids nor prompt_embeds")

// setPrompt gives a request whose prompt is embeddings a token 0 for each, as an engine
// counts them (vllm/v1/request.py).
func setPrompt(r *protocol.Request) error {
	if r.PromptEmbeds == nil {
		if r.PromptTokenIDs == nil {
			return errNoPrompt
		}
		return nil
	}
	embeds, err := protocol.DecodeEmbeds(r.PromptEmbeds, r.Aux)
	if err != nil {
		return err
	}
	if r.PromptTokenIDs == nil {
		r.PromptTokenIDs = make([]uint32, embeds.Rows)
	}
	if n := len(r.PromptTokenIDs); n != embeds.Rows {
		return fmt.Errorf("%d prompt_token_ids, but %d prompt_embeds", n, embeds.Rows)
	}
	return nil
}

// errNotText is a string that an answer must not repeat: a frontend that is sent
// one ends.
var errNotText = errors.New("not UTF-8")

// write writes what is sent to a client, and reports a client that takes no answers
// as one that left.
func (p *Player) write(client int, l *link) {
	defer l.done.Done()
	defer close(l.written)
	if l.lost = l.out.write(); l.lost != nil {
		p.inbox.put(event{client: client, gone: fmt.Errorf("output socket %d: %w", client, l.lost)})
	}
}

// send keeps a message for the client; flush lets it go. Nothing is ever dropped: see
// outbox.
func (p *Player) send(client int, m protocol.ClientMessage) { p.links[client].out.put(m) }

func (p *Player) flush() {
	for _, l := range p.links {
		l.out.flush()
	}
	if p.coordinator != nil {
		p.coordinator.out.flush()
	}
}

// closeLinks closes every socket and waits for the goroutines that use them. Each may linger, so
// they do it at the same time.
func (p *Player) closeLinks() {
	var closing sync.WaitGroup
	for _, l := range p.allLinks() {
		closing.Go(func() { p.closeLink(l) })
	}
	closing.Wait()
}

// allLinks are those to the clients, and to the coordinator if there is one.
func (p *Player) allLinks() []*link {
	if p.coordinator == nil {
		return p.links
	}
	return append(slices.Clip(p.links), &p.coordinator.link)
}

// closeLink closes the sockets of a link. What was sent has been written before, so
// a frontend that does not hang up in turn has lost nothing.
func (p *Player) closeLink(l *link) {
	if l.output != nil {
		err := l.output.Close()
		if err != nil && !errors.Is(err, zmq.ErrPeerGone) && !errors.Is(err, os.ErrDeadlineExceeded) {
			p.opt.Log.Warn("output socket not closed cleanly", "error", err)
		}
	}
	if l.input != nil {
		l.input.Close()
	}
	l.done.Wait()
}

// stopWriting makes the writers give up when the player is to stop while a
// client takes nothing.
func (p *Player) stopWriting(after time.Duration) {
	deadline := time.Now().Add(after)
	for _, l := range p.allLinks() {
		l.output.SetWriteDeadline(deadline)
	}
}

// dialCoordinator connects to the coordinator and waits until all engines have subscribed.
func (p *Player) dialCoordinator(ctx context.Context, a protocol.Addresses) error {
	if a.CoordinatorInput == nil {
		return nil
	}
	c := &coordinator{waves: p.waves, rank: p.rank, link: link{written: make(chan struct{})}}
	p.coordinator = c
	var err error
	if c.input, err = zmq.Dial(ctx, *a.CoordinatorInput, zmq.XSub, p.socketOptions(0)); err != nil {
		return fmt.Errorf("coordinator: %w", err)
	}
	if c.output, err = zmq.Dial(ctx, *a.CoordinatorOutput, zmq.Push, p.socketOptions(hangUpGrace)); err != nil {
		return fmt.Errorf("coordinator: %w", err)
	}
	c.out = newOutbox(c.output, p.opt.MaxUnread, p.inbox.ring)
	if err := c.input.Subscribe(nil); err != nil {
		return fmt.Errorf("coordinator: %w", err)
	}
	return nil
}

// awaitCoordinator waits for READY, which comes when every engine of the group has
// subscribed.
func (p *Player) awaitCoordinator(ctx context.Context) error {
	c := p.coordinator
	if c == nil {
		return nil
	}
	defer context.AfterFunc(ctx, func() { c.input.Close() })()
	m, err := c.input.Recv()
	if err != nil {
		return fmt.Errorf("coordinator %s: no READY, which it sends when all engines of the group have connected: %w",
			c.input.Peer(), cause(ctx, err))
	}
	if string(m[0]) != ready {
		return fmt.Errorf("coordinator %s: a message of %d frames instead of READY", c.input.Peer(), len(m))
	}
	if p.opt.EngineIndex == 0 {
		c.waves.subscribe(c.rank,
			func(wave int) { p.inbox.put(event{kind: waveJoined, wave: wave}) },
			func(wave int) { p.inbox.put(event{kind: waveEnded, wave: wave}) })
	}
	return nil
}

// readCoordinator hands on what the coordinator sends until the connection ends.
func (p *Player) readCoordinator(c *coordinator) {
	defer c.done.Done()
	for {
		m, err := c.input.Recv()
		if err != nil {
			p.inbox.put(event{kind: coordinatorGone, gone: err})
			return
		}
		if len(m) == 1 && string(m[0]) == ready {
			continue // another engine joined
		}
		p.inbox.put(decodeStartWave(m))
	}
}

// writeCoordinator writes what is sent to the coordinator.
func (p *Player) writeCoordinator(c *coordinator) {
	defer c.done.Done()
	defer close(c.written)
	if err := c.out.write(); err != nil {
		p.inbox.put(event{kind: coordinatorGone, gone: err})
	}
}

// decodeStartWave reads START_DP_WAVE.
func decodeStartWave(m zmq.Message) event {
	e := event{kind: waveBegan}
	if len(m) != 2 || len(m[0]) != 1 || m[0][0] != protocol.TypeStartDPWave {
		e.broken = fmt.Errorf("coordinator: a message of %d frames is not START_DP_WAVE", len(m))
		return e
	}
	e.wave, e.exclude, e.broken = protocol.DecodeStartWave(m[1])
	return e
}
