package edge

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A loop forwards requests with one goroutine for many connections. Package http has two goroutines and three buffers for each
// connection, which are 34 KB of memory for a stream, and half of the processor time that the edge takes. A loop has some hundred
// bytes for each, as a stream that waits needs no buffer.
//
// It takes only plain requests (see head.go) that the edge changes nothing of. A frontend in this process answers them as
// loop_local_linux.go says. At the first other request of a connection, the
// connection and what was read of it go to package http, and stay there. So everything that is difficult about HTTP is done in one
// place.

func init() {
	newForwarder = func(e *Edge, pick func() *rank) forwarder {
		return &loops{edge: e, pick: pick, local: e.ranks[0].local != nil, done: make(chan struct{})}
	}
}

const (
	loopBuffer = 64 << 10 // of a loop
	maxTries   = 16       // reads of one request, then it is for package http
	maxTurns   = 16       // reads of one answer, then other connections have their turn
	sweepEvery = 5 * time.Second
)

// loops forward the requests of one listener.
type loops struct {
	edge  *Edge
	pick  func() *rank
	local bool // the frontends are in this process
	all   []*loop
	next  atomic.Uint32

	handed   chan net.Conn // to package http
	done     chan struct{} // closed by close
	ended    sync.Once
	clients  atomic.Int64
	draining atomic.Bool
	drains   chan struct{} // closed when draining begins
	empty    chan struct{} // gets something when the last client goes while draining
	given    atomic.Int64  // connections that went to package http
}

// listen returns a listener with the connections that are for package http.
func (s *loops) listen(l net.Listener) (net.Listener, error) {
	s.handed, s.drains, s.empty = make(chan net.Conn), make(chan struct{}), make(chan struct{}, 1)
	for range min((runtime.GOMAXPROCS(0)+3)/4, 8) {
		l, err := newLoop(s)
		if err != nil {
			s.close()
			return nil, fmt.Errorf("open epoll: %w", err)
		}
		s.all = append(s.all, l)
		go l.run()
	}
	h := &handedListener{Listener: l, loops: s, failed: make(chan struct{})}
	go h.accept()
	go s.sweep()
	return h, nil
}

func (s *loops) sweep() {
	ticks := time.NewTicker(sweepEvery)
	defer ticks.Stop()
	for {
		select {
		case now := <-ticks.C:
			s.each(func(l *loop) { l.sweep(now) })
		case <-s.done:
			return
		}
	}
}

// each calls f in the goroutine of each loop.
func (s *loops) each(f func(*loop)) {
	for _, l := range s.all {
		l.do(func() { f(l) })
	}
}

func (s *loops) closeIdle() { s.each((*loop).closeIdle) }

