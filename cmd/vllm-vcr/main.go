// Command vllm-vcr checks, replays and records the boundary between vLLM
// frontends and engine cores. See README.md.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/base/process"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, endAtOnce(stop))
	code := newEnvironment(os.Stdout, os.Stderr, os.LookupEnv).main(ctx, os.Args[1:])
	stop()
	os.Exit(code)
}

// endAtOnce has a second signal end the process at once, as it would by itself, and with
// it what it has started: an engine that does not mind SIGTERM would outlive it.
func endAtOnce(stop func()) func() {
	return func() {
		second := make(chan os.Signal, 1)
		signal.Notify(second, os.Interrupt, syscall.SIGTERM)
		stop() // not before: in between, a signal would end this process alone
		sig := <-second
		process.KillAll()
		signal.Reset(sig)
		if self, err := os.FindProcess(os.Getpid()); err == nil && self.Signal(sig) == nil {
			time.Sleep(time.Second) // it comes at any moment, unless it was ignored from the start
		}
		os.Exit(conformance.ExitInfra)
	}
}
