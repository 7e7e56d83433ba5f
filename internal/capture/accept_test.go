package capture_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/capture"
	"github.com/vllm-vcr/conformance/internal/capture/capturetest"
	"github.com/vllm-vcr/conformance/internal/capture/load"
	"github.com/vllm-vcr/conformance/internal/capture/target"
	"github.com/vllm-vcr/conformance/internal/golden/s3store"
	"github.com/vllm-vcr/conformance/internal/testenv"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/manifest"
)

// entryOf is what a its manifest has of a golden.
func TestAccept(t *testing.T) {
	opt, rec := capturetest.ManifestCopy(t), capturetest.Recording(t, "0.33/edge-s1")
	opt.Run = "https://ci.example/runs/1"
	before := capturetest.Entry(t, opt, "0.33", "edge-s1")
	done, err := capture.Accept(t.Context(), opt, rec)
	require.NoError(t, err)
	var names []string
	for _, g := range done.Goldens {
		names = append(names, g.Golden.Line+"/"+g.Golden.ID+" "+string(g.Golden.Role))
	}
	if want := []string{"0.33/edge-s1 fidelity", "0.33/wire-edge-s1 wire"}; !slices.Equal(names, want) {
		t.Errorf("registered %q, want %q", names, want)
	}
	// It is the session of the golden that is registered.
	now := capturetest.Entry(t, opt, "0.33", "edge-s1")
	require.True(t, now.Records == before.Records && now.ConfigHash == before.ConfigHash, "registered %+v, was %+v", now, before)
	if wire := capturetest.Entry(t, opt, "0.33", "wire-edge-s1"); wire.Workload != "edge-s1" || *wire.Seed != 1 {
		t.Errorf("%+v", wire)
	}
	files := testenv.Files(t, filepath.Dir(opt.Manifest))
	again, err := capture.Accept(t.Context(), opt, rec)
	require.NoError(t, err)
	require.True(t, !again.Goldens[0].Changed && !again.Goldens[1].Changed, "again: %+v", again)
	require.NoDiff(t, cmp.Diff(files, testenv.Files(t, filepath.Dir(opt.Manifest))), "again changed")
}

// The manifest tells where the engine came from, as far as a digest tells it.
func TestAcceptFromAnImage(t *testing.T) {
	opt, rec := capturetest.ManifestCopy(t), capturetest.Recording(t, "0.33/multiturn-s7")
	digest := "sha256:" + strings.Repeat("ab", 32)
	rec.Target.Images.Engine = "docker.io/vllm/vllm-openai:v0.33.0@" + digest
	rec.EngineImage, opt.Run = rec.Target.Images.Engine, "https://ci.example/runs/1"
	if _, err := capture.Accept(t.Context(), opt, rec); err != nil {
		t.Fatal(err)
	}
	g := capturetest.Entry(t, opt, "0.33", "multiturn-s7")
	require.True(t, g.EngineImage == rec.EngineImage && g.EngineBuild == rec.EngineBuild && g.CaptureRun == opt.Run && g.CapturedAt.Equal(rec.CapturedAt), "%+v", g)
}

// A recorder that names no commit is worth a warning, and nothing else is.
func TestAcceptNamesTheRecorder(t *testing.T) {
	opt, rec := capturetest.ManifestCopy(t), capturetest.Recording(t, "0.33/multiturn-s7")
	before := `"meta":{`
	for _, version := range []string{"(devel)", "v0.0.0-20261124110000-0123456789ab"} {
		after := `"meta":{"recorder_version":"` + version + `",`
		capturetest.Edit(t, rec.Trace, func(lines []string) []string {
			lines[0] = strings.Replace(lines[0], before, after, 1)
			return lines
		})
		before = after
		accepted, err := capture.Accept(t.Context(), opt, rec)
		require.NoError(t, err)
		warned := strings.Contains(strings.Join(accepted.Warnings, "\n"), "recorder_version")
		if g := accepted.Goldens[0].Golden; g.RecorderVersion != version || warned != (version == "(devel)") {
			t.Errorf("%s: got %q, warnings %q", version, g.RecorderVersion, accepted.Warnings)
		}
	}
}

// Captures that models are fitted to are kept, and gate nothing but how an engine registers.
func TestAcceptFit(t *testing.T) {
	opt, rec := capturetest.ManifestCopy(t), capturetest.Recording(t, "0.33/multiturn-s7")
	rec.Target.Fit, rec.Target.ID = true, "fit-s7"
	if _, err := capture.Accept(t.Context(), opt, rec); err != nil {
		t.Fatal(err)
	}
	if g := capturetest.Entry(t, opt, "0.33", "fit-s7"); g.Role != manifest.Schema {
		t.Errorf("role %s", g.Role)
	}
}

