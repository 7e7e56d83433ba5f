package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/vllm-vcr/conformance/internal/base/atomicfile"
	"github.com/vllm-vcr/conformance/internal/base/safetext"
)

// firstProgress is when a command that computes alone prints its progress for the first time. Then it does so each [progressEvery].
const firstProgress = 2 * time.Second

// interruptible makes a command that only reads, computes and writes files end at the first signal, wherever it is: what it was
// writing is removed. Until then it prints its progress.
func interruptible(maker func(*environment) *cobra.Command) func(*environment) *cobra.Command {
	return func(env *environment) *cobra.Command {
		cmd := maker(env)
		run := cmd.RunE
		cmd.RunE = func(cmd *cobra.Command, args []string) error {
			if wire := cmd.Flags().Lookup("over-wire"); wire != nil && wire.Value.String() == "true" {
				return run(cmd, args) // it has processes to end, and prints its steps
			}
			return env.awaitRun(cmd.Context(), func() error { return run(cmd, args) })
		}
		return cmd
	}
}

func (env *environment) awaitRun(ctx context.Context, run func() error) error {
	ended := make(chan error, 1)
	go func() { ended <- run() }()
	ticks, stop := env.ticks(firstProgress)
	defer stop()
	for n := 0; ; n++ {
		select {
		case err := <-ended:
			return err
		case <-ctx.Done():
			atomicfile.Abandon()
			return infra(errors.New("interrupted"))
		case <-ticks:
			if doing := env.doing.Load(); !env.quiet && doing != nil && n%int(progressEvery/firstProgress) == 0 {
				env.printErr("vllm-vcr: " + (*doing)())
			}
		}
	}
}

// reads lets the progress have how much of a file has been read, in bytes, until done is called.
func (env *environment) reads(name string, position func() (read, size int64)) (done func()) {
	reading := func() string {
		text := "reading " + safetext.Line(name)
		if read, size := position(); size > 0 {
			text += fmt.Sprintf(": %d of %d MB", read/1e6, size/1e6)
		}
		return text
	}
	computing := func() string { return "computing with " + safetext.Line(name) }
	env.doing.Store(&reading)
	return func() { env.doing.Store(&computing) }
}
