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
	"sync"
	"testing"
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

func exe() string {
	if runtime.GOOS == "windows" {
		return "vllm-vcr.exe"
	}
	return "vllm-vcr"
}

// archive is a release's archive that holds one file.
func archive(t *testing.T, name string, content []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	zipped, err := gzip.NewWriterLevel(&b, gzip.BestSpeed)
	if err != nil {
		t.Fatal(err)
	}
	packed := tar.NewWriter(zipped)
	for _, file := range []struct {
		name    string
		content []byte
	}{{"LICENSE", []byte("as you like\n")}, {name, content}} {
		if err := packed.WriteHeader(&tar.Header{Name: file.name, Mode: 0o755, Size: int64(len(file.content))}); err != nil {
			t.Fatal(err)
		}
		if _, err := packed.Write(file.content); err != nil {
			t.Fatal(err)
		}
	}
	if err := packed.Close(); err != nil {
		t.Fatal(err)
	}
	if err := zipped.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func digest(content []byte) string { return fmt.Sprintf("%x", sha256.Sum256(content)) }

func readFile(t *testing.T, path string) []byte {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return content
}

func writeFile(t *testing.T, path string, content []byte) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, content, 0o755); err != nil {
		t.Fatal(err)
	}
}
