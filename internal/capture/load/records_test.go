package load

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

func TestRecordsAreReadAgain(t *testing.T) {
	due, ttft := 1.5, 2.25
	want := []Record{
		{
			ID: "load-000001", Name: "burst 0, request 1", SentMs: 1.501, DueMs: &due, DurationMs: 9, Outcome: Completed, Status: 200,
			Choices: 1, TTFTMs: &ttft, ITLMs: []float64{1, 0.5}, PromptTokens: 5, CompletionTokens: 3, FinishReason: "length", StopText: true,
		},
		{ID: "load-000000", Name: "GET /x <\n", Outcome: Refused, Status: 404, Error: "status 404: no"},
	}
	for _, name := range []string{"r.jsonl", "r.jsonl.gz"} {
		t.Run(name, func(t *testing.T) {
			var b bytes.Buffer
			w := NewRecordWriter(&b, strings.HasSuffix(name, ".gz"))
			for _, rec := range want {
				require.NoError(t, w.Write(rec))
			}
			require.NoError(t, w.Close())
			got, err := ReadRecords(write(t, name, b.String()))
			if diff := cmp.Diff(want, got); diff != "" || err != nil {
				t.Errorf("%v (-want +got):\n%s", err, diff)
			}
			if _, err := ReadRecords(write(t, name, b.String()[:b.Len()-5])); err == nil {
				t.Error("a file that is cut off is read as if it were whole")
			}
		})
	}
	for text, part := range map[string]string{
		"{}\n":                                  ":1: no id or no outcome",
		`{"id":"load-1","outcome":"x"}` + "\n[": ":2: unexpected end of JSON input",
	} {
		if _, err := ReadRecords(write(t, "bad.jsonl", text)); err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("%q: got %v, want %s", text, err, part)
		}
	}
}

// Of every request there is a record of how it ended, those that were on their way at a failure among them.
func TestEachRequestIsRecorded(t *testing.T) {
	server := newServer(t)
	server.refuse = func(path string, body map[string]any) int {
		switch {
		case body["n"] != nil:
			return http.StatusBadRequest
		case path == "/is_paused":
			return http.StatusInternalServerError
		}
		return 0
	}
	of := map[Outcome][]Record{}
	cfg := config(server.URL, Edge, 1)
	cfg.Each = func(rec Record) error {
		of[rec.Outcome] = append(of[rec.Outcome], rec)
		return nil
	}
	report, err := Run(t.Context(), cfg)
	if err == nil {
		t.Fatal("no error of a call that fails")
	}
	if got, want := fmt.Sprint(len(of[Completed]), len(of[Aborted]), len(of[Refused]), len(of[Failed])),
		fmt.Sprint(report.Completed, 6, 2, 1); got != want {
		t.Errorf("%s completed, aborted, refused, failed; want %s", got, want)
	}
	if no := of[Refused][0]; no.Name != "n" || no.Status != 400 || no.Error != "status 400: I do not know that" {
		t.Errorf("refused: %+v", no)
	}
	if failed := of[Failed][0]; failed.Name != "GET /is_paused" || failed.Status != 500 || failed.Choices != 0 {
		t.Errorf("failed: %+v", failed)
	}
	for _, rec := range of[Completed] {
		i := slices.Index([]string{"stop strings", "include_stop_str_in_output", "chat, no limit"}, rec.Name)
		require.Equal(t, rec.StopText, i >= 0, "%s: stop text", rec.Name)
		require.True(t, rec.Name != "chat" || (*rec.TTFTMs > 0 && len(rec.ITLMs) == 3 && rec.FinishReason == "length" && rec.CompletionTokens == 3), "chat: %+v", rec)
		require.True(t, rec.Name != "chat, whole" || (rec.TTFTMs == nil && rec.ITLMs == nil && rec.FinishReason == "stop"), "in one piece: %+v", rec)
	}
}

// A record that cannot be written ends the load.
func TestRecordThatFails(t *testing.T) {
	server, full := newServer(t), errors.New("disk full")
	cfg := config(server.URL, Edge, 1)
	cfg.Each = func(Record) error { return full }
	report, err := Run(t.Context(), cfg)
	require.True(t, errors.Is(err, full) && err.Error() == "write down request load-000000: disk full" && report.Requests == 1, "got %v after %d requests", err, report.Requests)
}

// FuzzReadRecords: what is read once is written and read again as the same.
func FuzzReadRecords(f *testing.F) {
	f.Add([]byte(`{"id":"load-000001","outcome":"completed","itl_ms":[1,2]}` + "\n"))
	f.Add([]byte("{}\n[\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		first, err := ReadRecords(write(t, "r.jsonl", string(text)))
		if err != nil {
			return
		}
		var b bytes.Buffer
		w := NewRecordWriter(&b, false)
		for _, rec := range first {
			require.NoError(t, w.Write(rec))
		}
		require.NoError(t, w.Close())
		again, err := ReadRecords(write(t, "again.jsonl", b.String()))
		if diff := cmp.Diff(first, again, cmpopts.EquateEmpty()); diff != "" || err != nil {
			t.Errorf("%v (-first +again):\n%s", err, diff)
		}
	})
}
