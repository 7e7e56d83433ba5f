package player

import (
	"sync"

	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

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
	fresh     bool // it has joined, and nobody was told yet
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

// tell sets who is told, under the lock, of the waves that a rank joins for others, and
// of those that end while it is in them.
func (w *waves) tell(rank int, started, completed func(wave int)) {
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

// added is told of a request that a rank has taken in, which the frontend counted to a
// wave. It returns the wave that the coordinator is to begin, or -1.
func (w *waves) added(rank, index, wave int) (start int) {
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

// began is told by the coordinator that a wave has begun. The engine that is excluded
// knows by its request.
func (w *waves) began(rank, index, wave, exclude int) {
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

// works says whether a rank has requests to work on, and whether it is paused.
func (w *waves) works(rank int, busy, paused bool) {
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

// settle ends the wave if it is over, or tells who has joined it.
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

// over tells whether every rank has joined the wave and none has anything left to do.
func (w *waves) over() bool {
	for i := range w.ranks {
		if !w.ranks[i].joined || w.ranks[i].busy {
			return false
		}
	}
	return w.whole
}
