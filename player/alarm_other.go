//go:build !linux

package player

import "time"

// alarm is a timer. The runtime's may be late by a millisecond.
type alarm struct{}

func (*alarm) after(d time.Duration) <-chan time.Time { return time.After(d) }

// stop has nothing to end.
func (*alarm) stop() {}
