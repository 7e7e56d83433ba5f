package player

import (
	"encoding/binary"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// alarm is a timer that is late by some tens of microseconds. The runtime's sleeps in
// whole milliseconds (epoll_wait), and the kernel adds 50 µs to be kind to batteries
// (PR_SET_TIMERSLACK). So a thread of its own sleeps here, to the nanosecond, as long
// as somebody waits.
type alarm struct {
	mu    sync.Mutex
	due   time.Time // zero: nobody waits
	bell  int       // an eventfd that wakes the thread up early; 0 without a thread
	fires chan time.Time
}

// soon is the shortest wait that is worth a thread that sleeps.
const soon = 5 * time.Microsecond

// idle is how long the thread stays when nobody waits.
const idle = time.Second

func (a *alarm) after(d time.Duration) <-chan time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.fires == nil {
		a.fires = make(chan time.Time, 1)
	}
	select {
	case <-a.fires: // of an earlier call, which nobody took
	default:
	}
	if d <= soon {
		a.due = time.Time{}
		a.fires <- time.Now()
		return a.fires
	}
	before := a.due
	a.due = time.Now().Add(d)
	switch {
	case a.bell == 0:
		a.hire()
	case before.IsZero() || a.due.Before(before):
		ring(a.bell)
	}
	return a.fires
}

// hire starts the thread. Without one, the runtime's timer has to do.
func (a *alarm) hire() {
	bell, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		fires := a.fires
		time.AfterFunc(time.Until(a.due), func() { ringChannel(fires) })
		return
	}
	a.bell = bell
	go a.watch(bell)
}

func ring(bell int) {
	var one [8]byte
	binary.NativeEndian.PutUint64(one[:], 1)
	unix.Write(bell, one[:]) // it fails only if it rings already
}

func ringChannel(fires chan time.Time) {
	select {
	case fires <- time.Now():
	default:
	}
}

// watch sleeps until what is due, again and again, and ends when nothing was for a while.
func (a *alarm) watch(bell int) {
	runtime.LockOSThread() // and end with it: its slack is nobody else's
	unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0)
	poll := []unix.PollFd{{Fd: int32(bell), Events: unix.POLLIN}}
	var drained [8]byte
	for {
		wait, on := a.next(bell)
		if !on {
			unix.Close(bell)
			return
		}
		timeout := unix.NsecToTimespec(int64(wait))
		if n, _ := unix.Ppoll(poll, &timeout, nil); n > 0 {
			unix.Read(bell, drained[:])
		} else if wait == idle {
			a.retire()
		}
	}
}

// next delivers what is due and tells how long to sleep. It reports false when the
// thread with this bell has retired.
func (a *alarm) next(bell int) (wait time.Duration, on bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.bell != bell {
		return 0, false
	}
	if a.due.IsZero() {
		return idle, true
	}
	if wait = time.Until(a.due); wait > 0 {
		return wait, true
	}
	a.due = time.Time{}
	ringChannel(a.fires)
	return idle, true
}

// retire lets the thread go unless somebody has begun to wait.
func (a *alarm) retire() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.due.IsZero() {
		a.bell = 0
	}
}

// stop lets the thread go at once.
func (a *alarm) stop() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.bell != 0 {
		ring(a.bell)
		a.bell = 0
	}
}
