package compat_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/manifest"
)

// manyGoldens is a manifest of n goldens of the shipped matrix, with every key that the
// shipped ones have.
func manyGoldens(n int, matrix *compat.Matrix) []byte {
	var b strings.Builder
	for i := range n {
		l := matrix.Lines[1+i%(len(matrix.Lines)-1)] // the first is nightly
		fmt.Fprintf(&b, "[[golden]]\nline = %q\nid = \"multiturn-s%d\"\nbucket_path = \"conformance/%s/cpu/tiny/multiturn-s%d.jsonl.gz\"\n", l.Name, i, l.Tag, i)
		fmt.Fprintf(&b, "sha256 = \"%064x\"\nconfig_hash = \"%064x\"\nworkload = \"multiturn-s%d\"\nrole = \"fidelity\"\n", i+1, i%20+1, i)
		fmt.Fprintf(&b, "size = 51761\nrecords = 180\nstreams = 180\ntokens = 5013\ntokens_sha256 = \"%064x\"\nvllm_version = %q\n", i+1, l.Tag[1:])
		fmt.Fprintf(&b, "model = \"tiny\"\nscenario = \"baseline\"\nseed = %d\nengine_config = \"block_size=128;dtype=float32;max_num_seqs=64\"\nrecorder_version = \"(devel)\"\n\n", i)
	}
	return []byte(b.String())
}

// BenchmarkCheck is what compat check does: the shipped matrix and a manifest of 1,000
// goldens, alone and against each other.
func BenchmarkCheck(b *testing.B) {
	text, err := os.ReadFile("../compat.toml")
	require.NoError(b, err)
	matrix, _ := compat.Parse("compat.toml", text)
	mf := manyGoldens(1000, matrix)
	b.SetBytes(int64(len(mf)))
	for b.Loop() {
		matrix, diagnostics := compat.Parse("compat.toml", text)
		goldens, more := manifest.Parse("manifest.toml", mf)
		diagnostics = append(diagnostics, more...)
		diagnostics = append(diagnostics, conformance.CheckInputs(matrix, goldens)...)
		if len(diagnostics) > 0 || len(goldens.Goldens) != 1000 {
			b.Fatalf("%d goldens, diagnostics %v", len(goldens.Goldens), diagnostics)
		}
	}
}
