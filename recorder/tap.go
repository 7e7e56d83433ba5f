package recorder

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/internal/wire/zmq"
	"github.com/vllm-vcr/conformance/trace"
)

// Config has the two sides of the tap, and the files that it writes.
type Config struct {
	// Frontend is the handshake address of the real frontend, which the tap dials.
	Frontend string
	// Listen is the handshake address that the engine dials: tcp://host:port or
	// ipc://path.
	Listen string
	// FrontendAddresses are where a frontend waits for an engine that makes no handshake: its input and its output socket. The
	// engine is given EngineAddresses, where the tap listens. Frontend, Listen and Data are not used then.
	FrontendAddresses, EngineAddresses [2]string
	// Data is where the sockets for the engine's messages are bound: tcp://host:0 for
	// any free ports, tcp://host:port for that one and those behind it, ipc://path for
	// sockets that begin with that path. Empty is any port of the host, or the path,
	// of Listen.
	Data string
	// HandshakeTimeout is how long the first engine may take to appear, and each to
	// become ready once it has; 0 means 10 minutes, what a frontend waits.
	HandshakeTimeout time.Duration
	// QueueLimit is how many bytes may wait to be observed before forwarding waits
	// too; 0 means 4 MiB. A message that is larger passes all the same.
	QueueLimit int64
	// MaxObserved is the size in bytes above which a message is forwarded but not
	// observed; 0 means 256 MiB.
	MaxObserved int64

	// KVEvents is where engine 0 publishes its KV events, tcp://host:port, with engine N at the port that is N higher, as
	// vLLM does it. What they publish goes into the raw frames. Empty is nowhere.
	KVEvents string

	// Observe is what is written of a request.
	Observe Options
	// Trace, Steps and Frames are where the trace, its step statistics and the raw
	// frames go; an empty Path is not wanted. With several engines, each has files of
	// its own, see [RankPath].
	Trace, Steps, Frames Destination

	// Until, when it is closed, ends the recording but not the tap: as soon as nothing is in flight the files are finished,
	// and from then on messages are only forwarded. What is still in flight after UntilWait, 0 meaning 30 s, is left out,
	// which is an error. Nil records to the end.
	Until     <-chan struct{}
	UntilWait time.Duration
	// Finished, if not nil, is called when the recording has ended so, with what Run will return of it.
	Finished func(Summary, error)

	Log *slog.Logger
	// Counts is what a live view reads while Run runs. Nil is one of Run's own.
	Counts *Counts
}

const (
	defaultHandshakeTimeout = 10 * time.Minute
	defaultQueueLimit       = 4 << 20
	defaultMaxObserved      = 256 << 20
	defaultUntilWait        = 30 * time.Second
	// leaveTime is how long the links of an engine have to end one after another when
	// it, or its frontend, hangs up.
	leaveTime = time.Second
)

func (c Config) withDefaults() Config {
	c.HandshakeTimeout = cmp.Or(c.HandshakeTimeout, defaultHandshakeTimeout)
	c.QueueLimit = cmp.Or(c.QueueLimit, defaultQueueLimit)
	c.MaxObserved = cmp.Or(c.MaxObserved, defaultMaxObserved)
	c.UntilWait = cmp.Or(c.UntilWait, defaultUntilWait)
	c.Log = cmp.Or(c.Log, slog.New(slog.DiscardHandler))
	c.Counts = cmp.Or(c.Counts, new(Counts))
	return c
}

// Summary is what a run of the tap did.
type Summary struct {
	Stats Stats
	// Ranks are the engines that sent HELLO, by index.
	Ranks []RankSummary
}

// RankSummary is what was recorded of one engine.
type RankSummary struct {
	Rank int
	// Files are where its outputs lie, in the order trace, step statistics, frames.
	Files []string
	// EngineClock is what was made of its timestamps in the end, see [trace.Record].
	EngineClock trace.EngineClock
	// Err is why its recording is not whole, nil if it is.
	Err error
}

