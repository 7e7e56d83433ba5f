package testenv

import (
	"path/filepath"
	"strings"
	"testing"
)

func TestAbsentKubernetes(t *testing.T) {
	tests := []struct {
		name, required string
		installed      []string
		fatal, skipped string // what the message of each kind of end must contain
	}{
		{name: "skipped in CI", skipped: ".ci/peers kube"},
		{name: "required", required: "1", fatal: ".ci/peers kube"},
		{name: "not required by a false value", required: "false", skipped: ".ci/peers kube"},
		{name: "half installed", required: "1", installed: []string{"etcd"}, fatal: "no kube-apiserver"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			for _, name := range test.installed {
				install(t, dir, filepath.Join("bin", name), 0o755)
			}
			t.Setenv(envPeers, dir)
			t.Setenv(envCI, "true")
			t.Setenv(envKube, test.required)
			fake := newFakeTB(t)
			fake.run(func(tb testing.TB) { KubeAPI(tb) })
			if (fake.fatal == "") != (test.fatal == "") || (fake.skipped == "") != (test.skipped == "") ||
				!strings.Contains(fake.fatal, test.fatal) || !strings.Contains(fake.skipped, test.skipped) {
				t.Errorf("got fatal %q, skipped %q, want %q, %q", fake.fatal, fake.skipped, test.fatal, test.skipped)
			}
		})
	}
}
