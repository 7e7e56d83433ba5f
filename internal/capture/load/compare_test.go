package load

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/trace"
)

// seen is a completed request as its client sees it: 3 tokens after 10, 15 and 20 ms.
func seen(id int, change func(*Record)) Record {
	ttft := 10.0
	rec := Record{
		ID: fmt.Sprintf("load-%06d", id), Name: "n", Outcome: Completed, Status: 200, Choices: 1, DurationMs: 21,
		TTFTMs: &ttft, ITLMs: []float64{5, 5}, PromptTokens: 4, CompletionTokens: 3, FinishReason: "length",
	}
	if change != nil {
		change(&rec)
	}
	return rec
}

// recorded is a line of a trace: prompt and output tokens, time to the first token and between each two.
func recorded(id string, prompt, output int, ttft, gap float64, finish string) string {
	gaps := strings.TrimSuffix(strings.Repeat(fmt.Sprintf("%v,", gap), output-1), ",")
	return fmt.Sprintf(`{"prompt_tokens":%d,"output_tokens":%d,"ttft_ms":%v,"itl_ms":[%s],"finish_reason":%q,"request_id":%q}`+"\n",
		prompt, output, ttft, gaps, finish, id)
}

func TestCompare(t *testing.T) {
	same := recorded("cmpl-load-000001-1a2b3c4d", 4, 3, 9, 5, "length")
	tests := []struct {
		name    string
		records []Record
		trace   string
		want    []string // parts
	}{
		{name: "same", records: []Record{seen(1, nil)}, trace: same},
		{name: "of the Python server", records: []Record{seen(1, nil)}, trace: recorded("chatcmpl-load-000001-0-1a2b3c4d", 4, 3, 9, 5, "length")},
		{name: "a clock that is a little off", records: []Record{seen(1, nil)}, trace: recorded("cmpl-load-000001-1a2b3c4d", 4, 3, 14, 5, "length")},
		{name: "nothing", trace: ""},
		{name: "missing", records: []Record{seen(1, nil), seen(2, nil)}, trace: same, want: []string{"request load-000002 (n): completed, but the recorder has no record of it"}},
		{name: "extra", records: nil, trace: same, want: []string{"a.jsonl:1: request load-000001 is in the trace, but the client did not send a request with this id"}},
		{name: "nobody's", trace: recorded("cmpl-7", 4, 3, 9, 5, "length"), want: []string{`a.jsonl:1: request "cmpl-7" is in the trace, but the load generator sent no request with this id`}},
		{name: "fewer tokens", records: []Record{seen(1, nil)}, trace: recorded("load-000001", 4, 2, 9, 5, "length"), want: []string{"3 tokens came to the client, but a.jsonl:1 has 2"}},
		{name: "another prompt", records: []Record{seen(1, nil)}, trace: recorded("load-000001", 5, 3, 9, 5, "length"), want: []string{"the prompt has 4 tokens for the client, but 5 in a.jsonl:1"}},
		{name: "twice", records: []Record{seen(1, nil)}, trace: same + same, want: []string{"1 choices, but a.jsonl:1 and others have 2"}},
		{name: "too late", records: []Record{seen(1, nil)}, trace: recorded("load-000001", 4, 3, 15.1, 0, "length"), want: []string{"the first token came to the client after 10.0 ms, but passed the recorder after 15.1 ms, a.jsonl:1"}},
		{name: "too long", records: []Record{seen(1, nil)}, trace: recorded("load-000001", 4, 3, 9, 9, "length"), want: []string{"the client had all after 21.0 ms, but the last token passed the recorder after 27.0 ms, a.jsonl:1"}},
		{
			name:    "several choices",
			records: []Record{seen(1, func(r *Record) { r.Choices, r.CompletionTokens, r.TTFTMs, r.ITLMs = 2, 5, nil, nil })},
			trace:   recorded("load-000001-0", 4, 3, 9, 5, "length") + recorded("load-000001-1", 2, 2, 9, 5, "length"),
		},
		{
			name:    "aborted, refused, called",
			records: []Record{seen(1, func(r *Record) { r.Outcome = Aborted }), seen(2, func(r *Record) { r.Outcome = Refused }), seen(3, func(r *Record) { r.Choices = 0 })},
		},
		{name: "aborted and recorded", records: []Record{seen(1, func(r *Record) { r.Outcome, r.CompletionTokens = Aborted, 0 })}, trace: same},
		{name: "ended by the frontend", records: []Record{seen(1, func(r *Record) { r.StopText = true })}},
		{name: "which the engine did not hear", records: []Record{seen(1, func(r *Record) { r.StopText = true })}, trace: recorded("load-000001", 4, 9, 9, 5, "length")},
		{
			name:    "ended by the frontend, with tokens that never were",
			records: []Record{seen(1, func(r *Record) { r.StopText = true })}, trace: recorded("load-000001", 4, 2, 9, 5, "stop"),
			want: []string{"3 tokens came to the client, but a.jsonl:1 has 2"},
		},
		{
			name:    "failed",
			records: []Record{seen(1, func(r *Record) { r.Outcome, r.Error = Failed, "status 500" }), seen(2, func(r *Record) { r.Outcome, r.Error = Unfinished, "interrupt" })},
			want:    []string{"request load-000001 (n): failed: status 500", "request load-000002 (n): unfinished: interrupt"},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got, err := Compare(test.records, open(t, test.trace))
			if err != nil || len(got) != len(test.want) {
				t.Fatalf("got %q, %v; want %q", got, err, test.want)
			}
			for i, want := range test.want {
				if !strings.HasSuffix(got[i], want) {
					t.Errorf("got %q, want %q", got[i], want)
				}
			}
		})
	}
}

