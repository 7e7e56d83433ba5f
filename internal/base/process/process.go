package process

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/vllm-vcr/conformance/internal/base/safetext"
)

// Options configures [Start]. The zero value is good.
type Options struct {
	// Name is that of the process in messages, default the last element of its path.
	Name string
	// Tail is how much of the output is kept, in bytes, default 16 KiB.
	Tail int
	// Output gets a copy of what is kept in the tail, as it comes. The process waits while Output does, and what Output
	// fails to take is gone: an owner's full disk does not end its children.
	Output io.Writer
	// Grace is the time between SIGTERM and SIGKILL, default 5 seconds, see [Process.Patience].
	Grace time.Duration
	// Guarded has the whole group killed when this process dies, however that dies: for a program that starts others. It
	// takes a Unix with /bin/sh.
	Guarded bool
}

const (
	defaultTail  = 16 << 10
	defaultGrace = 5 * time.Second
	// A descendant may hold the output open after the process has ended: this is all the time it has to end as well.
	outputDelay = time.Second
	// A process that waits for a processor all the time is waited for that many times as long as one that has one.
	maxStarved = 8
	// Nothing survives SIGKILL but what hangs inside the kernel, on a dead network disk for example.
	killPatience = 10 * time.Second
)

// Process is a running or ended child process. It is safe for use by several goroutines.
type Process struct {
	name  string
	cmd   *exec.Cmd
	tail  *Tail
	grace time.Duration
	guard bool
	done  chan struct{}
	err   error // valid once done is closed

	killed atomic.Bool // Stop had to use SIGKILL
}

// Start starts cmd. The process writes stdout and stderr into one tail, in the order written; a stream that cmd directs
// elsewhere stays with the caller. Unless cmd says otherwise, its environment is that of the owner without secrets.
func Start(cmd *exec.Cmd, opt Options) (*Process, error) {
	opt = opt.withDefaults(cmd)
	p := &Process{
		name: opt.Name, cmd: cmd, tail: NewTail(opt.Tail, opt.Output), grace: opt.Grace, guard: opt.Guarded, done: make(chan struct{}),
	}
	if cmd.Env == nil {
		cmd.Env = Environment(os.Environ(), WithoutSecrets())
	}
	if cmd.Stdout == nil {
		cmd.Stdout = p.tail
	}
	if cmd.Stderr == nil {
		cmd.Stderr = p.tail
	}
	cmd.WaitDelay = outputDelay
	ownGroup(cmd)
	if err := p.start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", p.name, err)
	}
	return p, nil
}

func (o Options) withDefaults(cmd *exec.Cmd) Options {
	if o.Name == "" {
		o.Name = filepath.Base(cmd.Path)
	}
	if o.Tail <= 0 {
		o.Tail = defaultTail
	}
	if o.Grace <= 0 {
		o.Grace = defaultGrace
	}
	return o
}

// start runs the process from a thread that lives as long as the process: the signal that Linux sends to a child when
// its parent dies is sent on the death of the parent's thread, and Go may end a thread at any time.
func (p *Process) start() error {
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := p.cmd.Start()
		release := func() {}
		if err == nil {
			running.Store(p, nil)
			defer running.Delete(p)
			if p.guard {
				release = guardGroup(p.cmd)
			}
		}
		started <- err
		if err != nil {
			return
		}
		if err := p.cmd.Wait(); !errors.Is(err, exec.ErrWaitDelay) {
			p.err = err
		}
		killGroup(p.cmd) // what it started must not outlive it
		release()
		close(p.done)
	}()
	return <-started
}

// running holds each [Process] that has not ended.
var running sync.Map

// KillAll ends every process that was started here, and its group, by SIGKILL and without waiting for their end: for an
// owner that ends in the next moment.
func KillAll() {
	running.Range(func(p, _ any) bool {
		killGroup(p.(*Process).cmd)
		return true
	})
}

// Pid returns the process id, which is also the id of its process group on Unix.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// Done returns a channel that is closed when the process has ended and its output is complete.
func (p *Process) Done() <-chan struct{} { return p.done }

