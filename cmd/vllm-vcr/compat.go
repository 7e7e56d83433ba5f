package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/internal/tomlfile"
	"github.com/vllm-vcr/conformance/manifest"
)

func (a *app) compatCommand() *cobra.Command {
	return group(&cobra.Command{
		Use:   "compat",
		Short: "Look after the support window and the registry of goldens",
	}, a.compatCheckCommand(), a.compatMatrixCommand(), a.compatSetCommand(), a.compatWatchCommand())
}

// codes names the first and the last of some rules.
func codes(rules []tomlfile.Rule) string {
	return rules[0].Code + " to " + rules[len(rules)-1].Code
}

func (a *app) compatCheckCommand() *cobra.Command {
	var in inputs
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Check compat.toml and the manifest, alone and against each other",
		Long: "Check compat.toml (rules " + codes(compat.Rules()) + ") and the manifest (" + codes(manifest.Rules()) + "), alone and\n" +
			"against each other.\n" +
			"Findings go to stderr, one a line, as file:line: CODE severity: message.",
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			window, registry, err := a.load(in)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(a.stdout, "%s: %d lines; %s: %d goldens\n",
				window.File, len(window.Lines), registry.File, len(registry.Goldens))
			return err
		},
	}
	in.addFlags(cmd.Flags())
	return cmd
}
