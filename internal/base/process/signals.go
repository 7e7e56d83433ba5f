package process

import (
	"context"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"
)

// oneEvent is how far apart the signals of one event come at most. `timeout` sends its signal to the process and again to
// the process group, and a terminal and a parent may each pass on the same ^C: that is not a second one.
const oneEvent = time.Second

// NotifyContext returns a context that the first SIGINT or SIGTERM ends, with its name as the cause. A second one ends the
// process at once, as the signal would by itself, with all that was started here and all folders of [MkdirTemp]; unless it
// comes within a second of the first, when only a third does.
//
// finish is called when all is done, right before the process exits: a signal that comes after that changes nothing any
// more, neither the exit code nor what was written.
func NotifyContext(parent context.Context, killedCode int) (ctx context.Context, finish func()) {
	ctx, cancel := context.WithCancelCause(parent)
	arrived := make(chan os.Signal, 8)
	// The signals are never reset but to end by one: in between, one would end this process alone.
	signal.Notify(arrived, os.Interrupt, syscall.SIGTERM)
	var ending sync.Mutex
	go func() {
		sig := <-arrived
		first := time.Now()
		cancel(signalError(sig.String() + " signal received"))
		for again := 1; ; again++ {
			if sig = <-arrived; again > 1 || time.Since(first) >= oneEvent {
				break
			}
		}
		ending.Lock() // not if finish was called
		endBy(sig, killedCode)
	}()
	return ctx, func() { ending.Lock() }
}

// signalError is why a context ended, as [signal.NotifyContext] has it: somebody wanted it to.
type signalError string

func (e signalError) Error() string { return string(e) }

// Is makes it a [context.Canceled].
func (e signalError) Is(target error) bool { return target == context.Canceled }

// endBy ends the process by a signal, or with an exit code if it was to ignore that from the start.
func endBy(sig os.Signal, code int) {
	KillAll()
	temporary.Range(func(dir, _ any) bool {
		_ = os.RemoveAll(dir.(string))
		return true
	})
	signal.Reset(sig)
	if self, err := os.FindProcess(os.Getpid()); err == nil && self.Signal(sig) == nil {
		time.Sleep(time.Second) // it comes at any moment
	}
	os.Exit(code)
}

// temporary holds the folders of [MkdirTemp] that are still there.
var temporary sync.Map

// MkdirTemp makes a temporary folder, as [os.MkdirTemp] does, which is removed by remove, and when a signal ends the
// process at once.
func MkdirTemp(pattern string) (dir string, remove func(), err error) {
	if dir, err = os.MkdirTemp("", pattern); err != nil {
		return "", nil, err
	}
	temporary.Store(dir, nil)
	return dir, func() {
		_ = os.RemoveAll(dir)
		temporary.Delete(dir)
	}, nil
}