// Tail returns the last of what the process has written so far. A first line in brackets says how much came before.
func (p *Process) Tail() string { return p.tail.String() }

// Exit returns how the process ended, whatever its exit status, and nil while it runs.
func (p *Process) Exit() *ExitError {
	select {
	case <-p.done:
	default:
		return nil
	}
	return &ExitError{
		Name: p.name, Command: p.cmd.Args, Status: p.cmd.ProcessState.String(), Code: p.cmd.ProcessState.ExitCode(),
		Tail: p.Tail(), Err: p.err,
	}
}

// Wait waits for the end of the process. It returns nil for exit status 0, else an [*ExitError]; and when ctx ends first,
// the cause of that, with the process still running.
func (p *Process) Wait(ctx context.Context) error {
	select {
	case <-p.done:
	case <-ctx.Done():
		return fmt.Errorf("wait for %s: %w", p.name, context.Cause(ctx))
	}
	if p.err == nil {
		return nil
	}
	return p.Exit()
}

// Killed reports whether Stop had to end the process by force.
func (p *Process) Killed() bool { return p.killed.Load() }

// Stop ends the process and its group: by SIGTERM, and by SIGKILL once the grace is over or ctx ends, whichever is
// first. It returns when the process is gone. Stopping a process that has ended is not an error; the only one is a process
// that SIGKILL does not end.
func (p *Process) Stop(ctx context.Context) error {
	if p.Exit() != nil {
		return nil
	}
	terminateGroup(p.cmd)
	limited, cancel := p.Patience(ctx, p.grace, context.DeadlineExceeded)
	defer cancel()
	select {
	case <-p.done:
		return nil
	case <-limited.Done():
	}
	p.killed.Store(true)
	killGroup(p.cmd)
	patience := time.NewTimer(killPatience)
	defer patience.Stop()
	select {
	case <-p.done:
		return nil
	case <-patience.C:
		return fmt.Errorf("stop %s: process %d is still there %v after SIGKILL: it hangs inside the kernel", p.name, p.Pid(), killPatience)
	}
}

// Patience returns a context that ends with ctx, or by cause when d is over: a deadline for a process that hangs, and not for
// one that is slow since others want the processors. So on Linux the time in which the process, or one of its group, was
// ready to run and had no processor does not count, up to a whole that is [maxStarved] times d.
func (p *Process) Patience(ctx context.Context, d time.Duration, cause error) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	go func() {
		left, most := d, time.Now().Add(maxStarved*d)
		for waited := groupWaited(p.Pid()); left > 0 && time.Now().Before(most); {
			looked := time.Now()
			select {
			case <-ctx.Done():
				return
			case <-time.After(max(left, d/20)): // not at once again, if it waited for a moment only
			}
			now, passed := groupWaited(p.Pid()), time.Since(looked)
			left -= passed - min(max(now-waited, 0), passed)
			waited = now
		}
		cancel(cause)
	}()
	return ctx, func() { cancel(context.Canceled) }
}

// WatchSilence calls silent, once, when heard has not changed for d: for a caller that counts what a process sends, and takes it for hung
// when nothing comes. The time in which its group had no processor does not count, as in Patience. The silence is
// noticed up to a tenth of d late. Nothing is called after ctx has ended.
func (p *Process) WatchSilence(ctx context.Context, d time.Duration, heard func() uint64, silent func()) {
	go watchSilence(ctx, d, heard, func() time.Duration { return groupWaited(p.Pid()) }, time.After, silent)
}

// Busy is how long the threads of the process's group have used processors, and waited for one. It is not known on other systems
// than Linux, and of programs whose work is done elsewhere, such as docker and ssh.
func (p *Process) Busy() (ran, waited time.Duration, known bool) {
	ran, known = groupRan(p.Pid())
	return ran, groupWaited(p.Pid()), known
}

