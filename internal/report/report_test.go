package report

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

var update = flag.Bool("update", false, "rewrite the files of testdata")

// nothing is the report of an empty plan.
func nothing() *conformance.Report {
	r := (&conformance.Runner{}).Run(context.Background(), nil)
	r.Duration = 0
	return r
}

// runs are the runs that every renderer is tried on.
func runs() map[string]*Document {
	documents := map[string]*Document{
		"passed": New(allPassed(), someRun()), "wrong": New(allSortsOfWrong(), someRun()), "nothing": New(nothing(), someRun()),
		"expectations": New(expectations(), someRun()), "suites": New(suites(), someRun()),
	}
	quiet := someRun()
	quiet.Deterministic = true
	documents["deterministic"] = New(allSortsOfWrong(), quiet)
	return documents
}

// renderers are all that write a document.
var renderers = []struct {
	name  string
	write func(io.Writer, *Document) error
}{
	{"txt", func(w io.Writer, d *Document) error { return Text(w, d, TextOptions{}) }},
	{"json", JSON},
	{"junit.xml", JUnit},
	{"sarif", SARIF},
	{"md", func(w io.Writer, d *Document) error { return Markdown(w, d, MarkdownLimit) }},
	{"html", HTML},
	{"annotations", func(w io.Writer, d *Document) error { return Annotate(w, d, AnnotationLimit) }},
}

func render(t *testing.T, write func(io.Writer, *Document) error, d *Document) []byte {
	t.Helper()
	var b bytes.Buffer
	require.NoError(t, write(&b, d))
	return b.Bytes()
}

func TestRenderers(t *testing.T) {
	for name, d := range runs() {
		for _, r := range renderers {
			t.Run(name+"/"+r.name, func(t *testing.T) {
				got := render(t, r.write, d)
				shown := got
				if r.name == "html" {
					shown = withoutScript(t, got) // a new style is not another report
				}
				golden(t, name+"."+r.name+".golden", shown)
				if again := render(t, r.write, d); !bytes.Equal(got, again) {
					t.Error("a second rendering is another")
				}
			})
		}
	}
}

// TestColour: colours change nothing but colours.
func TestColour(t *testing.T) {
	d := New(allSortsOfWrong(), someRun())
	coloured := string(render(t, func(w io.Writer, d *Document) error { return Text(w, d, TextOptions{Colour: true}) }, d))
	for _, want := range []string{"\x1b[31m1 of 2 failed, 1 error\x1b[0m", "\x1b[32mpass\x1b[0m", "\x1b[2mskip\x1b[0m", "\x1b[1mFIDELITY\x1b[0m", "\x1b[31mFAIL 0.33/"} {
		require.Contains(t, coloured, want)
	}
	for _, code := range []string{"31", "32", "33", "2", "1", "0"} {
		coloured = strings.ReplaceAll(coloured, "\x1b["+code+"m", "")
	}
	require.NoDiff(t, cmp.Diff(string(render(t, renderers[0].write, d)), coloured), "-plain +without colours")
}

// TestNoCommands: nothing that a renderer prints to a log is a command to GitHub's
// runner, but for the annotations, which are ours.
func TestNoCommands(t *testing.T) {
	for name, d := range runs() {
		for _, r := range []int{0, 6} {
			for line := range strings.Lines(string(render(t, renderers[r].write, d))) {
				command := strings.HasPrefix(strings.TrimSpace(line), "::")
				if ours := strings.HasPrefix(line, "::error ") || strings.HasPrefix(line, "::warning "); command && (r == 0 || !ours) {
					t.Errorf("%s: %s is a command: %q", name, renderers[r].name, line)
				}
				if strings.Contains(line, "##[") {
					t.Errorf("%s: %s has a command: %q", name, renderers[r].name, line)
				}
			}
		}
	}
}

// golden compares with a file of testdata, or rewrites it under -update.
func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		require.NoError(t, os.WriteFile(path, got, 0o644))
	}
	want, err := os.ReadFile(path)
	require.NoErrorf(t, err, "go test -update writes it")
	require.NoDiff(t, cmp.Diff(string(want), string(got)), "%s is another (go test -update rewrites it), -want +got", path)
}

// failingWriter takes so many bytes.
type failingWriter struct{ left int }

var errFull = errors.New("disk full")

func (w *failingWriter) Write(p []byte) (int, error) {
	if len(p) > w.left {
		return w.left, errFull
	}
	w.left -= len(p)
	return len(p), nil
}

func TestWriteErrors(t *testing.T) {
	d := New(allSortsOfWrong(), someRun())
	for _, r := range renderers {
		for _, left := range []int{0, 10, 200} {
			require.ErrorIs(t, r.write(&failingWriter{left}, d), errFull)
		}
	}
}

func TestVerdict(t *testing.T) {
	tests := []struct {
		name string
		d    Document
		want string
	}{
		{
			"every verdict",
			Document{
				Verdict: conformance.Fail, Reason: "does not conform on 0.33", DurationMs: 1.5,
				Counts: Counts{
					conformance.Pass: 1, conformance.Fail: 2, conformance.Error: 3, conformance.XPass: 4,
					conformance.XFail: 5, conformance.Flaky: 6, conformance.Skip: 7,
				},
			},
			"FAIL: does not conform on 0.33: 1 passed, 2 failed, 3 errors, 4 passed unexpectedly, 5 failed as expected, 6 flaky, 7 skipped; 0 tokens compared in 2ms",
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if got := Verdict(&test.d); got != test.want {
				t.Errorf("got  %q\nwant %q", got, test.want)
			}
		})
	}
}
