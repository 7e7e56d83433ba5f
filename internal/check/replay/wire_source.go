package replay

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/player"
)

// StepClock is the time of a replay that is driven step by step: it stands still
// until it is set. Whoever waits for it must be woken by a message.
type StepClock struct {
	now   atomic.Int64
	asked atomic.Bool
}

// Now is the time of the step that is being replayed.
func (c *StepClock) Now() time.Duration {
	c.asked.Store(true)
	return time.Duration(c.now.Load())
}

// After never delivers.
func (c *StepClock) After(time.Duration) <-chan time.Time { return nil }

// seconds is the time, which nobody has asked for by that.
func (c *StepClock) seconds() float64 { return time.Duration(c.now.Load()).Seconds() }

func (c *StepClock) Set(t time.Duration) { c.now.Store(int64(t)) }

// StepTime is the time of the engine's message with this index: an hour, so that
// no stamp is 0, and a second for each step.
func StepTime(at int) time.Duration { return time.Hour + time.Duration(at)*time.Second }

// beforeStep is when what comes before a step is sent: nothing is due then.
func beforeStep(at int) time.Duration { return StepTime(at) - time.Second/2 }

// foreverAfter is when an aborted request would have gone on.
const foreverAfter = 1 << 20 * time.Hour

// Script makes a session a [player.Source]: a request is answered as the real
// engine answered the one with its id, each output at the time of its step.
func (w *WireSession) Script(r *player.Request) (player.Script, error) {
	q := w.byID[r.ID]
	if q == nil {
		return player.Script{}, fmt.Errorf("%s: no request has the id %q", w.name, r.ID)
	}
	s := player.Script{Tokens: q.tokens, Chunks: q.chunks, Finish: q.finish, CachedTokens: q.cached, FirstToken: foreverAfter}
	last := beforeStep(q.added.Place)
	for i, step := range q.steps {
		if i == 0 {
			s.FirstToken = StepTime(step) - last
		} else {
			s.Gaps = append(s.Gaps, StepTime(step)-last)
		}
		last = StepTime(step)
	}
	if q.finish == protocol.Unfinished {
		// What it would have said next is not known, and never asked for.
		s.Gaps, s.Fill = append(s.Gaps, foreverAfter), func(int) uint32 { return 0 }
	}
	return s, nil
}