// shutdown closes idle connections and waits until the others have their answers.
func (s *loops) shutdown(ctx context.Context) error {
	defer s.close()
	if !s.draining.Swap(true) {
		close(s.drains)
	}
	s.closeIdle()
	for s.clients.Load() > 0 {
		select {
		case <-s.empty:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// close cuts all connections.
func (s *loops) close() {
	s.ended.Do(func() {
		close(s.done)
		s.each(func(l *loop) { l.ended = true })
	})
}

// plainNow reports whether the edge changes nothing of a request.
func (s *loops) plainNow(h plainHead) bool {
	d := s.edge.faults.Load()
	return len(d.faults) == 0 && d.rate == 0 && h.length <= maxPlainBody && int64(h.length) <= s.edge.opt.MaxBody
}

// take gives a new connection to one of the loops.
func (s *loops) take(conn net.Conn) {
	fd, err := detach(conn)
	if err != nil {
		s.hand(conn)
		return
	}
	l := s.all[int(s.next.Add(1))%len(s.all)]
	s.clients.Add(1)
	if !l.do(func() { l.adopt(fd) }) {
		unix.Close(fd)
		s.gone()
	}
}

// gone counts a client that is no more of the loops.
func (s *loops) gone() {
	if s.clients.Add(-1) == 0 && s.draining.Load() {
		select {
		case s.empty <- struct{}{}:
		default:
		}
	}
}

// hand gives a connection to package http.
func (s *loops) hand(conn net.Conn) {
	s.given.Add(1)
	select {
	case s.handed <- conn:
	case <-s.drains: // package http accepts no more
		conn.Close()
	case <-s.done:
		conn.Close()
	}
}

// detach takes the file descriptor out of a connection, which is closed: package net would go on to wait for its data.
func detach(conn net.Conn) (fd int, err error) {
	c, ok := conn.(syscall.Conn)
	if !ok {
		return -1, errors.ErrUnsupported
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return -1, err
	}
	controlled := raw.Control(func(f uintptr) { fd, err = unix.FcntlInt(f, unix.F_DUPFD_CLOEXEC, 0) })
	if err := errors.Join(controlled, err); err != nil {
		return -1, err
	}
	return fd, conn.Close()
}

// A handedListener accepts the connections that the loops hand over.
type handedListener struct {
	net.Listener
	loops  *loops
	err    error
	failed chan struct{} // closed when err is set
}

func (h *handedListener) accept() {
	for {
		conn, err := h.Listener.Accept()
		var temporary interface{ Temporary() bool }
		switch {
		case err == nil:
			h.loops.take(conn)
		case errors.As(err, &temporary) && temporary.Temporary(): // as package http does
			h.loops.edge.log.Warn("a connection was not accepted", "error", err)
			time.Sleep(50 * time.Millisecond)
		default:
			h.err = err
			close(h.failed)
			return
		}
	}
}

func (h *handedListener) Accept() (net.Conn, error) {
	select {
	case conn := <-h.loops.handed:
		return conn, nil
	case <-h.failed:
		return nil, h.err
	}
}

// A handedConn is a connection of which something was read before.
type handedConn struct {
	net.Conn
	before []byte
}

func (c *handedConn) Read(p []byte) (int, error) {
	if len(c.before) == 0 {
		return c.Conn.Read(p)
	}
	n := copy(p, c.before)
	if c.before = c.before[n:]; len(c.before) == 0 {
		c.before = nil
	}
	return n, nil
}

// NetConn is the connection itself.
func (c *handedConn) NetConn() net.Conn { return c.Conn }

// A loop waits for its connections with an epoll of its own. That is in the set of Go's scheduler, so waiting takes no thread.
// Everything of a loop belongs to its goroutine, but for the commands.
type loop struct {
	of    *loops
	epoll int
	file  *os.File // of epoll
	raw   syscall.RawConn
	wake  int             // makes epoll return
	socks []socket        // by file descriptor
	again []*upstreamSide // that have more to relay
	idle  [][]*upstreamSide
	in    []byte // what was read last
	out   []byte // a request or the head of an answer
	spare [][]byte
	ended bool

	mu       sync.Mutex
	commands []func()
	closed   bool
}

// A socket is one side of a connection. on is called with what epoll says, at each change and not again.
type socket interface{ on(events uint32) }

func newLoop(s *loops) (*loop, error) {
	l := &loop{of: s, in: make([]byte, loopBuffer), idle: make([][]*upstreamSide, len(s.edge.ranks))}
	var err error
	if l.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return nil, err
	}
	if l.wake, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		unix.Close(l.epoll)
		return nil, err
	}
	_ = unix.SetNonblock(l.epoll, true) // or os.NewFile takes it for a file that blocks
	l.file = os.NewFile(uintptr(l.epoll), "epoll")
	if l.raw, err = l.file.SyscallConn(); err == nil {
		err = unix.EpollCtl(l.epoll, unix.EPOLL_CTL_ADD, l.wake, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(l.wake)})
	}
	if err != nil {
		unix.Close(l.wake)
		l.file.Close()
		return nil, err
	}
	return l, nil
}

// do has the loop call f. It returns false when the loop has ended.
func (l *loop) do(f func()) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return false
	}
	l.commands = append(l.commands, f)
	if len(l.commands) == 1 {
		_, _ = unix.Write(l.wake, []byte{1, 0, 0, 0, 0, 0, 0, 0}) // cannot fail with one waiting
	}
	return true
}

func (l *loop) run() {
	defer l.free()
	events := make([]unix.EpollEvent, 256)
	for !l.ended {
		for _, event := range events[:l.wait(events)] {
			if int(event.Fd) == l.wake {
				var count [8]byte
				_, _ = unix.Read(l.wake, count[:])
			} else if s := l.socks[event.Fd]; s != nil {
				s.on(event.Events)
			}
		}
		// Descriptors are added only here: the events above are of those before.
		l.mu.Lock()
		commands := l.commands
		l.commands = nil
		l.mu.Unlock()
		for _, f := range commands {
			f()
		}
		again := l.again
		l.again = nil
		for _, u := range again {
			if u.fd >= 0 {
				u.relay()
			}
		}
	}
}

