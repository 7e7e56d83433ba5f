package drift_test

import (
	"strings"
	"testing"

	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/internal/drift"
	"github.com/vllm-vcr/conformance/internal/pypi"
	"github.com/vllm-vcr/conformance/manifest"
)

func TestNewest(t *testing.T) {
	releases := []pypi.Release{
		{Version: "0.32.0"},
		{Version: "0.33.0"},
		{Version: "0.33.1", Yanked: true},
		{Version: "0.34.0rc1"},
		{Version: "0.34.0rc2", Yanked: true},
		{Version: "0.34.0.dev3+g0123456"},
		{Version: "0.34.0+cpu"}, // no index lists them among releases
	}
	tests := []struct {
		name       string
		releases   []pypi.Release
		candidates bool
		want       string // empty: an error
	}{
		{name: "stable", releases: releases, want: "0.33.0"},
		{name: "candidate", releases: releases, candidates: true, want: "0.34.0rc1"},
		{name: "only yanked", releases: releases[2:3]},
		{name: "only candidates", releases: releases[3:5]},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got, err := drift.Newest(test.releases, test.candidates)
			if got.Version != test.want || (err == nil) != (test.want != "") {
				t.Errorf("got %q, %v, want %q", got.Version, err, test.want)
			}
		})
	}
}

func TestNewestBuild(t *testing.T) {
	tests := []struct {
		name     string
		releases []pypi.Release
		want     string // empty: an error
	}{
		{name: "of the main branch", releases: []pypi.Release{{Version: "0.33.0"}, {Version: "0.34.0.dev9+g0123456"}}, want: "0.34.0.dev9+g0123456"},
		{
			name: "the usual one", want: "0.34.0.dev9+g0123456",
			releases: []pypi.Release{{Version: "0.34.0.dev9+g0123456"}, {Version: "0.34.0.dev9+g0123456.cu130"}, {Version: "0.34.0.dev10+g0123457", Yanked: true}},
		},
		{name: "variants only", releases: []pypi.Release{{Version: "0.34.0.dev8+cpu"}, {Version: "0.34.0.dev9+cu130"}}, want: "0.34.0.dev9+cu130"},
		{name: "only yanked", releases: []pypi.Release{{Version: "0.34.0.dev9", Yanked: true}}},
		{name: "nothing"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got, err := drift.NewestBuild(test.releases)
			if got.Version != test.want || (err == nil) != (test.want != "") {
				t.Errorf("got %q, %v, want %q", got.Version, err, test.want)
			}
		})
	}
}

func TestFind(t *testing.T) {
	releases := []pypi.Release{{Version: "0.32.0"}, {Version: "0.33.0rc1"}, {Version: "0.33.0"}, {Version: "0.34.0.dev9+g0123456"}}
	for _, name := range []string{"0.32.0", "v0.33.0", "0.33.0rc1", "0.34.0.dev9+g0123456"} {
		build, err := compat.ParseBuild(name)
		if err != nil {
			t.Fatal(err)
		}
		got, err := drift.Find(releases, build)
		if err != nil || got.Version != strings.TrimPrefix(name, "v") {
			t.Errorf("%s: got %q, %v", name, got.Version, err)
		}
	}
	_, err := drift.Find(releases[:3], compat.Build{Version: version(t, "0.34.0")})
	if err == nil || !strings.Contains(err.Error(), "release 0.34.0 is not among the 3 of the index, whose newest is 0.33.0") {
		t.Errorf("absent release: %v", err)
	}
}

func version(t *testing.T, text string) compat.Version {
	t.Helper()
	v, err := compat.ParseVersion(text)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// TestLineFor: of each line there is a golden but of 0.34, and that of 0.30 has no streams.
func TestLineFor(t *testing.T) {
	window := &compat.Matrix{File: "window", Lines: []compat.Line{
		{Name: "nightly", Tag: "nightly"},
		{Name: "rc", Tag: "v0.35.0rc1"},
		{Name: "0.34", Tag: "v0.34.0"},
		{Name: "0.33", Tag: "v0.33.0"},
		{Name: "0.32", Tag: "v0.32.1"},
		{Name: "0.30", Tag: "v0.30.0"},
		{Name: "0.29", Tag: "v0.29.0"},
	}}
	registry := &manifest.Manifest{Goldens: []manifest.Golden{
		{Line: "nightly", Role: manifest.Fidelity},
		{Line: "0.33", Role: manifest.Fidelity},
		{Line: "0.32", Role: manifest.Fidelity},
		{Line: "0.30", Role: manifest.Wire},
		{Line: "0.29", Role: manifest.Fidelity},
	}}
	withRC := &manifest.Manifest{Goldens: append([]manifest.Golden{{Line: "rc", Role: manifest.Fidelity}}, registry.Goldens...)}
	tests := []struct {
		name, version string
		registry      *manifest.Manifest
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
		{name: "the candidate, with goldens", version: "0.35.0rc1", registry: withRC, want: "rc"},
		{name: "no goldens at all", version: "0.33.0", registry: &manifest.Manifest{}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if test.registry == nil {
				test.registry = registry
			}
			line, own, err := drift.LineFor(window, test.registry, version(t, test.version))
			got := line.Name
			if !own && err == nil {
				got = "as " + got
			}
			if got != test.want || (err == nil) != (test.want != "") {
				t.Errorf("got %q, %v, want %q", got, err, test.want)
			}
		})
	}
}
