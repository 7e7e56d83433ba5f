package drift

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/internal/capture/local"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/internal/upstream/extract"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/manifest"
)

func build(t *testing.T, text string) compat.Build {
	t.Helper()
	b, err := compat.ParseBuild(text)
	require.NoError(t, err)
	return b
}

// checkOf is a check of a release judged as 0.33, with no frontend and the sources of that line.
func checkOf(t *testing.T, version string) Check {
	t.Helper()
	line := compat.Line{Name: "0.33", Tag: "v0.33.0"}
	log := slog.New(slog.DiscardHandler)
	return Check{
		Subject: Subject{Build: build(t, version), Line: line, Own: true}, Layers: Layers(),
		Frontend: func(context.Context) (Frontend, error) {
			return Frontend{}, errors.New("the wheel holds no vllm/vllm-rs")
		},
		Extract: func(context.Context) (extract.Result, error) { return extract.Result{Profile: profile(t, "0.33")}, nil },
		Live: Live{
			Matrix: &compat.Matrix{File: "matrix", Lines: []compat.Line{line}}, Manifest: &manifest.Manifest{File: "registry"}, Log: log,
		},
		Engines: Engines{Mode: EngineAuto, Options: local.EngineOptions{Dir: t.TempDir()}},
	}
}

func TestCheckRun(t *testing.T) {
	extracts := func(x extract.Result) func(*Check) {
		return func(c *Check) {
			c.Layers = []LayerName{StaticLayer}
			c.Extract = func(context.Context) (extract.Result, error) { return x, nil }
		}
	}
	layers := func(names ...LayerName) func(*Check) { return func(c *Check) { c.Layers = names } }
	engine := func(mode EngineMode) func(*Check) {
		return func(c *Check) { c.Layers, c.Engines.Mode = []LayerName{EngineLayer, PythonLayer}, mode }
	}
	const (
		staticAlone = "static none, live skipped, goldens skipped, engine skipped, python skipped, builtin skipped"
		noEngine    = "static skipped, live skipped, goldens skipped, engine unknown, python unknown, builtin skipped"
		nothing     = "static skipped, live skipped, goldens skipped, engine skipped, python skipped, builtin skipped"
	)
	gap := extract.Gap{What: "EngineCoreOutputs", Why: "there is no vllm/v1/engine/__init__.py"}
	tests := []struct {
		name    string
		version string
		code    int
		change  func(*Check)
		want    string
		reasons []string // or notes
	}{
		{
			"no frontend in the wheel", "0.33.0", 3, func(*Check) {}, "static none, live unknown, goldens skipped, engine skipped, python skipped, builtin skipped",
			[]string{"the wheel holds no vllm/vllm-rs", "there is no frontend to replay them behind", "no CPU engine of 0.33.0 here: vllm-vcr capture engine 0.33.0 installs it"},
		},
		{"only what the sources declare", "0.33.0", 0, layers(StaticLayer), staticAlone, []string{"it is not in --layers"}},
		{
			"sources that cannot be read", "0.33.0", 3, extracts(extract.Result{Profile: profile(t, "0.33"), Gaps: []extract.Gap{gap}}),
			strings.Replace(staticAlone, "none", "unknown", 1),
			[]string{gap.Why},
		},
		{"nothing that is here", "0.33.0", 4, layers(EngineLayer, PythonLayer), nothing, nil},
		{
			"a line that the matrix has not", "0.34.0", 0, func(c *Check) { c.Own, c.Layers = false, []LayerName{StaticLayer} }, staticAlone,
			[]string{"0.34 is not a line of matrix: vllm-vcr drift adopt 0.34.0"},
		},
		{
			"no sources", "0.33.0", 3, func(c *Check) { c.Extract = nil }, "static skipped, live unknown, goldens skipped, engine skipped, python skipped, builtin skipped",
			[]string{"a frontend alone has no sources"},
		},
		{"a development build has no engine", "0.33.0.dev3+g0123456", 0, layers(StaticLayer, EngineLayer), staticAlone, []string{"they are made of stable releases only"}},
		{"an engine that was not wanted", "0.33.0", 4, engine(EngineNever), nothing, []string{"no CPU engine was wanted"}},
		{"an engine that is not there", "0.33.0", 3, engine("/none/python"), noEngine, []string{"--engine: stat /none/python: no such file"}},
		{
			"an engine that has lost something", "0.33.0", 3, func(c *Check) {
				c.Layers = []LayerName{EngineLayer, PythonLayer}
				require.NoError(t, os.MkdirAll(filepath.Join(c.Engines.Options.Dir, "engines", "0.33.0"), 0o755))
			}, noEngine, []string{"engine 0.33.0: it is not whole: "},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			c := checkOf(t, test.version)
			test.change(&c)
			got := c.Run(t.Context())
			var verdicts []string
			for _, l := range got.Layers {
				verdicts = append(verdicts, string(l.Name)+" "+string(l.Verdict))
			}
			if all := strings.Join(verdicts, ", "); all != test.want || got.ExitCode() != test.code {
				t.Errorf("got %s, exit code %d\nwant %s, %d", all, got.ExitCode(), test.want, test.code)
			}
			var reasons []string
			for _, l := range got.Layers {
				reasons = append(append(reasons, l.Reason), l.Notes...)
			}
			for _, want := range test.reasons {
				require.True(t, strings.Contains(strings.Join(reasons, "\n"), want), "no reason is %q: %q", want, reasons)
			}
			if (got.Profile != nil) != (c.Extract != nil && c.Layers[0] == StaticLayer) {
				t.Errorf("profile %v", got.Profile != nil)
			}
		})
	}
}

