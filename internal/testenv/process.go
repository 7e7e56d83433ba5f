package testenv

import (
	"context"
	"os/exec"
	"testing"

	"github.com/vllm-vcr/conformance/internal/base/process"
)

// A Peer is a running process that belongs to one test.
type Peer struct {
	process *process.Process
}

// Process starts cmd and stops it when the test ends. If the test failed by then, it logs how the process ended and the
// last of what it wrote to stdout and stderr; a stream that cmd directs elsewhere stays with the caller.
//
// Whatever it started stops with it, and on Linux it dies too if the test binary is killed: see package process. Its
// name stands in messages only.
func Process(t testing.TB, name string, cmd *exec.Cmd) *Peer {
	t.Helper()
	started, err := process.Start(cmd, process.Options{Name: name})
	if err != nil {
		t.Fatal(err)
	}
	p := &Peer{process: started}
	t.Cleanup(func() {
		how := "was stopped"
		if p.process.Exit() != nil {
			how = "ended by itself"
		}
		p.Stop()
		if t.Failed() {
			t.Logf("%s: %v", how, p.process.Exit())
		}
	})
	return p
}

// Done returns a channel that is closed when the process has ended and its output is complete.
func (p *Peer) Done() <-chan struct{} { return p.process.Done() }

// Err waits for the end of the process and returns nil for exit code 0, else a [*process.ExitError].
func (p *Peer) Err() error { return p.process.Wait(context.Background()) }

// Tail returns the last 16 KiB that the process has written to stdout and stderr so far, in the order written.
func (p *Peer) Tail() string { return p.process.Tail() }

// Stop ends the process and its group, by SIGTERM, and by SIGKILL if it is still there after five seconds. It returns
// when the process is gone. Stopping a process that has ended is no error.
func (p *Peer) Stop() {
	// The only error is a process that hangs inside the kernel; its test has failed by then, for want of an answer.
	_ = p.process.Stop(context.Background())
}
