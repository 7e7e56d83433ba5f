package player

import "time"

// Clock is the time that steps are stamped and paced by.
type Clock interface {
	// Now is the time since an arbitrary zero in the past; it never goes back.
	Now() time.Duration
	// After delivers once, d from now.
	After(d time.Duration) <-chan time.Time
}

type wallClock struct{ zero time.Time }

// NewClock returns the machine's monotonic clock. Its zero lies an hour back, so
// that no stamp is 0, which a Python frontend replaces by its own time.
func NewClock() Clock { return wallClock{zero: time.Now().Add(-time.Hour)} }

func (c wallClock) Now() time.Duration                     { return time.Since(c.zero) }
func (c wallClock) After(d time.Duration) <-chan time.Time { return time.After(d) }
