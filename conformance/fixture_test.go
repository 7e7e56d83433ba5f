package conformance

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/manifest"
	"github.com/vllm-vcr/conformance/player"
	"github.com/vllm-vcr/conformance/trace"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The repository's own files, from the folder that tests run in.
const (
	repoRoot     = ".."
	repoGoldens  = "../testdata/goldens"
	repoCaptures = "../testdata/captures"
)

// repositoryFiles are what the repository has, read once for all tests.
var repositoryFiles = sync.OnceValue(func() (files struct {
	matrix *compat.Matrix
	mf     *manifest.Manifest
	err    error
},
) {
	matrix, findings := compat.Load(filepath.Join(repoRoot, "compat.toml"))
	mf, more := manifest.Load("manifest.toml")
	files.matrix, files.mf = matrix, mf
	files.err = errorsOf(slices.Concat(findings, more, CheckInputs(matrix, mf)))
	return files
})

// repository is the compat matrix and the manifest of the repository. Their lists are the caller's own.
func repository(tb testing.TB) (*compat.Matrix, *manifest.Manifest) {
	tb.Helper()
	files := repositoryFiles()
	if files.err != nil {
		tb.Fatal(files.err)
	}
	matrix, mf := *files.matrix, *files.mf
	matrix.Lines, mf.Goldens = slices.Clone(matrix.Lines), slices.Clone(mf.Goldens)
	return &matrix, &mf
}

// subjectGolden is a golden that tests damage: its line, its registration and its
// bytes, all of them copies.
type subjectGolden struct {
	manifest.Golden
	line compat.Line
	data []byte
}

// usualGolden is what most tests damage: a trace of 0.33 that stays as it is when
// the goldens of the repository are captured anew, because tests know its records.
// Request 0 is on line 7, with 24 tokens in chunks of one.
func usualGolden(tb testing.TB) *subjectGolden {
	tb.Helper()
	return fixedGolden(tb, "0.33.0-multiturn-s7.trace.jsonl.gz", compat.Line{Name: "0.33", Tag: "v0.33.0", FidelityValidated: true}, manifest.Golden{
		SHA256:     "4ff18b971fa3a1a8e3194c65354227c692c91a5107af7d7b9ee92522805762f8",
		ConfigHash: "38d9474a790dfce6e1cb349c6ffe6076f82666c5c3cf09413a8489b55521155f",
		Size:       46535, Records: 180, Streams: 180, Tokens: 4648,
		TokensSHA256: "57c026a7a63b34982eb7cba48d2657a5cde663eb327a05aac2f940ab34b914c9",
	})
}

// usualArrivalDigest is the tokens_sha256 of the usual golden in older manifests, which says nothing of the prompts.
const usualArrivalDigest = "78641d4c831224333647c76f1bb8e37c963dbf63ebc0a149016c60adbfe47e6a"

// olderGolden is as fixed as the usual one, and of another line.
func olderGolden(tb testing.TB) *subjectGolden {
	tb.Helper()
	return fixedGolden(tb, "0.27.1-multiturn-s7.trace.jsonl.gz", compat.Line{Name: "0.27", Tag: "v0.27.1", FidelityValidated: true}, manifest.Golden{
		SHA256:     "74ba5ad50d55da2ce49e1e06e3d811c712476ae1660c204c0155877537b5f4e1",
		ConfigHash: "e6d6c33fcdb3fb37203a95beeea39e21fedb9468e86b400b34711713ff87270d",
		Size:       31743, Records: 180, Streams: 180, Tokens: 4639,
		TokensSHA256: "edb9f3a3a724388a61f7ff5dc18362381a5bb1fb58658549339eda9606573b4b", // in order of arrival, as in older manifests
	})
}

