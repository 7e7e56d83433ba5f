package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/golden"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// A bundle that has a golden which is not in its manifest was not made by golden bundle.
func TestGoldenVerifyFindsStowaway(t *testing.T) {
	file := filepath.Join(t.TempDir(), "bundle.tar")
	t.Chdir("../..")
	var opts fetchOptions
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	opts.addFlags(flags)
	require.NoError(t, flags.Parse([]string{"--line", "0.33", "--golden", "edge-s1,multiturn-s7"}))
	run, err := beginFetch(quietEnvironment(), &opts)
	require.NoError(t, err)
	for known, want := range map[int]struct {
		code int
		text string
	}{2: {0, "2 goldens have the registered bytes"}, 1: {1, "its manifest has no golden of sha256 " + run.goldens[1].SHA256}} {
		compat, manifest, err := conformance.NarrowInputs(run.compat, run.goldens[:known])
		require.NoError(t, err)
		var bundle bytes.Buffer
		require.NoError(t, golden.WriteBundle(&bundle, golden.Bundle{Compat: compat, Manifest: manifest, Goldens: run.objects(), Fetch: func(o golden.Object) ([]byte, error) {
			return run.store.Bytes.Fetch(t.Context(), o)
		}}))
		require.NoError(t, os.WriteFile(file, bundle.Bytes(), 0o600))
		code, stdout, stderr := runApp("golden", "verify", "--bundle", file)
		require.True(t, code == want.code && strings.Contains(stdout+stderr, want.text), "exit code %d, want %d and %q\n%s%s", code, want.code, want.text, stdout, stderr)
	}
}
