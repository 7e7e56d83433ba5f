package drift

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/internal/cpuengine"
	"github.com/vllm-vcr/conformance/internal/protocol"
	"github.com/vllm-vcr/conformance/internal/upstream"
	"github.com/vllm-vcr/conformance/manifest"
)

func build(t *testing.T, text string) compat.Build {
	t.Helper()
	b, err := compat.ParseBuild(text)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// checkOf is a check of a release judged as 0.33, with no frontend and the sources of that line.
func checkOf(t *testing.T, version string) Check {
	t.Helper()
	line := compat.Line{Name: "0.33", Tag: "v0.33.0"}
	log := slog.New(slog.DiscardHandler)
	return Check{
		Build: build(t, version), Line: line, Own: true, Layers: Layers(),
		Frontend: func(context.Context) (Frontend, error) {
			return Frontend{}, errors.New("the wheel holds no vllm/vllm-rs")
		},
		Extract: func(context.Context) (Extraction, error) { return Extraction{Profile: profile(t, "0.33")}, nil },
		Live: Live{
			Window: &compat.Matrix{File: "window", Lines: []compat.Line{line}}, Registry: &manifest.Manifest{File: "registry"}, Log: log,
		},
		Engines: Engines{Mode: EngineAuto, Options: cpuengine.Options{Dir: t.TempDir()}},
	}
}

// verdicts are those of the layers, in their order.
func verdicts(r Result) string {
	var all []string
	for _, l := range r.Layers {
		all = append(all, string(l.Name)+" "+string(l.Verdict))
	}
	return strings.Join(all, ", ")
}

func TestCheckRun(t *testing.T) {
	tests := []struct {
		name    string
		version string
		change  func(*Check)
		want    string
		code    int
		says    []string // of reasons and notes
	}{
		{
			name: "no frontend in the wheel", version: "0.33.0", code: 3,
			want: "static none, live unknown, goldens skipped, engine skipped, python skipped",
			says: []string{"the wheel holds no vllm/vllm-rs", "there is no frontend to replay them behind", "no CPU engine of 0.33.0 here: vllm-vcr capture engine 0.33.0 installs it"},
		},
		{
			name: "only what the sources declare", version: "0.33.0", change: func(c *Check) { c.Layers = []LayerName{StaticLayer} },
			want: "static none, live skipped, goldens skipped, engine skipped, python skipped", says: []string{"it was not asked for"},
		},
		{
			name: "sources that cannot be read", version: "0.33.0", code: 3,
			change: func(c *Check) {
				c.Layers = []LayerName{StaticLayer}
				c.Extract = func(context.Context) (Extraction, error) {
					return Extraction{Profile: profile(t, "0.33"), Gaps: []upstream.Gap{{What: "EngineCoreOutputs", Why: "there is no vllm/v1/engine/__init__.py"}}}, nil
				}
			},
			want: "static unknown, live skipped, goldens skipped, engine skipped, python skipped", says: []string{"there is no vllm/v1/engine/__init__.py"},
		},
		{
			name: "nothing that is here", version: "0.33.0", code: 4, change: func(c *Check) { c.Layers = []LayerName{EngineLayer, PythonLayer} },
			want: "static skipped, live skipped, goldens skipped, engine skipped, python skipped",
		},
		{
			name: "a line that the window has not", version: "0.34.0", code: 0,
			change: func(c *Check) { c.Own, c.Layers = false, []LayerName{StaticLayer} },
			want:   "static none, live skipped, goldens skipped, engine skipped, python skipped",
			says:   []string{"0.34 is no line of window: vllm-vcr drift adopt 0.34.0"},
		},
		{
			name: "no sources", version: "0.33.0", code: 3, change: func(c *Check) { c.Extract = nil },
			want: "static skipped, live unknown, goldens skipped, engine skipped, python skipped", says: []string{"a frontend alone has no sources"},
		},
		{
			name: "a development build has no engine", version: "0.33.0.dev3+g0123456", code: 0,
			change: func(c *Check) { c.Layers = []LayerName{StaticLayer, EngineLayer} },
			want:   "static none, live skipped, goldens skipped, engine skipped, python skipped", says: []string{"they are made of stable releases only"},
		},
		{
			name: "an engine that was not wanted", version: "0.33.0", code: 4,
			change: func(c *Check) { c.Layers, c.Engines.Mode = []LayerName{EngineLayer, PythonLayer}, EngineNever },
			want:   "static skipped, live skipped, goldens skipped, engine skipped, python skipped", says: []string{"no CPU engine was wanted"},
		},
		{
			name: "an engine that is not where it was said to be", version: "0.33.0", code: 3,
			change: func(c *Check) { c.Layers, c.Engines.Mode = []LayerName{EngineLayer, PythonLayer}, "/none/python" },
			want:   "static skipped, live skipped, goldens skipped, engine unknown, python unknown", says: []string{"--engine: stat /none/python: no such file"},
		},
		{
			name: "an engine that has lost something", version: "0.33.0", code: 3,
			change: func(c *Check) {
				c.Layers = []LayerName{EngineLayer, PythonLayer}
				home := filepath.Join(c.Engines.Options.Dir, "engines", "0.33.0")
				if err := os.MkdirAll(home, 0o755); err != nil {
					t.Fatal(err)
				}
			},
			want: "static skipped, live skipped, goldens skipped, engine unknown, python unknown", says: []string{"engine 0.33.0: it is not whole: "},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			c := checkOf(t, test.version)
			if test.change != nil {
				test.change(&c)
			}
			got := c.Run(t.Context())
			if all := verdicts(got); all != test.want || got.ExitCode() != test.code {
				t.Errorf("got %s, exit code %d\nwant %s, %d", all, got.ExitCode(), test.want, test.code)
			}
			var said []string
			for _, l := range got.Layers {
				said = append(append(said, l.Reason), l.Notes...)
			}
			for _, want := range test.says {
				if !strings.Contains(strings.Join(said, "\n"), want) {
					t.Errorf("nothing says %q: %q", want, said)
				}
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
	if got.Schema != SchemaVersion || got.Verdict != Unknown || got.ExitCode != 3 || got.Commit != "012345678" || got.Wire != Fingerprint(profile(t, "0.33")) {
		t.Errorf("got %+v", got)
	}
	for i := range got.Layers {
		got.Layers[i].Seconds = 0
	}
	want := []LayerDocument{
		{Name: StaticLayer, Verdict: None, Reason: "0 changes", Compared: "what the sources of 0.33.0 declare with the profile of line 0.33 (0.33.0)"},
		{Name: LiveLayer, Verdict: Unknown, Reason: "the wheel holds no vllm/vllm-rs"},
		{Name: GoldensLayer, Verdict: Skipped, Reason: "there is no frontend to replay them behind"},
	}
	if diff := cmp.Diff(want, got.Layers[:3], cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if err := JSON(io.Discard, got); err != nil {
		t.Error(err)
	}
}

// TestTaughtRefuses: a profile that no player can speak is told as such, and the process does not learn it.
func TestTaughtRefuses(t *testing.T) {
	p := profile(t, "0.33")
	p.Line, p.Version = "0.97", "0.97.0"
	delete(p.Structs, "EngineCoreRequest")
	layer := checkOf(t, "0.97.0").Live.Taught(t.Context(), p)
	if layer.Verdict != Unknown || !strings.Contains(layer.Reason, "the player cannot be taught its profile") || protocol.HasProfile("0.97") {
		t.Errorf("got %+v", layer)
	}
}
