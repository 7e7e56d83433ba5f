// Command vllm-vcr checks, replays and records the boundary between vLLM
// frontends and engine cores. See README.md.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	code := newApp(os.Stdout, os.Stderr, os.LookupEnv).main(ctx, os.Args[1:])
	stop()
	os.Exit(code)
}
