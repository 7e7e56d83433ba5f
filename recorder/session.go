package recorder

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/internal/wire/zmq"
)

// A session is the tap's work for one engine, from its HELLO to the hang-up.
type session struct {
	tap    *tap
	index  int         // of the engine
	direct bool        // it makes no handshake: its registration says which engine it is
	rank   *rank       // nil until the frontend has answered it
	peer   zmq.Peer    // the engine, on the handshake socket
	stood  atomic.Bool // all links did
	host   string      // by which the engine reached the tap

	gates []*zmq.Gate
	links chan linkEnd
	ready chan struct{}      // one for each link that is open
	left  chan *linkObserver // of the link that saw the first hang-up
	count int                // links whose end ends the session
}

func newSession(t *tap) *session {
	return &session{tap: t, links: make(chan linkEnd, 1), ready: make(chan struct{}), left: make(chan *linkObserver, 1)}
}

// linkEnd is how a link ended.
type linkEnd struct {
	link *link
	err  error
}

// A link is one socket of the engine and the frontend's socket it belongs to.
type link struct {
	channel  Channel
	client   int
	upstream string // the frontend's address
	gate     *zmq.Gate
	// registered is closed when the engine has registered on the input of this client, from then on coming from host.
	registered *registered
}

// registered is what the two links of a client know of the engine.
type registered struct {
	done chan struct{}
	host string // valid once done is closed
}

func (l *link) String() string {
	switch l.channel {
	case Input, Output:
		return fmt.Sprintf("%s %d", l.channel, l.client)
	}
	return l.channel.String()
}

// run is the whole session.
func (s *session) run(ctx context.Context, engine *zmq.Conn, hello zmq.Message) error {
	defer s.closeGates()
	deadline, disarm := context.WithTimeoutCause(ctx, s.tap.cfg.HandshakeTimeout,
		fmt.Errorf("the handshake took more than %v", s.tap.cfg.HandshakeTimeout))
	defer disarm()

	links, err := s.handshake(deadline, ctx, engine, hello)
	if err != nil {
		engine.Close()
		return err
	}
	return s.follow(deadline, ctx, links)
}

// follow serves the links until the session has ended.
func (s *session) follow(deadline, ctx context.Context, links []*link) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	for _, l := range links {
		s.tap.wg.Go(func() { s.links <- s.serve(deadline, ctx, l) })
	}
	s.count = len(links)
	return s.watch(ctx, cancel)
}

// watch waits for all links to connect, each by its deadline, and then for
// the first to end.
func (s *session) watch(ctx context.Context, cancel context.CancelCauseFunc) error {
	standing := 0
	for {
		select {
		case <-s.ready:
			if standing++; standing == s.count {
				s.stood.Store(true)
				s.tap.log.Info("the engine is connected", "engine", s.rank.index, "clients", s.count/2)
			}
		case w := <-s.left:
			s.tap.log.Info(w.what(), "engine", s.rank.index)
			// Not every frontend hangs up in turn: what is left has a moment to be said.
			defer time.AfterFunc(leaveTime, func() { cancel(errSessionOver) }).Stop()
		case end := <-s.links:
			return s.end(ctx, cancel, end, standing == s.count)
		}
	}
}

// errSessionOver is why the links of an engine that has left end.
var errSessionOver = errors.New("the session has ended")

// end follows the end of the first link: the others have a moment to end by
// themselves, so that last words are passed on.
func (s *session) end(ctx context.Context, cancel context.CancelCauseFunc, first linkEnd, stood bool) error {
	stopped := ctx.Err() != nil && !errors.Is(context.Cause(ctx), errSessionOver)
	if !stopped && stood && first.err != nil && !leftAbruptly(first.err) {
		s.tap.log.Warn("a link has failed", "engine", s.rank.index, "link", first.link.String(), "cause", first.err)
	}
	timer := time.AfterFunc(leaveTime, func() { cancel(errSessionOver) })
	defer timer.Stop()
	if !stood {
		cancel(first.err)
	}
	for left := s.count - 1; left > 0; {
		select {
		case <-s.ready:
		case <-s.links:
			left--
		}
	}
	if stopped || leftAbruptly(first.err) {
		return nil
	}
	return first.err
}

