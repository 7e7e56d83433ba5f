package conformance

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/vllm-vcr/conformance/internal/golden/s3store"
	"github.com/vllm-vcr/conformance/internal/testenv"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/internal/wire/pack"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/manifest"
	"github.com/vllm-vcr/conformance/player"
	"github.com/vllm-vcr/conformance/trace"
)

func TestRegister(t *testing.T) {
	d := copyManifest(t)
	before, err := os.ReadFile(d.Manifest)
	require.NoError(t, err)
	entry := fmt.Sprintf("bucket_path = %q\n", d.golden.BucketPath)
	writeTo(t, d.Manifest, []byte(strings.Replace(string(before), entry, entry+"notes = \"of the bytes before\"\n", 1)))
	done := d.register(t)
	require.True(t, done.Stored && done.Changed && done.Replaced && done.Report.ExitCode == ExitOK, "%+v", done)
	if want := filepath.Join(d.Goldens, d.golden.BucketPath); done.Removed != want {
		t.Errorf("removed %q, want %q", done.Removed, want)
	}
	// Apart from how it is compressed it is the capture that is registered already.
	want, got := d.golden, d.registered(t)
	want.SHA256, want.Size, want.BucketPath = got.SHA256, got.Size, got.BucketPath
	require.NoDiff(t, cmp.Diff(want, got, cmpopts.IgnoreFields(manifest.Golden{}, "Pos", "RecorderVersion", "CapturedAt", "EngineBuild")), "golden, -before +now")
	require.True(t, strings.HasPrefix(got.BucketPath, "conformance/v"+got.VLLMVersion+"/"+got.GPU+"/"+got.Model+"/"+d.ID+"-"+got.SHA256[:12]), "bucket_path is %s", got.BucketPath)
	files := d.files(t)
	if len(files) != 3 || files["goldens/"+got.BucketPath] == "" {
		t.Errorf("there are %v", slices.Collect(maps.Keys(files)))
	}
	d.conform(t, NewStore(StoreOptions{Dir: d.Goldens}))

	// The same lines, however they are compressed, are the same golden.
	again := d.register(t)
	d.Trace = filepath.Join(filepath.Dir(d.Trace), "run.jsonl")
	writeTo(t, d.Trace, inflated(t, d.capture.data))
	plain := d.register(t)
	for _, r := range []Registered{again, plain} {
		require.True(t, !r.Stored && !r.Changed && r.Replaced && r.Removed == "" && r.Golden.SHA256 == got.SHA256, "again: %+v", r)
	}
	delete(files, "run.jsonl")
	now := d.files(t)
	delete(now, "run.jsonl")
	require.NoDiff(t, cmp.Diff(files, now), "registering again changed")
}

func TestRegisterANewGolden(t *testing.T) {
	d := copyManifest(t)
	d.remove(t)
	others := len(d.parsed(t).Goldens)
	d.ID, d.Workload, d.Scenario, d.Seed = "new-s3", "", "baseline", new(int64)
	d.rewrite(t, func(tr *trace.Trace) {
		tr.Meta.Extra = map[string]json.RawMessage{
			"recorder_version": json.RawMessage(`"v1.2.3"`), "captured_at": json.RawMessage(`"2026-01-31T12:00:00Z"`),
		}
		// A stop string was found: a replay has the same tokens, and ends by their number.
		tr.Records[1].FinishReason, tr.Records[1].EndedByFrontend = trace.FinishAbort, true
	})
	done := d.register(t)
	m := d.parsed(t)
	at := slices.IndexFunc(m.Goldens, func(g manifest.Golden) bool { return g.ID == d.ID })
	if at < 0 || len(m.Goldens) != others+1 || done.Replaced || done.Removed != "" {
		t.Fatalf("%d goldens, want one more than %d; %+v", len(m.Goldens), others, done)
	}
	g := m.Goldens[at]
	require.True(t, g.Workload == d.ID && g.Scenario == "baseline" && *g.Seed == 0 && g.RecorderVersion == "v1.2.3" && !g.CapturedAt.IsZero(), "%+v", g)
	// The file of the other is not that of a golden that was replaced.
	if _, err := os.Stat(filepath.Join(d.Goldens, d.golden.BucketPath)); err != nil {
		t.Error(err)
	}
	d.conform(t, NewStore(StoreOptions{Dir: d.Goldens}))
}

