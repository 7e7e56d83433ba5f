package chart_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/chart"
	"github.com/vllm-vcr/conformance/internal/testenv"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// TestHelm has Helm itself package the chart, as a release does, lint it, and render what this package renders.
func TestHelm(t *testing.T) {
	helm := testenv.Helm(t)
	run := func(t *testing.T, args ...string) (string, error) {
		cmd := exec.CommandContext(t.Context(), helm, args...)
		cmd.Env = append(os.Environ(), "HOME="+t.TempDir())
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	dir := t.TempDir()
	if out, err := run(t, "package", folder, "--version", release.Version, "--app-version", release.Version, "--destination", dir); err != nil {
		t.Fatal(err, out)
	}
	packed := filepath.Join(dir, "vllm-vcr-"+release.Version+".tgz")
	if out, err := run(t, "lint", "--strict", packed); err != nil {
		t.Error(err, out)
	}
	for _, v := range variants {
		t.Run(v.name, func(t *testing.T) {
			values := filepath.Join(t.TempDir(), "values.yaml")
			require.NoError(t, os.WriteFile(values, []byte(v.values), 0o600))
			out, err := run(t, "template", release.Name, packed, "--namespace", release.Namespace, "--values", values)
			if err != nil {
				t.Fatal(err, out)
			}
			theirs, err := chart.Documents("helm", []byte(out))
			require.NoError(t, err)
			ours := render(t, v.values)
			for _, objects := range [][]any{theirs, ours} {
				slices.SortFunc(objects, func(a, b any) int { return strings.Compare(name(a), name(b)) })
			}
			require.NoDiff(t, cmp.Diff(theirs, ours), "Helm makes of the chart (-) what this package does not (+)")
		})
	}
	refused := []struct{ set, want string }{
		{"decode.replicas=many", "at '/decode/replicas': got string, want integer"},
		{"decode.replica=1", "at '/decode': additional properties 'replica' not allowed"},
		{"topology=replay", "trace.location: replay needs a trace"},
		{"topology=compose", `topology: there is no topology "compose"`},
	}
	for _, test := range refused {
		if out, err := run(t, "template", release.Name, packed, "--set", test.set); err == nil || !strings.Contains(out, test.want) {
			t.Errorf("%s: %v, %s; want %q", test.set, err, out, test.want)
		}
	}
}

func name(object any) string {
	o := object.(map[string]any)
	return o["kind"].(string) + "/" + o["metadata"].(map[string]any)["name"].(string)
}
