package main

import "github.com/spf13/cobra"

func (a *app) captureCommand() *cobra.Command {
	return group(&cobra.Command{
		Use:   "capture",
		Short: "Capture goldens of released engines",
	}, a.captureLoadCommand(), a.capturePodCommand(), a.captureListCommand(), a.captureRenderCommand(), a.captureEngineCommand(),
		a.captureRunCommand(), a.captureSubmitCommand(), a.captureStatusCommand(), a.captureFetchCommand(), a.captureCleanCommand(),
		a.captureDescribeCommand(), a.captureCredentialCommand())
}
