package player

import (
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// alarm is a timer that is late by some tens of microseconds. The runtime's timer sleeps in
// whole milliseconds (epoll_wait), and the kernel adds 50 µs to save power
// (PR_SET_TIMERSLACK). So a thread of its own sleeps through the end of each wait.
type alarm struct {
	mu    sync.Mutex
	waits chan time.Time // the moment to deliver at; nil before the first wait
	fired chan time.Time
}

const (
	// shortestWait is the shortest wait that is worth a thread that sleeps.
	shortestWait = 5 * time.Microsecond
	// exactPart is how much of a wait the thread sleeps through. A newer wait does not end this sleep.
	exactPart = 2 * time.Millisecond
)

func (a *alarm) after(d time.Duration) <-chan time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.waits == nil {
		a.waits, a.fired = make(chan time.Time, 1), make(chan time.Time, 1)
		go a.run()
	}
	select {
	case <-a.waits: // of an earlier call, which this one replaces
	default:
	}
	select {
	case <-a.fired:
	default:
	}
	now := time.Now()
	if d <= shortestWait {
		a.fired <- now
	} else {
		a.waits <- now.Add(d)
	}
	return a.fired
}

// run sleeps until what is due, again and again.
func (a *alarm) run() {
	runtime.LockOSThread() // and end with it: no other goroutine gets its slack
	unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0)
	for due := range a.waits {
		for left := time.Until(due); left > 0 && len(a.waits) == 0; left = time.Until(due) {
			if left <= exactPart {
				ts := unix.NsecToTimespec(int64(left))
				unix.Nanosleep(&ts, nil)
				continue
			}
			select {
			case newer, on := <-a.waits:
				if !on {
					return
				}
				due = newer
			case <-time.After(left - exactPart):
			}
		}
		a.deliver()
	}
}

// deliver ends the wait, unless a newer one has replaced it.
func (a *alarm) deliver() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.waits) == 0 && len(a.fired) == 0 {
		a.fired <- time.Now()
	}
}

// stop ends the thread.
func (a *alarm) stop() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.waits != nil {
		close(a.waits)
	}
}
