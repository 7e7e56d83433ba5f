package testenv

import (
	"errors"
	"os/exec"
	"runtime"
	"syscall"
	"testing"
	"time"
)

// A Peer is a running process that belongs to one test.
type Peer struct {
	cmd    *exec.Cmd
	output *tail
	done   chan struct{}
	err    error         // valid once done is closed
	grace  time.Duration // between SIGTERM and SIGKILL
}

// Process starts cmd and stops it when the test ends. If the test failed by then, it logs how the process ended and the
// last of what it wrote to stdout and stderr; a stream that cmd directs elsewhere stays with the caller.
//
// The process leads a process group of its own and the whole group is stopped, so nothing that it started stays behind.
// On Linux it dies too if the test binary is killed. Its name stands in messages only.
func Process(t testing.TB, name string, cmd *exec.Cmd) *Peer {
	t.Helper()
	p := &Peer{cmd: cmd, output: &tail{}, done: make(chan struct{}), grace: 5 * time.Second}
	if cmd.Stdout == nil {
		cmd.Stdout = p.output
	}
	if cmd.Stderr == nil {
		cmd.Stderr = p.output
	}
	// A descendant may hold the output open after the process has ended: this is all the time it has to end as well.
	cmd.WaitDelay = time.Second
	ownGroup(cmd)
	if err := p.start(); err != nil {
		t.Fatalf("start %s: %v", name, err)
	}
	t.Cleanup(func() {
		early := p.exited()
		p.Stop()
		if t.Failed() {
			t.Logf("%s (%s) %s; the last of its output:\n%s", name, cmd.Path, p.ending(early), p.Tail())
		}
	})
	return p
}

// Done returns a channel that is closed when the process has ended and its output is complete.
func (p *Peer) Done() <-chan struct{} { return p.done }

// Err waits for the end of the process and returns nil for exit code 0, else an [*exec.ExitError], or an error of copying
// its output.
func (p *Peer) Err() error {
	<-p.done
	return p.err
}

// Tail returns the last 16 KiB that the process has written to stdout and stderr so far, in the order written.
func (p *Peer) Tail() string { return p.output.String() }

// Stop ends the process and its group, by SIGTERM, and by SIGKILL if it is still there after five seconds. It returns
// when the process is gone. Stopping a process that has ended is no error.
func (p *Peer) Stop() {
	if p.exited() {
		return
	}
	p.signal(syscall.SIGTERM)
	select {
	case <-p.done:
	case <-time.After(p.grace):
		p.signal(syscall.SIGKILL)
		<-p.done
	}
}

// start runs the process from a thread that lives as long as the process: the signal that Linux sends to a child when
// its parent dies is sent on the death of the parent's thread, and Go may end a thread at any time.
func (p *Peer) start() error {
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := p.cmd.Start()
		started <- err
		if err == nil {
			if err := p.cmd.Wait(); !errors.Is(err, exec.ErrWaitDelay) {
				p.err = err
			}
			p.signal(syscall.SIGKILL) // what it started must not outlive it
			close(p.done)
		}
	}()
	return <-started
}

// signal reaches the whole group. An error means that the group has no process left.
func (p *Peer) signal(sig syscall.Signal) { _ = syscall.Kill(-p.cmd.Process.Pid, sig) }

func (p *Peer) exited() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

func (p *Peer) ending(early bool) string {
	state := p.cmd.ProcessState.String()
	if early {
		return "ended by itself: " + state
	}
	return "was stopped: " + state
}
