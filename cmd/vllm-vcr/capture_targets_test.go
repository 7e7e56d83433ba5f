package main

import (
	"io"
	"testing"

	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/internal/capture/target"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// TestCommandsOfTargetsAreOurs: what a target makes of the command lines of tap and load generator, this binary takes.
func TestCommandsOfTargetsAreOurs(t *testing.T) {
	matrix, _ := compat.Load("../../compat.toml")
	targets := 0
	for _, path := range []string{"../../capture/targets.toml", "../../internal/capture/target/testdata/gpus.toml"} {
		file, findings := target.Load(path, matrix)
		for _, f := range findings {
			if f.Severity != "warning" {
				t.Error(f)
			}
		}
		for _, one := range file.Targets {
			targets++
			at := target.Addresses{HTTP: 8000, FrontendHandshake: 5570, EngineHandshake: 5580}
			wantTaken(t, one.Name(), "record", one.TapArgs(at, "/trace"))
			wantTaken(t, one.Name(), "load", one.LoadArgs(at, "/trace"))
		}
	}
	require.True(t, targets >= 50, "%d targets were looked at", targets)
}

// wantTaken wants a command that takes the arguments.
func wantTaken(t *testing.T, target, name string, args []string) {
	t.Helper()
	cmd, rest, err := newRootCommand(newEnvironment(io.Discard, io.Discard, nil)).Find(args)
	if err != nil || cmd.Name() != name {
		t.Fatalf("%s: %v is %v: %v", target, args, cmd.Name(), err)
	}
	require.NoErrorf(t, cmd.ParseFlags(rest), "%s: %v", target, args)
	require.NoErrorf(t, cmd.ValidateArgs(cmd.Flags().Args()), "%s: %v", target, args)
}
