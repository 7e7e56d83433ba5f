package testenv

import (
	"os/exec"
	"path/filepath"
	"testing"
)

// A builtProgram is one that goes when this process does.
type builtProgram struct {
	path    string
	cleaner *janitor
}

var builtVCR, builtHelper shared[builtProgram]

// VCR returns the path of vllm-vcr, as a program of its own that pods can run. It is built for the first test that asks,
// and removed once the test binary has ended.
func VCR(t testing.TB) string {
	t.Helper()
	return builtVCR.get(func() builtProgram {
		dir, cleaner := processDir(t)
		built := builtProgram{filepath.Join(dir, "vllm-vcr"), cleaner}
		out, err := exec.Command("go", "build", "-o", built.path, "github.com/vllm-vcr/conformance/cmd/vllm-vcr").CombinedOutput()
		if err != nil {
			t.Fatalf("go build: %v\n%s", err, out)
		}
		return built
	}).path
}

// VCRAndHelper is VCR with vllm-vcr-cluster beside the program, which finds it there.
func VCRAndHelper(t testing.TB) string {
	t.Helper()
	vcr := VCR(t)
	builtHelper.get(func() builtProgram {
		helper := filepath.Join(filepath.Dir(vcr), "vllm-vcr-cluster")
		out, err := exec.Command("go", "build", "-o", helper, "github.com/vllm-vcr/conformance/cmd/vllm-vcr-cluster").CombinedOutput()
		if err != nil {
			t.Fatalf("go build: %v\n%s", err, out)
		}
		return builtProgram{path: helper}
	})
	return vcr
}
