package drift

import (
	"archive/zip"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/internal/capture/local"
	"github.com/vllm-vcr/conformance/internal/frontends/pyclient"
	"github.com/vllm-vcr/conformance/internal/testenv"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/internal/upstream/extract"
	"github.com/vllm-vcr/conformance/internal/upstream/pinned"
)

// TestPythonThatDoesNotRun: on the packages of its own release that is a verdict; on those of another it says nothing.
func TestPythonThatDoesNotRun(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("the interpreter is a script for sh")
	}
	python := filepath.Join(t.TempDir(), "python")
	testenv.WriteProgram(t, python, "#!/bin/sh\necho No module named torch >&2\nexit 3\n")
	tests := []struct {
		name, of string
		want     Verdict
	}{
		{name: "its own", of: "0.33.0", want: Unknown},
		{name: "of another release", of: "0.27.1", want: Skipped},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			r := running{Check: Check{
				Subject: Subject{Build: build(t, "0.33.0"), Line: compat.Line{Name: "0.33", Tag: "v0.33.0"}},
				Live:    Live{Model: t.TempDir(), Log: slog.New(slog.DiscardHandler)},
			}}
			layer := r.drivePython(t.Context(), pyclient.Environment{Release: test.of, Python: python}, pyclient.Tree{Dir: t.TempDir(), State: t.TempDir()})
			require.True(t, layer.Verdict == test.want && strings.Contains(layer.Reason, "exit status 3"), "got %s, %q, want %s", layer.Verdict, layer.Reason, test.want)
		})
	}
}

// TestPythonOfAWheelOnDisk: its sources are taken out of it, and driven.
func TestPythonOfAWheelOnDisk(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("the interpreter is a script for sh")
	}
	dir := t.TempDir()
	python := filepath.Join(dir, "python")
	script := "#!/bin/sh\nexit $(cat \"$PYTHONPATH/vllm/v1/engine/core_client.py\")\n"
	testenv.WriteProgram(t, python, script)
	path := filepath.Join(dir, "vllm.whl")
	file, err := os.Create(path)
	require.NoError(t, err)
	archive := zip.NewWriter(file)
	member, err := archive.Create("vllm/v1/engine/core_client.py")
	if err == nil {
		_, err = member.Write([]byte("37"))
	}
	require.NoError(t, errors.Join(err, archive.Close(), file.Close()))
	r := running{Check: Check{
		Subject: Subject{Build: build(t, "0.33.0"), Line: compat.Line{Name: "0.33", Tag: "v0.33.0"}, Source: pinned.Source{Path: path}},
		Live:    Live{Model: t.TempDir(), Log: slog.New(slog.DiscardHandler)}, Cache: t.TempDir(), Engines: Engines{Mode: EngineMode(python)},
		Extract: noSource,
	}}
	layer := r.python(t.Context())
	require.True(t, layer.Verdict == Unknown && layer.Downloaded == 0 && strings.Contains(layer.Reason, "exit status 37"), "got %+v", layer)
	r.Source.Path += ".gone"
	if layer := r.python(t.Context()); layer.Verdict != Unknown || !strings.Contains(layer.Reason, "no such file") {
		t.Errorf("without the wheel: %+v", layer)
	}
	r.Source.Path = ""
	if layer := r.python(t.Context()); layer.Verdict != Unknown || !strings.Contains(layer.Reason, "no wheel of the release is named") {
		t.Errorf("without any source: %+v", layer)
	}
}

func noSource(context.Context) (extract.Result, error) { return extract.Result{}, nil }

func TestPythonCases(t *testing.T) {
	got := pythonCases([]pyclient.Result{
		{Case: "a", Verdict: pyclient.Passed, Where: "x.py:1"},
		{Case: "b", Verdict: pyclient.Failed, Message: "other\ntokens", Where: "x.py:2"},
		{Case: "c", Verdict: pyclient.Unjudged, Message: "m"},
		{Case: "d", Verdict: pyclient.Skipped, Message: "n"},
	})
	want := []LayerCase{
		{Name: "a", Verdict: None},
		{Name: "b", Verdict: Found, Message: "other (x.py:2)"},
		{Name: "c", Verdict: Unknown, Message: "m"},
		{Name: "d", Verdict: Skipped, Message: "n"},
	}
	require.NoDiff(t, cmp.Diff(want, got), "(-want +got)")
}

// TestPythonEnvironment: that of the release is found, else the nearest, unless none was wanted.
func TestPythonEnvironment(t *testing.T) {
	peers := t.TempDir()
	home := filepath.Join(peers, "engines", "0.27.1")
	for path, text := range map[string]string{filepath.Join(home, "whole"): "x", filepath.Join(home, "bin", "python"): ""} {
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		testenv.WriteProgram(t, path, text)
	}
	near := pyclient.Environment{Release: "0.27.1", Python: filepath.Join(home, "bin", "python")}
	tests := []struct {
		name    string
		mode    EngineMode
		version string
		peers   string
		want    pyclient.Environment
		says    string // the error, which tells of absence
	}{
		{name: "nearest", mode: EngineAuto, version: "0.29.0", peers: peers, want: near},
		{name: "nearest to a development build", mode: EngineInstall, version: "0.34.0.dev1+g0123456", peers: peers, want: near},
		{name: "none is here", mode: EngineAuto, version: "0.29.0", peers: t.TempDir(), says: "no environment with torch is installed"},
		{name: "none was wanted", mode: EngineNever, version: "0.29.0", peers: peers, says: "no CPU engine was wanted"},
		{
			name: "the one that was named", mode: EngineMode(home), version: "0.29.0", peers: peers,
			want: pyclient.Environment{Release: "0.29.0", Python: near.Python},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			r := running{Check: Check{
				Subject: Subject{Build: build(t, test.version)}, Engines: Engines{Mode: test.mode, Options: local.EngineOptions{Dir: test.peers}},
				Extract: noSource,
			}}
			got, err := r.pythonEnvironment(t.Context())
			if test.says != "" {
				if layer := r.python(t.Context()); layer.Verdict != Skipped || !strings.Contains(layer.Reason, test.says) {
					t.Errorf("got %+v", layer)
				}
				return
			}
			if diff := cmp.Diff(test.want, got); diff != "" || err != nil {
				t.Errorf("%v (-want +got):\n%s", err, diff)
			}
		})
	}
}
