package pypi_test

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

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

// TestRealForms: the index says the same in HTML as in JSON.
func TestRealForms(t *testing.T) {
	x := realIndex(t)
	want, err := x.ReleasesAndBuilds(t.Context(), "vllm")
	if err != nil {
		t.Fatal(err)
	}
	x.HTTP = &http.Client{Transport: asHTML{t}}
	got, err := x.ReleasesAndBuilds(t.Context(), "vllm")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(onlyInHTML(want), got); diff != "" {
		t.Errorf("(-JSON +HTML):\n%s", diff)
	}
	t.Logf("%d releases", len(got))
}

// asHTML asks as those do who know no other form.
type asHTML struct{ t *testing.T }

func (a asHTML) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Accept", "text/html")
	response, err := http.DefaultTransport.RoundTrip(r)
	if err == nil && !strings.HasPrefix(response.Header.Get("Content-Type"), "text/html") {
		a.t.Errorf("it answers %q", response.Header.Get("Content-Type"))
	}
	return response, err
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

// TestRealSources reads the sources of two releases, by nothing but the URL of their wheels: those of the engine, and then
// all, within what a person waits for.
func TestRealSources(t *testing.T) {
	x := realIndex(t)
	releases, err := x.Releases(t.Context(), "vllm")
	if err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name, version, under string
		most                 int64 // bytes
	}{
		{name: "0.33.0 engine", version: "0.33.0", under: "vllm/v1/engine/", most: 5 << 20},
		{name: "0.33.0 all", version: "0.33.0", under: "vllm/", most: 20 << 20},
		{name: "0.27.1 engine", version: "0.27.1", under: "vllm/v1/engine/", most: 5 << 20},
		{name: "0.27.1 all", version: "0.27.1", under: "vllm/", most: 20 << 20},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			file, err := releaseOf(t, releases, test.version).Wheel("linux", "amd64")
			if err != nil {
				t.Fatal(err)
			}
			start := time.Now()
			wheel, err := x.OpenWheel(t.Context(), pypi.File{URL: file.URL})
			if err != nil {
				t.Fatal(err)
			}
			names := slices.DeleteFunc(wheel.Names(), func(name string) bool {
				return !strings.HasPrefix(name, test.under) || !strings.HasSuffix(name, ".py")
			})
			got, absent, err := wheel.ReadFiles(append(names, "vllm/none.py"), 8<<20)
			if err != nil || len(got) != len(names) || !slices.Equal(absent, []string{"vllm/none.py"}) {
				t.Fatalf("%d of %d files, absent %q: %v", len(got), len(names), absent, err)
			}
			t.Logf("%d files by %d of %d bytes in %v", len(got), wheel.Downloaded(), file.Size, time.Since(start))
			if len(got) < 10 || wheel.Downloaded() > test.most {
				t.Errorf("%d files by %d bytes, want at most %d", len(got), wheel.Downloaded(), test.most)
			}
			if version, err := wheel.Version(); err != nil || version != test.version {
				t.Errorf("it says that it is %q, %v", version, err)
			}
		})
	}
}
