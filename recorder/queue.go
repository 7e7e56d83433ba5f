package recorder

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/vllm-vcr/conformance/internal/wire/zmq"
)

const (
	// stuckAfter is how long forwarding waits for an observer that does nothing at
	// all, because its disk hangs, before recording is given up. A large message may
	// take longer: at least slowest bytes a microsecond are expected.
	stuckAfter = 5 * time.Second
	slowest    = 1
	// recheck is how often one of several waiting goroutines looks again.
	recheck = 20 * time.Millisecond
	// keptBytes is the most memory of a batch that is kept for the next one.
	keptBytes = 1 << 20
)

// A queue carries copies of messages from the goroutines that forward them to the
// one that observes them. Its order is that in which messages passed, over all
// links: a request is in it before any answer to it.
//
// Waiting copies have a limit. Above it forwarding waits for the observer, as a slow
// recording is better than none; but not for one that has stopped altogether. It goes
// on when an eighth of the limit is free: to wake up for every message is dear.
type queue struct {
	start time.Time // of the clock of all events
	limit int64     // bytes
	wake  chan struct{}
	freed chan struct{}

	mu      sync.Mutex
	filling batch
	closed  bool

	patience time.Duration // stuckAfter
	waiting  *atomic.Int64 // bytes that were put and not observed, [Counts.Queued]
	observed atomic.Int64  // messages: the observer's progress
	working  atomic.Int64  // bytes of the message it is at
	given    atomic.Bool   // up: nothing is taken any more
}

// A batch is what one turn of the observer works on: all that waits. Small messages share
// one buffer; large ones come with their own.
type batch struct {
	entries []entry
	buf     []byte
}

type entry struct {
	src        *source
	at         time.Duration
	begin, end int // in the batch's buffer, unless there is more to it
	size       int64
	elided     int64
	more       *more
}

// more is what only few entries have.
type more struct {
	wire     []byte // owned
	release  func() // gives wire back, nil if it is not needed
	tooLarge bool
	note     string // instead of a message
	end      ending // the same
}

// An ending is whether and when the recording is to end before the tap does.
type ending uint8

const (
	recording ending = iota
	endIdle          // when nothing is in flight
	endNow
)

// A source is one direction of one link of one engine.
type source struct {
	rank      *rank
	channel   Channel
	client    int
	direction Direction
}

func newQueue(start time.Time, limit int64, waiting *atomic.Int64) *queue {
	return &queue{start: start, limit: limit, patience: stuckAfter, waiting: waiting, wake: make(chan struct{}, 1), freed: make(chan struct{}, 1)}
}

// put takes a copy of a message. It is small work, as the message is held up by it.
func (q *queue) put(src *source, s zmq.Relayed) {
	e := entry{src: src, at: s.At.Sub(q.start), size: s.Size, elided: s.Elided}
	if s.Owned || s.Wire == nil {
		e.more = &more{wire: s.Wire, release: s.Release, tooLarge: s.Wire == nil}
		s.Wire = nil
	}
	q.add(e, s.Wire)
}

// note puts something that happened where it happened between the messages.
func (q *queue) note(src *source, what string) {
	q.add(entry{src: src, at: time.Since(q.start), more: &more{note: what}}, nil)
	q.signal()
}

// end puts the end of the recording behind the messages that are there.
func (q *queue) end(how ending) {
	q.add(entry{at: time.Since(q.start), more: &more{end: how}}, nil)
	q.signal()
}

func (q *queue) add(e entry, wire []byte) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.waiting.Load() > q.limit {
		q.waitForSpace()
	}
	if q.given.Load() || q.closed {
		return
	}
	e.begin = len(q.filling.buf)
	q.filling.buf = append(q.filling.buf, wire...)
	e.end = len(q.filling.buf)
	q.filling.entries = append(q.filling.entries, e)
	q.waiting.Add(e.bytes())
}

// bytes is what an entry holds in memory, but for itself.
func (e *entry) bytes() int64 {
	n := int64(e.end - e.begin)
	if e.more != nil {
		n += int64(len(e.more.wire))
	}
	return n
}

// waitForSpace is called, and returns, with the lock held.
func (q *queue) waitForSpace() {
	progress, since := q.observed.Load(), time.Now()
	timer := time.NewTimer(recheck)
	defer timer.Stop()
	for q.waiting.Load() > q.enough() && !q.given.Load() && !q.closed {
		q.mu.Unlock()
		q.signal()
		timer.Reset(recheck)
		select {
		case <-q.freed:
		case <-timer.C:
		}
		q.mu.Lock()
		if now := q.observed.Load(); now != progress {
			progress, since = now, time.Now()
		} else if time.Since(since) > q.patience+time.Duration(q.working.Load()/slowest)*time.Microsecond {
			q.giveUp()
		}
	}
	q.free() // others that wait
}

// enough is the bytes that may wait when waiting goroutines go on.
func (q *queue) enough() int64 { return q.limit - q.limit/8 }

func (q *queue) free() {
	select {
	case q.freed <- struct{}{}:
	default:
	}
}

// giveUp ends observation: forwarding goes on without it.
func (q *queue) giveUp() {
	q.given.Store(true)
	q.filling = batch{}
	q.waiting.Store(0)
}

// signal wakes the observer.
func (q *queue) signal() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// close lets take return what is left, and then nothing.
func (q *queue) close() {
	q.mu.Lock()
	q.closed = true
	q.mu.Unlock()
	q.signal()
}

// take waits for messages and returns those that wait, in exchange for the last batch,
// whose memory is used again; ok is false when there will be none.
func (q *queue) take(last batch) (next batch, ok bool) {
	clear(last.entries)
	last.entries, last.buf = last.entries[:0], last.buf[:0]
	if cap(last.buf) > keptBytes {
		last = batch{}
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.filling.entries) == 0 {
		if q.closed || q.given.Load() {
			return last, false
		}
		q.mu.Unlock()
		<-q.wake
		q.mu.Lock()
	}
	next, q.filling = q.filling, last
	return next, true
}

// done is called when an entry was observed.
func (q *queue) done(e *entry) {
	n := e.bytes()
	if m := e.more; m != nil {
		if m.release != nil {
			m.release()
		}
		m.wire, m.release = nil, nil
	}
	q.observed.Add(1)
	if left := q.waiting.Add(-n); left <= q.enough() && left+n > q.enough() {
		q.free()
	}
}

// errStuck is why recording was given up.
func (q *queue) errStuck() error {
	return fmt.Errorf("nothing was written for %v while %d MiB waited, so the recording has stopped: check the disk. Messages are still forwarded",
		q.patience, q.limit>>20)
}

// event makes the event of an entry. frames is reused.
func (b *batch) event(e *entry, frames [][]byte) (Event, [][]byte, error) {
	ev := Event{
		At: e.at, Rank: e.src.rank.index, Channel: e.src.channel, Client: e.src.client,
		Direction: e.src.direction, Elided: e.elided,
	}
	wire := b.buf[e.begin:e.end]
	if e.more != nil {
		if wire = e.more.wire; e.more.tooLarge {
			return ev, frames, nil
		}
	}
	frames, err := zmq.SplitFrames(frames[:0], wire)
	ev.Frames = frames
	return ev, frames, err
}