// leftAbruptly reports whether a peer left without reading all that it was sent, as a
// frontend that is stopped may, from a link that broke off in the middle of a message.
// Something was lost by it if requests are in flight.
func leftAbruptly(err error) bool {
	return errors.Is(err, zmq.ErrPeerGone) && !errors.Is(err, io.ErrUnexpectedEOF)
}

// handshake passes HELLO and INIT, the latter with the tap's addresses, and leaves a
// relay behind for whatever else the two say there.
func (s *session) handshake(deadline, ctx context.Context, engine *zmq.Conn, hello zmq.Message) ([]*link, error) {
	l := &link{channel: Handshake, upstream: s.tap.cfg.Frontend}
	asking, giveUp := context.WithCancelCause(deadline)
	defer giveUp(nil)
	stop := engine.Watch(func() {
		s.tap.giveUp(s) // before the frontend hears of it: the next one may come at once
		giveUp(errUnanswered)
	})
	defer stop()
	frontend, err := zmq.DialAs(asking, l.upstream, s.peer, zmq.Options{MaxFrame: protocol.MaxInit})
	if err != nil {
		return nil, fmt.Errorf("the frontend's handshake: %w", err)
	}
	init, err := exchange(asking, frontend, hello)
	if err == nil {
		err = s.tap.join(s, init)
	}
	if err != nil {
		frontend.Close()
		return nil, fmt.Errorf("the frontend's answer to HELLO: %w", err)
	}
	s.saw(l, FromEngine, hello)
	s.saw(l, FromFrontend, init)
	links, rewritten, err := s.openLinks(init)
	if err == nil {
		err = engine.Send(rewritten)
	}
	if err != nil {
		frontend.Close()
		return nil, err
	}
	stop()
	// Its end means nothing: both sides leave this socket once they are ready.
	s.tap.wg.Go(func() {
		_, _ = zmq.Relay(ctx, engine, frontend, s.observer(l, FromEngine), s.observer(l, FromFrontend))
	})
	return links, nil
}

// exchange sends a message and waits for the answer.
func exchange(ctx context.Context, c *zmq.Conn, msg zmq.Message) (zmq.Message, error) {
	stop := context.AfterFunc(ctx, func() { c.Close() })
	defer stop()
	err := c.Send(msg...)
	var answer zmq.Message
	if err == nil {
		answer, err = c.Recv()
	}
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return answer, err
}

// openLinks binds a socket for each address of INIT, and puts its address there.
func (s *session) openLinks(init zmq.Message) (links []*link, rewritten []byte, err error) {
	if len(init) != 1 {
		return nil, nil, fmt.Errorf("the frontend's answer to HELLO has %d frames, want 1", len(init))
	}
	clients := map[int]*registered{}
	rewritten, err = protocol.RewriteInit(init[0], func(key protocol.AddressKey, client int, address string) (string, error) {
		if clients[client] == nil {
			clients[client] = &registered{done: make(chan struct{})}
		}
		l := &link{client: client, upstream: address, registered: clients[client]}
		typ := zmq.Pull
		switch key {
		case protocol.InputAddresses:
			l.channel, typ = Input, zmq.Router
		case protocol.OutputAddresses:
			l.channel = Output
		case protocol.CoordinatorInputAddress:
			l.channel, typ = CoordinatorInput, zmq.XPub
		case protocol.CoordinatorOutputAddress:
			l.channel = CoordinatorOutput
		}
		if l.channel == CoordinatorInput || l.channel == CoordinatorOutput {
			return s.share(l, typ)
		}
		if l.gate, err = s.tap.openGate(s.host, fmt.Sprintf("r%d.%s%d", s.index, l.channel, client), typ); err != nil {
			return "", err
		}
		s.gates = append(s.gates, l.gate)
		links = append(links, l)
		return l.gate.Endpoint(), nil
	})
	return links, rewritten, err
}

