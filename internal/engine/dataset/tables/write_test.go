package tables

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/parquet-go/parquet-go"

	"github.com/vllm-vcr/conformance/internal/engine/dataset"
	"github.com/vllm-vcr/conformance/internal/inspect"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/trace"
)

// lake has traces as partitions, written by the program.
func lake(t *testing.T, traces map[string]*trace.Trace) string {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	t.Setenv(asProgram, "1")
	dir := t.TempDir()
	for name, tr := range traces {
		folder := filepath.Join(dir, "lake", "requests", "trace="+name)
		require.NoError(t, os.MkdirAll(folder, 0o755))
		require.NoError(t, dataset.WriteParquetBy(t.Context(), self, "requests", filepath.Join(folder, "part-0.parquet"), func(w io.Writer) error {
			tw, err := trace.NewWriter(w, false, tr.Meta)
			for i := range tr.Records {
				err = cmp.Or(err, tw.Gather(&tr.Records[i]))
			}
			return cmp.Or(err, tw.Close())
		}))
	}
	return dir
}

func demo(t *testing.T, seed uint64) *trace.Trace {
	t.Helper()
	tr, err := inspect.Demo(inspect.DemoOptions{Requests: 300, Seed: seed})
	require.NoError(t, err)
	return tr
}

func TestWriteParquet(t *testing.T) {
	at := 5.0
	tr := &trace.Trace{Records: []trace.Record{
		{PromptTokens: 7, OutputTokens: 3, TTFTMs: 10, ITLMs: []float64{1, 2}, Concurrency: 2, ArrivalMs: &at, Extra: map[string]json.RawMessage{"queue_ms": json.RawMessage("1.5")}},
		{PromptTokens: 8, OutputTokens: 0, FinishReason: trace.FinishAbsent, Concurrency: 1},
		{PromptTokens: 9, OutputTokens: 3, TTFTMs: 4, ITLSummary: &trace.ITLSummary{MeanMs: 3, Count: 2}, FinishReason: trace.FinishAbsent, Concurrency: 1},
	}}
	dir := lake(t, map[string]*trace.Trace{"a": tr})
	rows, err := parquet.ReadFile[requestRow](filepath.Join(dir, "lake/requests/trace=a/part-0.parquet"))
	require.NoError(t, err)
	if len(rows) != 3 || *rows[0].E2EMs != 13 || *rows[0].TPOTMs != 1.5 || *rows[0].QueueMs != 1.5 || *rows[0].ArrivalMs != 5 || len(rows[0].ITLMs) != 2 ||
		rows[1].TTFTMs != nil || rows[1].ArrivalMs != nil || *rows[2].E2EMs != 10 || len(rows[2].ITLMs) != 0 || rows[2].Request != 2 {
		t.Errorf("%+v", rows)
	}
	steps := filepath.Join(dir, "steps.parquet")
	require.NoError(t, writeParquet("steps", steps, strings.NewReader(`{"ts_ms":1.5,"scheduler":{"num_running_reqs":3,"num_waiting_reqs":1,"kv_cache_usage":0.25}}`+"\n")))
	got, err := parquet.ReadFile[stepRow](steps)
	require.NoError(t, err)
	require.True(t, len(got) == 1 && got[0] == (stepRow{TsMs: 1.5, Running: 3, Waiting: 1, KVCacheUsage: 0.25}), "%+v", got)
	if err := writeParquet("steps", steps, strings.NewReader("")); !errors.Is(err, os.ErrExist) {
		t.Errorf("a file that is there: %v", err)
	}
	if err := writeParquet("requests", steps+"2", strings.NewReader("{\n")); err == nil {
		t.Error("a broken trace is no error")
	} else if _, err := os.Stat(steps + "2"); err == nil {
		t.Error("a broken trace leaves a file")
	}
}

// The SQL of the guide gives the figures of inspect summary.
func TestSQLOfGuide(t *testing.T) {
	python := cmp.Or(os.Getenv("VLLM_VCR_DUCKDB_PYTHON"), "python3")
	if err := exec.Command(python, "-c", "import duckdb").Run(); err != nil {
		t.Skip("needs a python with duckdb: pip install duckdb, and name it in VLLM_VCR_DUCKDB_PYTHON")
	}
	guide, err := os.ReadFile("../../../../docs/inspecting.md")
	require.NoError(t, err)
	var queries []string
	for _, block := range regexp.MustCompile("(?s)```sql\n(.*?)```").FindAllStringSubmatch(string(guide), -1) {
		queries = append(queries, block[1])
	}
	if len(queries) != 4 {
		t.Fatalf("%d queries in the guide", len(queries))
	}
	traces := map[string]*trace.Trace{"a": demo(t, 1), "b": demo(t, 2)}
	asked, err := json.Marshal(queries)
	require.NoError(t, err)
	cmd := exec.Command(python, "-c", `
import duckdb, json, sys
view, *queries = json.load(sys.stdin)
db = duckdb.connect()
db.execute(view)
print(json.dumps([db.execute(q).fetchall() for q in queries]))`)
	cmd.Dir, cmd.Stdin = lake(t, traces), strings.NewReader(string(asked))
	out, err := cmd.Output()
	require.NoError(t, err)
	var answers [3][][]any
	require.NoError(t, json.Unmarshal(out, &answers))
	equal := func(what string, got any, want float64) {
		t.Helper()
		if v, ok := got.(float64); !ok || math.Abs(v-want) > 2e-3*math.Abs(want) {
			t.Errorf("%s: %v in SQL, %v in the summary", what, got, want)
		}
	}
	summaries := map[string]inspect.Summary{"a": inspect.Summarize(traces["a"]), "b": inspect.Summarize(traces["b"])}
	for _, row := range answers[0] {
		s := summaries[row[0].(string)]
		d := map[string]inspect.Distribution{"ttft": s.TTFT, "itl": s.ITL, "tpot": s.TPOT, "e2e": s.E2E}[row[1].(string)]
		for i, want := range []float64{float64(d.Count), d.Mean, d.P50, d.P90, d.P99} {
			equal(fmt.Sprint(row[:2], i), row[2+i], want)
		}
	}
	require.Equal(t, len(answers[0]), 8, "figures")
	levels := 0
	for _, row := range answers[1] {
		for _, l := range summaries[row[0].(string)].Levels {
			if l.From == l.To && float64(l.From) == row[1].(float64) {
				levels++
				equal(fmt.Sprint(row[:2]), row[2], float64(l.Requests))
				equal(fmt.Sprint(row[:2]), row[3], l.TTFT.P50)
				equal(fmt.Sprint(row[:2]), row[5], l.E2E.P50)
			}
		}
	}
	require.True(t, levels != 0, "no level of concurrency was compared")
	equal("the change", answers[2][1][1], summaries["b"].TTFT.P50/summaries["a"].TTFT.P50-1)
}