// fixedGolden completes the registration of a trace that is no golden of the
// repository, and reads it.
func fixedGolden(tb testing.TB, file string, line compat.Line, g manifest.Golden) *subjectGolden {
	tb.Helper()
	g.Line, g.ID, g.Workload, g.Role = line.Name, "multiturn-s7", "multiturn-s7", manifest.Fidelity
	g.BucketPath = "conformance/" + line.Tag + "/cpu/tiny/multiturn-s7.jsonl.gz"
	g.VLLMVersion, g.GPU, g.Model, g.Scenario, g.Seed = strings.TrimPrefix(line.Tag, "v"), "cpu", "tiny", "baseline", new(int64(7))
	g.EngineConfig = "block_size=128;dtype=float32;enable_prefix_caching=true;enforce_eager=true;load_format=dummy;" +
		"max_model_len=4096;max_num_seqs=64;model=tiny;speculative=none;tensor_parallel=1"
	data, err := os.ReadFile(filepath.Join(repoCaptures, file))
	require.NoError(tb, err)
	return &subjectGolden{Golden: g, line: line, data: data}
}

// goldenOf is a golden of the repository.
func goldenOf(tb testing.TB, line, id string) *subjectGolden {
	tb.Helper()
	matrix, mf := repository(tb)
	g := &subjectGolden{}
	g.line, _ = matrix.ByName(line)
	at := slices.IndexFunc(mf.Goldens, func(g manifest.Golden) bool { return g.Line == line && g.ID == id })
	if at < 0 {
		tb.Fatalf("the repository has no golden %s/%s", line, id)
	}
	g.Golden = mf.Goldens[at]
	var err error
	if g.data, err = os.ReadFile(filepath.Join(repoGoldens, g.BucketPath)); err != nil {
		tb.Fatal(err)
	}
	return g
}

// register makes the bytes the registered ones, so that integrity holds.
func (g *subjectGolden) register(data []byte) {
	sum := sha256.Sum256(data)
	g.data, g.SHA256, g.Size = data, hex.EncodeToString(sum[:]), int64(len(data))
}

// read decodes the bytes.
func (g *subjectGolden) read(tb testing.TB) *trace.Trace {
	tb.Helper()
	reader, err := trace.NewReader(bytes.NewReader(g.data), g.BucketPath, true, trace.Options{Strict: true, KeepExtra: true})
	require.NoError(tb, err)
	t, err := reader.ReadAll()
	require.NoError(tb, err)
	return t
}

// rewrite changes the trace, writes it anew with the writer of recordings and
// registers the bytes; what the manifest says of the content stays.
func (g *subjectGolden) rewrite(tb testing.TB, change func(*trace.Trace)) {
	tb.Helper()
	t := g.read(tb)
	change(t)
	var b bytes.Buffer
	w, err := trace.NewWriter(&b, true, t.Meta)
	for i := range t.Records {
		if err == nil {
			err = w.Write(&t.Records[i])
		}
	}
	if err == nil {
		err = w.Close()
	}
	require.NoError(tb, err)
	g.register(b.Bytes())
}

// editLine replaces text in a line of the inflated file, 1-based, that the
// writer would not write so, and registers the bytes.
func (g *subjectGolden) editLine(tb testing.TB, line int, old, with string) {
	tb.Helper()
	r, err := gzip.NewReader(bytes.NewReader(g.data))
	require.NoError(tb, err)
	text, err := io.ReadAll(r)
	require.NoError(tb, err)
	lines := strings.SplitAfter(string(text), "\n")
	if strings.Count(lines[line-1], old) != 1 {
		tb.Fatalf("line %d has %q %d times, want once", line, old, strings.Count(lines[line-1], old))
	}
	lines[line-1] = strings.Replace(lines[line-1], old, with, 1)
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := io.WriteString(w, strings.Join(lines, "")); err != nil {
		tb.Fatal(err)
	}
	require.NoError(tb, w.Close())
	g.register(b.Bytes())
}

// firstStream returns the record that is replayed as request 0.
func firstStream(t *trace.Trace) *trace.Record {
	return &t.Records[trace.ReplaySubset(t.Records)[0]]
}

