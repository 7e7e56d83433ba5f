package action_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/vllm-vcr/conformance/internal/testenv"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// TestActCapture: the action's mode capture, as somebody writes it, with a player in place of the engine. The golden that
// it registers in the work tree holds.
func TestActCapture(t *testing.T) {
	c := newConsumer(t)
	c.addGoldens(t)
	program := filepath.Dir(binary(t))
	c.env = append(c.env, "VLLM_VCR_PEERS="+testenv.EnginePeers(t, strings.Replace(testenv.PlayerForEngine, "vllm-vcr", "'"+program+"/"+exe()+"'", 1)))
	c.capture(t)
}

// The same with the released engine.
func TestActCaptureRealEngine(t *testing.T) {
	if !slices.Contains(strings.Fields(os.Getenv("VLLM_VCR_ENGINES")), "0.33.0") {
		t.Skip("set VLLM_VCR_ENGINES to the releases to start, with 0.33.0 among them: .ci/peers engine installs them")
	}
	c := newConsumer(t)
	c.addGoldens(t)
	if peers := os.Getenv("VLLM_VCR_PEERS"); peers != "" {
		c.env = append(c.env, "VLLM_VCR_PEERS="+peers)
	}
	c.capture(t)
}

// capture captures a golden in a job, and judges it in another step.
func (c *consumer) capture(t *testing.T) {
	t.Helper()
	manifest := filepath.Join(c.dir, "conformance", "manifest.toml")
	before := readFile(t, manifest)
	after := filepath.Join(t.TempDir(), "manifest.toml")
	// act works in a copy of the repository, which it deletes.
	o := c.run(t, job(with("mode: capture", "line: 0.33", "golden: multiturn-s7"))+`
      - run: cp conformance/manifest.toml '`+after+`'
      - uses: vllm-vcr/conformance@v1
        with:
          line: 0.33
          golden: multiturn-s7
`)
	o.want(t, map[string]string{"verdict": "pass", "exit-code": "0"})
	require.Equal(t, o.jobs["conformance.yml/conformance"], "success", "jobs %v", o.jobs)
	was, is := goldenLines(t, before), goldenLines(t, readFile(t, after))
	require.True(t, !slices.Equal(was, is) && len(was) == len(is), "%d goldens became %d, want one of them replaced", len(was), len(is))
	for i := range min(len(was), len(is)) {
		if was[i] != is[i] && !strings.Contains(is[i], "/v0.33.0/cpu/tiny/multiturn-s7-") {
			t.Errorf("changed too: %s became %s", was[i], is[i])
		}
	}
}

// goldenLines are where the goldens of a manifest are.
func goldenLines(t *testing.T, manifest []byte) []string {
	t.Helper()
	var lines []string
	for line := range strings.Lines(string(manifest)) {
		if strings.HasPrefix(line, "bucket_path = ") {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	return lines
}
