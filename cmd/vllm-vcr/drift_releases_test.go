package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// TestDriftReleases: what an index has becomes the matrix of a workflow.
func TestDriftReleases(t *testing.T) {
	named := func(version string) string { return "vllm-" + version + "-cp38-abi3-manylinux_2_28_x86_64.whl" }
	index := indexServer(t, map[string]string{
		named("0.32.0"): "5df63a720", named("0.33.0"): "4ba787ec9", named("0.33.1"): "4ba787eca", named("0.34.0"): "1!",
		named("0.35.0rc1"): "2", named("0.36.0.dev3+g0123456"): "3",
	})
	matrix := filepath.Join(t.TempDir(), "compat.toml")
	require.NoError(t, os.WriteFile(matrix, []byte(watchedFile), 0o600))
	manifest := filepath.Join(t.TempDir(), "manifest.toml")
	require.NoError(t, os.WriteFile(manifest, nil, 0o600))
	const rc = `{"line":"rc","version":"0.35.0rc1","kind":"candidate","check":"0.35.0rc1"},`
	const patch = `{"line":"0.33","version":"0.33.1","kind":"patch","check":"0.33.1"}`
	const known = `,{"line":"0.32","version":"0.32.0","kind":"known","check":"0.32.0"}]`
	tests := []struct {
		name  string
		args  []string
		code  int
		want  string
		adopt string
	}{
		{
			name: "all", want: `[{"line":"nightly","version":"","kind":"nightly","check":"--nightly"},` + rc + patch + known,
			adopt: "[" + patch + "]",
		},
		{name: "without the nightly build", args: []string{"--nightly=false"}, want: "[" + rc + patch + known, adopt: "[" + patch + "]"},
		{name: "half an answer", args: []string{"--index=" + index + "/cut"}, code: conformance.ExitInfra},
		{name: "no index", args: []string{"--index", "http://127.0.0.1:1/simple"}, code: conformance.ExitInfra},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			outputs := filepath.Join(t.TempDir(), "outputs")
			env := func(name string) (string, bool) {
				if name == "GITHUB_OUTPUT" {
					return outputs, true
				}
				return "", false
			}
			var stdout, stderr bytes.Buffer
			args := append([]string{"drift", "releases", "--index=" + index + "/simple", "--compat", matrix, "--manifest", manifest, "--github-output"}, test.args...)
			if code := newEnvironment(&stdout, &stderr, env).main(t.Context(), args); code != test.code {
				t.Fatalf("exit code %d, want %d: %s", code, test.code, stderr.String())
			}
			if test.code != 0 {
				require.True(t, stdout.Len() == 0 && !exists(outputs), "it says something all the same: %s", stdout.String())
				return
			}
			require.NoDiff(t, cmp.Diff(test.want+"\n", stdout.String()), "stdout (-want +got)")
			text, err := os.ReadFile(outputs)
			require.NoError(t, err)
			for _, output := range []string{"\n" + test.want + "\n", "\n" + test.adopt + "\n"} {
				require.Contains(t, string(text), output)
			}
		})
	}
}