// serve is the life of one link.
func (s *session) serve(deadline, ctx context.Context, l *link) linkEnd {
	engine, registration, err := s.accept(deadline, l)
	if err != nil {
		return linkEnd{l, fmt.Errorf("the engine did not connect its %s: %w", l, err)}
	}
	l.gate.Close() // no other peer is to come
	frontend, err := zmq.DialAs(deadline, l.upstream, engine.Peer(), zmq.Options{})
	if err != nil {
		engine.Close()
		return linkEnd{l, fmt.Errorf("the frontend's %s: %w", l, err)}
	}
	if l.channel == Input {
		if err := s.register(l, registration, frontend); err != nil {
			engine.Close()
			frontend.Close()
			return linkEnd{l, err}
		}
	}
	select {
	case s.ready <- struct{}{}:
	case <-ctx.Done():
	}
	_, err = zmq.Relay(ctx, engine, frontend, s.observer(l, FromEngine), s.observer(l, FromFrontend))
	return linkEnd{l, err}
}

// accept waits for the engine's own connection. On an input that is the first that registers with the engine's identity;
// on an output, where peers send no name, the first that comes from where the engine registered.
func (s *session) accept(ctx context.Context, l *link) (*zmq.Conn, zmq.Message, error) {
	if l.channel == Input {
		return s.acceptInput(ctx, l)
	}
	select {
	case <-l.registered.done:
	case <-ctx.Done():
		return nil, nil, context.Cause(ctx)
	}
	for {
		c, err := l.gate.Accept(ctx)
		if err != nil {
			return nil, nil, err
		}
		if hostOf(c) == l.registered.host {
			return c, nil, nil
		}
		s.tap.refusals.Add(fmt.Errorf("%s on the engine's %s: the engine is at %s", c.Peer(), l, l.registered.host))
		c.Close()
	}
}

func (s *session) acceptInput(ctx context.Context, l *link) (*zmq.Conn, zmq.Message, error) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	type candidate struct {
		conn *zmq.Conn
		msg  zmq.Message
	}
	found := make(chan candidate)
	failed := make(chan error, 1)
	s.tap.wg.Go(func() {
		for {
			c, err := l.gate.Accept(ctx)
			if err != nil {
				failed <- err
				return
			}
			s.tap.wg.Go(func() {
				msg, err := s.receiveRegistration(ctx, c)
				if err == nil {
					select {
					case found <- candidate{c, msg}:
						return
					case <-ctx.Done():
					}
				}
				c.Close()
				if err != nil && ctx.Err() == nil {
					s.tap.refusals.Add(fmt.Errorf("%s on the engine's %s: %w", c.Peer(), l, err))
				}
			})
		}
	})
	select {
	case one := <-found:
		one.conn.Trust()
		if s.direct {
			if err := s.enter(one.conn.Peer()); err != nil {
				return nil, nil, err
			}
		}
		l.registered.host = hostOf(one.conn)
		close(l.registered.done)
		return one.conn, one.msg, nil
	case err := <-failed:
		return nil, nil, err
	}
}

// enter makes an engine that makes no handshake, and has registered, one of the tap's.
func (s *session) enter(peer zmq.Peer) (err error) {
	if s.index, err = protocol.EngineIndex(peer.Identity); err != nil {
		return err
	}
	s.peer = peer
	s.tap.joining[s.index] = s
	return s.tap.join(s, nil)
}

// receiveRegistration receives the first message of a connection, if it has the engine's identity.
func (s *session) receiveRegistration(ctx context.Context, c *zmq.Conn) (zmq.Message, error) {
	got := c.Peer().Identity
	if _, err := protocol.EngineIndex(got); err != nil {
		return nil, err
	}
	if !s.direct && !bytes.Equal(got, s.peer.Identity) {
		return nil, fmt.Errorf("identity %x, the engine's is %x", got, s.peer.Identity)
	}
	stop := context.AfterFunc(ctx, func() { c.Close() })
	msg, err := c.Recv()
	if !stop() && err == nil {
		err = context.Cause(ctx)
	}
	return msg, err
}

// hostOf is where a connection comes from, without the port; empty for ipc.
func hostOf(c *zmq.Conn) string {
	host, _, _ := net.SplitHostPort(c.Peer().Addr)
	return host
}

