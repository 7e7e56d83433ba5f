package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/vllm-vcr/conformance/player"
)

func main() {
	handshake := flag.String("handshake", "", "address that the frontend listens on")
	version := flag.String("vllm-version", "0.33", "line or release to be")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	p, err := player.New(player.Options{Handshake: *handshake, VLLMVersion: *version, Source: Counter{Vocab: 32000}})
	if err == nil {
		err = p.Run(ctx)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "engine:", err)
		os.Exit(1)
	}
}
