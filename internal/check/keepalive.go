package check

import (
	"time"
)

// Attached says where a subject under test that is kept alive can be reached.
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

// WithoutDeadlines are the limits of a run in which a person looks at things.
func WithoutDeadlines() Timeouts { return Timeouts{Connect: forEver, Idle: forEver, Golden: forEver} }

// announce reports a session whose subject has started, and not yet said HELLO.
func (e *Env) announce(s *Session) {
	if e.KeepAlive == nil {
		return
	}
	at := Attached{Handshake: s.Front.Handshake()}
	if starter, ok := s.Subject.(interface {
		Started() <-chan struct{}
		Pid() int
	}); ok {
		select {
		case <-starter.Started():
		case <-s.Done:
		}
		at.Pid = starter.Pid()
	}
	e.KeepAlive(at)
}

// AnnounceFrontend reports a frontend that has started, and does not serve yet.
func (e *Env) AnnounceFrontend(p *FrontendProcess) {
	if e.KeepAlive == nil {
		return
	}
	at := Attached{Handshake: p.Handshake, URL: p.URL}
	if p.Process != nil {
		at.Pid = p.Process.Pid()
	}
	e.KeepAlive(at)
}

// Finish ends what the cases shared; a subject that is kept alive stays until the
// run's context ends, or it does.
func (e *Env) Finish() {
	if gone := e.kept(); e.KeepAlive != nil && gone != nil {
		select {
		case <-e.Context.Done():
		case <-gone:
		}
	}
	e.release()
	e.Keep(nil)
}

// kept is closed with the end of the subject that the last case has left, nil when
// it has left none of ours.
func (e *Env) kept() <-chan struct{} {
	switch {
	case e.sharing != nil && e.sharing.session != nil:
		return e.sharing.session.Context.Done()
	case e.Kept != nil:
		return e.Kept.Done()
	}
	return nil
}

// Keep closes what a suite keeps, and puts something else there.
func (e *Env) Keep(kept Kept) {
	if e.Kept != nil {
		e.Kept.Close()
	}
	e.Kept = kept
}