// wait returns the number of events.
func (l *loop) wait(events []unix.EpollEvent) (n int) {
	look := func(timeout int) bool {
		var err error
		if n, err = unix.EpollWait(l.epoll, events, timeout); err != nil {
			n = 0
		}
		return n > 0 || len(l.again) > 0
	}
	if err := l.raw.Read(func(uintptr) bool { return look(0) }); err != nil {
		look(-1) // the scheduler cannot wait for it
	}
	return n
}

func (l *loop) free() {
	l.mu.Lock()
	l.closed = true
	commands := l.commands
	l.commands = nil
	l.mu.Unlock()
	for _, f := range commands { // which have connections
		f()
	}
	for _, s := range l.socks {
		switch s := s.(type) {
		case *clientSide:
			s.close()
		case *upstreamSide:
			s.close()
		}
	}
	unix.Close(l.wake)
	l.file.Close()
}

func (l *loop) add(fd int, s socket) error {
	if fd >= len(l.socks) {
		l.socks = append(l.socks, make([]socket, fd+64-len(l.socks))...)
	}
	l.socks[fd] = s
	return unix.EpollCtl(l.epoll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLOUT | unix.EPOLLRDHUP | unix.EPOLLET, Fd: int32(fd)})
}

func (l *loop) drop(fd int) {
	l.socks[fd] = nil
	unix.Close(fd) // also takes it out of epoll
}

// keep copies something that has to wait into a buffer, which release takes back.
func (l *loop) keep(text []byte) []byte {
	var b []byte
	if last := len(l.spare) - 1; last >= 0 {
		b, l.spare = l.spare[last][:0], l.spare[:last]
	}
	return append(b, text...)
}

func (l *loop) release(b []byte) {
	if cap(b) > 0 && cap(b) <= loopBuffer && len(l.spare) < 64 {
		l.spare = append(l.spare, b)
	}
}

// adopt begins to serve a client.
func (l *loop) adopt(fd int) {
	c := &clientSide{side: side{loop: l, fd: fd}, since: time.Now()}
	err := l.add(fd, c)
	if err != nil {
		l.of.edge.log.Warn("a connection was not accepted", "error", err)
	}
	if err != nil || l.of.draining.Load() {
		c.close()
	}
}

func (l *loop) closeIdle() {
	for _, s := range l.socks {
		if c, ok := s.(*clientSide); ok {
			c.closeIdle()
		}
	}
}

// sweep ends what has waited for too long.
func (l *loop) sweep(now time.Time) {
	for _, s := range l.socks {
		switch s := s.(type) {
		case *clientSide:
			if !s.idle() {
				continue
			}
			if s.local != nil && s.local.ended.After(s.since) {
				s.since = s.local.ended
			}
			waited := now.Sub(s.since)
			switch {
			case s.last && waited > sweepEvery, len(s.in) == 0 && waited > idleTimeout:
				s.close()
			case len(s.in) > 0 && waited > headerTimeout && !bytes.Contains(s.in, []byte("\r\n\r\n")):
				s.close()
			}
		case *upstreamSide:
			if s.client == nil && now.Sub(s.since) > idleUpstream {
				s.close()
			}
		}
	}
}

// A side is what the two sides of an exchange have in common.
type side struct {
	loop     *loop
	fd       int    // -1 when it is closed
	readable bool   // there may be something to read
	ended    bool   // the other end sends no more
	out      []byte // what could not be written yet
}

// note remembers what epoll says, and reports whether out can be written.
func (s *side) note(events uint32) (writable bool) {
	if events&(unix.EPOLLRDHUP|unix.EPOLLHUP|unix.EPOLLERR) != 0 {
		s.ended, s.readable = true, true
	}
	s.readable = s.readable || events&unix.EPOLLIN != 0
	return len(s.out) > 0 && events&unix.EPOLLOUT != 0
}

