package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/vllm-vcr/conformance/internal/base/safetext"
	"github.com/vllm-vcr/conformance/internal/report/board"
)

func newBoardCommand(env *environment) *cobra.Command {
	var output, home string
	cmd := &cobra.Command{
		Use:   "board REPORT…",
		Short: "Write a static site of the results of many engines, frontends and routers",
		Args:  cobra.MinimumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			b, err := board.Read(args)
			if err != nil {
				return err
			}
			if err := b.Write(output, home); err != nil {
				return infra(err)
			}
			_, err = fmt.Fprintf(env.stdout, "%s: %s, %s\n", output, safetext.Count(len(b.Rows), "row"), safetext.Count(len(b.Changes), "change"))
			return err
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "", "`FOLDER` of the site; required")
	cmd.Flags().StringVar(&home, "home", "", "`URL` that the site will have, for the links of its RSS feed")
	required(cmd.Flags(), "output")
	return cmd
}