func TestRegisterInABucket(t *testing.T) {
	server := testenv.S3(t)
	for name, value := range server.Env() {
		t.Setenv(name, value)
	}
	require.NoError(t, os.Mkdir(filepath.Join(server.Dir, "goldens"), 0o755))
	d := copyManifest(t)
	d.Upload = "s3://goldens/ci/"
	done := d.register(t)
	require.True(t, strings.HasPrefix(done.Golden.BucketPath, "s3://goldens/ci/conformance/v") && done.Stored && done.Location == done.Golden.BucketPath, "%+v", done)
	if done.Removed == "" || len(d.files(t)) != 2 {
		t.Errorf("left here: %v", slices.Collect(maps.Keys(d.files(t))))
	}
	t.Setenv("VLLM_VCR_CACHE_DIR", t.TempDir())
	d.conform(t, NewStore(StoreOptions{S3: s3store.Options{}}))
	if again := d.register(t); again.Stored || again.Changed {
		t.Errorf("again: %+v", again)
	}
	writeTo(t, filepath.Join(server.Dir, strings.TrimPrefix(done.Location, "s3://")), []byte("other"))
	before := d.files(t)
	_, err := Register(t.Context(), d.Registration)
	wantRefusal(t, err, ExitInfra, "publish to "+done.Location+": file already exists with other bytes")
	require.NoDiff(t, cmp.Diff(before, d.files(t)), "refused, but changed")
}

func TestRegisterDry(t *testing.T) {
	d := copyManifest(t)
	d.DryRun = true
	before := d.files(t)
	done := d.register(t)
	require.True(t, !done.Stored && done.Changed && done.Removed == "" && done.Report.Counts[Pass] != 0, "%+v", done)
	require.NoDiff(t, cmp.Diff(before, d.files(t)), "a dry run changed")
}

// A file that another golden still is stays.
func TestRegisterKeepsSharedFiles(t *testing.T) {
	d := copyManifest(t)
	text, err := os.ReadFile(d.Manifest)
	require.NoError(t, err)
	// No rule lets two goldens have one path and different bytes, or the same bytes twice.
	other := slices.IndexFunc(d.parsed(t).Goldens, func(g manifest.Golden) bool { return g.Line != d.golden.Line })
	g := d.parsed(t).Goldens[other]
	text = bytes.Replace(text, []byte(g.BucketPath), []byte(d.golden.BucketPath), 1)
	text = bytes.Replace(text, []byte(g.SHA256), []byte(d.golden.SHA256), 1)
	writeTo(t, d.Manifest, text)
	_, err = Register(t.Context(), d.Registration)
	wantRefusal(t, err, ExitUsage, "M010")
	r := registrar{Registration: d.Registration, replaced: d.golden, after: text}
	if err := r.removeReplaced(t.Context()); err != nil || r.result.Removed != "" {
		t.Errorf("removed %q, %v", r.result.Removed, err)
	}
}

// Whatever a manifest says, nothing outside of the goldens is removed.
func TestRegisterRemovesNothingOutside(t *testing.T) {
	d := copyManifest(t)
	if err := os.Symlink("..", filepath.Join(d.Goldens, "up")); err != nil {
		t.Skip(err)
	}
	for _, path := range []string{"../manifest.toml", "up/manifest.toml", "a/../../manifest.toml", d.Manifest} {
		r := registrar{Registration: d.Registration, replaced: manifest.Golden{BucketPath: path}}
		if err := r.removeReplaced(t.Context()); r.result.Removed != "" {
			t.Errorf("%s: removed, %v", path, err)
		}
	}
	if _, err := os.Stat(d.Manifest); err != nil {
		t.Error(err)
	}
}

// wantRefusal returns err as the refusal with that exit code. Its text must have all of says.
func wantRefusal(t *testing.T, err error, code int, says ...string) {
	t.Helper()
	var refusal *RegistrationError
	if !errors.As(err, &refusal) {
		t.Fatalf("got %v, want a *RegistrationError", err)
	}
	require.Equal(t, refusal.ExitCode, code, "exit code: %v", err)
	for _, part := range says {
		require.True(t, strings.Contains(err.Error(), part), "%q lacks %q", err, part)
	}
}

// otherPatch makes the captured engine one of another patch release.
func otherPatch(tr *trace.Trace) {
	version := *tr.Meta.VLLMVersion
	other := version[:len(version)-1] + "9"
	ready := strings.Replace(*tr.Meta.ReadyResponseHex, hex.EncodeToString([]byte(version)), hex.EncodeToString([]byte(other)), 1)
	tr.Meta.VLLMVersion, tr.Meta.ReadyResponseHex = &other, &ready
}

