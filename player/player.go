package player

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/vllm-vcr/conformance/internal/engine/kvcache"
	"github.com/vllm-vcr/conformance/internal/engine/kvevents"
	"github.com/vllm-vcr/conformance/internal/engine/kvtransfer"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// Player is one engine core in front of one frontend.
type Player struct {
	opt    Options
	codec  *protocol.Codec
	ready  protocol.ReadyResponse
	engine *engine
	inbox  *inbox
	links  []*link
	up     chan struct{}

	kvEvents *kvevents.Publisher // nil without KV events

	coordinator *coordinator // nil without one
	waves       *waves
	rank        int // of the waves

	deaf     atomic.Bool // no message is read any more, see stopReading
	heard    atomic.Bool // a client has sent something
	compared atomic.Bool // the layout of a request was looked at, see compareLayout

	serving context.Context // ends when nothing is done beside the engine any more
	fetches sync.WaitGroup
	beside  aside
}

// ErrFrontendGone is returned by Run when every client of the frontend has
// disconnected: an engine cannot rejoin a running frontend.
var ErrFrontendGone = errors.New("the frontend has disconnected")

// New checks the options and prepares the replay. No socket is opened yet, so
// that a bad recording is refused before any frontend waits for it.
func New(opt Options) (*Player, error) {
	opt = opt.withDefaults()
	codec := opt.Codec
	if codec == nil {
		var err error
		if codec, err = protocol.CodecFor(opt.VLLMVersion); err != nil {
			return nil, err
		}
	}
	if err := opt.check(); err != nil {
		return nil, err
	}
	source, err := opt.source()
	if err != nil {
		return nil, err
	}
	ready, err := opt.readyResponse(codec)
	if err != nil {
		return nil, err
	}
	p := &Player{
		opt: opt, codec: codec, ready: ready, inbox: newInbox(), up: make(chan struct{}),
		waves: newWaves(codec.Line(), 1, max(ready.DataParallelSize, opt.EngineIndex+1) == 1),
	}
	if p.engine, err = newEngine(&p.opt, codec, ready, source); err != nil {
		return nil, err
	}
	p.engine.send, p.engine.beside = p.send, p.doBeside
	return p, p.attachConnector()
}

// Ready is closed when the engine has registered and sent READY.
func (p *Player) Ready() <-chan struct{} { return p.up }

// Line returns the vLLM line that the player speaks.
func (p *Player) Line() string { return p.codec.Line() }

// Run connects to the frontend and serves it until ctx ends, which is a clean
// shutdown and returns nil, or until it fails or the frontend is gone. However
// it ends, open requests are answered with an abort and every client is sent
// that the engine is dead, unless a fault has killed it. A player runs once.
func (p *Player) Run(ctx context.Context) error {
	defer p.stopClock()
	if err := p.openKVEvents(); err != nil {
		return err
	}
	defer p.closeKVEvents()
	defer p.closeLinks()
	if err := p.connect(ctx); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	close(p.up)
	p.opt.Log.Info("engine ready", "line", p.codec.Line(), "handshake", p.opt.Handshake, "clients", len(p.links))
	p.serveLinks()
	defer p.startFetching(ctx)()
	defer context.AfterFunc(ctx, func() { p.stopWriting(p.opt.Linger) })()
	err := p.serve(ctx)
	if errors.Is(err, ErrKilled) {
		p.finishWriting() // what was sent before is written
	} else {
		p.shutDown()
	}
	return err
}

// openKVEvents begins to publish, if that is wanted.
func (p *Player) openKVEvents() error {
	if p.opt.KVCache.Events == nil {
		return nil
	}
	opt := *p.opt.KVCache.Events
	opt.Rank = p.opt.EngineIndex
	if opt.Log == nil {
		opt.Log = p.opt.Log
	}
	pub, err := kvevents.New(p.codec.Profile(), opt)
	if err != nil {
		return err
	}
	p.kvEvents, p.ready.KVEvents = pub, pub.Config()
	p.engine.publish = func(events []kvcache.Event) {
		if err := pub.Publish(float64(time.Now().UnixNano())/1e9, events); err != nil {
			p.opt.Log.Error("KV events not published", "error", err)
		}
	}
	how := "KV events: connecting to subscribers"
	if pub.Bound() {
		how = "KV events: bound to"
	}
	p.opt.Log.Info(how, "endpoint", pub.Endpoint(), "replay", pub.ReplayEndpoint())
	return nil
}

func (p *Player) closeKVEvents() {
	if p.kvEvents == nil {
		return
	}
	if err := p.kvEvents.Close(); err != nil {
		p.opt.Log.Warn("a subscriber did not read all KV events before the shutdown", "error", err)
	}
}

// stopClock ends the thread of a clock of our own.
func (p *Player) stopClock() {
	if c, ok := p.opt.Clock.(*wallClock); ok {
		c.alarm.stop()
	}
}

