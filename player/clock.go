package player

import (
	"slices"
	"sort"
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

// never is a moment that does not come.
const never = time.Duration(1<<63 - 1)

// timers are what an engine does at moments that no step brings about: a KV cache
// has come, a lease has ended, a fault withholds something no longer. They are in the
// order of their moments, those of one moment in the order in which they were set. What is
// not wanted any more stays, and does nothing when its time has come.
type timers []timer

type timer struct {
	at time.Duration
	do func()
}

// callAt calls do at a moment, between two steps.
func (t *timers) callAt(at time.Duration, do func()) {
	i := sort.Search(len(*t), func(i int) bool { return (*t)[i].at > at })
	*t = slices.Insert(*t, i, timer{at, do})
}

// run calls what is due, and reports whether there was anything.
func (t *timers) run(now time.Duration) bool {
	ran := false
	for t.next() <= now {
		do := (*t)[0].do
		*t = slices.Delete(*t, 0, 1)
		do()
		ran = true
	}
	return ran
}

// next is when the next one is due, or never.
func (t timers) next() time.Duration {
	if len(t) == 0 {
		return never
	}
	return t[0].at
}