func TestRegisterAllowsPatchDrift(t *testing.T) {
	d := copyManifest(t)
	d.AllowPatchDrift = true
	d.rewrite(t, otherPatch)
	done := d.register(t)
	require.True(t, slices.ContainsFunc(done.Warnings, func(f manifest.Diagnostic) bool { return f.Code == "C021" }), "warnings %v, want C021", done.Warnings)
}

// TestRegisterRefusals: what is wrong is told with its place and an exit code, and
// nothing is written.
func TestRegisterRefusals(t *testing.T) {
	rewritten := func(change func(*trace.Trace)) func(*testing.T, *manifestCopy) {
		return func(t *testing.T, d *manifestCopy) { d.rewrite(t, change) }
	}
	captured := func(change func([]byte) []byte) func(*testing.T, *manifestCopy) {
		return func(t *testing.T, d *manifestCopy) { writeTo(t, d.Trace, change(bytes.Clone(d.capture.data))) }
	}
	lined := func(change func([]string) []string) func(*testing.T, *manifestCopy) {
		return func(t *testing.T, d *manifestCopy) {
			d.Trace = strings.TrimSuffix(d.Trace, ".gz")
			lines := strings.SplitAfter(strings.TrimSuffix(string(inflated(t, d.capture.data)), "\n"), "\n")
			lines[len(lines)-1] += "\n"
			writeTo(t, d.Trace, []byte(strings.Join(change(lines), "")))
		}
	}
	inManifest := func(old, with string) func(*testing.T, *manifestCopy) {
		return func(t *testing.T, d *manifestCopy) {
			text, err := os.ReadFile(d.Manifest)
			if err != nil || !strings.Contains(string(text), old) {
				t.Fatalf("no %q in the manifest, %v", old, err)
			}
			writeTo(t, d.Manifest, []byte(strings.Replace(string(text), old, with, 1)))
		}
	}
	tests := []struct {
		name   string
		damage func(*testing.T, *manifestCopy)
		code   int
		says   []string
	}{
		{"unknown line", func(_ *testing.T, d *manifestCopy) { d.Line = "0.99" }, ExitUsage, []string{`has no line "0.99": it has nightly, `}},
		{"unknown role", func(_ *testing.T, d *manifestCopy) { d.Role = "timing" }, ExitUsage, []string{`role "timing" cannot be registered: want fidelity, schema, wire, frames or nixl`}},
		{"no id", func(_ *testing.T, d *manifestCopy) { d.ID = "" }, ExitUsage, []string{"the golden has no id"}},
		{"bad id", func(_ *testing.T, d *manifestCopy) { d.ID = "a/b" }, ExitUsage, []string{"M022", `id "a/b" cannot name a golden`}},
		{"no trace", func(_ *testing.T, d *manifestCopy) { d.Trace += "none.jsonl" }, ExitUsage, []string{"trace: ", "none.jsonl"}},
		{"other kind of file", func(_ *testing.T, d *manifestCopy) { d.Trace += ".txt" }, ExitUsage, []string{"want a file that ends in .jsonl or .jsonl.gz"}},
		{
			"a folder", func(t *testing.T, d *manifestCopy) {
				writeTo(t, filepath.Join(d.Goldens, "a.jsonl", "b"), nil)
				d.Trace = filepath.Join(d.Goldens, "a.jsonl")
			},
			ExitUsage,
			[]string{"not a regular file"},
		},

		{"truncated", captured(func(data []byte) []byte { return data[:len(data)-4] }), ExitFail, []string{"run.jsonl.gz: line ", "gzip stream ends without its trailer"}},
		{"no meta line", lined(func(lines []string) []string { return lines[1:] }), ExitFail, []string{"run.jsonl: line 1: no meta line", "vllm-vcr record"}},
		{"no records", lined(func(lines []string) []string { return lines[:1] }), ExitFail, []string{"there is nothing to replay: record with --record-tokens"}},
		{
			"a token left out", lined(func(lines []string) []string {
				lines[1] = strings.Replace(lines[1], `"output_token_ids":[`, `"output_token_ids":[7,`, 1)
				return lines
			}), ExitFail, []string{"run.jsonl: line 2: output_token_ids: want ", "as in output_tokens"},
		},
		{
			"no tokens", rewritten(func(tr *trace.Trace) {
				for i := range tr.Records {
					tr.Records[i].OutputTokenIDs = nil
				}
			}), ExitFail, []string{"nothing to replay: record with --record-tokens"},
		},
		{
			"an aborted request", rewritten(func(tr *trace.Trace) { tr.Records[1].FinishReason = trace.FinishAbort }),
			ExitFail,
			[]string{"run.jsonl.gz: line 3: the engine aborted the request", "record without aborted requests"},
		},

		{"no version", rewritten(func(tr *trace.Trace) { tr.Meta.VLLMVersion = nil }), ExitFail, []string{"meta.vllm_version is missing"}},
		{"other line", rewritten(func(tr *trace.Trace) { tr.Meta.VLLMVersion = new("0.1.0") }), ExitFail, []string{`meta.vllm_version is "0.1.0", which is not of line `}},
		{"other patch release", rewritten(otherPatch), ExitFail, []string{"meta.vllm_version is ", " stands for line ", "capture that release, or allow patch drift"}},
		{"candidate", rewritten(func(tr *trace.Trace) { tr.Meta.VLLMVersion = new(*tr.Meta.VLLMVersion + "rc1") }), ExitFail, []string{" stands for line "}},
		{"other tag", rewritten(func(tr *trace.Trace) { tr.Meta.VLLMTag = new("v0.1.0") }), ExitFail, []string{`meta.vllm_tag is "v0.1.0", but line `, "record with --vllm-version "}},
		{"wrong hash", rewritten(func(tr *trace.Trace) { tr.Meta.ConfigHash = new("\n::error::") }), ExitFail, []string{`meta.config_hash is "\n::error::", but gpu, vllm_tag and engine_config of the same meta give `}},
		{
			"nothing about the engine", rewritten(func(tr *trace.Trace) {
				tr.Meta.GPU, tr.Meta.Model, tr.Meta.VLLMTag, tr.Meta.EngineConfig = nil, nil, nil, nil
			}),
			ExitFail,
			[]string{"meta.gpu is missing: record with --gpu", "\n", "meta.model is", "meta.vllm_tag is", "meta.engine_config is missing: record with --engine-config"},
		},
		{"no registration", rewritten(func(tr *trace.Trace) { tr.Meta.ReadyResponseHex = new("") }), ExitFail, []string{"meta.ready_response_hex is missing"}},
		{"registration not msgpack", rewritten(func(tr *trace.Trace) { tr.Meta.ReadyResponseHex = new("c1") }), ExitFail, []string{"meta.ready_response_hex is not a msgpack map"}},
		{
			"registration without what frontends require", rewritten(func(tr *trace.Trace) {
				b := pack.AppendMapHeader(nil, 1)
				b = pack.AppendString(pack.AppendString(b, "vllm_version"), *tr.Meta.VLLMVersion)
				tr.Meta.ReadyResponseHex = new(hex.EncodeToString(b))
			}), ExitFail, []string{"meta.ready_response_hex has no max_model_len, which frontends of line "},
		},
		{"of our own player", rewritten(func(tr *trace.Trace) {
			codec, err := protocol.CodecFor("0.33")
			require.NoError(t, err)
			raw, _ := hex.DecodeString(*tr.Meta.ReadyResponseHex)
			ready, _ := protocol.DecodeReady(raw)
			ready.InstanceID = protocol.PlayerInstance + "1"
			tr.Meta.ReadyResponseHex = new(hex.EncodeToString(codec.AppendPlayerReady(nil, &ready)))
		}), ExitFail, []string{`begins with "vllm-vcr-", so it was the player of this project`, "put the recorder in front of one"}},
		{"registration of another engine", rewritten(func(tr *trace.Trace) {
			version := *tr.Meta.VLLMVersion
			otherPatch(tr)
			tr.Meta.VLLMVersion = &version
		}), ExitFail, []string{"in meta.ready_response_hex the engine says "}},
		{"no time", rewritten(func(tr *trace.Trace) {
			tr.Meta.Extra = map[string]json.RawMessage{"captured_at": json.RawMessage(`"now"`)}
		}), ExitFail, []string{`meta.captured_at is "now"`}},

		{"a player that says something else", func(_ *testing.T, d *manifestCopy) {
			d.engine = inRequest("replay-0", func(s *player.Script) { s.Tokens[0]++ })
		}, ExitFail, []string{"its replay is not green, so it is not registered: does not conform on "}},
		{"a player that cannot start", func(_ *testing.T, d *manifestCopy) {
			d.engine = func(player.Options) (Subject, error) { return nil, errors.New("no engine today") }
		}, ExitFail, []string{"its replay is not green"}},

		{"no manifest", func(t *testing.T, d *manifestCopy) { d.Manifest += ".none" }, ExitUsage, []string{"manifest: open ", ".none", "create an empty file"}},
		{"manifest that is no TOML", inManifest("[[golden]]", "[[golden]"), ExitUsage, []string{"M002"}},
		{"manifest with errors", inManifest("[[golden]]", "[[golden]]\nnope = 1"), ExitUsage, []string{`M003 error: unknown key "nope"`}},
		{"place taken by a file", func(t *testing.T, d *manifestCopy) {
			d.Goldens = filepath.Join(d.Goldens, d.golden.BucketPath)
		}, ExitInfra, []string{"publish to "}},
		{"other bytes in its place", func(t *testing.T, d *manifestCopy) {
			dry := d.Registration
			dry.DryRun = true
			done, err := Register(t.Context(), dry)
			require.NoError(t, err)
			writeTo(t, done.Location, []byte("other"))
		}, ExitInfra, []string{"already exists with other bytes", "nothing is ever overwritten"}},
		{"upload to the web", func(_ *testing.T, d *manifestCopy) { d.Upload = "https://host/dir" }, ExitUsage, []string{`upload to "https://host/dir": want s3://bucket`}},
		{"upload to a path", func(_ *testing.T, d *manifestCopy) { d.Upload = "dir" }, ExitUsage, []string{`upload to "dir": want `, "file:///dir"}},
		{"manifest that cannot be written", func(_ *testing.T, d *manifestCopy) {
			d.write = func(path string, _ []byte) error { return &fs.PathError{Op: "open", Path: path, Err: fs.ErrPermission} }
		}, ExitInfra, []string{"write the manifest: open ", "permission denied"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			d := copyManifest(t)
			test.damage(t, d)
			before := d.files(t)
			_, err := Register(t.Context(), d.Registration)
			wantRefusal(t, err, test.code, test.says...)
			require.True(t, !strings.Contains(err.Error(), "\n::"), "a command to the CI: %q", err)
			require.NoDiff(t, cmp.Diff(before, d.files(t)), "refused, but changed")
		})
	}
}