// Run taps until ctx ends, or until all engines, or the frontend, have hung up; then
// it finishes what it has written. It returns nil for a recording that is whole: a
// hang-up with requests in flight, an engine that died, and a recording that stopped
// are errors. What passes is forwarded whatever becomes of the recording.
func Run(ctx context.Context, cfg Config) (Summary, error) {
	cfg = cfg.withDefaults()
	t := &tap{
		over: make(chan struct{}),
		cfg:  cfg, log: cfg.Log, ranks: map[int]*rank{}, joining: map[int]*session{}, shared: map[string]*zmq.Gate{},
		refusals: zmq.NewRefusalLog(cfg.Log, "a connection was refused"),
		queue:    newQueue(time.Now(), cfg.QueueLimit, &cfg.Counts.Queued),
	}
	if err := t.probeOutputs(); err != nil {
		return Summary{}, err
	}
	defer t.refusals.Close()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	t.coordinator = ctx
	observed := make(chan struct{})
	go func() {
		defer close(observed)
		t.observe()
	}()
	if cfg.Until != nil {
		t.wg.Go(func() { t.until(ctx, observed) })
	}

	serve := t.serve
	if cfg.FrontendAddresses[0] != "" {
		serve = t.serveAddresses
	}
	err := serve(ctx)
	stopped := ctx.Err() != nil
	cancel(errors.New("the recorder ends"))
	t.wg.Wait()
	t.queue.close()
	select {
	case <-observed:
	case <-time.After(stuckAfter):
		if t.queue.given.Load() {
			return Summary{Stats: cfg.Counts.Snapshot()}, errors.Join(err, t.queue.errStuck())
		}
		<-observed
	}
	summary, finishing := t.finish(stopped)
	return summary, errors.Join(err, finishing)
}

// A tap is one run.
type tap struct {
	cfg   Config
	log   *slog.Logger
	queue *queue
	ports atomic.Int32   // of [Config.Data] that are taken
	wg    sync.WaitGroup // sessions and the gates they share
	// coordinator ends the relays that no session owns.
	coordinator context.Context

	refusals *zmq.RefusalLog

	mu    sync.Mutex
	ranks map[int]*rank
	// joining are the engines that have sent HELLO and that the frontend has not answered yet. They have no files, and
	// their leaving means nothing.
	joining   map[int]*session
	announced int                  // engines that the frontend has, 0 if it does not say
	shared    map[string]*zmq.Gate // by the frontend's address
	first     *time.Timer          // until an engine is known
	late      bool                 // first has fired
	alive     int                  // sessions of ranks that have not ended
	ends      []error              // of sessions
	over      chan struct{}        // the last session has ended
	last      sync.Once
	// finished is set when the recording has begun to end: engines that join after that are not recorded.
	finished bool
	summary  Summary // once finished, as failure
	failure  error
}

// A rank is one engine, as the observing goroutine sees it.
type rank struct {
	index    int
	observer *Observer
	failed   error       // why there is no observer
	left     atomic.Bool // it, or its frontend, has hung up
}

// probeOutputs finds out before anything connects whether the files can be made.
func (t *tap) probeOutputs() error {
	for _, d := range []Destination{t.cfg.Trace, t.cfg.Steps, t.cfg.Frames} {
		if d.Path == "" {
			continue
		}
		if err := Probe(d.forRank(0)); err != nil {
			return err
		}
	}
	return nil
}

// serve accepts engines until all is over.
func (t *tap) serve(ctx context.Context) error {
	gate, err := zmq.OpenGate(t.cfg.Listen, zmq.Router, zmq.Options{MaxStranger: protocol.MaxStatus}, t.refusals.Add)
	if err != nil {
		return err
	}
	defer gate.Close()
	t.log.Info("waiting for the engine", "address", gate.Endpoint(), "frontend", t.cfg.Frontend)

	t.first = time.AfterFunc(t.cfg.HandshakeTimeout, func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.late = true
		if len(t.joining) == 0 { // they have a deadline of their own
			go gate.Close()
		}
	})
	defer t.first.Stop()
	accepting, stop := context.WithCancel(ctx)
	defer stop()
	go func() {
		select {
		case <-t.over:
			stop()
		case <-accepting.Done():
		}
	}()
	for {
		conn, err := gate.Accept(accepting)
		switch {
		case err == nil:
			t.wg.Go(func() { t.meet(ctx, conn) })
		case ctx.Err() != nil:
			return nil // stopped
		case accepting.Err() != nil:
			t.mu.Lock()
			defer t.mu.Unlock()
			return errors.Join(t.ends...)
		default:
			return fmt.Errorf("no engine sent HELLO to %s within %v: check the address that the engine was given, --data-parallel-address and --data-parallel-rpc-port", gate.Endpoint(), t.cfg.HandshakeTimeout)
		}
	}
}