func TestAcceptRefuses(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine")
	}
	first := func(change func(line string) string) func(*testing.T, *capture.Recording) {
		return func(t *testing.T, r *capture.Recording) {
			capturetest.Edit(t, r.Trace, func(lines []string) []string { lines[0] = change(lines[0]); return lines })
		}
	}
	tests := []struct {
		name   string
		damage func(*testing.T, *capture.Recording)
		says   []string
	}{
		{"a request that failed", func(_ *testing.T, r *capture.Recording) { r.Load.Failed = 2 }, []string{"load.json: 2 requests failed"}},
		{"a client that was answered nothing", func(_ *testing.T, r *capture.Recording) { r.Load.Completed = 0 }, []string{"no request was completed"}},
		{
			"another seed", func(_ *testing.T, r *capture.Recording) { r.Load.Seed = 8 },
			[]string{"multiturn with seed 8 was played, but the target asks for multiturn with seed 7"},
		},
		{"another workload", func(_ *testing.T, r *capture.Recording) { r.Load.Workload = load.Edge }, []string{"edge with seed 7 was played"}},
		{"more completed than recorded", func(_ *testing.T, r *capture.Recording) { r.Load.Completed++ }, []string{"has 180 requests, but the client completed 181"}},
		{
			"another line", first(func(meta string) string {
				return strings.Replace(meta, `"vllm_version":"0.33.0"`, `"vllm_version":"0.32.0"`, 1)
			}),
			[]string{`trace.jsonl.gz: the engine said it is "0.32.0", but the target is of vLLM 0.33.0`},
		},
		{
			"another configuration", func(_ *testing.T, r *capture.Recording) { r.Target.Scenario = target.NoCache },
			[]string{`meta.config_hash is "38d9474a`, "but the configuration of the target gives", "enable_prefix_caching=false"},
		},
		{
			"a tap that recorded nothing", func(t *testing.T, r *capture.Recording) {
				capturetest.Edit(t, r.Trace, func(lines []string) []string { return lines[:1] })
			},
			[]string{"trace.jsonl.gz: the recorder recorded no request"},
		},
		{
			"a record without tokens", func(t *testing.T, r *capture.Recording) {
				capturetest.Edit(t, r.Trace, func(lines []string) []string {
					head, tail, _ := strings.Cut(lines[3], `,"output_token_ids":[`)
					_, tail, _ = strings.Cut(tail, "]")
					lines[3] = head + tail
					return lines
				})
			},
			[]string{"trace.jsonl.gz:4: a request that was aborted, or has no tokens"},
		},
		{"a truncated trace", truncated(func(r *capture.Recording) string { return r.Trace }), []string{"trace.jsonl.gz: line ", "gzip stream ends"}},
		{"no trace", gone(func(r *capture.Recording) string { return r.Trace }), []string{"trace.jsonl.gz: no such file"}},
		{"no statistics", func(_ *testing.T, r *capture.Recording) { r.Steps = "" }, []string{"no statistics of steps: record with --step-stats-out"}},
		{"statistics that are missing", gone(func(r *capture.Recording) string { return r.Steps }), []string{"steps.jsonl.gz: no such file"}},
		{
			"statistics of nothing", func(t *testing.T, r *capture.Recording) {
				capturetest.Edit(t, r.Steps, func([]string) []string { return nil })
			},
			[]string{"steps.jsonl.gz: there are no statistics in it"},
		},
		{
			"statistics of an idle engine", func(t *testing.T, r *capture.Recording) {
				capturetest.Edit(t, r.Steps, func(lines []string) []string { return lines[len(lines)-1:] })
			},
			[]string{"no request was running in any of 1 steps"},
		},
		{
			"statistics that end early", func(t *testing.T, r *capture.Recording) {
				capturetest.Edit(t, r.Steps, func(lines []string) []string { return lines[:len(lines)/2] })
			},
			[]string{"steps.jsonl.gz: ends at ", "of another engine, or cut off"},
		},
		{"no frames", func(_ *testing.T, r *capture.Recording) { r.Frames = "" }, []string{"no raw frames"}},
		{
			"two lives of the engine", func(t *testing.T, r *capture.Recording) {
				capturetest.Edit(t, r.Frames, func(lines []string) []string { return append(lines, lines[0]) })
			},
			[]string{"frames.jsonl.gz: 1 engines registered 2 times"},
		},
		{"two engines", besides("trace.rank1.jsonl.gz"), []string{"trace.rank1.jsonl.gz: a second engine was recorded"}},
		{"a tap that was killed", besides("frames.partial-1a2b3c4d.jsonl.gz"), []string{"the recorder did not finish it"}},
		{
			"another image", func(_ *testing.T, r *capture.Recording) {
				r.Target.Images.Engine = "host/engine:v0.33.0@sha256:" + strings.Repeat("0a", 32)
				r.EngineImage = "host/engine@sha256:" + strings.Repeat("0b", 32)
			},
			[]string{"the engine ran sha256:0b0b", "the target asks for sha256:0a0a"},
		},
		{
			"an unknown image", func(_ *testing.T, r *capture.Recording) {
				r.Target.Images.Engine = "host/engine:v0.33.0@sha256:" + strings.Repeat("0a", 32)
				r.EngineImage = ""
			},
			[]string{"the image that the engine ran is not known"},
		},
		{
			"a client that saw less", func(t *testing.T, r *capture.Recording) {
				capturetest.Edit(t, r.Requests, func(lines []string) []string {
					lines[5] = strings.Replace(lines[5], `"completion_tokens":`, `"completion_tokens":1`, 1)
					return lines
				})
			},
			[]string{"requests.jsonl.gz: "},
		},
		{
			"a client that asked more", func(t *testing.T, r *capture.Recording) {
				capturetest.Edit(t, r.Trace, func(lines []string) []string { return append(lines[:8], lines[9:]...) })
				r.Load.Completed--
			},
			[]string{"requests.jsonl.gz: "},
		},
		{
			"several at once", func(_ *testing.T, r *capture.Recording) { r.Load.Failed, r.Steps = 1, "" },
			[]string{"1 requests failed", "no statistics of steps"},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			opt, rec := capturetest.ManifestCopy(t), capturetest.Recording(t, "0.33/multiturn-s7")
			test.damage(t, &rec)
			before := testenv.Files(t, filepath.Dir(opt.Manifest))
			_, err := capture.Accept(t.Context(), opt, rec)
			var refused *capture.RefusedError
			if !errors.As(err, &refused) {
				t.Fatalf("got %v, want a refusal", err)
			}
			for _, text := range test.says {
				require.True(t, strings.Contains(err.Error(), text), "%q does not say %q", err, text)
			}
			for line := range strings.Lines(err.Error()) {
				require.True(t, strings.HasPrefix(line, "0.33/"), "line %q does not name the target", line)
			}
			require.NoDiff(t, cmp.Diff(before, testenv.Files(t, filepath.Dir(opt.Manifest))), "refused, but changed")
		})
	}
}