// A manifest that somebody edits while the capture is replayed is not overwritten.
func TestRegisterEditedMeanwhile(t *testing.T) {
	d := copyManifest(t)
	before := d.files(t)
	edited := before["manifest.toml"] + "# a colleague was here\n"
	d.Progress = func(Result) { writeTo(t, d.Manifest, []byte(edited)) }
	_, err := Register(t.Context(), d.Registration)
	wantRefusal(t, err, ExitInfra, "manifest.toml was edited while the capture was checked", "register again")
	before["manifest.toml"] = edited
	require.NoDiff(t, cmp.Diff(before, d.files(t)), "refused, but changed")
	d.Progress = nil
	d.register(t)
	require.True(t, strings.HasSuffix(d.files(t)["manifest.toml"], "# a colleague was here\n"), "the colleague's edit was lost")
}

func TestRegisterWithoutPermission(t *testing.T) {
	if os.Geteuid() == 0 || runtime.GOOS == "windows" {
		t.Skip("this user may write everywhere")
	}
	for _, dir := range []string{"goldens", "."} {
		d := copyManifest(t)
		if dir == "." { // the goldens are elsewhere
			d.Goldens = t.TempDir()
		}
		path := filepath.Join(filepath.Dir(d.Manifest), dir)
		require.NoError(t, os.Chmod(path, 0o500))
		t.Cleanup(func() { os.Chmod(path, 0o700) })
		before := d.files(t)
		_, err := Register(t.Context(), d.Registration)
		wantRefusal(t, err, ExitInfra, "permission denied")
		require.NoDiff(t, cmp.Diff(before, d.files(t)), "refused, but changed")
	}
}

func TestRegisterInterrupted(t *testing.T) {
	d := copyManifest(t)
	before := d.files(t)
	ctx, cancel := context.WithCancel(t.Context())
	d.Progress = func(Result) { cancel() }
	_, err := Register(ctx, d.Registration)
	wantRefusal(t, err, ExitInfra, "could not be judged")
	require.NoDiff(t, cmp.Diff(before, d.files(t)), "interrupted, but changed")
}

func TestPathSegment(t *testing.T) {
	for text, want := range map[string]string{
		"v0.33.0": "v0.33.0", "NVIDIA H200": "NVIDIA-H200", "..": "-", "": "-", "_x.y": "x.y", "a/b\\c?d#e:f": "a-b-c-d-e-f", "ü\n": "--",
	} {
		require.Equal(t, pathSegment(text), want, "%q became", text)
	}
}
