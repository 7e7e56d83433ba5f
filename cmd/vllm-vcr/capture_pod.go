package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/vllm-vcr/conformance/internal/capture/deploy"
	"github.com/vllm-vcr/conformance/internal/capture/load/pod"
)

// loadInPod plays the workload beside a tap, and stays until its files are fetched.
func (a *app) loadInPod(ctx context.Context, f captureFlags, dir pod.Dir) error {
	if err := dir.Begin(); err != nil {
		return infra(err)
	}
	f.report = cmp.Or(f.report, filepath.Join(dir.Path, pod.Report))
	f.records = cmp.Or(f.records, filepath.Join(dir.Path, pod.Requests))
	err := a.loadAndTap(ctx, f, dir)
	if err != nil {
		// Where not even this can be told, the exit code tells it.
		return infra(errors.Join(err, dir.Tell(pod.Failed, err.Error()+"\n")))
	}
	a.tell("phases done, waiting for fetch")
	err = dir.Wait(ctx, f.waitForFetch, pod.Fetched)
	var late *pod.LateError
	if errors.As(err, &late) {
		err = fmt.Errorf("nobody has fetched what was captured within %v", late.Patience)
	} else if err != nil {
		err = fmt.Errorf("ended before anybody had fetched what was captured: %w", err)
	}
	return infra(err)
}

// loadAndTap returns when both, load generator and tap, have their files in their places.
func (a *app) loadAndTap(ctx context.Context, f captureFlags, dir pod.Dir) error {
	if err := a.playLoad(ctx, f); err != nil {
		return err
	}
	if err := dir.Tell(pod.Done, ""); err != nil {
		return err
	}
	if err := dir.Wait(ctx, f.tapTime, pod.Trace, pod.Steps, pod.Frames); err != nil {
		return fmt.Errorf("the tap has not finished its files: %w", err)
	}
	return dir.Tell(pod.Ready, "")
}

// capturePodCommand has what is called inside a capture's pod: by its readiness probe, and by who fetches its files.
func (a *app) capturePodCommand() *cobra.Command {
	var dir pod.Dir
	var offset int64
	ready := &cobra.Command{
		Use:   "ready",
		Short: "Tell whether everything is there to be fetched",
		Long:  "Exit code 0: it is. 3: not yet, or never, if the load has failed.",
		Args:  cobra.NoArgs,
		RunE:  func(*cobra.Command, []string) error { return infra(dir.IsReady()) },
	}
	send := &cobra.Command{
		Use:   "send FILE",
		Short: "Write a file to stdout, behind a line that tells its size and digest",
		Long: "The line is {\"file\":…,\"size\":…,\"offset\":…,\"sha256\":…}, of the whole file; behind it are exactly\n" +
			"size-offset bytes. A file that changes meanwhile is an error. Needs no memory for the file.",
		Example: "  vllm-vcr capture pod send trace.jsonl.gz --dir /trace --offset 1048576",
		Args:    cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			err := dir.Send(a.stdout, args[0], offset)
			if errors.Is(err, pod.ErrUsage) {
				return err
			}
			return infra(err)
		},
	}
	send.Flags().Int64Var(&offset, "offset", 0, "how many bytes are there already")
	release := &cobra.Command{
		Use:   "release",
		Short: "Let the pod end: everything was fetched",
		Args:  cobra.NoArgs,
		RunE:  func(*cobra.Command, []string) error { return infra(dir.Release()) },
	}
	for _, cmd := range []*cobra.Command{ready, send, release} {
		addPodFlags(cmd.Flags(), &dir)
	}
	return group(&cobra.Command{
		Use:    "pod",
		Short:  "What is called inside a capture's pod",
		Hidden: true,
	}, ready, send, release)
}

func addPodFlags(flags *pflag.FlagSet, dir *pod.Dir) {
	flags.StringVar(&dir.Path, "dir", deploy.TraceDir, "folder that load generator and tap share")
}
