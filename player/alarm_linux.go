package player

import (
	"encoding/binary"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// alarm is a timer that is late by some tens of microseconds. The runtime's sleeps in
// whole milliseconds (epoll_wait), and the kernel adds 50 µs to save power
// (PR_SET_TIMERSLACK). So a thread of its own sleeps here, to the nanosecond, as long
// as a wait lasts.
type alarm struct {
	mu     sync.Mutex
	due    time.Time // zero: none
	wakeFD int       // an eventfd that wakes the thread up early; 0 without a thread
	fired  chan time.Time
}

// shortestWait is the shortest wait that is worth a thread that sleeps.
const shortestWait = 5 * time.Microsecond

// idleTime is how long the thread stays without a wait.
const idleTime = time.Second

func (a *alarm) after(d time.Duration) <-chan time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.fired == nil {
		a.fired = make(chan time.Time, 1)
	}
	select {
	case <-a.fired: // of an earlier call, which was not received
	default:
	}
	if d <= shortestWait {
		a.due = time.Time{}
		a.fired <- time.Now()
		return a.fired
	}
	before := a.due
	a.due = time.Now().Add(d)
	switch {
	case a.wakeFD == 0:
		a.startThread()
	case before.IsZero() || a.due.Before(before):
		wake(a.wakeFD)
	}
	return a.fired
}

// startThread starts the thread. Without one, the runtime's timer has to do.
func (a *alarm) startThread() {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		fired := a.fired
		time.AfterFunc(time.Until(a.due), func() { deliver(fired) })
		return
	}
	a.wakeFD = fd
	go a.run(fd)
}

func wake(fd int) {
	var one [8]byte
	binary.NativeEndian.PutUint64(one[:], 1)
	unix.Write(fd, one[:]) // it fails only if it is written already
}

func deliver(fired chan time.Time) {
	select {
	case fired <- time.Now():
	default:
	}
}

// run sleeps until what is due, again and again, and ends when nothing was for a while.
func (a *alarm) run(fd int) {
	runtime.LockOSThread() // and end with it: no other goroutine gets its slack
	unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0)
	poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	var drained [8]byte
	for {
		wait, on := a.next(fd)
		if !on {
			unix.Close(fd)
			return
		}
		timeout := unix.NsecToTimespec(int64(wait))
		if n, _ := unix.Ppoll(poll, &timeout, nil); n > 0 {
			unix.Read(fd, drained[:])
		} else if wait == idleTime {
			a.stopIdle()
		}
	}
}

// next delivers what is due and tells how long to sleep. It reports false when the
// thread with this eventfd is to end.
func (a *alarm) next(fd int) (wait time.Duration, on bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.wakeFD != fd {
		return 0, false
	}
	if a.due.IsZero() {
		return idleTime, true
	}
	if wait = time.Until(a.due); wait > 0 {
		return wait, true
	}
	a.due = time.Time{}
	deliver(a.fired)
	return idleTime, true
}

// stopIdle ends the thread unless a wait has begun.
func (a *alarm) stopIdle() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.due.IsZero() {
		a.wakeFD = 0
	}
}

// stop ends the thread at once.
func (a *alarm) stop() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.wakeFD != 0 {
		wake(a.wakeFD)
		a.wakeFD = 0
	}
}