// WatchIdle calls idle, once, when the group of the process has not used a second of a processor and has written nothing for d:
// for a caller that waits for a process that takes an unknown time, and wants to know that it does something. Nothing is called where
// that cannot be known: on other systems than Linux, and of programs whose work is done elsewhere, such as docker and ssh.
func (p *Process) WatchIdle(ctx context.Context, d time.Duration, idle func()) {
	looks := uint64(0)
	p.WatchSilence(ctx, d, func() uint64 {
		ran, known := groupRan(p.Pid())
		if !known {
			looks++
			return looks
		}
		return uint64(ran/time.Second)<<40 + p.tail.written()
	}, idle)
}

// watchSilence looks twenty times within d, and asks how long the group has waited for a processor only while nothing comes:
// to ask costs milliseconds.
func watchSilence(
	ctx context.Context, d time.Duration, heard func() uint64, waited func() time.Duration, after func(time.Duration) <-chan time.Time, silent func(),
) {
	every := max(d/20, time.Millisecond)
	count, quiet, uncounted := heard(), time.Duration(0), time.Duration(0)
	for before := time.Duration(-1); ; { // what the group has waited until the last look, -1 when that was not asked
		select {
		case <-ctx.Done():
			return
		case <-after(every):
		}
		if now := heard(); now != count {
			count, quiet, uncounted, before = now, 0, 0, -1
			continue
		}
		starved, now := time.Duration(0), waited()
		if before >= 0 && uncounted < maxStarved*d {
			starved = min(max(now-before, 0), every)
		}
		before = now
		quiet, uncounted = quiet+every-starved, uncounted+starved
		if quiet >= d {
			silent()
			return
		}
	}
}

// ExitError is the end of a process, as an error for those who needed it alive.
type ExitError struct {
	// Name and Command say which process it was; Command is its argument list, the program first.
	Name    string
	Command []string
	// Status is in words: "exit status 3", "signal: killed". Code is the exit code, -1 after a signal.
	Status string
	Code   int
	// Tail is the last of its output.
	Tail string
	// Err is nil for exit status 0, else an [*exec.ExitError] or the error of reading its output.
	Err error
}

// Error is one line, followed by the tail, as [safetext.Block] shows it, if there is one.
func (e *ExitError) Error() string {
	text := fmt.Sprintf("%s (%s) ended: %s", e.Name, strings.Join(e.Command, " "), e.Status)
	if tail := safetext.Block(e.Tail); tail != "" {
		return text + "; the last of its output:\n" + tail
	}
	return text + ", without any output"
}

// Signal returns the number of the signal that ended the process, 0 if none did.
func (e *ExitError) Signal() int {
	var exit *exec.ExitError
	if errors.As(e.Err, &exit) {
		if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() {
			return int(status.Signal())
		}
	}
	return 0
}

// Unwrap returns Err.
func (e *ExitError) Unwrap() error { return e.Err }

// A Tail keeps the last bytes written to it and copies everything to a writer. One goroutine writes: package exec reads
// stdout and stderr through one pipe when both have the same writer. Any may read.
type Tail struct {
	size   int       // bytes
	copyTo io.Writer // nil: none

	mu      sync.Mutex // not held while copying: a reader of the tail must not wait for a slow writer
	buf     []byte
	dropped int // bytes
}

// NewTail returns a tail of so many bytes. copyTo may be nil.
func NewTail(size int, copyTo io.Writer) *Tail { return &Tail{size: size, copyTo: copyTo} }

// Write never fails: an error would end the reading of a process that goes on writing.
func (t *Tail) Write(p []byte) (int, error) {
	t.keep(p)
	if t.copyTo != nil {
		_, _ = t.copyTo.Write(p)
	}
	return len(p), nil
}

func (t *Tail) keep(p []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if over := len(p) - t.size; over > 0 {
		p = p[over:]
		t.dropped += over
	}
	if over := len(t.buf) + len(p) - t.size; over > 0 {
		t.dropped += over
		t.buf = append(t.buf[:0], t.buf[over:]...)
	}
	t.buf = append(t.buf, p...)
}

// written is how many bytes there were.
func (t *Tail) written() uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return uint64(t.dropped + len(t.buf))
}

func (t *Tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.dropped > 0 {
		return fmt.Sprintf("[%d bytes before this]\n%s", t.dropped, t.buf)
	}
	return string(t.buf)
}
