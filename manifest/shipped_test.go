package manifest

import (
	"io/fs"
	"os"
	"testing"

	diff "github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// goldensDir is what the bucket paths of the shipped manifest are relative to.
const goldensDir = "../testdata/goldens"

// shippedMatrix is the shipped compat.toml.
func shippedMatrix(t *testing.T) *compat.Matrix {
	t.Helper()
	matrix, diagnostics := compat.Load("../compat.toml")
	if len(diagnostics) != 0 || len(matrix.Lines) == 0 {
		t.Fatalf("%d lines, diagnostics: %v", len(matrix.Lines), diagnostics)
	}
	return matrix
}

func loadShipped(t *testing.T) *Manifest {
	t.Helper()
	facts := Facts{ConfigHash: fingerprint, Lines: make(map[string]Line)}
	for _, l := range shippedMatrix(t).Lines {
		facts.Lines[l.Name] = Line{Tag: l.Tag, Validated: l.FidelityValidated}
	}
	m, diagnostics := Load("../conformance/manifest.toml")
	diagnostics = append(diagnostics, Policy{Strict: true}.Check(m, facts)...)
	if len(diagnostics) != 0 {
		t.Fatalf("diagnostics: %v", diagnostics)
	}
	if len(m.Goldens) == 0 {
		t.Fatal("no goldens")
	}
	return m
}

// captured are the goldens that capture/targets.toml asks for of a release.
func captured(tag string) map[string]Role {
	ids := map[string]Role{
		"multiturn-s7": Fidelity, "multiturn-s13": Fidelity, "multiturn-nocache-s7": Fidelity,
		"multiturn-ngram-k3-s7": Fidelity, "edge-s1": Fidelity, "wire-edge-s1": Wire,
	}
	if tag == "v0.30.0" {
		delete(ids, "multiturn-ngram-k3-s7") // its engine dies of it: docs/capturing.md
	}
	return ids
}

// The manifest that is shipped with the project has nothing to complain about,
// and each release of the matrix that gates has all its goldens, in a block of its
// own. One that was adopted and not captured yet has none.
func TestShippedFile(t *testing.T) {
	m := loadShipped(t)
	want, got := make(map[string]map[string]Role), make(map[string]map[string]Role)
	var wantBlocks, gotBlocks []string
	for _, l := range shippedMatrix(t).Lines {
		if l.FidelityValidated || len(m.ForLine(l.Name)) > 0 {
			want[l.Name] = captured(l.Tag)
			wantBlocks = append(wantBlocks, l.Name)
		}
	}
	for _, g := range m.Goldens {
		if got[g.Line] == nil {
			got[g.Line] = make(map[string]Role)
		}
		if g.Role != Frames && g.Role != NIXL { // which sessions a line has, the targets say, and a test there
			got[g.Line][g.ID] = g.Role
		}
		require.True(t, g.EngineConfig != "" && g.GPU != "", "golden %s/%s does not say what its config_hash is made of", g.Line, g.ID)
	}
	require.NoDiff(t, diff.Diff(want, got), "goldens of each line (-want +got)")
	for _, b := range m.Blocks {
		gotBlocks = append(gotBlocks, b.Label)
	}
	require.NoDiff(t, diff.Diff(wantBlocks, gotBlocks), "blocks (-want +got)")
}

// Each file that is shipped is registered: nothing else would notice one that a
// capture left behind, and it goes into the binary.
func TestShippedGoldensAreRegistered(t *testing.T) {
	want := make(map[string]bool)
	for _, g := range loadShipped(t).Goldens {
		want[g.BucketPath] = true
	}
	err := fs.WalkDir(os.DirFS(goldensDir), ".", func(path string, d fs.DirEntry, err error) error {
		require.True(t, err != nil || d.IsDir() || want[path], "%s/%s is not registered", goldensDir, path)
		return err
	})
	require.NoError(t, err)
}