// serveAddresses taps one engine that makes no handshake.
func (t *tap) serveAddresses(ctx context.Context) error {
	s := newSession(t)
	s.direct = true
	defer s.closeGates()
	known := &registered{done: make(chan struct{})}
	var links []*link
	for i, typ := range []zmq.Type{zmq.Router, zmq.Pull} {
		l := &link{channel: []Channel{Input, Output}[i], upstream: t.cfg.FrontendAddresses[i], registered: known}
		var err error
		if l.gate, err = zmq.OpenGate(t.cfg.EngineAddresses[i], typ, zmq.Options{MaxStranger: protocol.MaxStatus}, t.refusals.Add); err != nil {
			return err
		}
		links, s.gates = append(links, l), append(s.gates, l.gate)
	}
	t.log.Info("waiting for the engine", "address", links[0].gate.Endpoint(), "frontend", links[0].upstream)
	deadline, disarm := context.WithTimeoutCause(ctx, t.cfg.HandshakeTimeout, fmt.Errorf("no engine registered at %s within %v", links[0].gate.Endpoint(), t.cfg.HandshakeTimeout))
	defer disarm()
	if err := s.follow(deadline, ctx, links); ctx.Err() == nil {
		return err
	}
	return nil // stopped
}

// observe feeds the observers until the queue ends. It alone touches them.
func (t *tap) observe() {
	var frames [][]byte
	var b batch
	var seen []*rank // those with something to flush
	ending := recording
	for ok := true; ok; {
		if b, ok = t.queue.take(b); !ok {
			break
		}
		for i := range b.entries {
			if m := b.entries[i].more; m != nil && m.end != recording {
				ending = m.end
				t.queue.done(&b.entries[i])
				continue
			}
			t.queue.working.Store(b.entries[i].bytes())
			frames = t.observeOne(&b, &b.entries[i], frames)
			if r := b.entries[i].src.rank; r.observer != nil && !slices.Contains(seen, r) {
				seen = append(seen, r)
			}
			t.queue.done(&b.entries[i])
		}
		for _, r := range seen { // nothing else waits: let what is gathered reach the disk
			r.observer.Flush()
		}
		seen = seen[:0]
		if ending == endNow || ending == endIdle && t.cfg.Counts.InFlight.Load() <= 0 {
			t.endEarly(b)
			return
		}
	}
	if t.queue.given.Load() {
		for _, r := range t.observed() {
			r.observer.Stop(t.queue.errStuck())
		}
	}
}

func (t *tap) observeOne(b *batch, e *entry, frames [][]byte) [][]byte {
	o := e.src.rank.observer
	if e.more != nil && e.more.note != "" {
		if o != nil {
			o.Note(e.at, e.more.note)
		}
		return frames
	}
	t.cfg.Counts.Messages[e.src.direction].Add(1)
	t.cfg.Counts.Bytes[e.src.direction].Add(uint64(e.size))
	ev, frames, err := b.event(e, frames)
	if err != nil { // cannot be: the relay has followed the same frames
		t.log.Error("a copy of a message is broken", "channel", ev.Channel, "cause", err)
		return frames
	}
	if o != nil {
		o.Observe(&ev)
	}
	return frames
}

// observed are the engines that are recorded, by index. The lock is not held while
// their observers work: a disk that hangs must not hold up a session.
func (t *tap) observed() []*rank {
	t.mu.Lock()
	defer t.mu.Unlock()
	var ranks []*rank
	for _, index := range slices.Sorted(maps.Keys(t.ranks)) {
		if r := t.ranks[index]; r.observer != nil {
			ranks = append(ranks, r)
		}
	}
	return ranks
}

// newRank makes the files and the observer of an engine. Without them it is still
// forwarded.
func (t *tap) newRank(index int) *rank {
	r := &rank{index: index}
	if t.finished {
		t.log.Warn("an engine connected after the recording had ended: its messages are forwarded and not recorded", "engine", index)
		return r
	}
	sinks := Sinks{}
	var files []*File
	for _, out := range []struct {
		to   **File
		dest Destination
	}{{&sinks.Trace, t.cfg.Trace}, {&sinks.Steps, t.cfg.Steps}, {&sinks.Frames, t.cfg.Frames}} {
		if out.dest.Path == "" {
			continue
		}
		f, err := Create(out.dest.forRank(index))
		if err != nil {
			r.failed = errors.Join(r.failed, err)
			continue
		}
		*out.to = f
		files = append(files, f)
	}
	if r.failed != nil {
		for _, f := range files {
			f.Abandon()
		}
		t.cfg.Counts.Stopped.Add(1)
		t.log.Error("RECORDING STOPPED: nothing of this engine is recorded, its messages are forwarded", "engine", index, "cause", r.failed)
		return r
	}
	r.observer = NewObserver(t.cfg.Observe, sinks, t.cfg.Counts, t.log.With("engine", index))
	return r
}

