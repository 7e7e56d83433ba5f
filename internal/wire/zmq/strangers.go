package zmq

import (
	"errors"
	"log/slog"
	"net"
	"slices"
	"sync"
	"syscall"
	"time"
)

// A stranger is a connection that has not shaken hands yet, or, where [Options.MaxStranger] is set, for which [Conn.Trust] was
// not called yet. Anyone who reaches a port can be one, so a socket holds [Options.MaxStrangers] of them at most:
// the oldest makes way for a newcomer. A real peer says its name within milliseconds and is a stranger no longer.
// 1024 of them take up to 128 MB, and more do not begin to connect at the same moment.
const maxStrangers = 1024

// ErrCrowded is the end of a stranger that made way for others.
var ErrCrowded = errors.New("it said nothing that it could be known by, and too many newer connections wait")

// strangers are those of one socket, whose type and options they share.
type strangers struct {
	typ     Type
	opt     Options
	madeWay func() // called when one has made way, without the lock; may be nil

	mu  sync.Mutex
	all []*Conn // the oldest first
}

// enter makes an accepted connection a stranger, and ends the oldest if there are too many.
func (s *strangers) enter(nc net.Conn) *Conn {
	c := newConn(nc, s.typ, s.opt, remote(nc))
	c.among = s
	s.mu.Lock()
	s.all = append(s.all, c)
	tooMany := len(s.all) > s.opt.MaxStrangers
	s.mu.Unlock()
	if tooMany {
		s.makeWay()
	}
	return c
}

// remote is where a connection comes from; a Unix socket does not say.
func remote(nc net.Conn) string {
	if addr := nc.RemoteAddr(); addr.Network() != "unix" {
		return addr.String()
	}
	return ""
}

// makeWay ends the oldest stranger, if there is one.
func (s *strangers) makeWay() {
	s.mu.Lock()
	if len(s.all) == 0 {
		s.mu.Unlock()
		return
	}
	oldest := s.all[0]
	s.all = slices.Delete(s.all, 0, 1)
	s.mu.Unlock()
	close(oldest.crowded)
	oldest.nc.Close()
	if s.madeWay != nil {
		s.madeWay()
	}
}

// isCrowded reports whether the connection made way for another.
func (c *Conn) isCrowded() bool {
	select {
	case <-c.crowded:
		return true
	default:
		return false
	}
}

// leave takes a connection out, whether or not it is still there.
func (s *strangers) leave(c *Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if at := slices.Index(s.all, c); at >= 0 {
		s.all = slices.Delete(s.all, at, at+1)
	}
}

// Trust makes a stranger that the socket accepted a peer: messages up to [Options.MaxFrame] are taken from it from now
// on, and it does not make way for anybody.
func (c *Conn) Trust() {
	c.fr.max.Store(c.opt.MaxFrame)
	if c.among != nil {
		c.among.leave(c)
	}
}

// OutOfFiles reports whether err says that this process, or the system, can open no more files or sockets. Trying again
// is of no use to a connection that has just begun: nothing will be closed.
func OutOfFiles(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE)
}

// A RefusalLog logs connections that were refused, as many as there may be: the first of a burst at once, and the others
// as one line with their number each time the pause has passed. A peer that connects again and again could otherwise fill a disk.
type RefusalLog struct {
	log     *slog.Logger
	message string

	mu     sync.Mutex
	timer  *time.Timer // nil: nothing was refused lately
	pause  time.Duration
	more   int   // refused since the last line
	latest error // of those
}

// The pause between two lines of a burst grows while the burst lasts.
const (
	firstRefusalPause = 5 * time.Second
	lastRefusalPause  = 5 * time.Minute
)

// NewRefusalLog logs refusals as warnings; message says what was refused.
func NewRefusalLog(log *slog.Logger, message string) *RefusalLog {
	return &RefusalLog{log: log, message: message}
}

// Add counts a refusal.
func (r *RefusalLog) Add(cause error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.timer != nil {
		r.more++
		r.latest = cause
		return
	}
	r.log.Warn(r.message, "cause", cause)
	r.pause = firstRefusalPause
	r.timer = time.AfterFunc(r.pause, r.passed)
}

func (r *RefusalLog) passed() {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.timer == nil: // closed
	case r.more == 0:
		r.timer = nil
	default:
		r.flush()
		r.pause = min(2*r.pause, lastRefusalPause)
		r.timer.Reset(r.pause)
	}
}

func (r *RefusalLog) flush() {
	if r.more > 0 {
		r.log.Warn(r.message+", and others after it", "others", r.more, "latest_cause", r.latest)
	}
	r.more, r.latest = 0, nil
}

// Close logs what was counted and not logged yet.
func (r *RefusalLog) Close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.timer != nil {
		r.timer.Stop()
		r.timer = nil
	}
	r.flush()
}
