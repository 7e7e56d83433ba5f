package player

import (
	"sync"

	"github.com/vllm-vcr/conformance/internal/engine/scheduler"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// coordinator is the way to the data-parallel coordinator: a process of a Python
// frontend, or a part of a Rust one. It gets the lengths of the queues and the beginnings and
// ends of waves, and sends those that another engine has begun
// (vllm/v1/engine/coordinator.py). No engine waits for it: one whose coordinator is
// gone still serves.
type coordinator struct {
	link
	waves *waves
	rank  int // of the waves

	running, waiting int // as sent last
	busy, paused     bool
}

// ready is the only message of the coordinator that is not a request: every engine of the
// group has subscribed.
const ready = "READY"

// handleWave takes what the inbox brought of the coordinator.
func (p *Player) handleWave(e *event) {
	c := p.coordinator
	switch {
	case e.broken != nil:
		p.opt.Log.Error("message of the coordinator not understood", "error", e.broken)
	case e.kind == coordinatorGone:
		p.opt.Log.Warn("the data-parallel coordinator has disconnected; requests are still served", "error", e.gone)
		c.out.close()
	case e.kind == waveJoined:
		c.out.put(p.codec.StartWave(p.opt.EngineIndex, e.wave, seconds(p.opt.Clock.Now())))
	case e.kind == waveEnded:
		p.opt.Log.Debug("wave complete", "wave", e.wave)
		c.out.put(p.codec.WaveComplete(p.opt.EngineIndex, e.wave, seconds(p.opt.Clock.Now())))
	default:
		c.waves.begin(c.rank, p.opt.EngineIndex, e.wave, e.exclude)
	}
}

// joinWave counts a request that the engine has accepted or refused to its wave.
func (p *Player) joinWave(wave int) {
	c := p.coordinator
	if c == nil || p.engine.idle() {
		return
	}
	c.busy = true
	if start := c.waves.requestAdded(c.rank, p.opt.EngineIndex, wave); start >= 0 {
		c.out.put(p.codec.StartWave(p.opt.EngineIndex, start, seconds(p.opt.Clock.Now())))
	}
}

// reportToCoordinator sends the lengths of the queues if they have changed, as a real engine
// does before and after each step, and then whether there is work to the other ranks.
func (p *Player) reportToCoordinator() {
	c := p.coordinator
	if c == nil {
		return
	}
	p.reportCounts(c)
	busy, paused := !p.engine.idle(), p.engine.scheduler.Pause != scheduler.Unpaused
	if busy != c.busy || paused != c.paused {
		c.busy, c.paused = busy, paused
		c.waves.setWork(c.rank, busy, paused)
	}
}

func (p *Player) reportCounts(c *coordinator) {
	queues := p.engine.scheduler
	running, waiting := len(queues.Running()), queues.Waiting()+queues.Deferred()
	if running == c.running && waiting == c.waiting {
		return
	}
	c.running, c.waiting = running, waiting
	// The step counter stays 0: it orders the counts of engines that step together,
	// and these do not.
	stats := protocol.SchedulerStats{
		Running: running, Waiting: waiting, KVCacheUsage: p.engine.pool.Usage(), CurrentWave: c.waves.current(c.rank),
	}
	c.out.put(p.codec.Stats(p.opt.EngineIndex, &stats, seconds(p.opt.Clock.Now())))
}

// waves are the request waves of the ranks in this process: the times in which a
// data-parallel group as a whole is at work (vllm/v1/engine/core.py
// DPEngineCoreProc). The ranks of a real group find out by an all-reduce whether all
// are done. The same is known here from what they share, and not at all by ranks in
// other processes: where some are, a wave that has begun does not end.
type waves struct {
	// byFrontend and byFirst are protocol.FrontendBeginsWaves and FirstRankBeginsWaves: who
	// begins a wave that a request of that wave reached first, if not any rank. A request
	// of an earlier wave makes any rank begin one.
	byFrontend, byFirst bool
	// whole is set when all ranks of the group are here.
	whole bool

	mu    sync.Mutex
	ranks []waveRank
}

// waveRank is what one engine core knows of its group.
type waveRank struct {
	wave      int
	joined    bool // it steps with the others, with or without requests of its own
	fresh     bool // it has joined, and its subscriber was not called yet
	busy      bool // it has unfinished requests
	paused    bool
	started   func(wave int)
	completed func(wave int)
}

func newWaves(line string, ranks int, whole bool) *waves {
	return &waves{
		byFrontend: protocol.FrontendBeginsWaves.Holds(line), byFirst: protocol.FirstRankBeginsWaves.Holds(line),
		whole: whole, ranks: make([]waveRank, ranks),
	}
}

// subscribe sets what is called, under the lock, for the waves that a rank joins for
// others, and for those that end while it is in them.
func (w *waves) subscribe(rank int, started, completed func(wave int)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ranks[rank].started, w.ranks[rank].completed = started, completed
}

// current returns the wave that a rank is in, or waits for.
func (w *waves) current(rank int) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.ranks[rank].wave
}

// requestAdded counts a request of a rank to the wave that the frontend names. It
// returns the wave that the coordinator is to begin, or -1.
func (w *waves) requestAdded(rank, index, wave int) (start int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	r := &w.ranks[rank]
	stale := wave < r.wave
	r.wave = max(r.wave, wave)
	r.busy = true
	if r.joined || r.paused {
		return -1
	}
	r.joined = true
	if !w.byFrontend && (!w.byFirst || index == 0) || stale {
		return r.wave
	}
	return -1
}

// begin joins a wave that has begun, as the coordinator reports. The engine that is
// excluded knows by its request.
func (w *waves) begin(rank, index, wave, exclude int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	r := &w.ranks[rank]
	if index == exclude || wave < r.wave || r.paused {
		return
	}
	r.wave = wave
	r.join()
	w.settle()
}

// join lets a rank step with the others.
func (r *waveRank) join() {
	r.fresh = r.fresh || !r.joined
	r.joined = true
}

// setWork sets whether a rank has requests to work on, and whether it is paused.
func (w *waves) setWork(rank int, busy, paused bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	r := &w.ranks[rank]
	before := r.paused
	r.busy, r.paused = busy, paused
	switch {
	case before && !paused:
		w.resume()
	case !before && paused && w.whole:
		r.joined = true // the ranks step together until all of them are paused
	}
	w.settle()
}

// resume lets the ranks that go on after a pause do it together: they agree among
// themselves whether there is anything to do.
func (w *waves) resume() {
	work := false
	for i := range w.ranks {
		if w.ranks[i].paused {
			return
		}
		work = work || w.ranks[i].busy
	}
	for i := range w.ranks {
		if work {
			w.ranks[i].join()
		}
	}
}

// settle ends the wave if it is over, or calls the subscribers of the ranks that joined.
func (w *waves) settle() {
	over := w.over()
	for i := range w.ranks {
		r := &w.ranks[i]
		switch {
		case over:
			if r.completed != nil {
				r.completed(r.wave)
			}
			r.joined = false
			r.wave++
		case r.fresh && r.started != nil && !w.byFrontend:
			r.started(r.wave)
		}
		r.fresh = false
	}
}

// over reports whether every rank has joined the wave and none has anything left to do.
func (w *waves) over() bool {
	for i := range w.ranks {
		if !w.ranks[i].joined || w.ranks[i].busy {
			return false
		}
	}
	return w.whole
}
