package drift_test

import (
	"strings"
	"testing"

	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/internal/upstream/drift"
	"github.com/vllm-vcr/conformance/internal/upstream/pypi"
	"github.com/vllm-vcr/conformance/manifest"
)

// releases are versions, those with a "-" yanked.
func releases(versions string) (all []pypi.Release) {
	for version := range strings.FieldsSeq(versions) {
		version, yanked := strings.CutPrefix(version, "-")
		all = append(all, pypi.Release{Version: version, Yanked: yanked})
	}
	return all
}

func TestNewest(t *testing.T) {
	stable := func(all []pypi.Release) (pypi.Release, error) { return drift.Newest(all, false) }
	candidate := func(all []pypi.Release) (pypi.Release, error) { return drift.Newest(all, true) }
	// No index lists the last among releases.
	const all = "0.32.0 0.33.0 -0.33.1 0.34.0rc1 -0.34.0rc2 0.34.0.dev3+g0123456 0.34.0+cpu"
	tests := []struct {
		name     string
		newest   func([]pypi.Release) (pypi.Release, error)
		releases string
		want     string // empty: an error
	}{
		{"stable", stable, all, "0.33.0"},
		{"candidate", candidate, all, "0.34.0rc1"},
		{"only yanked", stable, "-0.33.1", ""},
		{"only candidates", stable, "0.34.0rc1 -0.34.0rc2", ""},
		{"build of the main branch", drift.NewestBuild, "0.33.0 0.34.0.dev9+g0123456", "0.34.0.dev9+g0123456"},
		{"the default build", drift.NewestBuild, "0.34.0.dev9+g0123456 0.34.0.dev9+g0123456.cu130 -0.34.0.dev10+g0123457", "0.34.0.dev9+g0123456"},
		{"variants only", drift.NewestBuild, "0.34.0.dev8+cpu 0.34.0.dev9+cu130", "0.34.0.dev9+cu130"},
		{"only yanked builds", drift.NewestBuild, "-0.34.0.dev9", ""},
		{"no build", drift.NewestBuild, "", ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got, err := test.newest(releases(test.releases))
			require.True(t, got.Version == test.want && (err == nil) == (test.want != ""), "got %q, %v, want %q", got.Version, err, test.want)
		})
	}
}

func TestFind(t *testing.T) {
	for name, want := range map[string]string{
		"0.32.0": "0.32.0", "v0.33.0": "0.33.0", "0.33.0rc1": "0.33.0rc1", "0.34.0.dev9+g0123456": "0.34.0.dev9+g0123456", "0.34.0": "",
	} {
		build, err := compat.ParseBuild(name)
		require.NoError(t, err)
		got, err := pypi.Find(releases("0.32.0 0.33.0rc1 0.34.0.dev9+g0123456 0.33.0"), build)
		require.True(t, got.Version == want && (err == nil) == (want != ""), "%s: got %q, %v", name, got.Version, err)
		require.True(t, err == nil || strings.Contains(err.Error(), "release 0.34.0 is not among the 4 of the index, whose newest is 0.33.0"), "absent release: %v", err)
	}
}

func version(t *testing.T, text string) compat.Version {
	t.Helper()
	v, err := compat.ParseVersion(text)
	require.NoError(t, err)
	return v
}

// TestLineFor: of each line there is a golden but of 0.34, and that of 0.30 has no streams.
func TestLineFor(t *testing.T) {
	matrix := &compat.Matrix{File: "window", Lines: []compat.Line{
		{Name: "nightly", Tag: "nightly"},
		{Name: "rc", Tag: "v0.35.0rc1"},
		{Name: "0.34", Tag: "v0.34.0"},
		{Name: "0.33", Tag: "v0.33.0"},
		{Name: "0.32", Tag: "v0.32.1"},
		{Name: "0.30", Tag: "v0.30.0"},
		{Name: "0.29", Tag: "v0.29.0"},
	}}
	mf := &manifest.Manifest{Goldens: []manifest.Golden{
		{Line: "nightly", Role: manifest.Fidelity},
		{Line: "0.33", Role: manifest.Fidelity},
		{Line: "0.32", Role: manifest.Fidelity},
		{Line: "0.30", Role: manifest.Wire},
		{Line: "0.29", Role: manifest.Fidelity},
	}}
	withRC := &manifest.Manifest{Goldens: append([]manifest.Golden{{Line: "rc", Role: manifest.Fidelity}}, mf.Goldens...)}
	tests := []struct {
		name, version string
		mf            *manifest.Manifest
		want          string // of its own, unless it begins with "as "; empty: an error
	}{
		{name: "its own", version: "0.33.0", want: "0.33"},
		{name: "another patch", version: "0.33.7", want: "0.33"},
		{name: "an older patch", version: "0.32.0", want: "0.32"},
		{name: "a candidate of its line", version: "0.33.0rc2", want: "0.33"},
		{name: "newer than all", version: "0.40.0", want: "as 0.33"},
		{name: "its own without goldens", version: "0.34.0", want: "as 0.33"},
		{name: "its own without streams", version: "0.30.0", want: "as 0.29"},
		{name: "between two", version: "0.31.0", want: "as 0.29"},
		{name: "older than all", version: "0.1.0", want: "as 0.29"},
		{name: "the candidate, without goldens", version: "0.35.0rc1", want: "as 0.33"},
		{name: "the candidate, with goldens", version: "0.35.0rc1", mf: withRC, want: "rc"},
		{name: "no goldens at all", version: "0.33.0", mf: &manifest.Manifest{}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if test.mf == nil {
				test.mf = mf
			}
			line, own, err := drift.LineFor(matrix, test.mf, version(t, test.version))
			got := line.Name
			if !own && err == nil {
				got = "as " + got
			}
			require.True(t, got == test.want && (err == nil) == (test.want != ""), "got %q, %v, want %q", got, err, test.want)
		})
	}
}