// register passes on what the engine registers with, unless it is of another line
// than the recording is to be: then nothing of it is forwarded, and nothing served.
func (s *session) register(l *link, registration zmq.Message, frontend *zmq.Conn) error {
	if err := guard(s.tap.cfg.Observe.VLLMVersion, registration[0]); err != nil {
		return err
	}
	s.saw(l, FromEngine, registration)
	if l.client == 0 {
		s.subscribe()
	}
	if err := frontend.Send(registration...); err != nil {
		return fmt.Errorf("the registration on %s: %w", l, err)
	}
	return nil
}

// subscribeTime is how long an engine that registers may take to listen where its KV events are awaited. Those that publish
// any listen before they register.
const subscribeTime = 5 * time.Second

// subscribe has the engine's KV events recorded, from before the frontend hears that the engine is there.
func (s *session) subscribe() {
	if s.tap.cfg.KVEvents == "" {
		return
	}
	endpoint, err := protocol.KVEventsOfRank(s.tap.cfg.KVEvents, s.rank.index)
	var events *zmq.Conn
	if err == nil {
		asking, stop := context.WithTimeout(s.tap.coordinator, subscribeTime)
		defer stop()
		if events, err = zmq.Dial(asking, endpoint, zmq.Sub, zmq.Options{MaxFrame: s.tap.cfg.MaxObserved}); err == nil {
			err = events.Subscribe(nil)
		}
	}
	if err != nil {
		s.tap.log.Error("the KV events of the engine are not recorded", "engine", s.rank.index, "cause", err)
		return
	}
	ctx, l := s.tap.coordinator, &link{channel: KVEvents}
	stop := context.AfterFunc(ctx, func() { events.Close() })
	s.tap.wg.Go(func() {
		defer stop()
		defer events.Close()
		for {
			msg, err := events.Recv()
			if errors.Is(err, zmq.ErrTooLarge) {
				s.tap.log.Error("the KV events of the engine are not recorded any more", "engine", s.rank.index, "cause", err)
			}
			if err != nil {
				return // the engine has ended, or the recording has
			}
			s.saw(l, FromEngine, msg)
		}
	})
}

func (s *session) closeGates() {
	for _, g := range s.gates {
		g.Close()
	}
}

func (s *session) source(l *link, d Direction) *source {
	return &source{rank: s.rank, channel: l.channel, client: l.client, direction: d}
}

// saw queues a message that was received whole, not relayed.
func (s *session) saw(l *link, d Direction, msg zmq.Message) {
	wire := zmq.JoinFrames(nil, msg)
	s.tap.queue.put(s.source(l, d), zmq.Relayed{At: time.Now(), Wire: wire, Owned: true, Size: int64(len(wire))})
	s.tap.queue.signal()
}

// share is the gate of a coordinator's address. All engines get the same one, as
// a frontend compares its address from all of them; so a connection to it belongs to none in
// particular, and its messages count as those of the engine that was first.
func (s *session) share(l *link, typ zmq.Type) (string, error) {
	t := s.tap
	t.mu.Lock()
	defer t.mu.Unlock()
	if gate := t.shared[l.upstream]; gate != nil {
		return gate.Endpoint(), nil
	}
	gate, err := t.openGate(s.host, l.channel.String(), typ)
	if err != nil {
		return "", err
	}
	l.gate = gate
	t.shared[l.upstream] = gate
	t.wg.Go(func() { s.serveShared(t.coordinator, l) })
	return gate.Endpoint(), nil
}

// maxCoordinated is how many connections to an address of the coordinator are relayed at once: more than engines in any
// group. Peers send no name there.
const maxCoordinated = 512

// serveShared relays the connections of all engines until ctx ends.
func (s *session) serveShared(ctx context.Context, l *link) {
	defer l.gate.Close()
	places := make(chan struct{}, maxCoordinated)
	for {
		engine, err := l.gate.Accept(ctx)
		if err != nil {
			return
		}
		select {
		case places <- struct{}{}:
			s.tap.wg.Go(func() {
				defer func() { <-places }()
				s.coordinate(ctx, l, engine)
			})
		default:
			engine.Close()
			s.tap.refusals.Add(fmt.Errorf("%s on %s: %d connections are relayed already", engine.Peer(), l, maxCoordinated))
		}
	}
}

