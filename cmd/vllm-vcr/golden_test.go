package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	vcr "github.com/vllm-vcr/conformance"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/manifest"
	"github.com/vllm-vcr/conformance/trace"
)

// manifestFixture is a copy of the shipped manifest without its first fidelity
// golden, and that golden as the tap would have written it.
type manifestFixture struct {
	dir, trace, manifest, goldens string
	golden                        manifest.Golden
}

func newManifestFixture(t *testing.T, change func(*trace.Trace)) *manifestFixture {
	t.Helper()
	dir := t.TempDir()
	f := &manifestFixture{
		dir: dir, trace: filepath.Join(dir, "run.jsonl.gz"),
		manifest: filepath.Join(dir, "manifest.toml"), goldens: filepath.Join(dir, "goldens"),
	}
	text, err := os.ReadFile(filepath.Join("..", "..", vcr.ManifestPath))
	require.NoError(t, err)
	editor, err := manifest.NewEditor(vcr.ManifestPath, text, nil)
	require.NoError(t, err)
	all := editor.Manifest().Goldens
	f.golden = all[slices.IndexFunc(all, func(g manifest.Golden) bool { return g.Role == manifest.Fidelity })]
	require.NoError(t, editor.Remove(f.golden.Line, f.golden.ID))
	require.NoError(t, os.WriteFile(f.manifest, editor.Bytes(), 0o644))
	recorded, err := trace.Read(f.golden.Location("", filepath.Join("..", "..", vcr.GoldensPath)), trace.Options{Strict: true})
	require.NoError(t, err)
	if change != nil {
		change(recorded)
	}
	var b bytes.Buffer
	w, err := trace.NewWriter(&b, true, recorded.Meta)
	for i := range recorded.Records {
		if err == nil {
			err = w.Write(&recorded.Records[i])
		}
	}
	if err == nil {
		err = w.Close()
	}
	if err == nil {
		err = os.WriteFile(f.trace, b.Bytes(), 0o644)
	}
	require.NoError(t, err)
	return f
}

// add runs golden add for the fixture.
func (f *manifestFixture) add(more ...string) (code int, stdout, stderr string) {
	args := append([]string{
		"golden", "add", "--trace", f.trace, "--line", f.golden.Line, "--id", f.golden.ID, "--manifest", f.manifest,
		"--goldens", f.goldens, "--compat", filepath.Join("..", "..", vcr.CompatPath),
	}, more...)
	return runApp(args...)
}

func runApp(args ...string) (code int, stdout, stderr string) {
	var out, errs strings.Builder
	code = newEnvironment(&out, &errs, func(string) (string, bool) { return "", false }).main(context.Background(), args)
	return code, out.String(), errs.String()
}

func wantLines(t *testing.T, text string, patterns ...string) {
	t.Helper()
	for _, p := range patterns {
		require.True(t, regexp.MustCompile("(?m)^"+p+"$").MatchString(text), "no line is %s:\n%s", p, text)
	}
}

// A diffusion model commits 16 tokens at a time. Its recording is replayed token by token like any other.
func TestDiffusionReplays(t *testing.T) {
	run := filepath.Join(t.TempDir(), "run.jsonl")
	for _, args := range [][]string{
		{
			"record", "--from-frames", "../../testdata/captures/0.33.0-diffusion.jsonl.gz", "--trace-out", run, "--record-tokens", "--record-prompts",
			"--vllm-version", "v0.33.0", "--gpu", "cpu", "--model", "tiny-diffusion", "--engine-config", "max_num_seqs=4",
		},
		{"golden", "add", "--dry-run", "--trace", run, "--line", "0.33", "--id", "diffusion-s1", "--scenario", "baseline", "--seed", "1", "--manifest", "../../conformance/manifest.toml"},
	} {
		code, stdout, stderr := runApp(args...)
		if code != 0 {
			t.Fatalf("%s: exit code %d\n%s%s", args[0], code, stdout, stderr)
		}
		if args[0] == "golden" {
			wantLines(t, stdout, "golden 0.33/diffusion-s1: .*", "checked: .*: 8 records, 8 streams, 464 tokens", "conform: PASS: .*; 928 tokens compared.*", ".*: not stored: .*", ".*: not edited: .*")
		}
	}
	read, err := trace.Read(run, trace.Options{})
	require.True(t, err == nil && slices.Contains(read.Records[0].ITLTokens, 16), "no block of 16 tokens in the first record: %v", err)
}

// What add registers is what conform then finds.
func TestGoldenAdd(t *testing.T) {
	f := newManifestFixture(t, nil)
	name := regexp.QuoteMeta(f.golden.Line + "/" + f.golden.ID)
	stored := `.*goldens.conformance/.*-[0-9a-f]{12}\.jsonl\.gz`
	for _, run := range []struct {
		args   []string
		stored string
		edited string
	}{
		{[]string{"--dry-run", "--seed", "0"}, "not stored: dry run", "not edited: dry run"},
		{[]string{"--seed", "0"}, "stored", "golden added"},
		{nil, "stored already", "has the golden already"},
		{[]string{"--scenario", "other"}, "stored already", "golden replaced"},
	} {
		code, stdout, stderr := f.add(run.args...)
		if code != 0 || strings.Contains(stderr, "error") {
			t.Fatalf("%q: exit code %d\n%s%s", run.args, code, stdout, stderr)
		}
		wantLines(t, stdout, "golden "+name+": fidelity of vLLM .* on .*", "checked: .*run.jsonl.gz: [0-9]+ records, [0-9]+ streams, [0-9]+ tokens",
			"conform: PASS: .*", filepath.ToSlash(stored)+": "+run.stored+", [0-9]+ bytes, sha256 [0-9a-f]{64}", ".*manifest.toml: "+run.edited)
	}
	m, _ := manifest.Load(f.manifest)
	at := slices.IndexFunc(m.Goldens, func(g manifest.Golden) bool { return g.Line == f.golden.Line && g.ID == f.golden.ID })
	require.True(t, at >= 0 && m.Goldens[at].Seed != nil && *m.Goldens[at].Seed == 0 && m.Goldens[at].Scenario == "other", "registered as %+v", m.Goldens)
	code, stdout, stderr := runApp("conform", "--compat", filepath.Join("..", "..", vcr.CompatPath), "--manifest", f.manifest,
		"--goldens", f.goldens, "--line", f.golden.Line, "--golden", f.golden.ID, "--enforce", "all")
	require.Equal(t, code, 0, "conform: exit code\n%s%s", stdout, stderr)
	if code, stdout, _ := runApp("golden", "list", "--manifest", f.manifest); code != 0 || !strings.Contains(stdout, m.Goldens[at].BucketPath) {
		t.Errorf("list: exit code %d\n%s", code, stdout)
	}
}
