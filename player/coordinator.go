package player

import (
	"context"
	"fmt"

	"github.com/vllm-vcr/conformance/internal/engine/scheduler"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/internal/wire/zmq"
)

// coordinator is the way to the data-parallel coordinator: a process of a Python
// frontend, or a part of a Rust one. It is told how long the queues are and when waves
// begin and end, and says when another engine has begun one
// (vllm/v1/engine/coordinator.py). Nobody waits for it: an engine whose coordinator is
// gone still serves.
type coordinator struct {
	link
	waves *waves
	rank  int // of the waves

	running, waiting int // as told last
	busy, paused     bool
}

// ready is all that the coordinator says that is no request: that every engine of the
// group has subscribed.
const ready = "READY"

// coordinate connects to the coordinator and waits until it has heard of all engines.
func (p *Player) coordinate(ctx context.Context, a protocol.Addresses) error {
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
		return fmt.Errorf("coordinator %s: no READY, which comes when all engines of the group are there: %w",
			c.input.Peer(), cause(ctx, err))
	}
	if string(m[0]) != ready {
		return fmt.Errorf("coordinator %s: a message of %d frames instead of READY", c.input.Peer(), len(m))
	}
	if p.opt.EngineIndex == 0 {
		c.waves.tell(c.rank,
			func(wave int) { p.inbox.put(event{kind: waveJoined, wave: wave}) },
			func(wave int) { p.inbox.put(event{kind: waveEnded, wave: wave}) })
	}
	return nil
}

// hear hands on what the coordinator says until the connection ends.
func (p *Player) hear(c *coordinator) {
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
		p.inbox.put(startOf(m))
	}
}

// report writes what the coordinator is told.
func (p *Player) report(c *coordinator) {
	defer c.done.Done()
	defer close(c.written)
	if err := c.out.write(); err != nil {
		p.inbox.put(event{kind: coordinatorGone, gone: err})
	}
}

// startOf reads START_DP_WAVE.
func startOf(m zmq.Message) event {
	e := event{kind: waveBegan}
	if len(m) != 2 || len(m[0]) != 1 || m[0][0] != protocol.TypeStartDPWave {
		e.broken = fmt.Errorf("coordinator: a message of %d frames is no START_DP_WAVE", len(m))
		return e
	}
	e.wave, e.exclude, e.broken = protocol.DecodeStartWave(m[1])
	return e
}

// onWave is what the inbox brought of the coordinator.
func (p *Player) onWave(e *event) {
	c := p.coordinator
	switch {
	case e.broken != nil:
		p.opt.Log.Error("message of the coordinator not understood", "error", e.broken)
	case e.kind == coordinatorGone:
		p.opt.Log.Warn("the data-parallel coordinator is gone: requests are served all the same", "error", e.gone)
		c.out.close()
	case e.kind == waveJoined:
		c.out.put(p.codec.StartWave(p.opt.EngineIndex, e.wave, seconds(p.opt.Clock.Now())))
	case e.kind == waveEnded:
		p.opt.Log.Debug("wave complete", "wave", e.wave)
		c.out.put(p.codec.WaveComplete(p.opt.EngineIndex, e.wave, seconds(p.opt.Clock.Now())))
	default:
		c.waves.began(c.rank, p.opt.EngineIndex, e.wave, e.exclude)
	}
}

// countAdded is told of a request that the engine was given, after it was taken in, or
// refused.
func (p *Player) countAdded(wave int) {
	c := p.coordinator
	if c == nil || p.engine.idle() {
		return
	}
	c.busy = true
	if start := c.waves.added(c.rank, p.opt.EngineIndex, wave); start >= 0 {
		c.out.put(p.codec.StartWave(p.opt.EngineIndex, start, seconds(p.opt.Clock.Now())))
	}
}

// tellCoordinator tells of the queues if their lengths have changed, as a real engine
// does before and after each step, and then the other ranks of the end of the work.
func (p *Player) tellCoordinator() {
	c := p.coordinator
	if c == nil {
		return
	}
	p.tellCounts(c)
	busy, paused := !p.engine.idle(), p.engine.scheduler.Pause != scheduler.Unpaused
	if busy != c.busy || paused != c.paused {
		c.busy, c.paused = busy, paused
		c.waves.works(c.rank, busy, paused)
	}
}

func (p *Player) tellCounts(c *coordinator) {
	running, waiting, usage := p.engine.counts()
	if running == c.running && waiting == c.waiting {
		return
	}
	c.running, c.waiting = running, waiting
	// The step counter stays 0: it orders the counts of engines that step together,
	// and these do not.
	stats := protocol.SchedulerStats{
		Running: running, Waiting: waiting, KVCacheUsage: usage, CurrentWave: c.waves.current(c.rank),
	}
	c.out.put(p.codec.Stats(p.opt.EngineIndex, &stats, seconds(p.opt.Clock.Now())))
}
