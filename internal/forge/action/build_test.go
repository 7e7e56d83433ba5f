package action_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/vllm-vcr/conformance/internal/testenv"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// builtVersion is what the binary of the tests says it is.
const builtVersion = "1.2.3"

var (
	buildOnce sync.Once
	builtDir  string
	buildErr  error
)

func TestMain(m *testing.M) {
	code := m.Run()
	os.RemoveAll(builtDir)
	os.Exit(code)
}

// binary is a vllm-vcr of this checkout, built as releases are.
func binary(t *testing.T) string {
	t.Helper()
	buildOnce.Do(func() {
		if builtDir, buildErr = os.MkdirTemp("", "vllm-vcr-action"); buildErr != nil {
			return
		}
		cmd := exec.Command("go", "build", "-trimpath", "-buildvcs=false",
			"-ldflags", "-s -w -buildid= -X main.version="+builtVersion, "-o", filepath.Join(builtDir, exe()), "./cmd/vllm-vcr")
		cmd.Dir = root
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			buildErr = fmt.Errorf("go build: %w\n%s", err, out)
		}
	})
	if buildErr != nil {
		t.Fatal(buildErr)
	}
	return filepath.Join(builtDir, exe())
}

var releaseOnce sync.Once

// release is the folder of a release, in which the one asset is a binary of this checkout.
func release(t *testing.T) (folder, asset string) {
	t.Helper()
	program := binary(t)
	folder, asset = filepath.Join(builtDir, "releases"), fmt.Sprintf("vllm-vcr_%s_%s_%s.tar.gz", builtVersion, runtime.GOOS, runtime.GOARCH)
	releaseOnce.Do(func() {
		writeFile(t, filepath.Join(folder, "v"+builtVersion, asset), archive(t, exe(), readFile(t, program)))
	})
	return folder, asset
}

func exe() string {
	if runtime.GOOS == "windows" {
		return "vllm-vcr.exe"
	}
	return "vllm-vcr"
}

// archive is a release's archive: a binary, and the small ones that it calls.
func archive(t *testing.T, name string, content []byte) []byte {
	t.Helper()
	files := []file{{"LICENSE", []byte("as you like\n")}, {name, content}}
	for i, helper := range helpers(name) {
		files = append(files, file{helper, []byte{byte('1' + i)}})
	}
	return packed(t, files...)
}

// helpers are what a binary of this name calls.
func helpers(name string) []string {
	stem, exe := strings.CutSuffix(name, ".exe")
	if exe {
		return []string{stem + "-cluster.exe", stem + "-dataset.exe"}
	}
	return []string{stem + "-cluster", stem + "-dataset"}
}

type file struct {
	name    string
	content []byte
}

// packed is a gzipped tar. It is not compressed, which nobody notices who inflates it.
func packed(t *testing.T, files ...file) []byte {
	t.Helper()
	var b bytes.Buffer
	zipped, err := gzip.NewWriterLevel(&b, gzip.NoCompression)
	require.NoError(t, err)
	tw := tar.NewWriter(zipped)
	for _, file := range files {
		require.NoError(t, tw.WriteHeader(&tar.Header{Name: file.name, Mode: 0o755, Size: int64(len(file.content))}))
		if _, err := tw.Write(file.content); err != nil {
			t.Fatal(err)
		}
	}
	require.NoError(t, tw.Close())
	require.NoError(t, zipped.Close())
	return b.Bytes()
}

func digest(content []byte) string { return fmt.Sprintf("%x", sha256.Sum256(content)) }

func readFile(t *testing.T, path string) []byte {
	t.Helper()
	content, err := os.ReadFile(path)
	require.NoError(t, err)
	return content
}

func writeFile(t *testing.T, path string, content []byte) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
	testenv.WriteProgram(t, path, content)
}
