package testenv

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

func TestAbsentPeerPolicy(t *testing.T) {
	python := func(tb testing.TB) { Python(tb) }
	frontend := func(tb testing.TB) { Frontend(tb, "0.33.0") }
	frontends := func(tb testing.TB) { Frontends(tb) }
	s3 := func(tb testing.TB) { S3(tb) }
	act := func(tb testing.TB) { Act(tb) }
	tool := func(tb testing.TB) { ImageTool(tb, "no-such-program") }
	root := func(tb testing.TB) { Absent(tb, "no root") }
	tests := []struct {
		name       string
		ask        func(testing.TB)
		ci, must   string // values of CI and VLLM_VCR_REQUIRE_PEERS
		wantFatal  bool
		wantInText []string
	}{
		{name: "python", ask: python, wantInText: []string{"pyzmq", "python/bin/python", ".ci/peers python"}},
		{
			name: "frontend", ask: frontend,
			wantInText: []string{"vllm-rs 0.33.0", "frontends/0.33.0/vllm-rs", ".ci/peers frontend 0.33.0"},
		},
		{name: "any frontend", ask: frontends, wantInText: []string{"vllm-rs", ".ci/peers frontend"}},
		{name: "CI=false", ask: python, ci: "false"},
		{name: "CI=0 and peers not required", ask: python, ci: "0", must: "0"},
		{name: "CI=true", ask: python, ci: "true", wantFatal: true, wantInText: []string{".ci/peers python"}},
		{name: "CI=1", ask: frontend, ci: "1", wantFatal: true},
		{name: "CI names the service", ask: frontend, ci: "woodpecker", wantFatal: true},
		{name: "peers required", ask: frontends, must: "1", wantFatal: true, wantInText: []string{".ci/peers frontend"}},
		{name: "S3 server", ask: s3, wantInText: []string{"bin/versitygw: install it with: .ci/peers s3"}},
		{name: "S3 server in CI", ask: s3, ci: "true", wantFatal: true, wantInText: []string{".ci/peers s3"}},
		{name: "act", ask: act, wantInText: []string{"bin/act: install it with: .ci/peers act"}},
		{name: "act in CI", ask: act, ci: "true", wantFatal: true, wantInText: []string{".ci/peers act"}},
		{name: "a tool of images", ask: tool, wantInText: []string{"bin/no-such-program: install it with: .ci/peers image"}},
		{name: "a tool of images in CI", ask: tool, ci: "true", wantFatal: true, wantInText: []string{".ci/peers image"}},
		{name: "what cannot be installed", ask: root, wantInText: []string{"no root"}},
		{name: "what cannot be installed, in CI", ask: root, ci: "true", wantFatal: true, wantInText: []string{"no root"}},
	}
	t.Setenv(envSlow, "1")
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Setenv(envCI, test.ci)
			t.Setenv(envRequire, test.must)
			t.Setenv(envPeers, t.TempDir())
			fake := newFakeTB(t)
			fake.run(test.ask)
			if fatal, skipped := fake.fatal != "", fake.skipped != ""; fatal != test.wantFatal || skipped == test.wantFatal {
				t.Errorf("fatal %q, skipped %q; want fatal: %v", fake.fatal, fake.skipped, test.wantFatal)
			}
			for _, want := range test.wantInText {
				require.Contains(t, fake.fatal+fake.skipped, want)
			}
		})
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

func TestBadConfigurationFailsEverywhere(t *testing.T) {
	tests := []struct {
		name, dir, home, version, want string
	}{
		{name: "relative folder", dir: "peers", home: "/root", version: "0.33.0", want: "absolute path"},
		{name: "no home", version: "0.33.0", want: envPeers},
		{name: "a line instead of a release", dir: "/nonexistent", version: "0.33", want: `"0.33"`},
		{name: "a path instead of a release", dir: "/nonexistent", version: "../0.33.0", want: `"../0.33.0"`},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Setenv(envCI, "")
			t.Setenv(envRequire, "")
			t.Setenv(envPeers, test.dir)
			t.Setenv("HOME", test.home)
			t.Setenv("XDG_CACHE_HOME", "")
			fake := newFakeTB(t)
			fake.run(func(tb testing.TB) { Frontend(tb, test.version) })
			require.True(t, strings.Contains(fake.fatal, test.want), "got fatal %q, skipped %q; want fatal with %q", fake.fatal, fake.skipped, test.want)
		})
	}
}

