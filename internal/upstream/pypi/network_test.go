package pypi_test

import (
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/internal/upstream/pypi"
)

// realIndex is the index that this machine installs from. CI runs without a network once its peers are installed, so a
// person asks for these tests: VLLM_VCR_NETWORK=1.
func realIndex(t *testing.T) *pypi.Index {
	t.Helper()
	if os.Getenv("VLLM_VCR_NETWORK") == "" {
		t.Skip("needs the package index: set VLLM_VCR_NETWORK=1")
	}
	return &pypi.Index{Log: slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))}
}

func releaseOf(t *testing.T, releases []pypi.Release, version string) pypi.Release {
	t.Helper()
	i := slices.IndexFunc(releases, func(r pypi.Release) bool { return r.Version == version })
	if i < 0 {
		t.Fatalf("no release %s among %d", version, len(releases))
	}
	return releases[i]
}

// TestRealIndex: the releases and their commits are those of the compat matrix, which was filled in by hand.
func TestRealIndex(t *testing.T) {
	x := realIndex(t)
	start := time.Now()
	releases, err := x.Releases(t.Context(), "vllm")
	require.NoError(t, err)
	t.Logf("%d releases in %v, the newest is %s of %v", len(releases), time.Since(start), releases[len(releases)-1].Version,
		releases[len(releases)-1].Uploaded)
	require.True(t, releaseOf(t, releases, "0.2.1").Yanked && !releaseOf(t, releases, "0.33.0").Yanked, "0.2.1 was yanked, 0.33.0 was not")
	matrix, _ := compat.Load("../../../compat.toml")
	for _, line := range matrix.Lines {
		if line.IsTracker() {
			continue
		}
		version, err := compat.ParseVersion(line.Tag)
		require.NoError(t, err)
		got, err := x.Commit(t.Context(), releaseOf(t, releases, version.String()))
		require.True(t, err == nil && got == line.ProtocolRev, "%s: commit %q, %v, want %s", version, got, err, line.ProtocolRev)
	}
}

// TestRealWheel reads all sources of a release, and its frontend, by nothing but the URL of its wheel.
func TestRealWheel(t *testing.T) {
	x := realIndex(t)
	releases, err := x.Releases(t.Context(), "vllm")
	require.NoError(t, err)
	// The second build of these wheels replaced the first.
	file, err := releaseOf(t, releases, "0.23.0").Wheel("linux", "amd64")
	if want := "vllm-0.23.0-2-cp38-abi3-manylinux_2_28_x86_64.whl"; err != nil || file.Name != want {
		t.Errorf("the wheel is %q, %v, want %s", file.Name, err, want)
	}
	if file, err = releaseOf(t, releases, "0.33.0").Wheel("linux", "amd64"); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	wheel, err := x.OpenWheel(t.Context(), pypi.File{URL: file.URL})
	require.NoError(t, err)
	names := slices.DeleteFunc(wheel.Names(), func(name string) bool { return !strings.HasSuffix(name, ".py") })
	got, err := wheel.ReadFiles(append(names, "vllm/none.py"), 8<<20)
	sources := wheel.Downloaded()
	require.True(t, err == nil && len(got) == len(names) && len(got) >= 1000 && sources <= 20<<20, "%d of %d files by %d bytes: %v", len(got), len(names), sources, err)
	if frontend, err := wheel.ReadFile("vllm/vllm-rs", 1<<30); err != nil || len(frontend) < 30<<20 {
		t.Errorf("the frontend has %d bytes: %v", len(frontend), err)
	}
	if version, err := wheel.Version(); err != nil || version != "0.33.0" {
		t.Errorf("its version is %q, %v", version, err)
	}
	t.Logf("sources by %d, all by %d of %d bytes in %v", sources, wheel.Downloaded(), file.Size, time.Since(start))
	if wheel.Downloaded() > file.Size/5 {
		t.Errorf("downloaded %d of %d bytes", wheel.Downloaded(), file.Size)
	}
}
