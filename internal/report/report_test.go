package report

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/manifest"
	"github.com/vllm-vcr/conformance/player"
)

var update = flag.Bool("update", false, "rewrite the files of testdata")

var (
	newest  = compat.Line{Name: "0.33", Tag: "v0.33.0", FidelityValidated: true}
	oldest  = compat.Line{Name: "0.27", Tag: "v0.27.1"}
	nightly = compat.Line{Name: "nightly", Tag: "nightly"}
)

// goldenCase is a case of a golden; fidelity ones replay by index, one at a time.
func goldenCase(line compat.Line, golden string, a conformance.Assertion) conformance.Case {
	c := conformance.Case{
		Line: line, Golden: manifest.Golden{ID: golden}, Assertion: a, Gating: line.FidelityValidated,
		Entry: "conformance/manifest.toml:14",
	}
	if a == conformance.Fidelity {
		c.Variant = conformance.Variant{Match: player.MatchIndex, Concurrency: 1}
	}
	return c
}

func passed(c conformance.Case, tokens int) conformance.Result {
	return conformance.Result{
		Case: c, Verdict: conformance.Pass, Asserted: 2, Tokens: tokens, Duration: 1500 * time.Microsecond,
		Location: "testdata/goldens/" + c.Golden.ID + ".jsonl.gz",
	}
}

func with(r conformance.Result, v conformance.Verdict, messages ...string) conformance.Result {
	r.Verdict = v
	for i, m := range messages {
		r.Failures = append(r.Failures, conformance.Failure{Request: i, Message: m})
	}
	return r
}

// allPassed is a run in which nothing is wrong.
func allPassed() *conformance.Report {
	r := &conformance.Report{
		Counts: map[conformance.Verdict]int{conformance.Skip: 1, conformance.Pass: 6}, Tokens: 3000,
		Duration: 1234567 * time.Microsecond, Verdict: conformance.Pass, Reason: "every gate holds",
		Lines: []conformance.LineSummary{
			{Line: nightly, Verdict: conformance.Skip, Vacuous: true, Counts: map[conformance.Verdict]int{conformance.Skip: 1}},
			{
				Line: newest, Gating: true, Goldens: 1, Verdict: conformance.Pass, Asserted: 12, Tokens: 3000,
				Counts: map[conformance.Verdict]int{conformance.Pass: 6},
			},
		},
	}
	r.Results = append(r.Results, conformance.Result{
		Case: conformance.Case{Line: nightly, Skip: "no goldens"}, Verdict: conformance.Skip, Note: "no goldens",
	})
	for _, a := range conformance.Assertions() {
		tokens := 0
		if a == conformance.Fidelity {
			tokens = 1500
		}
		r.Results = append(r.Results, passed(goldenCase(newest, "multiturn-s7", a), tokens))
	}
	second := passed(goldenCase(newest, "multiturn-s7", conformance.Fidelity), 1500)
	second.Case.Variant.Concurrency = 16
	r.Results = append(r.Results, second)
	return r
}

// allSortsOfWrong is a run with every verdict, on a line that gates and one that
// does not.
func allSortsOfWrong() *conformance.Report {
	r := &conformance.Report{
		Counts:   map[conformance.Verdict]int{conformance.Pass: 3, conformance.Fail: 3, conformance.Error: 2, conformance.Skip: 1},
		Duration: 20 * time.Millisecond, Tokens: 24, Verdict: conformance.Fail, ExitCode: conformance.ExitFail,
		Reason: "does not conform on 0.33 (red but not gating: 0.27)",
		Flags:  []string{"--manifest", "my manifest.toml", "--bucket", "s3://goldens/main"},
	}
	long := make([]string, 7)
	for i := range long {
		long[i] = fmt.Sprintf("request %d (line %d): token 3 differs: expected [1 2], got [1 3] (2 expected, 2 received)", i, i+2)
	}
	long[1] = "meta says \"\n::error::not ours\x1b[31m\"" // what a file says is not a command to the CI
	fidelity := with(passed(goldenCase(newest, "multiturn-s7", conformance.Fidelity), 24), conformance.Fail, long...)
	fidelity.Note = "tokens_sha256 is not pinned in the manifest: it is 00"
	schema := passed(goldenCase(newest, "multiturn-s7", conformance.Schema), 0)
	schema.Note = "not sent by the captured engine: max_loras"
	unfetched := with(passed(goldenCase(oldest, "multiturn-s13", conformance.Integrity), 0), conformance.Error, "golden x: no such file")
	unfetched.Location, unfetched.Case.Entry = "", ""
	unjudged := passed(goldenCase(oldest, "multiturn-s13", conformance.SameLine), 0)
	unjudged.Verdict, unjudged.Note = conformance.Skip, "not judged: see integrity"
	behind := with(passed(goldenCase(newest, "multiturn-s7", conformance.Fidelity), 0), conformance.Error, "vllm-rs: exit status 1")
	behind.Case.Variant = conformance.Variant{
		Match: player.MatchIndex, Concurrency: 16, Stream: true,
		Frontend: conformance.RealFrontend{Binary: "/opt/it's here/vllm-rs", ModelDir: "model"},
	}
	r.Results = []conformance.Result{
		passed(goldenCase(newest, "multiturn-s7", conformance.Integrity), 0),
		schema, fidelity, behind,
		with(passed(goldenCase(oldest, "multiturn-s7", conformance.Schema), 0), conformance.Fail, "ready response: x is missing"),
		unfetched, unjudged,
	}
	r.Lines = []conformance.LineSummary{{Line: newest, Gating: true, Verdict: conformance.Fail, Goldens: 1}}
	return r
}

