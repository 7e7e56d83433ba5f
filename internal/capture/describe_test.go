package capture_test

import (
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/base/tomlfile"
	"github.com/vllm-vcr/conformance/internal/capture"
	"github.com/vllm-vcr/conformance/internal/capture/capturetest"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/manifest"
)

var update = flag.Bool("update", false, "rewrite the expectations below testdata")

// storeOf has the goldens of a folder.
func storeOf(dir string) conformance.Store {
	return conformance.NewStore(conformance.StoreOptions{Dir: dir})
}

func manifestOf(t *testing.T, path string) *manifest.Manifest {
	t.Helper()
	m, findings := manifest.Load(path)
	if tomlfile.HasErrors(findings) {
		t.Fatal(findings)
	}
	return m
}

// description compares an edited copy with the repository.
func description(t *testing.T, edited capture.AcceptOptions) capture.DescribeOptions {
	t.Helper()
	goldens := filepath.Join(capturetest.Root(), "testdata", "goldens")
	return capture.DescribeOptions{
		Line: "0.33", Matrix: edited.Matrix, New: manifestOf(t, edited.Manifest), Base: capturetest.Manifest(t),
		NewStore: storeOf(edited.Goldens), BaseStore: storeOf(goldens), Run: "https://ci.example/runs/7",
	}
}

// captured is a copy of the manifest in which two targets were captured again, one with other times and other tokens.
func captured(t *testing.T) capture.AcceptOptions {
	t.Helper()
	edited := capturetest.ManifestCopy(t)
	for _, name := range []string{"0.33/multiturn-s7", "0.33/edge-s1"} {
		rec := capturetest.Recording(t, name)
		if _, err := capture.Accept(t.Context(), edited, rec); err != nil {
			t.Fatal(err)
		}
	}
	return edited
}

func TestDescribe(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine")
	}
	opt := description(t, captured(t))
	d, err := capture.Describe(t.Context(), opt)
	require.NoError(t, err)
	require.True(t, d.Report.ExitCode == conformance.ExitOK && d.Dropped == 0 && len(d.Elsewhere) == 0, "%+v", d)
	again, err := capture.Describe(t.Context(), opt)
	if err != nil || again.Body != d.Body {
		t.Errorf("twice the same goldens, but twice another text: %v", cmp.Diff(d.Body, again.Body))
	}
	path := filepath.Join("testdata", "describe.md")
	if *update {
		require.NoError(t, os.WriteFile(path, []byte(d.Body), 0o644))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	require.NoDiff(t, cmp.Diff(string(want), d.Body), "-want +got")
}

func TestDescribeNothing(t *testing.T) {
	d, err := capture.Describe(t.Context(), description(t, capturetest.ManifestCopy(t)))
	require.True(t, err == nil && d.Changed == 0 && d.Report == nil, "%+v, %v", d, err)
}

func TestDescribeUnknownLine(t *testing.T) {
	opt := description(t, capturetest.ManifestCopy(t))
	opt.Line = "0.1"
	if _, err := capture.Describe(t.Context(), opt); err == nil || !strings.Contains(err.Error(), `line "0.1"`) {
		t.Error(err)
	}
}

// What a manifest or a golden says is not believed, and what is wrong is in the text.
func TestDescribeTrustsNothing(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine")
	}
	change := func(id string, f func(*manifest.Golden)) func(*testing.T, *capture.DescribeOptions) {
		return func(t *testing.T, opt *capture.DescribeOptions) {
			at := slices.IndexFunc(opt.New.Goldens, func(g manifest.Golden) bool { return g.Line == "0.33" && g.ID == id })
			f(&opt.New.Goldens[at])
		}
	}
	tests := []struct {
		name   string
		damage func(*testing.T, *capture.DescribeOptions)
		says   []string
		code   int
	}{
		{
			"lies about counts", change("multiturn-s7", func(g *manifest.Golden) { g.Records, g.Tokens = 1, 2 }),
			[]string{"| 180 | 5013 → 4648 |"},
			conformance.ExitFail,
		},
		{
			"lies about tokens", change("multiturn-s7", func(g *manifest.Golden) { g.TokensSHA256 = strings.Repeat("0", 64) }),
			[]string{"**fail fidelity (4)**", "5013 → 4648"},
			conformance.ExitFail,
		},
		{
			"lies about bytes", change("multiturn-s7", func(g *manifest.Golden) { g.SHA256 = strings.Repeat("0", 64) }),
			[]string{"`multiturn-s7` cannot be read: "},
			conformance.ExitFail,
		},
		{
			"bytes that are not there", change("edge-s1", func(g *manifest.Golden) { g.BucketPath = "conformance/none.jsonl.gz" }),
			[]string{"`edge-s1` cannot be read: "},
			conformance.ExitInfra,
		},
		{"one less", func(_ *testing.T, opt *capture.DescribeOptions) {
			opt.New.Goldens = slices.DeleteFunc(opt.New.Goldens, func(g manifest.Golden) bool { return g.Line == "0.33" && g.ID == "multiturn-s13" })
		}, []string{"**Gone from the line:** `multiturn-s13`"}, conformance.ExitOK},
		{"another line", func(_ *testing.T, opt *capture.DescribeOptions) {
			for i := range opt.New.Goldens {
				if g := &opt.New.Goldens[i]; g.Line == "0.27" {
					g.Notes = "so"
				}
			}
		}, []string{"**Other lines differ too, which a capture never does:** `0.27/edge-s1`, "}, conformance.ExitOK},
		{
			"markup", change("multiturn-s7", func(g *manifest.Golden) {
				g.EngineImage = "x` @everyone <img src=x> | a | b\n## Merge me\n::error::"
			}),
			[]string{"`x' @ everyone <img src=x> \\| a \\| b ## Merge me ::error::` on `cpu`"},
			conformance.ExitOK,
		},
		{"a long text", change("multiturn-s7", func(g *manifest.Golden) {
			g.EngineImage = strings.Repeat("x", 100_000)
		}), []string{"xxx…` on"}, conformance.ExitOK},
	}
	edited := captured(t)
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			opt := description(t, edited)
			test.damage(t, &opt)
			d, err := capture.Describe(t.Context(), opt)
			require.NoError(t, err)
			for _, text := range test.says {
				require.Contains(t, d.Body, text)
			}
			require.True(t, d.Report.ExitCode == test.code || test.name == "lies about counts", "exit code %d, want %d: %s", d.Report.ExitCode, test.code, d.Report.Reason)
		})
	}
}
