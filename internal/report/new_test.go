package report

import (
	"bytes"
	"regexp"
	"testing"
	"time"

	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// TestDeterministic: documents of equal runs are equal, wherever and whenever they
// ran, in every format.
func TestDeterministic(t *testing.T) {
	run := func(temp, host, port string, took time.Duration) *Document {
		r := allSortsOfWrong()
		for i := range r.Results {
			r.Results[i].Duration = took
		}
		r.Duration = took
		r.Results[2].Failures[0].Message = "dial tcp 127.0.0.1:" + port + " on " + host + ": " + temp + "/vllm-vcr-" + port + "/trace.jsonl:3: bad"
		r.Results[2].Location = temp + "/x" + port
		r.Results[2].Note = temp + "orary is another word"
		r.Subject = conformance.Description{Kind: "engine", Command: "engine --port localhost:" + port, Versions: map[string]string{"0.33": "on " + host}}
		r.Flags = []string{"--goldens", temp + "/" + port + "/goldens"}
		m := someRun()
		m.Deterministic, m.TempDir, m.Host = true, temp, host
		m.Started, m.OS, m.Arch = time.Now(), host, port
		m.Arguments = []string{"--bucket", temp + "/" + port}
		m.Inputs[0].Path = temp + "/" + port + "/compat.toml"
		return New(r, m)
	}
	a, b := run("/tmp", "one", "1111", time.Second), run("/tmp", "two", "2222", time.Minute)
	for _, r := range renderers {
		one, two := render(t, r.write, a), render(t, r.write, b)
		require.True(t, bytes.Equal(one, two), "%s differs", r.name)
		if found := regexp.MustCompile(`\b(1111|2222|one|two)\b|/tmp/|\d(ms|s)\b|2026-`).Find(one); found != nil && r.name != "html" {
			t.Errorf("%s has %q", r.name, found)
		}
	}
	c := a.Cases[2]
	if want := "dial tcp 127.0.0.1:* on HOST: $TMPDIR/trace.jsonl:3: bad"; c.Failures[0].Message != want {
		t.Errorf("%q, want %q", c.Failures[0].Message, want)
	}
	require.Equal(t, c.Note, "/tmporary is another word", "Note")
	require.Contains(t, c.Repeat, "TMPDIR/goldens")
}

func TestSecrets(t *testing.T) {
	r := allPassed()
	r.Flags = []string{"--bucket", "https://me:hunter2@example.org/x"}
	r.Results[1].Location = "s3://key:hunter2@bucket/x@y"
	m := someRun()
	m.Arguments = []string{"--goldens=https://hunter2@example.org"}
	d := New(r, m)
	for _, render := range renderers {
		var b bytes.Buffer
		require.NoError(t, render.write(&b, d))
		require.True(t, !bytes.Contains(b.Bytes(), []byte("hunter2")), "%s tells a password", render.name)
	}
	require.Equal(t, d.Cases[1].Location, "s3://***@bucket/x@y", "Location")
}

// TestNewLeavesReport: a report may be made into a document twice.
func TestNewLeavesReport(t *testing.T) {
	r := allSortsOfWrong()
	r.Results[2].Failures[0].Message = "at localhost:1"
	m := someRun()
	m.Deterministic = true
	New(r, m)
	if got := r.Results[2].Failures[0].Message; got != "at localhost:1" || m.Arguments[0] != "vllm-vcr" {
		t.Errorf("the report has become %q", got)
	}
}

func TestPlace(t *testing.T) {
	tests := []struct {
		name, root, dir, matrix, entry, file string
		line                                 int
	}{
		{"below the root", "/r", "/r", "", "conformance/manifest.toml:14", "conformance/manifest.toml", 14},
		{"from a folder", "/r", "/r/a/b", "", "../m.toml:1", "a/m.toml", 1},
		{"absolute", "/r", "/x", "", "/r/a/m.toml:2", "a/m.toml", 2},
		{"with a colon", "/r", "/r", "", "a:b.toml:3", "a:b.toml", 3},
		{"without a line", "/r", "/r", "", "m.toml", "m.toml", 0},
		{"another tree", "/r", "/x", "", "m.toml:14", "", 0},
		{"above the root", "/r/a", "/r/a", "", "../m.toml:14", "", 0},
		{"in the binary", "/r", "/r", "", "(embedded) conformance/manifest.toml:14", "", 0},
		{"no repository", "", "/r", "", "m.toml:14", "", 0},
		{"the line of the matrix", "/r", "/r", "compat.toml", "", "compat.toml", 12},
		{"nothing", "/r", "/r", "", "", "", 0},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			m := Meta{Root: test.root, Dir: test.dir, Matrix: test.matrix}
			file, line := m.place(conformance.Case{Line: newest, Entry: test.entry})
			require.True(t, file == test.file && line == test.line, "%q %d, want %q %d", file, line, test.file, test.line)
		})
	}
}

func TestRepeat(t *testing.T) {
	c := goldenCase(newest, "multiturn-s7", conformance.Fidelity)
	if got, want := Repeat(c, "--enforce", "all"), "vllm-vcr conform --enforce all --run 0.33/multiturn-s7/fidelity-index-1"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	c.Suite, c.Assertion = conformance.SuiteSelfTest, "token-dropped"
	if got, want := Repeat(c), "vllm-vcr conform --self-test --run 0.33/self-test/token-dropped"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	for arg, want := range map[string]string{"": "''", "a b": "'a b'", "it's": `'it'\''s'`, "$x": "'$x'", "0.33/a": "0.33/a"} {
		require.Equal(t, quote(arg), want, "quote(%q)", arg)
	}
}
