package main

import (
	"fmt"

	"github.com/spf13/cobra"

	vcr "github.com/vllm-vcr/conformance"
	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/internal/base/tomlfile"
	"github.com/vllm-vcr/conformance/internal/capture/target"
	"github.com/vllm-vcr/conformance/manifest"
)

func newCompatCommand(env *environment) *cobra.Command {
	return group(&cobra.Command{
		Use:   "compat",
		Short: "Look after the support window and the registry of goldens",
	}, newCompatCheckCommand(env), newCompatMatrixCommand(env), newCompatSetCommand(env), newCompatWatchCommand(env))
}

// codes names the first and the last of some rules.
func codes(rules []tomlfile.Rule) string {
	return rules[0].Code + " to " + rules[len(rules)-1].Code
}

func newCompatCheckCommand(env *environment) *cobra.Command {
	var in inputs
	var targets string
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Check compat.toml, the manifest and the targets, alone and against each other",
		Long: "Check compat.toml (rules " + codes(compat.Rules()) + ") and the manifest (" + codes(manifest.Rules()) + "), alone and\n" +
			"against each other, and the targets (" + codes(target.Rules()) + ") if there is a file of them.\n" +
			"Findings go to stderr, one a line, as file:line: CODE severity: message.",
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			window, registry, err := loadInputs(env, in)
			if err != nil {
				return err
			}
			checked, err := checkTargets(env, targets, window)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(env.stdout, "%s: %d lines; %s: %d goldens%s\n",
				window.File, len(window.Lines), registry.File, len(registry.Goldens), checked)
			return err
		},
	}
	in.addFlags(cmd.Flags())
	cmd.Flags().StringVar(&targets, "targets", "", "what is captured (default ./"+vcr.TargetsPath+" if there is one)")
	return cmd
}

// checkTargets checks the targets against the window, and returns the words that say so. A project may capture nothing.
func checkTargets(env *environment, path string, window *compat.Matrix) (string, error) {
	if path == "" && !exists(vcr.TargetsPath) {
		return "", nil
	}
	file, findings := loadTargets(path, window)
	printDiagnostics(env, findings)
	if tomlfile.HasErrors(findings) {
		return "", fmt.Errorf("%s cannot be used as it is", file.Name)
	}
	return fmt.Sprintf("; %s: %d targets", file.Name, len(file.Targets)), nil
}
