package main

import (
	"archive/zip"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// A wheel has the package, the program, and what describes them, and pip installs it.
func TestWheel(t *testing.T) {
	dir := builtFixture(t)
	path := filepath.Join(dir, "dist", "vllm_vcr-1.2.3-py3-none-manylinux_2_17_x86_64.manylinux2014_x86_64.musllinux_1_1_x86_64.whl")
	archive, err := zip.OpenReader(path)
	require.NoError(t, err)
	defer archive.Close()
	var list []string
	texts := map[string]string{}
	for _, f := range archive.File {
		list = append(list, fmt.Sprintf("%o %s", f.Mode().Perm(), f.Name))
		r, err := f.Open()
		require.NoError(t, err)
		text, err := io.ReadAll(r)
		require.NoError(t, err)
		texts[filepath.Base(f.Name)] = string(text)
	}
	want := []string{
		"644 vllm_vcr-1.2.3.dist-info/METADATA", "644 vllm_vcr-1.2.3.dist-info/WHEEL", "644 vllm_vcr-1.2.3.dist-info/entry_points.txt",
		"644 vllm_vcr-1.2.3.dist-info/licenses/LICENSE", "644 vllm_vcr/__init__.py", "755 vllm_vcr/bin/vllm-vcr", "644 vllm_vcr/py.typed",
		"644 vllm_vcr/vectors/kvevents/a.json",
		"644 vllm_vcr-1.2.3.dist-info/RECORD",
	}
	require.NoDiff(t, cmp.Diff(want, list), "wheel (-want +got)")
	entries := "[console_scripts]\nvllm-vcr = vllm_vcr:main\n\n[pytest11]\nvllm_vcr = vllm_vcr.plugin\n\n"
	require.NoDiff(t, cmp.Diff(entries, texts["entry_points.txt"]), "entry points (-want +got)")
	target := t.TempDir()
	install := exec.Command("python3", "-m", "pip", "install", "--no-index", "--no-deps", "--target", target, "--platform", "musllinux_1_1_x86_64", "--only-binary", ":all:", path)
	if out, err := install.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	installed, err := os.ReadFile(filepath.Join(target, "vllm_vcr", "bin", "vllm-vcr"))
	require.NoError(t, err)
	if said := runBinary(t, installed); said != "" && said != "1.2.3" {
		t.Errorf("the installed program prints %q, want its version", said)
	}
}

func TestPythonVersion(t *testing.T) {
	for version, want := range map[string]string{
		"1.2.3": "1.2.3", "1.2.3-rc.1": "1.2.3rc1", "1.2.3-alpha2": "1.2.3a2", "0.0.0-main.g0A1b": "0.0.0.dev0+main.g0a1b",
	} {
		require.Equal(t, pythonVersion(version), want, "%s", version)
	}
}

// Links of the readme lead to the repository, as there are no other pages where a package is shown.
func TestMetadata(t *testing.T) {
	var y pyproject
	y.Project.URLs = map[string]string{"Repository": "https://r"}
	text := string(y.metadata("1.2.3", "[a](serving.md#x) [b](../README.md) [c](https://c/d)\n"))
	want := "[a](https://r/blob/main/docs/serving.md#x) [b](https://r/blob/main/README.md) [c](https://c/d)\n"
	require.True(t, strings.HasSuffix(text, "\n\n"+want), "got %s", text)
}
