package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/vllm-vcr/conformance/internal/capture/local"
)

func newCaptureNIXLCommand(env *environment) *cobra.Command {
	var opts engineOptions
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "nixl",
		Short: "Install NIXL for prefill and decode: for play, conform, and CPU engines",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return runCaptureEngine(env, asJSON, []string{local.NIXLRelease()}, func(s *steps, version string) (engineJSON, string, error) {
				n, err := local.EnsureNIXL(cmd.Context(), opts.options(s, "nixl", version))
				done := engineJSON{Kind: "nixl", Engine: local.Engine{Release: version, Python: n.Python, Home: n.Packages, Installed: n.Installed}}
				state := "installed already"
				if n.Installed {
					state = "installed"
				}
				return done, fmt.Sprintf("nixl %s: %s: %s; for an engine: PYTHONPATH=%s", version, state, n.Python, n.Packages), engineError(err)
			})
		},
	}
	opts.addFlags(cmd.Flags())
	addJSONFlag(cmd.Flags(), &asJSON)
	return cmd
}