// flushEvery bounds how many steps may wait in the send buffers: less and small
// steps pay for system calls, more and a client waits for tokens long made.
const flushEvery = 16

func (p *Player) serve(ctx context.Context) error {
	for steps := 0; ; steps++ {
		err := p.handle(p.inbox.take())
		if ctx.Err() != nil {
			return nil // also when the frontend ends at the same time
		}
		if err != nil {
			return err
		}
		p.reportToCoordinator()
		busy := p.engine.step()
		if p.engine.killed {
			return ErrKilled
		}
		p.engine.answerDrained()
		p.reportToCoordinator()
		if busy && steps%flushEvery != 0 {
			continue
		}
		p.flush()
		if !busy && !p.wait(ctx) {
			return nil
		}
	}
}

// wait blocks until there is something to do. It reports false when ctx ended.
func (p *Player) wait(ctx context.Context) bool {
	var timer <-chan time.Time
	if due, ok := p.engine.nextDue(); ok {
		timer = p.opt.Clock.After(due - p.opt.Clock.Now())
	}
	select {
	case <-ctx.Done():
		return false
	case <-p.inbox.wake:
	case <-timer:
	}
	return true
}

// handle gives the engine what the sockets received.
func (p *Player) handle(events []event) error {
	for i := range events {
		e := &events[i]
		switch {
		case e.kind == ofEngine:
			e.do()
		case e.kind != ofClient:
			p.handleWave(e)
		case e.gone != nil:
			if err := p.clientGone(e.client, e.gone); err != nil {
				return err
			}
		case e.fatal:
			p.heardTheLast(e)
		case e.broken != nil:
			p.answerBroken(e)
		case e.request != nil:
			p.engine.add(e.request, e.client)
			p.joinWave(e.request.CurrentWave)
			p.inbox.recycle(e.request)
		case e.call != nil:
			p.engine.utility(*e.call, e.client)
		default:
			p.engine.abort(e.abort)
		}
	}
	return nil
}

// heardTheLast logs the message that an engine of the line cannot decode. The thread that
// reads ends with it, and closes all its sockets; requests go on, and no client is told
// (vllm/v1/engine/core.py process_input_sockets, and experiments with 0.32.0 and 0.33.0).
func (p *Player) heardTheLast(e *event) {
	id := ""
	if e.request != nil {
		id = e.request.ID
	}
	p.opt.Log.Error("an engine of this line cannot decode this message. As a real engine then does, the player reads no more messages and answers no more requests: start the frontend and the player again",
		"line", p.codec.Line(), "client", e.client, "request", id, "error", e.broken)
	if p.opt.OnRefused != nil {
		p.opt.OnRefused(id, e.broken)
	}
}

// answerBroken answers a message that did not decode, if it names its sender.
func (p *Player) answerBroken(e *event) {
	switch {
	case e.request != nil && e.request.ID != "":
		p.engine.refuse(e.request, e.client, "bad_request", e.broken)
	case e.call != nil && e.call.CallID != 0:
		p.engine.reply(*e.call, e.client, nil, e.broken)
	default:
		p.opt.Log.Error("a message does not decode, and names no request or call that could be answered", "client", e.client, "error", e.broken)
		if p.opt.OnRefused != nil {
			p.opt.OnRefused("", e.broken)
		}
	}
}

func (p *Player) clientGone(client int, cause error) error {
	p.opt.Log.Warn("client disconnected", "client", client, "error", cause)
	for _, q := range p.engine.byID {
		if q.client == client {
			p.opt.Requests.output(p.engine, q.id, nil, protocol.FinishAbort)
			p.engine.cancel(q)
		}
	}
	p.links[client].gone = true
	p.links[client].out.close()
	for _, l := range p.links {
		if !l.gone {
			return nil
		}
	}
	p.explainLeft()
	return fmt.Errorf("%w: %w", ErrFrontendGone, cause)
}

// shutDown answers what is open, sends every client that the engine is dead, and waits
// until they have read everything, for a while.
func (p *Player) shutDown() {
	p.engine.abortAll()
	for client := range p.links {
		p.send(client, protocol.ClientMessage{[]byte(protocol.EngineDead)})
	}
	p.finishWriting()
}

// finishWriting waits until every client has read everything, for a while.
func (p *Player) finishWriting() {
	p.flush()
	p.stopWriting(p.opt.Linger)
	for _, l := range p.allLinks() {
		l.out.close()
	}
	for client, l := range p.links {
		<-l.written
		if l.lost != nil && !l.gone {
			p.opt.Log.Warn("the frontend did not read everything before the shutdown", "client", client, "waited", p.opt.Linger,
				"error", l.lost)
		}
	}
}

// eventKind is the source of an event.
type eventKind uint8