// read reads into the buffer of the loop. It returns nothing when there is nothing yet.
func (s *side) read() (data []byte, err error) {
	for {
		n, err := unix.Read(s.fd, s.loop.in)
		switch {
		case err == unix.EINTR:
			continue
		case err == unix.EAGAIN:
			s.readable = false
			return nil, nil
		case err != nil:
			return nil, os.NewSyscallError("read", err)
		case n == 0:
			return nil, errEarlyEnd
		}
		if n < len(s.loop.in) && !s.ended { // all there was; the end of a connection is not told again
			s.readable = false
		}
		return s.loop.in[:n], nil
	}
}

// write writes what fits, and keeps the rest. It does not keep p.
func (s *side) write(p []byte) error {
	if len(s.out) == 0 {
		n, err := unix.Write(s.fd, p)
		switch {
		case err == unix.EAGAIN || err == unix.EINTR:
			n = 0
		case err != nil:
			return os.NewSyscallError("write", err)
		}
		p = p[n:]
	}
	switch {
	case len(p) == 0:
	case s.out == nil:
		s.out = s.loop.keep(p)
	default:
		s.out = append(s.out, p...)
	}
	return nil
}

// flush writes what is left.
func (s *side) flush() error {
	rest := s.out
	s.out = nil
	err := s.write(rest)
	s.loop.release(rest)
	return err
}

// A clientSide is the connection of a client.
type clientSide struct {
	side
	in    []byte        // of a request that is not whole yet, or that comes after the one that is answered
	tries int           // reads of this request
	up    *upstreamSide // with which the answer comes
	dials bool          // a connection to the frontend is made
	local *answering    // by a frontend in this process; nil before the first request
	last  bool          // no more requests are answered
	id    string        // of the request
	since time.Time     // when it began to wait
}

// idle reports whether a client waits for nothing.
func (c *clientSide) idle() bool { return c.up == nil && !c.dials && len(c.out) == 0 && !c.busy() }

// closeIdle closes the connection if nothing of a request has come.
func (c *clientSide) closeIdle() {
	if c.fd >= 0 && c.idle() && len(c.in) == 0 {
		c.close()
	}
}

func (c *clientSide) on(events uint32) {
	writable := c.note(events)
	if c.tell(events) {
		return
	}
	if writable {
		if c.flush() != nil {
			c.close()
			return
		}
		switch {
		case len(c.out) > 0:
		case c.up != nil:
			c.up.relay()
		case !c.dials:
			c.done()
		}
	}
	switch {
	case c.fd < 0:
	case c.idle():
		c.receive()
	case c.ended && (c.up != nil || c.dials) || events&(unix.EPOLLHUP|unix.EPOLLERR) != 0:
		c.close() // nobody reads the answer
	}
}

// receive reads requests until one is sent on.
func (c *clientSide) receive() {
	for c.fd >= 0 && c.idle() && c.readable {
		data, err := c.read()
		switch {
		case err != nil:
			c.close()
		case data == nil:
		case c.last:
			if c.tries++; c.tries > maxTries {
				c.close()
			}
		case len(c.in) > 0:
			c.in = append(c.in, data...)
			c.process(c.in)
		default:
			c.process(data)
		}
	}
}

// process sends a request on, if it is whole. data is c.in or has just been read.
func (c *clientSide) process(data []byte) {
	l := c.loop
	h, request, v := readPlain(data, l.out[:0])
	defer func() { l.out = request[:0] }()
	end := h.size + h.length
	c.tries++
	switch {
	case v == strange || v == plain && (c.ended || !l.of.plainNow(h)):
		c.handOver(data)
		return
	case v == partial || len(data) < end:
		if c.tries == 1 {
			c.since = time.Now()
		}
		if c.tries > maxTries {
			c.handOver(data)
		} else if len(c.in) == 0 {
			c.in = l.keep(data)
		}
		return
	}
	body, rest := data[h.size:end], data[end:]
	if !l.of.local && (l.of.edge.opt.FanOut && mayFanOut(h.path, body) || h.id == "" && hasRequestID(body)) {
		c.handOver(data)
		return
	}
	c.tries = 0
	var local *http.Request
	if l.of.local {
		local, body = requestOf(c.answering().ctx, h, request), bytes.Clone(body)
	} else {
		if c.id = h.id; c.id == "" {
			c.id = newID()
		}
		request = appendHeader(request, []byte(headerRequestID), []byte(c.id))
		request = append(append(request, "\r\n"...), body...)
	}
	switch {
	case len(rest) > 0:
		c.in = append(c.in[:0], rest...)
	case c.in != nil:
		l.release(c.in)
		c.in = nil
	}
	if to := l.of.pick(); local != nil {
		c.serve(to, local, body)
	} else {
		l.ask(c, to, request)
	}
}