// Fetch makes a golden its own store, which hands out whatever bytes it has.
func (g *subjectGolden) Fetch(context.Context, manifest.Golden) ([]byte, string, error) {
	return g.data, g.BucketPath, nil
}

// plan lists the cases of the golden alone, on a line that gates.
func (g *subjectGolden) plan(tb testing.TB, sel Selection) []Case {
	tb.Helper()
	matrix := &compat.Matrix{File: "compat.toml", Lines: []compat.Line{g.line}}
	mf := &manifest.Manifest{File: "manifest.toml", Goldens: []manifest.Golden{g.Golden}}
	cases, err := NewPlan(matrix, mf, sel)
	require.NoError(tb, err)
	return cases
}

// judged runs the selected cases of the golden by a runner that fetches it from g.
func (g *subjectGolden) judged(tb testing.TB, runner Runner, sel Selection) *Report {
	tb.Helper()
	runner.Store = g
	return runner.Run(tb.Context(), g.plan(tb, sel))
}

// run runs every case of the golden, but for the replays of one request at a time: what is wrong with a golden is so in all.
func (g *subjectGolden) run(tb testing.TB) *Report {
	tb.Helper()
	return g.judged(tb, Runner{}, Selection{Concurrency: []int{16}})
}

// oneByOne selects the replay of a golden by index, one request at a time: fidelity-index-1.
var oneByOne = Selection{Assertions: []Assertion{Fidelity}, Matches: []player.Match{player.MatchIndex}, Concurrency: []int{1}}

// endless are limits that only a test which hangs would reach.
var endless = Timeouts{Connect: never, Idle: never, Golden: never}

// outcome is what a test expects of the checks of one golden. Checks that it
// does not name pass.
type outcome struct {
	exit    int
	verdict map[string]Verdict
	// says has, by check, what its first failure or else its note contains.
	says map[string][]string
}

// fidelityChecks are the checks of the usual variants.
var fidelityChecks = []string{"fidelity-index-1", "fidelity-index-16", "fidelity-prefix-1", "fidelity-prefix-16"}

// onlyFidelity expects exactly the fidelity checks not to pass, and all of them
// to say the same.
func onlyFidelity(v Verdict, says ...string) outcome {
	o := outcome{exit: ExitFail, verdict: map[string]Verdict{}, says: map[string][]string{}}
	for _, check := range fidelityChecks {
		o.verdict[check], o.says[check] = v, says
	}
	return o
}

// judgedOnce expects one check to report, and those after it to refer to it.
func judgedOnce(exit int, check string, v Verdict, says ...string) outcome {
	o := outcome{exit: exit, verdict: map[string]Verdict{}, says: map[string][]string{check: says}}
	all := slices.Concat([]string{"integrity", "line", "provenance", "schema"}, fidelityChecks)
	for _, later := range all[slices.Index(all, check)+1:] {
		o.verdict[later], o.says[later] = Skip, []string{"not judged: see " + check}
	}
	o.verdict[check] = v
	return o
}

func (o outcome) check(t *testing.T, report *Report) {
	t.Helper()
	require.True(t, report.ExitCode == o.exit, "exit code %d (%s), want %d", report.ExitCode, report.Reason, o.exit)
	require.True(t, len(report.Results) != 0, "no results")
	for _, r := range report.Results {
		check := r.Case.Check()
		want, named := o.verdict[check]
		if !named {
			want = Pass
		}
		if r.Verdict != want {
			t.Errorf("%s: %s, want %s: %v %s", check, r.Verdict, want, r.Failures, r.Note)
			continue
		}
		for _, part := range o.says[check] {
			if got := saidBy(r); !strings.Contains(got, part) {
				t.Errorf("%s says %q, want it to contain %q", check, got, part)
			}
		}
		require.True(t, r.Verdict != Pass || r.Asserted != 0, "%s passes without having asserted anything", check)
	}
}

// saidBy is the first failure of a result, else its note.
func saidBy(r Result) string {
	if len(r.Failures) > 0 {
		return r.Failures[0].Message
	}
	return r.Note
}
