package recorder

import (
	"math"
	"time"

	"github.com/vllm-vcr/conformance/trace"
)

// engineClock relates the timestamps of an engine's messages (EngineCoreOutputs.timestamp, in seconds of the engine's
// time.monotonic) to the clock of the tap. Messages come late and in bursts where the machine is busy, and their timestamps do not.
//
// A message is as late as it came after the one that was fastest, in comparison with its timestamp. The timestamps are used once a
// message came that shows that both clocks have the same rate.
type engineClock struct {
	state   trace.EngineClock
	last    map[int]float64 // timestamp of the last message, by client
	begun   time.Duration   // when the first message came
	seen    int             // messages
	fastest moment          // the message of the least difference of the clocks
	offset  time.Duration   // what the engine's clock lacks to the tap's, for times to the first token
	era     int             // of the engine's clock: it has jumped so often

	// The least difference since windowBegun, for clocks that drift.
	windowBegun, windowLeast time.Duration
}

// moment is a time on both clocks.
type moment struct{ tap, engine time.Duration }

func (m moment) difference() time.Duration { return m.tap - m.engine }

const (
	// proofTime is how long messages must have come before the rate of a clock can be seen, and maxLateness the part of that time
	// which a message may be late that shows it.
	proofTime   = 100 * time.Millisecond
	maxLateness = 0.05
	// A clock that has shown no usable rate after anotherAfter, and so many messages, is another one.
	anotherAfter    = 2 * time.Second
	anotherMessages = 16
	// maxJump is by how much a message may be faster than all before it: these were held up by the machine.
	maxJump = time.Second
	// offsetStep is the least improvement of the offset, as each makes times of before and after it differ. It is raised, by
	// offsetDrift at least, where all messages of a driftWindow were slower.
	offsetStep  = 100 * time.Microsecond
	offsetDrift = time.Millisecond
	driftWindow = time.Minute
	// maxTimestamp is in seconds: 285 years.
	maxTimestamp = 9e9
)

func newEngineClock() engineClock {
	return engineClock{state: trace.ClockUnproven, last: map[int]float64{}}
}

// usable reports whether the times of a request that began in an era may be taken from the timestamps.
func (c *engineClock) usable(era int) bool { return c.state == trace.ClockUsed && c.era == era }

// failed reports whether the timestamps are not used any more, whatever comes.
func (c *engineClock) failed() bool {
	return c.state == trace.ClockZero || c.state == trace.ClockConstant || c.state == trace.ClockBackwards
}

// observe takes a message of an engine to a client, and returns its timestamp.
func (c *engineClock) observe(client int, timestamp float64, now time.Duration) time.Duration {
	if c.failed() {
		return 0
	}
	before, known := c.last[client]
	c.last[client] = timestamp
	switch {
	case !(timestamp > 0 && timestamp < maxTimestamp): // NaN too
		c.state = trace.ClockZero
		return 0
	case known && timestamp == before: // no two messages are made in the same nanosecond
		c.state = trace.ClockConstant
		return 0
	case known && timestamp < before:
		c.state = trace.ClockBackwards
		return 0
	}
	m := moment{now, time.Duration(math.Round(timestamp * 1e9))}
	if c.seen++; c.seen == 1 {
		c.begin(m)
		return m.engine
	}
	if m.difference() < c.fastest.difference()-maxJump && c.state == trace.ClockUsed {
		c.state = trace.ClockUnproven
		c.era++
		c.begin(m)
		return m.engine
	}
	c.estimate(m)
	c.prove(m)
	return m.engine
}

func (c *engineClock) begin(m moment) {
	c.begun, c.seen = m.tap, 1
	c.fastest, c.offset = m, m.difference()
	c.windowBegun, c.windowLeast = m.tap, m.difference()
}

// estimate follows the difference of the clocks.
func (c *engineClock) estimate(m moment) {
	difference := m.difference()
	if difference < c.fastest.difference() {
		c.fastest = m
	}
	if difference <= c.offset-offsetStep {
		c.offset = difference
	}
	c.windowLeast = min(c.windowLeast, difference)
	if m.tap-c.windowBegun < driftWindow {
		return
	}
	if c.windowLeast >= c.offset+offsetDrift {
		c.offset = c.windowLeast
	}
	c.windowBegun, c.windowLeast = m.tap, difference
}

// prove looks whether the clocks have the same rate.
func (c *engineClock) prove(m moment) {
	if c.state == trace.ClockUsed {
		return
	}
	elapsed, late := m.tap-c.fastest.tap, m.difference()-c.fastest.difference()
	switch {
	case elapsed >= proofTime && float64(late) <= maxLateness*float64(elapsed):
		c.state = trace.ClockUsed
	case m.tap-c.begun >= anotherAfter && c.seen >= anotherMessages:
		c.state = trace.ClockAnother
	}
}
