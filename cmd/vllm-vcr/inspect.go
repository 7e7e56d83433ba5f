package main

import "github.com/spf13/cobra"

func (a *app) inspectCommand() *cobra.Command {
	return group(&cobra.Command{
		Use:   "inspect",
		Short: "Look into recordings",
	}, a.inspectCalibrateCommand(), a.inspectSummaryCommand(), a.inspectTimelineCommand())
}