// handOver gives the connection to package http, with what was read of it.
func (c *clientSide) handOver(data []byte) {
	l := c.loop
	before := slices.Clone(data)
	_ = unix.EpollCtl(l.epoll, unix.EPOLL_CTL_DEL, c.fd, nil)
	l.socks[c.fd] = nil
	file := os.NewFile(uintptr(c.fd), "client")
	conn, err := net.FileConn(file)
	file.Close()
	c.fd = -1
	if err != nil {
		l.of.edge.log.Warn("a connection was lost", "error", err)
		l.of.gone()
		return
	}
	go func() {
		l.of.hand(&handedConn{conn, before})
		l.of.gone()
	}()
}

// done is called when an answer was written.
func (c *clientSide) done() {
	c.since = time.Now()
	switch {
	case c.last:
		_ = unix.Shutdown(c.fd, unix.SHUT_WR) // and what the client still sends is read, or it would lose the answer
	case c.loop.of.draining.Load():
		c.close()
	case len(c.in) > 0:
		c.process(c.in)
	}
	c.receive()
}

func (c *clientSide) close() {
	if c.fd < 0 {
		return
	}
	l, fd := c.loop, c.fd
	c.fd = -1
	if u := c.up; u != nil {
		c.up, u.client = nil, nil
		u.close() // so that the frontend knows
	}
	l.release(c.in)
	l.release(c.out)
	if c.local != nil && c.local.leave() {
		_ = unix.EpollCtl(l.epoll, unix.EPOLL_CTL_DEL, fd, nil)
		l.socks[fd] = nil
		return
	}
	l.drop(fd)
	l.of.gone()
}

// An upstreamSide is a connection to a frontend.
type upstreamSide struct {
	side
	rank   *rank
	client *clientSide // nil while it is idle
	sent   []byte      // the request, if the connection was idle before and the answer has not begun
	in     []byte      // of a head that is not whole yet
	begun  bool        // the head was read
	body   answerBody
	since  time.Time // when it became idle
}

// ask sends a request to a frontend.
func (l *loop) ask(c *clientSide, r *rank, request []byte) {
	if u := l.take(r); u != nil {
		c.up, u.client, u.sent = u, c, l.keep(request)
		u.send(request)
		return
	}
	c.dials = true
	request = slices.Clone(request)
	go func() {
		conn, err := r.transport.dial(context.Background())
		fd := -1
		if err == nil {
			fd, err = detach(conn)
		}
		if !l.do(func() { l.connected(c, r, fd, err, request) }) && fd >= 0 {
			unix.Close(fd)
		}
	}()
}

func (l *loop) connected(c *clientSide, r *rank, fd int, err error, request []byte) {
	c.dials = false
	switch {
	case c.fd < 0: // the client did not wait
		if fd >= 0 {
			unix.Close(fd)
		}
	case err != nil: // which package http says
		c.handOver(append(request, c.in...))
	default:
		u := &upstreamSide{side: side{loop: l, fd: fd}, rank: r, client: c}
		c.up = u
		if err := l.add(fd, u); err != nil {
			u.fail(err)
			return
		}
		u.send(request)
	}
}

func (u *upstreamSide) send(request []byte) {
	if err := u.write(request); err != nil {
		u.end(err)
	}
}

// take returns an idle connection to a frontend, or nil.
func (l *loop) take(r *rank) *upstreamSide {
	idle := l.idle[r.index]
	if len(idle) == 0 {
		return nil
	}
	u := idle[len(idle)-1]
	l.idle[r.index] = idle[:len(idle)-1]
	if time.Since(u.since) <= idleUpstream {
		return u
	}
	u.close() // and the others at the next sweep
	return nil
}

func (u *upstreamSide) on(events uint32) {
	if u.note(events) {
		if err := u.flush(); err != nil {
			u.end(err)
			return
		}
	}
	u.relay()
}

// relay sends on what has come of an answer, as far as the client takes it.
func (u *upstreamSide) relay() {
	if u.client == nil {
		if u.readable { // the frontend closes it, or sends what nobody asked for
			u.close()
		}
		return
	}
	for range maxTurns {
		if u.client == nil || u.fd < 0 || !u.readable || len(u.client.out) > 0 {
			return
		}
		data, err := u.read()
		if err != nil {
			u.end(err)
			return
		}
		if data == nil {
			return
		}
		u.pass(data)
	}
	u.loop.again = append(u.loop.again, u)
}