// TestDocument: the JSON has every layer, and says nothing of those that were not looked at but why.
func TestDocument(t *testing.T) {
	r := checkOf(t, "0.33.0").Run(t.Context())
	r.Frontend = Frontend{Commit: "012345678", Wheel: "w.whl"}
	got := r.Document()
	require.True(t, got.Schema == SchemaVersion && got.Verdict == Unknown && got.ExitCode == 3 && got.Commit == "012345678" && got.Wire == Fingerprint(profile(t, "0.33")), "got %+v", got)
	for i := range got.Layers {
		got.Layers[i].Seconds = 0
	}
	want := []LayerDocument{
		{Name: StaticLayer, Verdict: None, Reason: "0 changes", Compared: "what the sources of 0.33.0 declare with the profile of line 0.33 (0.33.0)"},
		{Name: LiveLayer, Verdict: Unknown, Reason: "the wheel holds no vllm/vllm-rs"},
		{Name: GoldensLayer, Verdict: Skipped, Reason: "there is no frontend to replay them behind"},
	}
	require.NoDiff(t, cmp.Diff(want, got.Layers[:3], cmpopts.EquateEmpty()), "(-want +got)")
}

// TestTaughtRefuses: a profile that no player can speak is told as such, and the process does not learn it.
func TestTaughtRefuses(t *testing.T) {
	p := profile(t, "0.33")
	p.Line, p.Version = "0.97", "0.97.0"
	delete(p.Structs, "EngineCoreRequest")
	layer := checkOf(t, "0.97.0").Live.Taught(t.Context(), p)
	require.True(t, layer.Verdict == Unknown && strings.Contains(layer.Reason, "the player cannot use its profile") && !protocol.HasProfile("0.97"), "got %+v", layer)
}

// TestEngineProfiles: what records gets the profile of the line as this process knows it, learned ones included.
func TestEngineProfiles(t *testing.T) {
	p := profile(t, "0.33")
	p.Line, p.Version = "9.9", "9.9.0"
	require.NoError(t, protocol.Learn(p))
	for _, line := range []compat.Line{{Name: "9.9", Tag: "v9.9.0rc1"}, {Name: "0.27", Tag: "v0.27.1"}} {
		dir, err := writeProfile(t.TempDir(), line.Name)
		require.NoError(t, err)
		known, err := protocol.LoadProfile(line.Name)
		require.NoError(t, err)
		var want bytes.Buffer
		_ = protocol.WriteProfile(&want, known)
		got, err := os.ReadFile(filepath.Join(dir, line.Name+".json"))
		if entries, _ := os.ReadDir(dir); err != nil || len(entries) != 1 || !bytes.Equal(want.Bytes(), got) {
			t.Errorf("%s: %v, %d bytes, %v, want its profile alone", line.Name, entries, len(got), err)
		}
	}
	if _, err := writeProfile(t.TempDir(), "8.8"); err == nil {
		t.Error("a line that nobody knows has a profile")
	}
}
