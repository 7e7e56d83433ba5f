package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/vllm-vcr/conformance/internal/capture/local"
)

func newCaptureNIXLCommand(env *environment) *cobra.Command {
	var opts engineOptions
	cmd := &cobra.Command{
		Use:   "nixl",
		Short: "Install NIXL for prefill and decode: for play, conform, and CPU engines",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return runCaptureEngine(env, false, []string{local.NIXLRelease()}, func(s *steps, version string) (engineJSON, string, error) {
				n, err := local.EnsureNIXL(cmd.Context(), opts.options(s, "nixl", version))
				state := "installed already"
				if n.Installed {
					state = "installed"
				}
				return engineJSON{}, fmt.Sprintf("nixl %s: %s: %s; for an engine: PYTHONPATH=%s", version, state, n.Python, n.Packages), engineError(err)
			})
		},
	}
	opts.addFlags(cmd.Flags())
	return cmd
}
