package player

import "time"

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
