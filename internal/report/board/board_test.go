package board_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/report"
	"github.com/vllm-vcr/conformance/internal/report/board"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// write writes the report of a run that began on a day, with core passed or failed.
func write(t *testing.T, dir, subject, day string, core check.LevelVerdict) {
	t.Helper()
	started, err := time.Parse(time.DateOnly, day)
	require.NoError(t, err)
	verdict, failures := conformance.Pass, []conformance.Failure(nil)
	if core == check.LevelFail {
		verdict = conformance.Fail
		failures = []conformance.Failure{{Code: "E001", Level: check.LevelCore, Consequence: check.RequestsFail, Message: "no <answer>", Request: -1, Position: -1, Frame: -1}}
	}
	r := &conformance.Report{}
	c := conformance.Case{Suite: conformance.SuiteLive, Assertion: "stream", Gating: true}
	c.Line.Name = "0.33"
	r.Results = []conformance.Result{{Case: c, Verdict: verdict}}
	r.Results[0].Failures, r.Results[0].Asserted = failures, 1
	r.Summary = check.Summary{
		Verdict: verdict, Counts: check.Counts{verdict: 1},
		Lines:  []check.LineSummary{{Line: "0.33", Gating: true, Verdict: verdict, Counts: check.Counts{verdict: 1}, Asserted: 1}},
		Levels: []check.LevelSummary{{Line: "0.33", Level: check.LevelCore, Verdict: core}},
	}
	if core == check.LevelFail {
		r.ExitCode = conformance.ExitFail
		r.Levels[0].Code, r.Levels[0].Message = "E001", "no <answer>"
	}
	doc := report.New(r, report.Meta{Tool: report.Tool{Name: "vllm-vcr", Version: "1"}, Started: started, Origin: &report.Origin{Repository: "o/" + subject, Commit: "0123"}})
	require.NoError(t, os.MkdirAll(filepath.Join(dir, subject), 0o755))
	file, err := os.Create(filepath.Join(dir, subject, day+".json"))
	require.NoError(t, err)
	require.NoError(t, report.JSON(file, doc))
	require.NoError(t, file.Close())
}

// The newest report of a subject decides its row, the older ones since when, and what changed.
func TestBoard(t *testing.T) {
	dir, site := t.TempDir(), t.TempDir()
	write(t, dir, "engine", "2026-11-01", check.LevelPass)
	write(t, dir, "engine", "2026-11-02", check.LevelFail)
	write(t, dir, "engine", "2026-11-03", check.LevelFail)
	write(t, dir, "other", "2026-11-01", check.LevelPass)
	b, err := board.Read([]string{dir})
	require.NoError(t, err)
	require.NoError(t, b.Write(site, "https://board.example"))
	text, err := os.ReadFile(filepath.Join(site, "board.json"))
	require.NoError(t, err)
	var got board.Board
	require.NoError(t, json.Unmarshal(text, &got))
	if len(got.Rows) != 2 || got.Rows[0].Subject != "engine" || got.Rows[0].Cells[0].Since.Format(time.DateOnly) != "2026-11-02" || got.Rows[1].Cells[0].Verdict != check.LevelPass {
		t.Errorf("rows %+v", got.Rows)
	}
	require.True(t, len(got.Changes) == 1 && got.Changes[0].String() == "engine, vLLM 0.33, core: fail, before pass: no <answer>", "changes %v", got.Changes)
	for name, want := range map[string]string{
		"index.html":               `<a href="reports/engine-0.33.html">fail E001</a><small>since 2026-11-02</small>`,
		"feed.xml":                 "<link>https://board.example/reports/engine-0.33.html</link>",
		"badges/engine-0.33.json":  `"message": "1 failed"`,
		"reports/engine-0.33.html": "E001",
		"reports/other-0.33.html":  "<!doctype html>",
	} {
		text, err := os.ReadFile(filepath.Join(site, name))
		require.NoError(t, err)
		if !strings.Contains(strings.ToLower(string(text)), strings.ToLower(want)) || strings.Contains(string(text), "no <answer>") {
			t.Errorf("%s does not have %q, or a text that is not escaped", name, want)
		}
	}
	if _, err := board.Read([]string{site}); err == nil || !strings.Contains(err.Error(), "is not a report") {
		t.Errorf("got %v, want an error that names what is not a report", err)
	}
	if _, err := board.Read([]string{t.TempDir()}); err == nil {
		t.Error("no error for a folder without reports")
	}
}