// coordinate relays the connection of one engine. That it ends means nothing: the
// engine's other links show what has become of it.
func (s *session) coordinate(ctx context.Context, l *link, engine *zmq.Conn) {
	frontend, err := zmq.DialAs(ctx, l.upstream, engine.Peer(), zmq.Options{})
	if err != nil {
		engine.Close()
		s.tap.log.Error("the coordinator does not answer", "link", l.String(), "cause", err)
		return
	}
	_, _ = zmq.Relay(ctx, engine, frontend, s.observer(l, FromEngine), s.observer(l, FromFrontend))
}

// A linkObserver queues what passes one way of a link.
type linkObserver struct {
	session *session
	src     *source
}

func (s *session) observer(l *link, d Direction) zmq.Observer {
	return &linkObserver{session: s, src: s.source(l, d)}
}

// Message implements [zmq.Observer].
func (w *linkObserver) Message(s zmq.Relayed) { w.session.tap.queue.put(w.src, s) }

// Passed implements [zmq.Observer].
func (w *linkObserver) Passed() { w.session.tap.queue.signal() }

// HungUp implements [zmq.Observer]. The handshake ends first, and that means nothing;
// of the other links the first shows which side went.
func (w *linkObserver) HungUp() {
	if w.src.channel == Handshake && w.src.direction == FromEngine {
		time.AfterFunc(connectTime, w.session.warnUnready)
	}
	if w.src.channel != Input && w.src.channel != Output || !w.src.rank.left.CompareAndSwap(false, true) {
		return
	}
	w.session.tap.queue.note(w.src, w.what())
	w.session.left <- w
}

// connectTime is how long an engine that has closed its handshake may take to connect the rest: the order is its own.
const connectTime = 2 * time.Second

// warnUnready logs that an engine that is waited for is not coming.
func (s *session) warnUnready() {
	if !s.stood.Load() && s.tap.coordinator.Err() == nil {
		s.tap.log.Warn("the engine closed the handshake before it was ready: its own output says why; the frontend accepts each engine once, "+
			"so restart frontend, recorder and engine", "engine", s.rank.index)
	}
}

// what names the side that has hung up.
func (w *linkObserver) what() string {
	who := "the engine"
	if w.src.direction == FromFrontend {
		who = "the frontend"
	}
	return fmt.Sprintf("%s hung up on %s %d", who, w.src.channel, w.src.client)
}

// maxSmall is what is kept of a message of the handshake or of a coordinator, whose messages have some 100 bytes.
const maxSmall = protocol.MaxInit

// Limits implements [zmq.Observer]: tensors behind the second frame are of use to the
// raw frames alone.
func (w *linkObserver) Limits() (message int64, tails bool) {
	message = w.session.tap.cfg.MaxObserved
	if w.src.channel != Input && w.src.channel != Output {
		message = min(message, maxSmall)
	}
	return message, w.session.tap.cfg.Frames.Path != ""
}

// LineError is an engine of another line than the recording is meant for.
type LineError struct {
	// Want is the tag of the options, Got the version that the engine reported.
	Want, Got string
}

func (e *LineError) Error() string {
	return fmt.Sprintf("the engine is vLLM %s, but the recording is for %s; nothing was forwarded: start the other engine, or record for its version", e.Got, e.Want)
}

// guard refuses a registration of another line than tag's. What names no line, a
// nightly's version for one, passes.
func guard(tag string, registration []byte) error {
	ready, err := protocol.DecodeReady(registration)
	if err != nil {
		return nil // to be forwarded and reported as undecodable
	}
	want, got := protocol.LineOf(tag), protocol.LineOf(ready.VLLMVersion)
	if isLine(want) && isLine(got) && want != got {
		return &LineError{Want: tag, Got: ready.VLLMVersion}
	}
	return nil
}

// isLine reports whether a text is a line, and not empty or the name of a nightly.
func isLine(s string) bool { return s != "" && s[0] >= '0' && s[0] <= '9' }

// openGate binds a socket for the engine's messages, where [Config.Data] says. host is
// how the engine reached the tap, which is the host it gets if the tap listens
// everywhere; name distinguishes ipc sockets.
func (t *tap) openGate(host, name string, typ zmq.Type) (*zmq.Gate, error) {
	endpoint, err := t.dataEndpoint(host, name)
	if err != nil {
		return nil, err
	}
	opt := zmq.Options{}
	if typ == zmq.Router {
		opt.MaxStranger = protocol.MaxStatus // until the engine has registered
	}
	return zmq.OpenGate(endpoint, typ, opt, t.refusals.Add)
}

