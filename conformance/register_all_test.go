package conformance

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/manifest"
)

// twoOfARun are the registrations of a trace and the raw frames of one run, anew.
func twoOfARun(t *testing.T, d *manifestCopy) []Registration {
	t.Helper()
	seed := int64(1)
	var reqs []Registration
	for _, one := range []struct {
		id   string
		role manifest.Role
	}{{"edge-s1", manifest.Fidelity}, {"wire-edge-s1", manifest.Wire}} {
		id, role, req := one.id, one.role, d.Registration
		req.Trace = filepath.Join(filepath.Dir(d.Manifest), id+".jsonl.gz")
		writeTo(t, req.Trace, goldenOf(t, "0.33", id).data)
		req.Line, req.ID, req.Workload, req.Role, req.Scenario, req.Seed = "0.33", "new-"+id, id, role, "baseline", &seed
		req.EngineImage = "host/engine:v0.33.0@sha256:" + strings.Repeat("5a", 32)
		req.CaptureRun, req.CapturedAt = "https://ci.example/runs/1", time.Unix(1_750_000_000, 0).UTC()
		reqs = append(reqs, req)
	}
	return reqs
}

// newDeskWithout has the manifest without the goldens of a run.
func newDeskWithout(t *testing.T, line string, ids ...string) *manifestCopy {
	t.Helper()
	d := copyManifest(t)
	for _, id := range ids {
		d.edit(t, d.Manifest, func(e *manifest.Editor) error { return e.Remove(line, id) })
	}
	return d
}

// Both of a run are registered in one edit, with what is known of the capture, and a second time changes nothing.
func TestRegisterAll(t *testing.T) {
	d := newDeskWithout(t, "0.33", "edge-s1", "wire-edge-s1")
	reqs := twoOfARun(t, d)
	done, err := RegisterAll(t.Context(), reqs...)
	require.NoError(t, err)
	var registered []manifest.Golden
	for _, g := range d.parsed(t).Goldens {
		if strings.HasPrefix(g.ID, "new-") {
			registered = append(registered, g)
		}
	}
	if len(registered) != 2 || !done[0].Changed || !done[1].Changed {
		t.Fatalf("registered %+v, %+v", registered, done)
	}
	for _, g := range registered {
		if g.EngineImage != reqs[0].EngineImage || g.CaptureRun != reqs[0].CaptureRun || g.CapturedAt.IsZero() || g.CapturedAt.Equal(reqs[0].CapturedAt) { // the trace has its own time
			t.Errorf("%+v", g)
		}
	}
	files := d.files(t)
	for i := range reqs { // another run has the same bytes
		reqs[i].CaptureRun, reqs[i].CapturedAt = "https://ci.example/runs/2", time.Unix(1_760_000_000, 0).UTC()
	}
	again, err := RegisterAll(t.Context(), reqs...)
	require.True(t, err == nil && !again[0].Changed && !again[1].Changed, "%+v, %v", again, err)
	require.NoDiff(t, cmp.Diff(files, d.files(t)), "registering again changed")
}

// When the second cannot be kept, the first goes again.
func TestRegisterAllOrNone(t *testing.T) {
	tests := []struct {
		name   string
		damage func(t *testing.T, d *manifestCopy, second *Registration)
		says   string
	}{
		{"a bad capture", func(t *testing.T, _ *manifestCopy, second *Registration) {
			writeTo(t, second.Trace, deflated(t, []byte("{\"meta\":{}}\n")))
		}, "no engine registers in it"},
		{"a place that is taken", func(t *testing.T, d *manifestCopy, second *Registration) {
			dry := *second
			dry.DryRun = true
			done, err := Register(t.Context(), dry)
			require.NoError(t, err)
			writeTo(t, done.Location, []byte("other"))
		}, "already exists with other bytes"},
		{"another manifest", func(_ *testing.T, _ *manifestCopy, second *Registration) { second.Manifest += ".other" }, "need one"},
		{
			"an image without digest", func(_ *testing.T, _ *manifestCopy, second *Registration) { second.EngineImage = "host/engine:v0.33.0" },
			`engine image "host/engine:v0.33.0": want one with its digest`,
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			d := newDeskWithout(t, "0.33", "edge-s1", "wire-edge-s1")
			reqs := twoOfARun(t, d)
			test.damage(t, d, &reqs[1])
			before := d.files(t)
			_, err := RegisterAll(t.Context(), reqs...)
			var refused *RegistrationError
			require.True(t, errors.As(err, &refused) && strings.Contains(err.Error(), test.says), "got %v, want it to say %q", err, test.says)
			require.NoDiff(t, cmp.Diff(before, d.files(t)), "refused, but changed")
		})
	}
}