// pass sends on a part of an answer.
func (u *upstreamSide) pass(data []byte) {
	l, c := u.loop, u.client
	out := l.out[:0]
	if !u.begun {
		if len(u.in) > 0 {
			u.in = append(u.in, data...)
			data = u.in
		}
		var head answerHead
		for first := true; first || head.interim; first = false {
			var whole bool
			var err error
			if head, out, whole, err = readAnswer(data, out); err != nil {
				u.fail(err)
				return
			}
			if !whole {
				rest := l.keep(data)
				l.release(u.in)
				u.in = rest
				return
			}
			data = data[head.size:]
		}
		l.release(u.sent)
		u.sent, u.begun, u.body = nil, true, newAnswerBody(head)
		out = appendHeader(out, []byte(headerRequestID), []byte(c.id))
		if c.last = l.of.draining.Load() || u.body.untilClose(); c.last {
			out = append(out, "Connection: close\r\n"...)
		}
		out = append(out, "\r\n"...)
	}
	n, err := u.body.skip(data)
	if len(out) == 0 {
		out = data[:n]
	} else {
		out = append(out, data[:n]...)
		l.out = out[:0]
	}
	extra := n < len(data)
	if u.in != nil {
		l.release(u.in)
		u.in = nil
	}
	if failed := c.write(out); failed != nil || err != nil {
		l.of.edge.log.Debug("an answer was cut", "id", c.id, "error", errors.Join(failed, err))
		c.close()
		return
	}
	if u.body.whole() {
		u.finish(extra)
	}
}

// finish ends an exchange and keeps the connection for the next one, if that is possible.
func (u *upstreamSide) finish(extra bool) {
	l, c := u.loop, u.client
	c.up, u.client = nil, nil
	if extra || u.readable || u.ended || u.body.head.close || u.body.untilClose() || len(u.out) > 0 || len(l.idle[u.rank.index]) >= maxIdle {
		u.close()
	} else {
		u.begun, u.since = false, time.Now()
		l.idle[u.rank.index] = append(l.idle[u.rank.index], u)
	}
	if len(c.out) == 0 {
		c.done()
	}
}

// end is called when the frontend has closed its connection.
func (u *upstreamSide) end(err error) {
	c := u.client
	switch {
	case c == nil:
		u.close()
	case u.begun && u.body.untilClose() && errors.Is(err, errEarlyEnd):
		u.finish(true)
	case u.begun:
		u.loop.of.edge.log.Debug("an answer was cut", "id", c.id, "error", err)
		c.close() // so that the client notices
	case u.sent != nil && len(u.in) == 0: // it was closed while it was idle
		request := append(u.sent, c.in...)
		c.up, u.client = nil, nil
		u.close()
		c.handOver(request)
	default:
		u.fail(err)
	}
}

// fail answers a request that the frontend did not answer.
func (u *upstreamSide) fail(err error) {
	c, log := u.client, u.loop.of.edge.log
	log.Log(context.Background(), slog.LevelWarn, "the frontend does not answer", "error", err)
	c.up, u.client = nil, nil
	u.close()
	body := apiError{status: http.StatusBadGateway, message: "the frontend ended the connection before it answered"}.json()
	answer := fmt.Appendf(nil, "HTTP/1.1 502 Bad Gateway\r\nContent-Type: application/json\r\nContent-Length: %d\r\n%s: %s\r\nConnection: close\r\n\r\n%s",
		len(body), headerRequestID, c.id, body)
	c.last = true
	if c.write(answer) != nil {
		c.close()
	} else if len(c.out) == 0 {
		c.done()
	}
}

func (u *upstreamSide) close() {
	if u.fd < 0 {
		return
	}
	l := u.loop
	l.drop(u.fd)
	u.fd = -1
	l.release(u.sent)
	l.release(u.in)
	l.release(u.out)
	u.sent, u.in, u.out = nil, nil, nil
	if at := slices.Index(l.idle[u.rank.index], u); at >= 0 {
		l.idle[u.rank.index] = slices.Delete(l.idle[u.rank.index], at, at+1)
	}
}
