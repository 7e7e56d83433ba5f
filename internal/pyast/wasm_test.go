package pyast

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// TestModuleIsBuiltFromItsSources builds the module again, from what the registries have.
func TestModuleIsBuiltFromItsSources(t *testing.T) {
	if os.Getenv("VLLM_VCR_NETWORK") == "" {
		t.Skip("downloads a compiler of 90 MB: set VLLM_VCR_NETWORK=1")
	}
	out := filepath.Join(t.TempDir(), "python.wasm")
	cmd := exec.CommandContext(t.Context(), "python3", "wasm/build", out)
	if log, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, log)
	}
	built, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(built, module) {
		t.Errorf("wasm/build makes %d bytes, not the %d of python.wasm: run it, and commit both", len(built), len(module))
	}
}