const (
	ofClient        eventKind = iota
	waveBegan                 // of the coordinator: wave and exclude, or broken
	waveJoined                // of the ranks in this process: wave
	waveEnded                 // likewise
	coordinatorGone           // gone says why
	ofEngine                  // do
)

// event is something that a socket's reader hands to the engine.
type event struct {
	kind    eventKind
	client  int
	request *protocol.Request
	abort   []string
	call    *protocol.UtilityCall
	// broken is a message that did not decode; what could be read of it is in
	// request or call. It is fatal if an engine of the line reads no other after it.
	broken error
	fatal  bool
	// gone is set when the connection ended.
	gone error
	// wave and exclude belong to the kind.
	wave, exclude int
	// do is what the engine does later.
	do func()
}

// inbox is the unbounded queue between the sockets' readers and the engine:
// a frontend must never be blocked on its requests while the engine is blocked
// on its answers. Its size is that of the requests in flight.
type inbox struct {
	mu     sync.Mutex
	events []event
	spare  []event
	wake   chan struct{}
	pool   sync.Pool
}

func newInbox() *inbox {
	return &inbox{
		wake: make(chan struct{}, 1),
		pool: sync.Pool{New: func() any { return new(protocol.Request) }},
	}
}

// put adds an event and wakes the engine.
func (b *inbox) put(e event) {
	b.mu.Lock()
	b.events = append(b.events, e)
	b.mu.Unlock()
	b.ring()
}

// ring wakes the engine.
func (b *inbox) ring() {
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// take returns what came since the last call. The slice is valid until then.
func (b *inbox) take() []event {
	b.mu.Lock()
	defer b.mu.Unlock()
	taken := b.events
	clear(b.spare)
	b.events, b.spare = b.spare[:0], taken
	return taken
}

// request returns a request to decode into; recycle gives it back.
func (b *inbox) request() *protocol.Request  { return b.pool.Get().(*protocol.Request) }
func (b *inbox) recycle(r *protocol.Request) { b.pool.Put(r) }

// attachConnector gives the engine its KV connector, if it has one.
func (p *Player) attachConnector() error {
	if p.opt.Transfer == nil {
		return nil
	}
	t, err := p.opt.Transfer.OfEngine(p.opt.EngineIndex, max(p.ready.DataParallelSize, p.opt.DataParallelSize))
	if err != nil {
		return err
	}
	if t.Open != nil {
		t.DataPlane, err = t.Open(t, kvtransfer.Form{
			Line: p.engine.codec.Line(), Blocks: p.engine.ready.NumGPUBlocks, BlockSize: p.engine.pool.BlockSize(),
			TensorParallel: max(p.engine.ready.TensorParallelSize, 1),
		})
		if err != nil {
			return err
		}
	}
	p.engine.connector = &connector{
		Config: t, kept: map[string]*keptCache{},
		fetch: p.fetch, release: p.release, later: p.later,
	}
	return nil
}

// later has something done by the goroutine of the engine.
func (p *Player) later(do func()) { p.inbox.put(event{kind: ofEngine, do: do}) }

// fetch pulls a KV cache outside of the engine's loop.
func (p *Player) fetch(c kvtransfer.Cache, fetched func(kvtransfer.Moved, error)) {
	p.fetches.Go(func() {
		moved, err := p.engine.connector.DataPlane.Pull(p.serving, c)
		p.later(func() { fetched(moved, err) })
	})
}

func (p *Player) release(c kvtransfer.Cache) {
	p.fetches.Go(func() {
		if err := p.engine.connector.DataPlane.Release(p.serving, c); err != nil && !errors.Is(err, context.Canceled) {
			p.opt.Log.Warn("could not tell the other engine to free the KV cache that it keeps", "at", c.Address(), "error", err)
		}
	})
}

// startFetching lets KV caches be fetched until ctx ends or stop is called, which waits
// for others that still do.
func (p *Player) startFetching(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	p.serving = ctx
	return func() {
		cancel()
		p.fetches.Wait()
		if c := p.engine.connector; c != nil && c.Open != nil {
			if closer, is := c.DataPlane.(io.Closer); is {
				_ = closer.Close() // there is nothing left to do with it
			}
		}
	}
}

// aside is what is done beside the engine, in the order in which it was asked for: one after
// the other, so that what takes long keeps one processor busy and no more.
type aside struct {
	mu      sync.Mutex
	todo    []func(context.Context) (then func())
	running bool
}

// doBeside has something done beside the engine.
func (p *Player) doBeside(do func(context.Context) (then func())) {
	a := &p.beside
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.todo = append(a.todo, do); a.running {
		return
	}
	a.running = true
	p.fetches.Go(func() {
		for {
			a.mu.Lock()
			if len(a.todo) == 0 || p.serving.Err() != nil {
				a.running = false
				a.mu.Unlock()
				return
			}
			next := a.todo[0]
			a.todo = a.todo[1:]
			a.mu.Unlock()
			p.later(next(p.serving))
		}
	})
}