// until puts the end of the recording into the queue when it is asked for, behind all messages that have passed by then.
func (t *tap) until(ctx context.Context, observed <-chan struct{}) {
	select {
	case <-t.cfg.Until:
	case <-ctx.Done():
		return
	}
	t.queue.end(endIdle)
	t.log.Info("the recording ends when no request is in flight", "in_flight", t.cfg.Counts.InFlight.Load())
	timer := time.NewTimer(t.cfg.UntilWait)
	defer timer.Stop()
	select {
	case <-timer.C:
		t.queue.end(endNow)
	case <-observed:
	case <-ctx.Done():
	}
}

// endEarly ends the recordings while the sessions go on. What is in the queue behind the end is given back unseen.
func (t *tap) endEarly(b batch) {
	t.queue.close()
	summary, err := t.finish(false)
	if t.cfg.Finished != nil {
		t.cfg.Finished(summary, err)
	}
	for ok := true; ok; {
		if b, ok = t.queue.take(b); ok {
			for i := range b.entries {
				t.queue.done(&b.entries[i])
			}
		}
	}
}

// finish ends the recordings. An engine that dies of the tap's own departure, told
// to the tap, is not a loss.
func (t *tap) finish(stopped bool) (Summary, error) {
	ranks, already := t.closing()
	if already {
		return t.summary, t.failure
	}
	var s Summary
	var errs []error
	for _, r := range ranks {
		rs := RankSummary{Rank: r.index, Err: r.failed}
		if r.observer != nil {
			rs.Err = r.observer.Close()
			rs.Files, rs.EngineClock = r.observer.Files(), r.observer.clock.state
		}
		if rs.Err != nil {
			errs = append(errs, fmt.Errorf("engine %d: %w", r.index, rs.Err))
		}
		s.Ranks = append(s.Ranks, rs)
	}
	s.Stats = t.cfg.Counts.Snapshot()
	if n := s.Stats.InFlight; n > 0 {
		errs = append(errs, fmt.Errorf("requests in flight at the end, which are not in the recording: %d", n))
	}
	if s.Stats.Dead > 0 && !stopped {
		errs = append(errs, errors.New("the engine has died: it sent ENGINE_CORE_DEAD"))
	}
	t.summary, t.failure = s, errors.Join(errs...)
	return t.summary, t.failure
}

// closing are all engines, of which there will be no further one that is recorded; already if this was said before. The
// lock is not held while files are finished: an upload must not hold up a session.
func (t *tap) closing() (ranks []*rank, already bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	already = t.finished
	t.finished = true
	for _, index := range slices.Sorted(maps.Keys(t.ranks)) {
		ranks = append(ranks, t.ranks[index])
	}
	return ranks, already
}

// RankPath is the path of an engine's own file: path for engine 0, and for engine 3
// run.rank3.jsonl.gz of run.jsonl.gz. A path that contains "{rank}" has the index
// there, for every engine.
func RankPath(path string, rank int) string {
	if strings.Contains(path, "{rank}") {
		return strings.ReplaceAll(path, "{rank}", fmt.Sprint(rank))
	}
	if rank == 0 {
		return path
	}
	return beforeSuffix(path, fmt.Sprintf(".rank%d", rank))
}

func (d Destination) forRank(rank int) Destination {
	d.Path = RankPath(d.Path, rank)
	return d
}

// meet is the life of a connection to the handshake socket. An engine that is told to
// end the handshake may well connect again and say nothing: that is not an error.
func (t *tap) meet(ctx context.Context, engine *zmq.Conn) {
	stop := context.AfterFunc(ctx, func() { engine.Close() })
	hello, err := engine.Recv()
	if !stop() || err != nil {
		engine.Close()
		if ctx.Err() == nil && !errors.Is(err, zmq.ErrPeerGone) {
			t.refusals.Add(fmt.Errorf("no HELLO: %w", err))
		}
		return
	}
	s := newSession(t)
	s.peer, s.host = engine.Peer(), engine.LocalHost()
	if err := t.begin(s, hello); err != nil {
		engine.Close()
		t.refusals.Add(fmt.Errorf("%s: %w", engine.Peer(), err))
		return
	}
	engine.Trust()
	err = s.run(ctx, engine, hello)
	if err != nil && ctx.Err() == nil {
		err = fmt.Errorf("engine %d: %w", s.index, err)
	} else {
		err = nil
	}
	t.leave(s, err)
}
