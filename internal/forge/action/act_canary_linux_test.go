package action_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/internal/upstream/drift"
)

// TestActCanary runs the first two jobs of the workflow canary as they are written, for one line of the package index. What
// the check leaves is what the job with rights reads.
func TestActCanary(t *testing.T) {
	if os.Getenv("VLLM_VCR_NETWORK") == "" {
		t.Skip("asks the package index itself: set VLLM_VCR_NETWORK=1")
	}
	c := newConsumer(t)
	c.addCheckout(t)
	c.own(t, "vllm-vcr/conformance")
	c.commit(t)
	c.env = append(c.env, "VLLM_VCR_PEERS="+t.TempDir()) // as on a runner, which has no engine
	o := c.workflow(t, "canary.yml", "workflow_dispatch", "--job", "check", "--matrix", "line:0.33")
	require.True(t, o.jobs["canary/releases"] == "success" && o.jobs["canary/check 0.33"] == "success", "jobs %v:\n%s", o.jobs, o.log)
	verdict, err := drift.ReadOutputs(os.DirFS(filepath.Join(c.standins, "artifacts")), drift.Row{Line: "0.33"})
	require.NoError(t, err)
	var layers map[string]string
	require.NoErrorf(t, json.Unmarshal([]byte(verdict.Layers), &layers), "layers %q", verdict.Layers)
	if verdict.Drift != "none" || verdict.Version != "0.33.0" || layers["static"] != "none" || layers["live"] != "none" {
		t.Errorf("verdict %s of %s, layers %v: %s", verdict.Drift, verdict.Version, layers, verdict.Summary)
	}
	require.True(t, regexp.MustCompile(`^[0-9a-f]{16}$`).MatchString(verdict.Wire) && strings.Contains(verdict.Body, "**drift: none**"), "wire %q, body %s", verdict.Wire, verdict.Body)
}

// addCheckout puts the files of this checkout into the repository.
func (c *consumer) addCheckout(t *testing.T) {
	t.Helper()
	list := exec.Command("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	list.Dir = root
	files, err := list.Output()
	require.NoError(t, err)
	for path := range strings.SplitSeq(strings.TrimSuffix(string(files), "\x00"), "\x00") {
		if info, err := os.Stat(filepath.Join(root, path)); err == nil && info.Mode().IsRegular() {
			writeFile(t, filepath.Join(c.dir, path), readFile(t, filepath.Join(root, path)))
		}
	}
}
