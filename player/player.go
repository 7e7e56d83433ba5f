package player

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strconv"
	"strings"
	"time"

	"github.com/vllm-vcr/conformance/internal/protocol"
	"github.com/vllm-vcr/conformance/internal/trace"
)

// Options configures a player. The zero value needs at least Handshake.
type Options struct {
	// Handshake is the address that the frontend listens on, tcp:// or ipc://.
	Handshake string
	// VLLMVersion is the release to be: "v0.33.0", a line "0.33", "nightly",
	// or empty for the release that the trace was recorded from, else the newest.
	VLLMVersion string
	// Codec is that of VLLMVersion's line, for a caller that has it already; nil
	// compiles it.
	Codec *protocol.Codec
	// EngineIndex is the engine's data-parallel rank and socket identity.
	EngineIndex int
	// Trace is replayed by Match; nil answers with random tokens.
	Trace *trace.Trace
	Match Match
	// Strict refuses requests that no record answers.
	Strict bool
	// Source replaces Trace and Match.
	Source Source
	Pace   Pace
	Seed   uint64
	Vocab  uint32 // for random ids, default 32000
	// Registered values; 0 takes the recorded engine's, else a default.
	MaxModelLen, MaxNumSeqs, MaxNumBatchedTokens int
	BlockSize, NumGPUBlocks                      int
	// ParallelConfigHash is sent with READY when set.
	ParallelConfigHash string
	// HandshakeTimeout bounds the wait for the frontend; default 5 minutes, as
	// in a real engine.
	HandshakeTimeout time.Duration
	// Linger bounds how long a shutdown waits for the frontend to take what
	// was said; default 4 seconds, as in a real engine.
	Linger time.Duration
	Clock  Clock
	Log    *slog.Logger
	// OnRefused is told why a request got an error output. It is called from
	// the player's goroutine.
	OnRefused func(id string, err error)
}

// Player is one engine core in front of one frontend.
type Player struct {
	opt    Options
	codec  *protocol.Codec
	ready  protocol.ReadyResponse
	engine *engine
	inbox  *inbox
	links  []*link
	up     chan struct{}
}

// ErrFrontendGone is returned by Run when every client of the frontend has
// disconnected: an engine cannot rejoin a running frontend.
var ErrFrontendGone = errors.New("the frontend is gone")

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
	source, err := opt.source()
	if err != nil {
		return nil, err
	}
	ready, err := opt.readyResponse(codec)
	if err != nil {
		return nil, err
	}
	p := &Player{opt: opt, codec: codec, ready: ready, inbox: newInbox(), up: make(chan struct{})}
	p.engine = &engine{
		codec: codec, index: opt.EngineIndex, ready: ready, source: source, clock: opt.Clock, pace: opt.Pace,
		vocab: opt.Vocab, log: opt.Log, fault: opt.OnRefused,
		blocks: blockPool{size: max(ready.BlockSize, 1), cached: opt.caching(), users: map[uint64]int{}},
		byID:   map[string]*request{}, state: engineState{weightVersion: "default"}, send: p.send,
	}
	return p, nil
}

func (o Options) withDefaults() Options {
	if o.VLLMVersion == "" {
		o.VLLMVersion = protocol.Newest()
		if o.Trace != nil && trace.Or(o.Trace.Meta.VLLMVersion, "") != "" {
			o.VLLMVersion = *o.Trace.Meta.VLLMVersion
		}
	}
	if o.Match == "" {
		o.Match = MatchIndex
	}
	if o.Pace == "" {
		o.Pace = PaceInstant
	}
	if o.Vocab == 0 {
		o.Vocab = defaultVocab
	}
	if o.HandshakeTimeout == 0 {
		o.HandshakeTimeout = 5 * time.Minute
	}
	if o.Linger == 0 {
		o.Linger = 4 * time.Second
	}
	if o.Clock == nil {
		o.Clock = NewClock()
	}
	if o.Log == nil {
		o.Log = slog.New(slog.NewTextHandler(io.Discard, nil))
	}
	return o
}

func (o Options) source() (Source, error) {
	random := Random{Seed: o.Seed, Vocab: o.Vocab}
	switch {
	case o.Source != nil:
		return o.Source, nil
	case o.Trace == nil:
		return random, nil
	case o.Match != MatchIndex && o.Match != MatchPrefix:
		return nil, fmt.Errorf("match %q: want %s or %s", o.Match, MatchIndex, MatchPrefix)
	}
	return NewReplay(o.Trace, ReplayOptions{Match: o.Match, Strict: o.Strict, Fallback: random, BlockSize: o.BlockSize})
}