// nothing is the report of an empty plan.
func nothing() *conformance.Report {
	r := (&conformance.Runner{}).Run(context.Background(), nil)
	r.Duration = 0
	return r
}

func TestRenderers(t *testing.T) {
	runs := []struct {
		name   string
		report *conformance.Report
	}{
		{"passed", allPassed()}, {"wrong", allSortsOfWrong()}, {"nothing", nothing()},
	}
	for _, run := range runs {
		t.Run(run.name, func(t *testing.T) {
			var text, doc bytes.Buffer
			if err := Text(&text, run.report); err != nil {
				t.Fatal(err)
			}
			if err := JSON(&doc, run.report); err != nil {
				t.Fatal(err)
			}
			golden(t, run.name+".txt.golden", text.Bytes())
			golden(t, run.name+".json.golden", doc.Bytes())
			if lines := bytes.Split(bytes.TrimSpace(text.Bytes()), []byte("\n")); string(lines[len(lines)-1]) != Verdict(run.report) {
				t.Errorf("the last line is %q, want the verdict %q", lines[len(lines)-1], Verdict(run.report))
			}
		})
	}
}

// golden compares with a file of testdata, or rewrites it under -update.
func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v: go test -update writes it", err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("%s is another (go test -update rewrites it), -want +got:\n%s", path, diff)
	}
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
	for _, left := range []int{0, 10, 500} {
		if err := Text(&failingWriter{left}, allSortsOfWrong()); !errors.Is(err, errFull) {
			t.Errorf("Text after %d bytes: %v, want %v", left, err, errFull)
		}
		if err := JSON(&failingWriter{left}, allSortsOfWrong()); !errors.Is(err, errFull) {
			t.Errorf("JSON after %d bytes: %v, want %v", left, err, errFull)
		}
	}
}

func TestVerdict(t *testing.T) {
	tests := []struct {
		name   string
		report conformance.Report
		want   string
	}{
		{
			"counts that are zero are left out",
			conformance.Report{Verdict: conformance.Pass, Reason: "every gate holds", Tokens: 7, Counts: map[conformance.Verdict]int{conformance.Pass: 2}, Duration: time.Second},
			"PASS: every gate holds: 2 passed; 7 tokens compared in 1s",
		},
		{
			"passes are always said",
			conformance.Report{Verdict: conformance.Error, Reason: "asserted nothing on 0.33", Counts: map[conformance.Verdict]int{conformance.Skip: 1}},
			"ERROR: asserted nothing on 0.33: 0 passed, 1 skipped; 0 tokens compared in 0s",
		},
		{
			"one error",
			conformance.Report{Verdict: conformance.Error, Reason: "could not be judged on 0.33", Counts: map[conformance.Verdict]int{conformance.Error: 1}},
			"ERROR: could not be judged on 0.33: 0 passed, 1 error; 0 tokens compared in 0s",
		},
		{
			"all of them, rounded",
			conformance.Report{
				Verdict: conformance.Fail, Reason: "does not conform on 0.33", Duration: 1234567 * time.Nanosecond,
				Counts: map[conformance.Verdict]int{conformance.Pass: 1, conformance.Fail: 2, conformance.Error: 3, conformance.Skip: 4},
			},
			"FAIL: does not conform on 0.33: 1 passed, 2 failed, 3 errors, 4 skipped; 0 tokens compared in 1ms",
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if got := Verdict(&test.report); got != test.want {
				t.Errorf("got  %s\nwant %s", got, test.want)
			}
		})
	}
}

func TestCell(t *testing.T) {
	of := func(verdicts ...conformance.Verdict) (results []conformance.Result) {
		for _, v := range verdicts {
			results = append(results, conformance.Result{Verdict: v})
		}
		return results
	}
	const pass, fail, errs, skip = conformance.Pass, conformance.Fail, conformance.Error, conformance.Skip
	tests := []struct {
		name    string
		results []conformance.Result
		want    string
	}{
		{"none", nil, "-"},
		{"one", of(pass), "pass"},
		{"one failed", of(fail), "FAIL"},
		{"one error", of(errs), "ERROR"},
		{"one skipped", of(skip), "skip"},
		{"all", of(pass, pass), "pass 2/2"},
		{"some skipped", of(pass, skip), "pass 1/2"},
		{"failures weigh more than errors", of(pass, errs, fail, errs), "FAIL 1/4"},
		{"errors weigh more than passes", of(pass, errs, pass), "ERROR 1/3"},
		{"all skipped", of(skip, skip), "skip 2/2"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if got := cell(test.results); got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

func TestQuote(t *testing.T) {
	tests := []struct{ name, arg, want string }{
		{"plain", "s3://bucket/a_b-c.d:1,2@3=4+5%6", "s3://bucket/a_b-c.d:1,2@3=4+5%6"},
		{"empty", "", "''"},
		{"space", "a b", "'a b'"},
		{"quote", "it's", `'it'\''s'`},
		{"expansion", "$(id)", "'$(id)'"},
		{"home", "~/x", "'~/x'"},
		{"line feed", "a\nb", "'a\nb'"},
		{"inner", "a;b", "'a;b'"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if got := quote(test.arg); got != test.want {
				t.Errorf("got %s, want %s", got, test.want)
			}
		})
	}
}