func open(t *testing.T, text string) *trace.Reader {
	t.Helper()
	r, err := trace.NewReader(strings.NewReader(text), "a.jsonl", false, trace.Options{KeepExtra: true})
	require.NoError(t, err)
	return r
}

// Of many findings the first are told, and how many there are.
func TestCompareIsBrief(t *testing.T) {
	var records []Record
	for i := range 50 {
		records = append(records, seen(i, nil))
	}
	got, err := Compare(records, open(t, ""), open(t, recorded("cmpl-load-000007-x", 4, 3, 9, 5, "length")))
	if err != nil || len(got) != 21 || got[20] != "and 29 more" {
		t.Errorf("%d findings, the last is %q, %v", len(got), got[len(got)-1], err)
	}
}

func TestCompareNeedsIDs(t *testing.T) {
	line := strings.Replace(recorded("x", 4, 3, 9, 5, "length"), "request_id", "id", 1)
	if _, err := Compare(nil, open(t, line)); err == nil || !strings.Contains(err.Error(), "a.jsonl:1: no request_id to compare by") {
		t.Errorf("got %v", err)
	}
	if _, err := Compare(nil, open(t, recorded("load-000001", 4, 3, 9, 5, "length")+"{")); err == nil {
		t.Error("half a line is no error")
	}
}

// What a finding quotes has no line of its own.
func TestFindingsAreLines(t *testing.T) {
	id, _ := json.Marshal("cmpl\n::error::x")
	line := strings.Replace(recorded("x", 4, 3, 9, 5, "length"), `"x"`, string(id), 1)
	got, err := Compare([]Record{seen(1, func(r *Record) { r.Name, r.Outcome, r.Error = "a\n::b", Failed, "c\n::d" })}, open(t, line))
	require.True(t, err == nil && len(got) == 2 && !strings.Contains(strings.Join(got, ""), "\n"), "got %q, %v", got, err)
	if diff := cmp.Diff(1, strings.Count(got[0], "cmpl")); diff != "" {
		t.Error(diff)
	}
}
