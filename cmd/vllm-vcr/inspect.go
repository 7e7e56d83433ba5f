package main

import "github.com/spf13/cobra"

func newInspectCommand(env *environment) *cobra.Command {
	return group(&cobra.Command{
		Use:   "inspect",
		Short: "Look into recordings",
	}, newInspectCalibrateCommand(env), newInspectSummaryCommand(env), newInspectTimelineCommand(env))
}
