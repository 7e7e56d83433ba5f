package player

import (
	"container/heap"
	"time"
)

// Clock is the time that steps are stamped and paced by.
type Clock interface {
	// Now is the time since an arbitrary zero in the past; it never goes back.
	Now() time.Duration
	// After delivers once, d from now. A later call may take the place of an
	// earlier one, whose delivery can then come late or never.
	After(d time.Duration) <-chan time.Time
}

// wallClock is the machine's monotonic clock.
type wallClock struct {
	zero  time.Time
	alarm alarm
}

// NewClock returns the machine's monotonic clock, for one player. Its zero lies an
// hour back, so that no stamp is 0, which a Python frontend replaces by its own time.
// Where the system allows it, deliveries are late by some tens of microseconds only.
func NewClock() Clock { return &wallClock{zero: time.Now().Add(-time.Hour)} }

func (c *wallClock) Now() time.Duration                     { return time.Since(c.zero) }
func (c *wallClock) After(d time.Duration) <-chan time.Time { return c.alarm.after(d) }

// stop lets go of what the clock holds between two waits. It can still be used.
func (c *wallClock) stop() { c.alarm.stop() }

// never is a moment that does not come.
const never = time.Duration(1<<63 - 1)

// timers are what an engine does at moments that no step brings about: a KV cache
// has come, a lease has ended, a fault holds something back no longer. What is not
// wanted any more stays, and finds out when its time has come.
type timers []timer

type timer struct {
	at     time.Duration
	number uint64 // those of one moment in the order in which they were set
	do     func()
}

func (t timers) Len() int { return len(t) }
func (t timers) Less(i, j int) bool {
	return t[i].at < t[j].at || t[i].at == t[j].at && t[i].number < t[j].number
}
func (t timers) Swap(i, j int) { t[i], t[j] = t[j], t[i] }
func (t *timers) Push(x any)   { *t = append(*t, x.(timer)) }
func (t *timers) Pop() any {
	old := *t
	last := old[len(old)-1]
	old[len(old)-1] = timer{}
	*t = old[:len(old)-1]
	return last
}

// after has something done at a moment, between two steps.
func (e *engine) after(at time.Duration, do func()) {
	e.timed++
	heap.Push(&e.timers, timer{at: at, number: e.timed, do: do})
}

// ring does what is due, and reports whether there was anything.
func (e *engine) ring(now time.Duration) bool {
	rung := false
	for len(e.timers) > 0 && e.timers[0].at <= now {
		heap.Pop(&e.timers).(timer).do()
		rung = true
	}
	return rung
}