// readyResponse is what the recorded engine registered with, as far as the
// trace knows, under the player's own name.
func (o Options) readyResponse(codec *protocol.Codec) (protocol.ReadyResponse, error) {
	r := protocol.DefaultReady(o.version(codec))
	if o.Trace != nil && o.Trace.Meta.ReadyResponseHex != nil {
		raw, err := hex.DecodeString(*o.Trace.Meta.ReadyResponseHex)
		if err == nil {
			r, err = protocol.DecodeReady(raw)
		}
		if err != nil {
			return r, fmt.Errorf("%s: meta.ready_response_hex: %w", o.Trace.Name, err)
		}
		r.VLLMVersion, r.KVEvents, r.DPStatsAddress = o.version(codec), nil, nil
		r.CoordinatorInputAddress, r.CoordinatorOutputAddress = nil, nil
	}
	for _, set := range []struct {
		field *int
		value int
	}{
		{&r.MaxModelLen, o.MaxModelLen},
		{&r.MaxNumSeqs, o.MaxNumSeqs},
		{&r.BlockSize, o.BlockSize},
		{&r.MaxNumBatchedTokens, o.MaxNumBatchedTokens},
		{&r.NumGPUBlocks, o.NumGPUBlocks},
	} {
		if set.value != 0 {
			*set.field = set.value
		}
	}
	// Lines before 0.27 do not register these; a recording of theirs has none.
	usual := protocol.DefaultReady("")
	r.MaxNumSeqs = cmp.Or(max(r.MaxNumSeqs, 0), usual.MaxNumSeqs)
	r.MaxNumBatchedTokens = cmp.Or(max(r.MaxNumBatchedTokens, 0), usual.MaxNumBatchedTokens)
	r.DataParallelRank = o.EngineIndex
	r.InstanceID = strconv.FormatInt(time.Now().UnixNano(), 10)
	return r, nil
}

// version is the release to register as, without the tag's "v".
func (o Options) version(codec *protocol.Codec) string {
	v := strings.TrimPrefix(o.VLLMVersion, "v")
	if strings.Count(v, ".") < 2 {
		return codec.Profile().Version
	}
	return v
}

// caching tells whether the recorded engine had a prefix cache.
func (o Options) caching() bool {
	return o.Trace == nil || !strings.Contains(trace.Or(o.Trace.Meta.EngineConfig, ""), "enable_prefix_caching=false")
}

// Ready is closed when the engine has registered and said READY.
func (p *Player) Ready() <-chan struct{} { return p.up }

// Line returns the vLLM line that the player speaks.
func (p *Player) Line() string { return p.codec.Line() }

// Run connects to the frontend and serves it until ctx ends, which is a clean
// shutdown and returns nil, or until it fails or the frontend is gone. However
// it ends, open requests are answered with an abort and every client is told
// that the engine is dead. A player runs once.
func (p *Player) Run(ctx context.Context) error {
	defer p.closeLinks()
	if err := p.connect(ctx); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	close(p.up)
	p.opt.Log.Info("engine ready", "line", p.codec.Line(), "handshake", p.opt.Handshake, "clients", len(p.links))
	for i, l := range p.links {
		l.done.Add(2)
		go p.read(i, l)
		go p.watch(i, l)
	}
	defer context.AfterFunc(ctx, func() { p.stopWriting(p.opt.Linger) })()
	err := p.serve(ctx)
	p.shutDown()
	return err
}

// flushEvery bounds how many steps may wait in the send buffers: less and small
// steps pay for system calls, more and a client waits for tokens long made.
const flushEvery = 16

func (p *Player) serve(ctx context.Context) error {
	for steps := 0; ; steps++ {
		if err := p.handle(p.inbox.take()); err != nil {
			return err
		}
		if ctx.Err() != nil {
			return nil
		}
		busy := p.engine.step()
		p.engine.answerDrained()
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

// handle gives the engine what the sockets brought.
func (p *Player) handle(events []event) error {
	for i := range events {
		e := &events[i]
		switch {
		case e.gone != nil:
			if err := p.clientGone(e.client, e.gone); err != nil {
				return err
			}
		case e.broken != nil:
			p.answerBroken(e)
		case e.request != nil:
			p.engine.add(e.request, e.client)
			p.inbox.recycle(e.request)
		case e.call != nil:
			p.engine.utility(*e.call, e.client)
		default:
			p.engine.abort(e.abort)
		}
	}
	return nil
}

// answerBroken answers a message that did not decode, if it says enough to
// answer to.
func (p *Player) answerBroken(e *event) {
	switch {
	case e.request != nil && e.request.ID != "":
		p.engine.refuse(e.request, e.client, "bad_request", e.broken)
	case e.call != nil && e.call.CallID != 0:
		p.engine.reply(*e.call, e.client, nil, e.broken)
	default:
		p.opt.Log.Error("message not understood and not answerable", "client", e.client, "error", e.broken)
		if p.opt.OnRefused != nil {
			p.opt.OnRefused("", e.broken)
		}
	}
}

func (p *Player) clientGone(client int, cause error) error {
	p.opt.Log.Warn("client disconnected", "client", client, "error", cause)
	p.engine.dropClient(client)
	p.links[client].gone = true
	for _, l := range p.links {
		if !l.gone {
			return nil
		}
	}
	return fmt.Errorf("%w: %w", ErrFrontendGone, cause)
}

// shutDown answers what is open and tells every client that the engine is dead.
func (p *Player) shutDown() {
	p.engine.abortAll()
	for client := range p.links {
		p.send(client, protocol.ClientMessage{[]byte(protocol.EngineDead)})
	}
	p.flush()
	for client, l := range p.links {
		if l.failed && !l.gone {
			p.opt.Log.Warn("the client did not take everything before the shutdown", "client", client, "waited", p.opt.Linger)
		}
	}
}
