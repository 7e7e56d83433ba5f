package main

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"

	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// version is set by the linker for releases.
var version string

func newVersionCommand(env *environment) *cobra.Command {
	var short bool
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version and the vLLM lines this binary speaks",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if short {
				_, err := fmt.Fprintln(env.stdout, buildVersion())
				return err
			}
			_, err := fmt.Fprintf(env.stdout, "vllm-vcr %s (%s, %s/%s)\nvLLM lines: %s\n", buildVersion(), runtime.Version(),
				runtime.GOOS, runtime.GOARCH, strings.Join(append([]string{protocol.Nightly}, protocol.Lines()...), " "))
			return err
		},
	}
	cmd.Flags().BoolVar(&short, "short", false, "print the version alone")
	return cmd
}

// buildVersion is the linked version, else the module's.
func buildVersion() string {
	if version != "" {
		return version
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "(devel)"
}