func gone(path func(*capture.Recording) string) func(*testing.T, *capture.Recording) {
	return func(t *testing.T, r *capture.Recording) {
		require.NoError(t, os.Remove(path(r)))
	}
}

func truncated(path func(*capture.Recording) string) func(*testing.T, *capture.Recording) {
	return func(t *testing.T, r *capture.Recording) {
		info, err := os.Stat(path(r))
		if err == nil {
			err = os.Truncate(path(r), info.Size()-20)
		}
		require.NoError(t, err)
	}
}

func besides(name string) func(*testing.T, *capture.Recording) {
	return func(t *testing.T, r *capture.Recording) { capturetest.CopyFile(t, r.Trace, filepath.Join(r.Dir, name)) }
}

// The trace of a run whose frames do not conform is not registered either.
func TestAcceptBothOrNone(t *testing.T) {
	opt, rec := capturetest.ManifestCopy(t), capturetest.Recording(t, "0.33/edge-s1")
	capturetest.Edit(t, rec.Frames, func(lines []string) []string { return slices.Delete(lines, 40, 44) })
	before := testenv.Files(t, filepath.Dir(opt.Manifest))
	_, err := capture.Accept(t.Context(), opt, rec)
	var refused *conformance.RegistrationError
	require.True(t, errors.As(err, &refused) && strings.Contains(err.Error(), "0.33/edge-s1: "), "got %v", err)
	require.NoDiff(t, cmp.Diff(before, testenv.Files(t, filepath.Dir(opt.Manifest))), "refused, but changed")
}