func TestPeersAreFoundWhereTheScriptPutsThem(t *testing.T) {
	root := t.TempDir()
	tests := []struct {
		name, peers, xdg, home, want string
	}{
		{name: "named", peers: root + "/a", xdg: root + "/b", home: root, want: "a"},
		{name: "cache home", xdg: root + "/b", home: root, want: "b/vllm-vcr/peers"},
		{name: "home", home: root, want: ".cache/vllm-vcr/peers"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Setenv(envPeers, test.peers)
			t.Setenv("XDG_CACHE_HOME", test.xdg)
			t.Setenv("HOME", test.home)
			dir := filepath.Join(root, test.want)
			python := install(t, dir, "python/bin/python", 0o755)
			frontend := install(t, dir, "frontends/0.9.2/vllm-rs", 0o755)
			act, tool := install(t, dir, "bin/act", 0o755), install(t, dir, "bin/no-such-program", 0o755)
			install(t, dir, "frontends/0.27.1/vllm-rs", 0o755)
			install(t, dir, "frontends/0.27.1.post1/vllm-rs", 0o755)
			install(t, dir, "frontends/0.33.0/vllm-rs", 0o644) // no program
			install(t, dir, "frontends/nightly/vllm-rs", 0o755)
			install(t, dir, "frontends/0.34.0/README", 0o644)

			require.Equal(t, Python(t), python, "Python")
			require.Equal(t, Frontend(t, "0.9.2"), frontend, "Frontend")
			t.Setenv(envSlow, "1")
			require.Equal(t, Act(t), act, "Act")
			require.Equal(t, ImageTool(t, "no-such-program"), tool, "ImageTool")
			if got, want := Frontends(t), []string{"0.27.1.post1", "0.27.1", "0.9.2"}; !slices.Equal(got, want) {
				t.Errorf("Frontends = %v, want %v", got, want)
			}
		})
	}
}

func install(t *testing.T, dir, name string, mode os.FileMode) string {
	t.Helper()
	path := filepath.Join(dir, name)
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
	require.NoError(t, os.WriteFile(path, nil, mode))
	return path
}

func TestFrontendVersions(t *testing.T) {
	usual, err := defaultFrontends()
	if err != nil || len(usual) < 2 || !slices.Contains(usual, oldFrontend) {
		t.Fatalf("by default %v, %v", usual, err)
	}
	tests := []struct {
		name, env string
		want      []string
	}{
		{name: "unset", want: usual},
		{name: "blank", env: "  ", want: usual},
		{name: "two", env: " 0.31.0  0.25.1 ", want: []string{"0.31.0", "0.25.1"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Setenv(envFrontends, test.env)
			if got := FrontendVersions(); !slices.Equal(got, test.want) {
				t.Errorf("got %v, want %v", got, test.want)
			}
		})
	}
}

// What the script installs by default is at least what tests ask for by default.
func TestScriptInstallsTheDefaultFrontends(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("there is no bash")
	}
	root, err := ModuleRoot()
	require.NoError(t, err)
	t.Setenv(envFrontends, "")
	out, err := exec.Command("bash", filepath.Join(root, ".ci", "peers"), "required").Output()
	require.NoError(t, err)
	installed := strings.Fields(string(out))
	for _, version := range FrontendVersions() {
		require.True(t, slices.Contains(installed, version), ".ci/peers installs %v, which lacks %s", installed, version)
	}
}
