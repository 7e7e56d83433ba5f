package conformance

import (
	"context"
	"time"
)

// Attached tells where an engine under test that is kept alive can be reached.
type Attached struct {
	// Handshake is the address that it dials.
	Handshake string
	// Pid is its process, 0 when it is not one of ours.
	Pid int
}

// forEver is longer than anybody debugs.
const forEver = 10 * 365 * 24 * time.Hour

// withoutDeadlines are the limits of a run with somebody in it who looks at things.
func withoutDeadlines() Timeouts { return Timeouts{Connect: forEver, Idle: forEver, Golden: forEver} }

// announce tells of a session whose subject has started, and not yet said HELLO.
func (r *Runner) announce(s *session) {
	if r.KeepAlive == nil {
		return
	}
	at := Attached{Handshake: s.front.Handshake()}
	if starter, ok := s.subject.(interface {
		Started() <-chan struct{}
		Pid() int
	}); ok {
		select {
		case <-starter.Started():
		case <-s.done:
		}
		at.Pid = starter.Pid()
	}
	r.KeepAlive(at)
}

// run is the context of the whole run, which sessions live in that several cases
// use.
func (r *Runner) run(ctx context.Context) context.Context {
	if r.whole != nil {
		return r.whole
	}
	return ctx
}

// finish ends what the cases shared; an engine that is kept alive stays until ctx
// ends.
func (r *Runner) finish(ctx context.Context) {
	if r.KeepAlive != nil && r.sharing != nil && r.sharing.session != nil {
		select {
		case <-ctx.Done():
		case <-r.sharing.session.ctx.Done():
		}
	}
	r.release()
}
