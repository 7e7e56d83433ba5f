package recorder

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/vllm-vcr/conformance/internal/zmq"
)

const (
	// stuckAfter is how long forwarding waits for an observer that does nothing at
	// all, because its disk hangs, before recording is given up.
	stuckAfter = 5 * time.Second
	// recheck is how often one of several who wait looks again.
	recheck = 20 * time.Millisecond
	// keptBuffer is the most memory that is kept for the next batch.
	keptBuffer = 1 << 20
)

// A queue carries copies of messages from the goroutines that forward them to the
// one that observes them. Its order is that in which messages passed, over all
// links: a request is in it before any answer to it.
//
// Waiting copies have a limit. Above it forwarding waits for the observer, as a slow
// recording is better than none; but not for one that has stopped altogether.
type queue struct {
	start time.Time // of the clock of all events
	limit int64     // bytes
	wake  chan struct{}
	freed chan struct{}

	mu      sync.Mutex
	filling batch
	closed  bool

	waiting  *atomic.Int64 // bytes that were put and not observed, [Counts.Queued]
	observed atomic.Int64  // messages: the observer's progress
	given    atomic.Bool   // up: nothing is taken any more
}

// A batch is what one turn of the observer works on. Small messages share one
// buffer; large ones come with their own.
type batch struct {
	entries []entry
	buf     []byte
}

type entry struct {
	src        *source
	at         time.Duration
	begin, end int    // in the batch's buffer, unless wire is set
	wire       []byte // owned
	release    func() // gives wire back, nil if nobody wants it
	size       int64
	elided     int64
	tooLarge   bool
	note       string // instead of a message
}

// A source is one direction of one link of one engine.
type source struct {
	rank      *rank
	channel   Channel
	client    int
	direction Direction
}

func newQueue(start time.Time, limit int64, waiting *atomic.Int64) *queue {
	return &queue{start: start, limit: limit, waiting: waiting, wake: make(chan struct{}, 1), freed: make(chan struct{}, 1)}
}

// put takes a copy of a message. It is small work, as the message is held up by it.
func (q *queue) put(src *source, s zmq.Sighting) {
	e := entry{src: src, at: s.At.Sub(q.start), size: s.Size, elided: s.Elided, tooLarge: s.Wire == nil}
	if s.Owned {
		e.wire, e.release = s.Wire, s.Release
		s.Wire = nil
	}
	q.add(e, s.Wire)
}

// note puts something that happened where it happened between the messages.
func (q *queue) note(src *source, what string) {
	q.add(entry{src: src, at: time.Since(q.start), note: what}, nil)
	q.signal()
}

func (q *queue) add(e entry, wire []byte) {
	n := int64(len(wire) + len(e.wire))
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
	q.waiting.Add(n)
}

// waitForSpace is called, and returns, with the lock held.
func (q *queue) waitForSpace() {
	progress, since := q.observed.Load(), time.Now()
	timer := time.NewTimer(recheck)
	defer timer.Stop()
	for q.waiting.Load() > q.limit && !q.given.Load() && !q.closed {
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
		} else if time.Since(since) > stuckAfter {
			q.giveUp()
		}
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

// take waits for messages and swaps them for the last batch, whose memory is used
// again; ok is false when there will be none.
func (q *queue) take(last batch) (next batch, ok bool) {
	clear(last.entries)
	last.entries = last.entries[:0]
	last.buf = last.buf[:0]
	if cap(last.buf) > keptBuffer {
		last.buf = nil
	}
	if cap(last.entries) > keptBuffer/64 {
		last.entries = nil
	}
	for {
		q.mu.Lock()
		if len(q.filling.entries) > 0 {
			next, q.filling = q.filling, last
			q.mu.Unlock()
			return next, true
		}
		closed := q.closed || q.given.Load()
		q.mu.Unlock()
		if closed {
			return batch{}, false
		}
		<-q.wake
	}
}

// done says that an entry was observed.
func (q *queue) done(e *entry) {
	n := int64(e.end-e.begin) + int64(len(e.wire))
	if e.release != nil {
		e.release()
	}
	e.wire, e.release = nil, nil
	q.observed.Add(1)
	if q.waiting.Add(-n)+n > q.limit {
		select {
		case q.freed <- struct{}{}:
		default:
		}
	}
}

// errStuck is why recording was given up.
func (q *queue) errStuck() error {
	return fmt.Errorf("recording stood still for %v with %d MiB waiting: does the disk hang? Forwarding goes on without it",
		stuckAfter, q.limit>>20)
}

// event makes the event of an entry. frames is reused.
func (b *batch) event(e *entry, frames [][]byte) (Event, [][]byte, error) {
	ev := Event{
		At: e.at, Rank: e.src.rank.index, Channel: e.src.channel, Client: e.src.client,
		Direction: e.src.direction, Elided: e.elided,
	}
	if e.tooLarge {
		return ev, frames, nil
	}
	wire := e.wire
	if wire == nil {
		wire = b.buf[e.begin:e.end]
	}
	frames, err := zmq.SplitFrames(frames[:0], wire)
	ev.Frames = frames
	return ev, frames, err
}
