package pypi_test

import (
	"context"
	"io"
	"log/slog"
	"os"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/internal/pypi"
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

// TestRealIndex: the releases and their commits are those of the support window, which was filled in by hand.
func TestRealIndex(t *testing.T) {
	x := realIndex(t)
	start := time.Now()
	releases, err := x.Releases(t.Context(), "vllm")
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d releases in %v, the newest is %s of %v", len(releases), time.Since(start), releases[len(releases)-1].Version,
		releases[len(releases)-1].Uploaded)
	if !releaseOf(t, releases, "0.2.1").Yanked || releaseOf(t, releases, "0.33.0").Yanked {
		t.Error("0.2.1 was yanked, 0.33.0 was not")
	}
	window, _ := compat.Load("../../compat.toml")
	for _, line := range window.Lines {
		if line.IsTracker() {
			continue
		}
		version, err := compat.ParseVersion(line.Tag)
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		got, err := x.Commit(t.Context(), releaseOf(t, releases, version.String()))
		if err != nil || got != line.ProtocolRev {
			t.Errorf("%s: commit %q, %v, want %s", version, got, err, line.ProtocolRev)
		}
		t.Logf("%s: commit %s in %v", version, got, time.Since(start))
	}
}

// TestRealWheel takes the frontend out of a wheel.
func TestRealWheel(t *testing.T) {
	x := realIndex(t)
	releases, err := x.Releases(t.Context(), "vllm")
	if err != nil {
		t.Fatal(err)
	}
	// The second build of these wheels replaced the first.
	file, err := releaseOf(t, releases, "0.23.0").Wheel("linux", "amd64")
	if want := "vllm-0.23.0-2-cp38-abi3-manylinux_2_28_x86_64.whl"; err != nil || file.Name != want {
		t.Errorf("the wheel is %q, %v, want %s", file.Name, err, want)
	}
	if file, err = releaseOf(t, releases, "0.33.0").Wheel("linux", runtime.GOARCH); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	wheel, err := x.OpenWheel(t.Context(), file)
	if err != nil {
		t.Fatal(err)
	}
	directory := wheel.Downloaded()
	member, err := wheel.Open("vllm/vllm-rs")
	if err != nil {
		t.Fatal(err)
	}
	defer member.Close()
	n, err := io.Copy(io.Discard, member)
	if err != nil || n < 30<<20 {
		t.Errorf("read %d bytes: %v", n, err)
	}
	t.Logf("%s: %d bytes of vllm-rs by %d bytes (%d of them before) out of %d in %v", file.Name, n, wheel.Downloaded(), directory,
		file.Size, time.Since(start))
	if wheel.Downloaded() > file.Size/10 {
		t.Errorf("downloaded %d of %d bytes", wheel.Downloaded(), file.Size)
	}
}

func TestRealIndexHasNoSuchProject(t *testing.T) {
	x := realIndex(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	releases, err := x.Releases(ctx, "vllm-vcr-has-no-such-project")
	if err == nil {
		t.Fatalf("got %d releases", len(releases))
	}
	t.Log(err)
}
