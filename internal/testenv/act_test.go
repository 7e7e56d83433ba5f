package testenv

import (
	"strings"
	"testing"
)

func TestAbsentAct(t *testing.T) {
	t.Setenv(envPeers, t.TempDir())
	for _, required := range []string{"", "true"} {
		t.Setenv(envCI, required)
		t.Setenv(envRequire, "")
		fake := newFakeTB(t)
		fake.run(func(tb testing.TB) { Act(tb) })
		if fatal := fake.fatal != ""; fatal != (required != "") {
			t.Errorf("CI=%s: fatal %q, skipped %q", required, fake.fatal, fake.skipped)
		}
		if text := fake.fatal + fake.skipped; !strings.Contains(text, "bin/act") || !strings.Contains(text, ".ci/peers act") {
			t.Errorf("message does not say where and how: %s", text)
		}
	}
}

func TestFoundAct(t *testing.T) {
	dir := t.TempDir()
	want := install(t, dir, "bin/act", 0o755)
	t.Setenv(envPeers, dir)
	if got := Act(t); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
