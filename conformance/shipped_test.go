package conformance

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/manifest"
	"github.com/vllm-vcr/conformance/trace"
)

// TestShippedGoldensAreDescribed: what the manifest says of each golden is true of its file. With -update the manifest is corrected.
func TestShippedGoldensAreDescribed(t *testing.T) {
	matrix, _ := compat.Load("../compat.toml")
	shipped, diagnostics := manifest.Load("manifest.toml")
	if len(diagnostics) > 0 || len(shipped.Goldens) == 0 {
		t.Fatalf("%d goldens, diagnostics %v", len(shipped.Goldens), diagnostics)
	}
	var changed []manifest.Golden
	for _, g := range shipped.Goldens {
		got := describedByFile(t, matrix, g)
		if diff := cmp.Diff(got, g); diff != "" && !*update {
			t.Errorf("golden %s/%s (-file +manifest):\n%s", g.Line, g.ID, diff)
		} else if diff != "" {
			changed = append(changed, got)
		}
	}
	// Two captures of the same requests, of an engine with and without a prefix cache, got the same answers at other times.
	digest := func(id string) string {
		return shipped.Goldens[slices.IndexFunc(shipped.Goldens, func(g manifest.Golden) bool { return g.Line == "0.33" && g.ID == id })].TokensSHA256
	}
	if one, other := digest("multiturn-s7"), digest("multiturn-nocache-s7"); one != other && !*update {
		t.Errorf("two captures of the same answers have the digests %s and %s", one, other)
	}
	if len(changed) == 0 {
		return
	}
	text, err := os.ReadFile("manifest.toml")
	require.NoError(t, err)
	var lines []string
	for _, l := range matrix.Lines {
		lines = append(lines, l.Name)
	}
	editor, err := manifest.NewEditor("manifest.toml", text, lines)
	require.NoError(t, err)
	for _, g := range changed {
		require.NoError(t, editor.Put(g))
	}
	require.NoError(t, os.WriteFile("manifest.toml", editor.Bytes(), 0o644))
}

// describedByFile is a golden with what its file says of it.
func describedByFile(t *testing.T, matrix *compat.Matrix, g manifest.Golden) manifest.Golden {
	t.Helper()
	path := filepath.Join("..", "testdata", "goldens", filepath.FromSlash(g.BucketPath))
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	line, _ := matrix.ByName(g.Line)
	read := check.Golden{Registered: g, Location: path}
	require.NoError(t, read.Read(line, data))
	sum := sha256.Sum256(data)
	g.SHA256, g.Size = hex.EncodeToString(sum[:]), int64(len(data))
	meta := read.Trace.Meta
	g.GPU, g.Model, g.EngineConfig = trace.Or(meta.GPU, ""), trace.Or(meta.Model, ""), trace.Or(meta.EngineConfig, "")
	g.RecorderVersion = metaText(meta, "recorder_version")
	g.VLLMVersion, g.ConfigHash = trace.Or(meta.VLLMVersion, ""), trace.Or(meta.ConfigHash, "")
	g.Records, g.Streams, g.Tokens, g.TokensSHA256 = len(read.Trace.Records), read.Streams, read.Tokens, ""
	if read.Streams > 0 {
		g.TokensSHA256 = read.Digest
	}
	return g
}
