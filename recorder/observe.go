package recorder

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

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
		t.log.Warn("an engine came after the recording had ended: it is forwarded only", "engine", index)
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
	t.log.Info("the recording ends when nothing is in flight", "in_flight", t.cfg.Counts.InFlight.Load())
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
// to the tap, is nobody's loss.
func (t *tap) finish(told bool) (Summary, error) {
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
			rs.Files = r.observer.Files()
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
	if s.Stats.Dead > 0 && !told {
		errs = append(errs, errors.New("the engine died: it said ENGINE_CORE_DEAD"))
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