func (t *tap) dataEndpoint(host, name string) (string, error) {
	data := t.cfg.Data
	data = cmp.Or(data, t.cfg.Listen)
	if path, ok := strings.CutPrefix(data, "ipc://"); ok {
		return "ipc://" + path + "." + name, nil
	}
	bound, port, err := net.SplitHostPort(strings.TrimPrefix(data, "tcp://"))
	if err != nil {
		return "", fmt.Errorf("address %q for the engine's messages: want tcp://host:port or ipc://path", data)
	}
	if host != "" && (bound == "*" || net.ParseIP(bound).IsUnspecified()) {
		bound = host
	}
	if t.cfg.Data == "" || port == "0" || port == "*" {
		return "tcp://" + net.JoinHostPort(bound, "0"), nil
	}
	first, err := strconv.Atoi(port)
	if err != nil {
		return "", fmt.Errorf("address %q for the engine's messages: %q is not a port", data, port)
	}
	return "tcp://" + net.JoinHostPort(bound, strconv.Itoa(first+int(t.ports.Add(1))-1)), nil
}

// maxJoining is how many engines may wait for the frontend's answer at once: more than a group has.
const maxJoining = 512

// begin takes the HELLO of a connection that would be an engine. Whether it is, the frontend decides by its answer.
func (t *tap) begin(s *session, hello zmq.Message) error {
	index, err := protocol.EngineIndex(s.peer.Identity)
	if err != nil {
		return err
	}
	if len(hello) != 1 || !protocol.IsHello(hello[0]) {
		return errors.New("the first message is not HELLO")
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.ranks[index] != nil || t.joining[index] != nil:
		return fmt.Errorf("engine %d sent HELLO a second time: a frontend accepts each engine once; restart the frontend and the recorder", index)
	case t.announced > 0 && index >= t.announced:
		return fmt.Errorf("engine %d sent HELLO, but the frontend has only %d engines", index, t.announced)
	case len(t.joining) >= maxJoining:
		return fmt.Errorf("engine %d sent HELLO while %d others wait for the frontend's answer", index, maxJoining)
	}
	s.index = index
	t.joining[index] = s
	return nil
}

// join makes an engine that the frontend has answered one of the tap's: from here on it has files.
func (t *tap) join(s *session, init zmq.Message) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.joining[s.index] != s {
		return errUnanswered
	}
	if len(init) == 1 {
		t.announced = protocol.AnnouncedEngines(init[0])
	}
	if t.announced > 0 && s.index >= t.announced {
		return fmt.Errorf("this engine is not one of the frontend's %d engines", t.announced)
	}
	delete(t.joining, s.index)
	if t.first != nil { // there is none where engines make no handshake
		t.first.Stop()
	}
	s.rank = t.newRank(s.index)
	t.ranks[s.index] = s.rank
	t.alive++
	t.cfg.Counts.Engines.Add(1)
	return nil
}

// giveUp lets another connection send HELLO with the index of an engine that has not joined.
func (t *tap) giveUp(s *session) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.forget(s)
}

func (t *tap) forget(s *session) {
	if t.joining[s.index] == s {
		delete(t.joining, s.index)
	}
}

// errUnanswered is the end of an engine that did not wait for the frontend's answer to its HELLO.
var errUnanswered = errors.New("the engine disconnected before the frontend answered it")

// leave takes the end of a session. One that never had a rank ends the tap only if there is no other, and the frontend
// does not answer, or the time for the first engine is over.
func (t *tap) leave(s *session, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s.rank == nil {
		t.forget(s)
		if err != nil && (len(t.ranks)+len(t.joining) > 0 || errors.Is(err, errUnanswered) && !t.late) {
			t.refusals.Add(err)
			return
		}
	} else {
		t.alive--
	}
	if err != nil {
		t.ends = append(t.ends, err)
	}
	if t.alive == 0 {
		t.last.Do(func() { close(t.over) })
	}
}
