package main

import (
	"github.com/spf13/cobra"
)

func newCaptureCommand(env *environment) *cobra.Command {
	return group(&cobra.Command{
		Use:   "capture",
		Short: "Capture goldens of released engines",
	}, newCaptureLoadCommand(env), newCapturePodCommand(env), newCaptureListCommand(env), newCaptureRenderCommand(env), newCaptureEngineCommand(env),
		newCaptureRunCommand(env), newCaptureSubmitCommand(env), newCaptureStatusCommand(env), newCaptureFetchCommand(env), newCaptureCleanCommand(env),
		newCaptureDescribeCommand(env), newCaptureCredentialCommand(env))
}