// A colleague's edit is kept, and so is the golden.
func TestAcceptWhileOthersEdit(t *testing.T) {
	opt, rec := capturetest.ManifestCopy(t), capturetest.Recording(t, "0.33/multiturn-s7")
	edits := 0
	opt.Progress = func(conformance.Result) {
		if edits++; edits > 1 {
			return
		}
		text, err := os.ReadFile(opt.Manifest)
		if err == nil {
			err = os.WriteFile(opt.Manifest, append(text, "# a colleague was here\n"...), 0o644)
		}
		if err != nil {
			t.Error(err)
		}
	}
	done, err := capture.Accept(t.Context(), opt, rec)
	require.NoError(t, err)
	if text := testenv.Files(t, filepath.Dir(opt.Manifest))["manifest.toml"]; !strings.Contains(text, "a colleague was here") || !strings.Contains(text, done.Goldens[0].Golden.SHA256) {
		t.Error("one of the two edits is lost")
	}
}

func TestAcceptInterrupted(t *testing.T) {
	opt, rec := capturetest.ManifestCopy(t), capturetest.Recording(t, "0.33/multiturn-s7")
	before := testenv.Files(t, filepath.Dir(opt.Manifest))
	ctx, cancel := context.WithCancel(t.Context())
	opt.Progress = func(conformance.Result) { cancel() }
	if _, err := capture.Accept(ctx, opt, rec); err == nil {
		t.Error("no error")
	}
	require.NoDiff(t, cmp.Diff(before, testenv.Files(t, filepath.Dir(opt.Manifest))), "interrupted, but changed")
}

// What differs from sibling captures is said, and decides nothing.
func TestAcceptWarns(t *testing.T) {
	opt, rec := capturetest.ManifestCopy(t), capturetest.Recording(t, "0.33/multiturn-s7")
	capturetest.Edit(t, rec.Trace, func(lines []string) []string {
		for i := range lines[1:] {
			at := strings.Index(lines[i+1], `"ttft_ms":`) + len(`"ttft_ms":`)
			lines[i+1] = lines[i+1][:at] + "9" + lines[i+1][at:]
		}
		return lines
	})
	rec.Requests = "" // the client's times are of the engine's, as it was
	capturetest.Edit(t, rec.Steps, func(lines []string) []string {
		last := lines[len(lines)-1]
		_, tail, _ := strings.Cut(last, ",")
		return append(lines, `{"ts_ms":99999999,`+tail)
	})
	done, err := capture.Accept(t.Context(), opt, rec)
	require.NoError(t, err)
	all := strings.Join(done.Warnings, "\n")
	for _, want := range []string{"TTFT p50 is 9", "in the golden that is replaced", "in multiturn-s13"} {
		require.Contains(t, all, want)
	}
	require.True(t, !strings.Contains(all, "ITL"), "the gaps are as they were, but:\n%s", all)
}

// Goldens go to a bucket under a name that tells their bytes, and a bucket that takes nothing leaves everything as it is.
func TestAcceptUploads(t *testing.T) {
	server := testenv.S3(t)
	require.NoError(t, os.Mkdir(filepath.Join(server.Dir, "captured"), 0o755))
	for name, value := range server.Env() {
		t.Setenv(name, value)
	}
	opt, rec := capturetest.ManifestCopy(t), capturetest.Recording(t, "0.33/edge-s1")
	opt.S3 = s3store.Options{Endpoint: server.Endpoint, PathStyle: s3store.On}
	before := testenv.Files(t, filepath.Dir(opt.Manifest))
	opt.Upload = "s3://absent/prefix"
	_, err := capture.Accept(t.Context(), opt, rec)
	require.ErrorContains(t, err, "publish to s3://absent/prefix/")
	require.NoDiff(t, cmp.Diff(before, testenv.Files(t, filepath.Dir(opt.Manifest))), "refused, but changed")
	opt.Upload = "s3://captured/prefix"
	done, err := capture.Accept(t.Context(), opt, rec)
	require.NoError(t, err)
	for _, g := range done.Goldens {
		path := filepath.Join(server.Dir, strings.TrimPrefix(g.Location, "s3://"))
		info, err := os.Stat(path)
		require.True(t, err == nil && info.Size() == g.Golden.Size, "%s: %v, want %d bytes", g.Location, err, g.Golden.Size)
		if !strings.Contains(g.Location, "-"+g.Golden.SHA256[:12]+".") || !strings.HasPrefix(g.Location, opt.Upload+"/") {
			t.Error(g.Location)
		}
	}
	again, err := capture.Accept(t.Context(), opt, rec)
	require.True(t, err == nil && !again.Goldens[0].Stored, "again: %v, %+v", err, again)
}
