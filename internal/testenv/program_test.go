package testenv

import (
	"strings"
	"testing"
)

func TestAbsentProgram(t *testing.T) {
	t.Setenv(envPeers, t.TempDir())
	t.Setenv(envRequire, "")
	t.Setenv(envSlow, "1")
	for _, required := range []string{"", "true"} {
		t.Setenv(envCI, required)
		for says, ask := range map[string]func(testing.TB){
			"bin/act: install it with: .ci/peers act":               func(tb testing.TB) { Act(tb) },
			"bin/no-such-program: install it with: .ci/peers image": func(tb testing.TB) { ImageTool(tb, "no-such-program") },
			"no root": func(tb testing.TB) { Absent(tb, "no root") },
		} {
			fake := newFakeTB(t)
			fake.run(ask)
			if fatal := fake.fatal != ""; fatal != (required != "") {
				t.Errorf("CI=%s: fatal %q, skipped %q", required, fake.fatal, fake.skipped)
			}
			if text := fake.fatal + fake.skipped; !strings.Contains(text, says) {
				t.Errorf("message is %q, want %q in it", text, says)
			}
		}
	}
}

// What is marked as slow runs for whoever asks, and is skipped elsewhere even where peers are required.
func TestSlow(t *testing.T) {
	t.Setenv(envCI, "true")
	for value, skips := range map[string]bool{"": true, "0": true, "1": false, "yes": false} {
		t.Setenv(envSlow, value)
		fake := newFakeTB(t)
		fake.run(func(tb testing.TB) { Slow(tb, "compiles releases") })
		if skipped := strings.Contains(fake.skipped, "compiles releases: make test-slow"); skipped != skips || fake.fatal != "" {
			t.Errorf("%s=%s: skipped %q, fatal %q", envSlow, value, fake.skipped, fake.fatal)
		}
	}
}

func TestFoundProgram(t *testing.T) {
	t.Setenv(envSlow, "1")
	dir := t.TempDir()
	t.Setenv(envPeers, dir)
	for name, find := range map[string]func() string{
		"act":             func() string { return Act(t) },
		"no-such-program": func() string { return ImageTool(t, "no-such-program") },
	} {
		want := install(t, dir, "bin/"+name, 0o755)
		if got := find(); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}
