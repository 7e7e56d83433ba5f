package conformance

import (
	"context"
	"time"
)

// Attached tells where a subject under test that is kept alive can be reached.
type Attached struct {
	// Handshake is the address that an engine dials, and that a frontend listens on.
	Handshake string
	// URL is the HTTP side of a frontend, empty for an engine.
	URL string
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

// announceFrontend tells of a frontend that has started, and does not serve yet.
func (r *Runner) announceFrontend(p *frontendProcess) {
	if r.KeepAlive == nil {
		return
	}
	at := Attached{Handshake: p.handshake, URL: p.url}
	if p.process != nil {
		at.Pid = p.process.Pid()
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

// finish ends what the cases shared; a subject that is kept alive stays until ctx
// ends, or it does.
func (r *Runner) finish(ctx context.Context) {
	if gone := r.kept(); r.KeepAlive != nil && gone != nil {
		select {
		case <-ctx.Done():
		case <-gone:
		}
	}
	r.release()
	r.closeFrontend()
}

// kept is closed with the end of the subject that the last case has left, nil when
// it has left none of ours.
func (r *Runner) kept() <-chan struct{} {
	switch {
	case r.sharing != nil && r.sharing.session != nil:
		return r.sharing.session.ctx.Done()
	case r.frontend != nil && r.frontend.frontend != nil:
		return r.frontend.frontend.done()
	}
	return nil
}
