package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/internal/upstream/drift"
)

// driftDocumentOf runs drift check, and returns its JSON.
func driftDocumentOf(t *testing.T, args ...string) drift.Document {
	t.Helper()
	path := filepath.Join(t.TempDir(), "drift.json")
	stdout, stderr, code := driftOf(t, t.TempDir(), append(args, "--layers-json", path)...)
	text, err := os.ReadFile(path)
	require.NoErrorf(t, err, "stdout:\n%s\nstderr:\n%s", stdout, stderr)
	var d drift.Document
	require.NoError(t, json.Unmarshal(text, &d))
	require.True(t, d.ExitCode == code, "exit code %d, and %d in the JSON", code, d.ExitCode)
	t.Logf("%.1f s, %.1f MB: %s", d.Seconds, float64(d.Downloaded)/1e6, d.Summary)
	return d
}

// TestRealDriftCheck looks at releases of the package index. What patch releases of a line declare is what the line does.
func TestRealDriftCheck(t *testing.T) {
	if os.Getenv("VLLM_VCR_NETWORK") == "" {
		t.Skip("set VLLM_VCR_NETWORK to ask the package index")
	}
	expectations, err := filepath.Abs("../../testdata/expectations/vllm-rs.toml")
	require.NoError(t, err)
	tests := []struct {
		name, release string
		args          []string
		want          string // of the layers static, live and goldens
	}{
		{name: "patch release", release: "0.25.0", args: []string{"--layers", "static"}, want: "none skipped skipped"},
		{name: "another patch release", release: "0.27.0", args: []string{"--layers", "static"}, want: "none skipped skipped"},
		{name: "newest line", release: "0.33.0", want: "none none none"},
		{name: "oldest line", release: "0.25.1", want: "none none none"},
		{name: "an adapter written as before", release: "0.32.0", want: "none found none"},
		{name: "expected", release: "0.32.0", args: []string{"--expectations", expectations}, want: "none none none"},
		{name: "before all lines", release: "0.23.0", args: []string{"--layers", "static"}, want: "found skipped skipped"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			d := driftDocumentOf(t, append(test.args, test.release)...)
			var got []string
			for _, l := range d.Layers[:3] {
				got = append(got, string(l.Verdict))
			}
			require.True(t, strings.Join(got, " ") == test.want, "got %q, want %q", got, test.want)
			if limit := 20_000_000; test.args != nil && test.args[0] == "--layers" && d.Downloaded > int64(limit) {
				t.Errorf("%d bytes were downloaded, want at most %d", d.Downloaded, limit)
			}
		})
	}
}

// TestRealDriftCheckEngine looks at the CPU engines of releases, and at their Python clients. Each takes minutes.
func TestRealDriftCheckEngine(t *testing.T) {
	versions := strings.Fields(os.Getenv("VLLM_VCR_ENGINES"))
	if len(versions) == 0 {
		t.Skip("set VLLM_VCR_ENGINES to the releases to start, such as \"0.33.0 0.27.1\": .ci/peers engine installs them")
	}
	for _, version := range versions {
		t.Run(version, func(t *testing.T) {
			home, err := os.UserHomeDir()
			require.NoError(t, err)
			peers := os.Getenv("VLLM_VCR_PEERS")
			if peers == "" {
				peers = filepath.Join(home, ".cache", "vllm-vcr", "peers")
			}
			d := driftDocumentOf(t, version, "--layers", "engine,python", "--peers", peers)
			for _, l := range d.Layers[3:] {
				require.Equal(t, l.Verdict, drift.None, "%s: %s: %+v", l.Name, l.Reason, l.Cases)
			}
		})
	}
}
