package trace

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// acceptCases is what readers in the field accept and refuse, one line
// each, read as the first line of a trace. reject is a piece of the error; ""
// means accepted.
var acceptCases = []struct{ name, line, reject string }{
	{"minimal", `{"prompt_tokens":10,"output_tokens":1,"ttft_ms":5}`, ""},
	{"fraction in a count", `{"prompt_tokens":10.0,"output_tokens":1,"ttft_ms":5}`, "prompt_tokens"},
	{"negative count", `{"prompt_tokens":-1,"output_tokens":1,"ttft_ms":5}`, "prompt_tokens"},
	{"no prompt_tokens", `{"output_tokens":1,"ttft_ms":5}`, "prompt_tokens: missing"},
	{"a line of a frames file", `{"t":1,"ch":"input0","dir":"f2e","frames":["AA=="]}`, "prompt_tokens: missing: this line has the raw frames of a message"},
	{"no output_tokens", `{"prompt_tokens":10,"ttft_ms":5}`, "output_tokens: missing"},
	{"no ttft_ms", `{"prompt_tokens":10,"output_tokens":1}`, "ttft_ms: missing"},
	{"ttft_ms null", `{"prompt_tokens":10,"output_tokens":1,"ttft_ms":null}`, "ttft_ms"},
	{"ttft_ms out of range", `{"prompt_tokens":10,"output_tokens":1,"ttft_ms":1e400}`, "ttft_ms: the number 1e400 does not fit"},
	{"no output", `{"prompt_tokens":10,"output_tokens":0,"ttft_ms":0.0}`, ""},
	{"negative ttft_ms", `{"prompt_tokens":10,"output_tokens":1,"ttft_ms":-5}`, ""},
	{"concurrency 0", `{"prompt_tokens":10,"output_tokens":1,"ttft_ms":5,"concurrency":0}`, ""},
	{"concurrency null", `{"prompt_tokens":10,"output_tokens":1,"ttft_ms":5,"concurrency":null}`, "concurrency"},
	{"finish_reason upper case", `{"prompt_tokens":10,"output_tokens":1,"ttft_ms":5,"finish_reason":"Stop"}`, "finish_reason"},
	{"itl_ms null, one token", `{"prompt_tokens":10,"output_tokens":1,"ttft_ms":5,"itl_ms":null}`, ""},
	{"itl_ms null, two tokens", `{"prompt_tokens":10,"output_tokens":2,"ttft_ms":5,"itl_ms":null}`, "itl_ms: missing"},
	{"no gaps, two tokens", `{"prompt_tokens":10,"output_tokens":2,"ttft_ms":5}`, "itl_ms: missing"},
	{"empty itl_ms, two tokens", `{"prompt_tokens":10,"output_tokens":2,"ttft_ms":5,"itl_ms":[]}`, ""},
	{"fewer gaps than tokens", `{"prompt_tokens":10,"output_tokens":9,"ttft_ms":5,"itl_ms":[1.0]}`, ""},
	{"more gaps than tokens", `{"prompt_tokens":10,"output_tokens":2,"ttft_ms":5,"itl_ms":[1,2,3]}`, ""},
	{"itl_tokens take all", `{"prompt_tokens":10,"output_tokens":2,"ttft_ms":5,"itl_ms":[1],"itl_tokens":[2]}`, "itl_tokens"},
	{"itl_tokens leave one", `{"prompt_tokens":10,"output_tokens":3,"ttft_ms":5,"itl_ms":[1],"itl_tokens":[2]}`, ""},
	{"itl_tokens zero", `{"prompt_tokens":10,"output_tokens":3,"ttft_ms":5,"itl_ms":[1],"itl_tokens":[0]}`, "itl_tokens"},
	{"itl_tokens too long", `{"prompt_tokens":10,"output_tokens":9,"ttft_ms":5,"itl_ms":[1],"itl_tokens":[1,1]}`, "itl_tokens"},
	{"itl_tokens without itl_ms", `{"prompt_tokens":10,"output_tokens":1,"ttft_ms":5,"itl_tokens":[1]}`, "itl_tokens"},
	{"empty itl_tokens", `{"prompt_tokens":10,"output_tokens":1,"ttft_ms":5,"itl_tokens":[]}`, ""},
	{"itl_summary", `{"prompt_tokens":10,"output_tokens":2,"ttft_ms":5,"itl_summary":{"mean_ms":3,"count":1}}`, ""},
	{"itl_summary without count", `{"prompt_tokens":10,"output_tokens":2,"ttft_ms":5,"itl_summary":{"mean_ms":3}}`, "itl_summary.count: missing"},
	{"itl_summary without mean", `{"prompt_tokens":10,"output_tokens":2,"ttft_ms":5,"itl_summary":{"count":3}}`, "itl_summary.mean_ms: missing"},
	{"itl_ctx without prefill", `{"prompt_tokens":10,"output_tokens":2,"ttft_ms":5,"itl_ms":[1],"itl_ctx":{"num_running":[1]}}`, "itl_ctx.prefill_tokens: missing"},
	{"itl_ctx too long", `{"prompt_tokens":10,"output_tokens":2,"ttft_ms":5,"itl_ms":[1],"itl_ctx":{"num_running":[1,2],"prefill_tokens":[0]}}`, "itl_ctx.num_running"},
	{"itl_ctx too short", `{"prompt_tokens":10,"output_tokens":2,"ttft_ms":5,"itl_ms":[1],"itl_ctx":{"num_running":[1],"prefill_tokens":[]}}`, "itl_ctx.prefill_tokens"},
	{"itl_ctx without itl_ms", `{"prompt_tokens":10,"output_tokens":1,"ttft_ms":5,"itl_ctx":{"num_running":[],"prefill_tokens":[]}}`, ""},
	{"largest hash", `{"prompt_tokens":10,"output_tokens":1,"ttft_ms":5,"block_hashes":[18446744073709551615]}`, ""},
	{"hash too large", `{"prompt_tokens":10,"output_tokens":1,"ttft_ms":5,"block_hashes":[18446744073709551616]}`, "block_hashes"},
	{"hash much too large", `{"prompt_tokens":10,"output_tokens":1,"ttft_ms":5,"block_hashes":[184467440737095516150]}`, "block_hashes"},
	{"hash too large, 1999…", `{"prompt_tokens":10,"output_tokens":1,"ttft_ms":5,"block_hashes":[19999999999999999999]}`, "block_hashes"},
	{"hash too large, 9999…", `{"prompt_tokens":10,"output_tokens":1,"ttft_ms":5,"block_hashes":[99999999999999999999]}`, "block_hashes"},
	{"hash too large, wraps to 1", `{"prompt_tokens":10,"output_tokens":1,"ttft_ms":5,"block_hashes":[36893488147419103233]}`, "block_hashes"},
	{"hash too large, wraps to 10^19", `{"prompt_tokens":10,"output_tokens":1,"ttft_ms":5,"block_hashes":[28446744073709551616]}`, "block_hashes"},
	{"largest token id", `{"prompt_tokens":10,"output_tokens":1,"ttft_ms":5,"output_token_ids":[4294967295]}`, ""},
	{"token id too large", `{"prompt_tokens":10,"output_tokens":1,"ttft_ms":5,"output_token_ids":[4294967296]}`, "output_token_ids"},
	{"too few ids", `{"prompt_tokens":10,"output_tokens":1,"ttft_ms":5,"output_token_ids":[]}`, "output_token_ids: want 1 entries as in output_tokens, got 0"},
	{"too many ids", `{"prompt_tokens":10,"output_tokens":1,"ttft_ms":5,"output_token_ids":[1,2]}`, "output_token_ids"},
	{"prompt ids", `{"prompt_tokens":2,"output_tokens":1,"ttft_ms":5,"prompt_token_ids":[7,8]}`, ""},
	{"too few prompt ids", `{"prompt_tokens":3,"output_tokens":1,"ttft_ms":5,"prompt_token_ids":[7,8]}`, "prompt_token_ids"},
	{"meta null", `{"meta":null}`, "meta"},
	{"meta, tp a string", `{"meta":{"tp":"2"}}`, "meta.tp"},
	{"meta, tp too large", `{"meta":{"tp":4294967296}}`, "meta.tp"},
	{"meta, model a number", `{"meta":{"model":2}}`, "meta.model"},
	{"meta, tp null and an extra", `{"meta":{"tp":null,"x":[1]}}`, ""},
	{"meta beside another key", `{"meta":{},"other":1}`, ""},
	{"meta beside a bad value", `{"meta":{},"other":x}`, "want a value"},
	{"empty object", `{}`, "prompt_tokens: missing"},
	{"null", `null`, "want an object"},
	{"array", `[1,2]`, "want an object"},
	{"two values", `{"prompt_tokens":10,"output_tokens":1,"ttft_ms":5}{"prompt_tokens":10,"output_tokens":1,"ttft_ms":5}`, "one JSON object a line"},
	{"byte order mark", "\ufeff" + `{"prompt_tokens":10,"output_tokens":1,"ttft_ms":5}`, "byte order mark"},
	{"cut line", `{"prompt_tokens":10,"output_tokens":1,"ttf`, "the line ends inside a string"},
	{"cut number", `{"prompt_tokens":10,"output_tokens":1,"ttft_ms":5`, "the end of the line"},
	{"gzip data", "\x1f\x8b\x08\x00", "a name ending in .gz"},

	// Our own rules where others have accidents, and strict JSON.
	{"known key twice", `{"prompt_tokens":10,"prompt_tokens":10,"output_tokens":1,"ttft_ms":5}`, "prompt_tokens: the key occurs twice"},
	{"known key twice, once escaped", `{"prompt_tokens":10,"prompt\u005ftokens":10,"output_tokens":1,"ttft_ms":5}`, "occurs twice"},
	{"nested key twice", `{"prompt_tokens":10,"output_tokens":2,"ttft_ms":5,"itl_summary":{"count":1,"mean_ms":1,"count":1}}`, "itl_summary.count: the key occurs twice"},
	{"meta twice", `{"meta":{},"meta":{}}`, "meta: the key occurs twice"},
	{"meta key twice", `{"meta":{"tp":1,"tp":1}}`, "meta.tp: the key occurs twice"},
	{"unknown key twice", `{"prompt_tokens":10,"output_tokens":1,"ttft_ms":5,"x":1,"x":2}`, ""},
	{"escaped key", `{"prompt\u005ftokens":10,"output_tokens":1,"ttft_ms":5}`, ""},
	{"key in another case is unknown", `{"Prompt_tokens":10,"output_tokens":1,"ttft_ms":5}`, "prompt_tokens: missing"},
	{"white space", "\t {\t\"prompt_tokens\" : 10 , \"output_tokens\":1\r,\"ttft_ms\" :5 } \r", ""},
	{"exponent in a count", `{"prompt_tokens":1e1,"output_tokens":1,"ttft_ms":5}`, "prompt_tokens"},
	{"count as a string", `{"prompt_tokens":"10","output_tokens":1,"ttft_ms":5}`, "prompt_tokens"},
	{"count beyond an int", `{"prompt_tokens":9223372036854775808,"output_tokens":1,"ttft_ms":5}`, "prompt_tokens"},
	{"leading zero", `{"prompt_tokens":010,"output_tokens":1,"ttft_ms":5}`, "must not start with 0"},
	{"leading zero in a float", `{"prompt_tokens":10,"output_tokens":1,"ttft_ms":05}`, "must not start with 0"},
	{"no digit after the point", `{"prompt_tokens":10,"output_tokens":1,"ttft_ms":5.}`, "after the point"},
	{"no digit before the point", `{"prompt_tokens":10,"output_tokens":1,"ttft_ms":.5}`, "ttft_ms"},
	{"plus sign", `{"prompt_tokens":10,"output_tokens":1,"ttft_ms":+5}`, "ttft_ms"},
	{"no exponent digits", `{"prompt_tokens":10,"output_tokens":1,"ttft_ms":5e}`, "exponent"},
	{"NaN", `{"prompt_tokens":10,"output_tokens":1,"ttft_ms":NaN}`, "ttft_ms"},
	{"infinity", `{"prompt_tokens":10,"output_tokens":1,"ttft_ms":-Infinity}`, "ttft_ms"},
	{"underflow is zero", `{"prompt_tokens":10,"output_tokens":1,"ttft_ms":1e-400}`, ""},
	{"cached_tokens null", `{"prompt_tokens":10,"output_tokens":1,"ttft_ms":5,"cached_tokens":null}`, "cached_tokens"},
	{"optional nulls", `{"prompt_tokens":10,"output_tokens":1,"ttft_ms":5,"itl_ms":null,"itl_tokens":null,"itl_summary":null,"arrival_ms":null,"itl_ctx":null,"block_hashes":null,"mm_hashes":null,"prompt_token_ids":null,"output_token_ids":null,"finish_reason":null}`, ""},
	{"null entry", `{"prompt_tokens":10,"output_tokens":2,"ttft_ms":5,"itl_ms":[null]}`, "itl_ms"},
	{"trailing comma", `{"prompt_tokens":10,"output_tokens":1,"ttft_ms":5,}`, "want a key"},
	{"trailing comma in an array", `{"prompt_tokens":10,"output_tokens":2,"ttft_ms":5,"itl_ms":[1,]}`, "itl_ms"},
	{"unclosed array", `{"prompt_tokens":10,"output_tokens":2,"ttft_ms":5,"itl_ms":[1`, "itl_ms"},
	{"no colon", `{"prompt_tokens" 10}`, "want ':'"},
	{"unknown key, bad literal", `{"prompt_tokens":10,"output_tokens":1,"ttft_ms":5,"x":tru}`, "want a value"},
	{"unknown key, bad escape", `{"prompt_tokens":10,"output_tokens":1,"ttft_ms":5,"x":"\q"}`, "invalid escape"},
	{"unknown key, bad \\u", `{"prompt_tokens":10,"output_tokens":1,"ttft_ms":5,"x":"\u12g4"}`, "invalid escape"},
	{"unknown key, control character", "{\"prompt_tokens\":10,\"output_tokens\":1,\"ttft_ms\":5,\"x\":\"\t\"}", "control character"},
	{"unknown key, last control character", "{\"prompt_tokens\":10,\"output_tokens\":1,\"ttft_ms\":5,\"x\":\"\x1f\"}", "control character"},
	{"unknown key, invalid UTF-8", "{\"prompt_tokens\":10,\"output_tokens\":1,\"ttft_ms\":5,\"x\":\"\xff\"}", "UTF-8"},
	{"unknown key, number out of range", `{"prompt_tokens":10,"output_tokens":1,"ttft_ms":5,"x":[-1e999]}`, "does not fit"},
	{"unknown key, any value", `{"prompt_tokens":10,"output_tokens":1,"ttft_ms":5,"x":{"y":[true,false,null,-1.5e+3,"a\"\\\/\b\f\n\r\té😀",{},[]]}}`, ""},
	{"finish_reason a number", `{"prompt_tokens":10,"output_tokens":1,"ttft_ms":5,"finish_reason":1}`, "finish_reason: want a string"},
	{"ended_by_frontend a number", `{"prompt_tokens":10,"output_tokens":1,"ttft_ms":5,"ended_by_frontend":1}`, "ended_by_frontend: want true or false"},
	{"clock a number", `{"prompt_tokens":10,"output_tokens":1,"ttft_ms":5,"engine_clock":1}`, "engine_clock: want a string"},
	{"tap times of other gaps", `{"prompt_tokens":10,"output_tokens":2,"ttft_ms":5,"itl_ms":[1],"tap_times":{"ttft_ms":1,"itl_ms":[]}}`, "tap_times.itl_ms: want 1 entries as in itl_ms, got 0"},
	{"tap times without gaps", `{"prompt_tokens":10,"output_tokens":1,"ttft_ms":5,"tap_times":{"ttft_ms":1}}`, "tap_times.itl_ms: missing"},
	{"error a string", `{"prompt_tokens":10,"output_tokens":1,"ttft_ms":5,"request_error":"no"}`, "request_error: want an object"},
	{"error with two codes", `{"prompt_tokens":10,"output_tokens":1,"ttft_ms":5,"request_error":{"code":"a","code":"b"}}`, "request_error.code: the key occurs twice"},
	{"float array an object", `{"prompt_tokens":10,"output_tokens":1,"ttft_ms":5,"itl_ms":{}}`, "itl_ms: want an array"},
	{"hash a number", `{"prompt_tokens":10,"output_tokens":1,"ttft_ms":5,"mm_hashes":[1]}`, "mm_hashes: want a string"},
	{"half a surrogate pair in a key", `{"\ud83d":1,"prompt_tokens":10,"output_tokens":1,"ttft_ms":5}`, "surrogate"},
	{"half a surrogate pair in a hash", `{"prompt_tokens":10,"output_tokens":1,"ttft_ms":5,"mm_hashes":["\ude00x"]}`, "surrogate"},
	{"nesting at the limit", `{"prompt_tokens":10,"output_tokens":1,"ttft_ms":5,"x":` + nested(maxDepth-1) + `}`, ""},
	{"nesting beyond the limit", `{"prompt_tokens":10,"output_tokens":1,"ttft_ms":5,"x":` + nested(maxDepth) + `}`, "nest deeper than 128"},
	{"nesting without end", `{"prompt_tokens":10,"output_tokens":1,"ttft_ms":5,"x":` + strings.Repeat(`[`, 1<<20), "nest deeper than 128"},
	{"nesting in a meta", `{"meta":{"x":` + strings.Repeat(`{"a":`, 1<<18), "nest deeper than 128"},
}

// nested is n arrays in each other.
func nested(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) }

func TestAcceptReject(t *testing.T) {
	for _, tt := range acceptCases {
		t.Run(tt.name, func(t *testing.T) {
			tr, err := readText(tt.line+"\n", Options{})
			if tt.reject == "" {
				require.NoErrorf(t, err, "refused")
				return
			}
			if err == nil {
				t.Fatalf("accepted: %+v", tr)
			}
			wantError(t, err, "t.jsonl: line 1", tt.reject)
		})
	}
}

// TestAcceptRejectLater reads the same lines behind a meta line, where the rule
// must be the same except for lines that are a meta themselves.
func TestAcceptRejectLater(t *testing.T) {
	for _, tt := range acceptCases {
		if strings.Contains(tt.line, `"meta"`) || strings.HasPrefix(tt.line, "\ufeff") || tt.name == "gzip data" {
			continue
		}
		t.Run(tt.name, func(t *testing.T) {
			_, err := readText("{\"meta\":{}}\n"+tt.line+"\n", Options{KeepExtra: true})
			if tt.reject == "" && err != nil {
				t.Fatalf("refused: %v", err)
			}
			if tt.reject != "" {
				wantError(t, err, "line 2", tt.reject)
			}
		})
	}
}

func TestSecondMeta(t *testing.T) {
	_, err := readText("{\"meta\":{}}\n{\"meta\":{}}\n", Options{})
	wantError(t, err, "line 2", "prompt_tokens: missing", "concatenated")
}

func TestRecordFields(t *testing.T) {
	line := `{"prompt_tokens":32,"cached_tokens":16,"output_tokens":4,"ttft_ms":1.25,"itl_ms":[2,3.5],"itl_tokens":[2,1],` +
		`"itl_summary":{"mean_ms":2.75,"count":2},"engine_clock":"used","tap_times":{"ttft_ms":2.5,"itl_ms":[0,5],"x":1},"concurrency":18446744073709551615,"arrival_ms":-0.5,` +
		`"itl_ctx":{"num_running":[1,2],"prefill_tokens":[0,4294967295],"other":{}},"block_hashes":[1,18446744073709551615],` +
		`"mm_hashes":["a","\u00e9\ud83d\ude00"],"output_token_ids":[0,1,2,4294967295],"finish_reason":"repetition","mine":{"a": [1]}}`
	refused := `{"prompt_tokens":1,"output_tokens":0,"ttft_ms":0,"finish_reason":"error","request_error":{"code":"c","message":"m é","retryable":true,"x":[]}}`
	left := `{"prompt_tokens":1,"output_tokens":1,"ttft_ms":0,"finish_reason":"abort","ended_by_frontend":true}`
	tr, err := readText("\n"+line+"\n"+refused+"\n"+left+"\n", Options{KeepExtra: true})
	require.NoError(t, err)
	want := []Record{{
		PromptTokens: 32, CachedTokens: 16, OutputTokens: 4, TTFTMs: 1.25,
		ITLMs: []float64{2, 3.5}, ITLTokens: []uint32{2, 1},
		ITLSummary:  &ITLSummary{MeanMs: 2.75, Count: 2},
		EngineClock: ClockUsed, TapTimes: &TapTimes{TTFTMs: 2.5, ITLMs: []float64{0, 5}},
		Concurrency: 1<<64 - 1, ArrivalMs: new(-0.5),
		ITLCtx:         &ITLCtx{NumRunning: []uint32{1, 2}, PrefillTokens: []uint32{0, 1<<32 - 1}},
		BlockHashes:    []uint64{1, 1<<64 - 1},
		MMHashes:       []string{"a", "é😀"},
		OutputTokenIDs: []uint32{0, 1, 2, 1<<32 - 1},
		FinishReason:   FinishRepetition,
		Extra:          map[string]jsonRaw{"mine": jsonRaw(`{"a": [1]}`)},
		Line:           2,
	}, {
		PromptTokens: 1, Concurrency: 1, FinishReason: FinishError, Error: &RequestError{Code: "c", Message: "m é", Retryable: true}, Line: 3,
	}, {
		PromptTokens: 1, OutputTokens: 1, Concurrency: 1, FinishReason: FinishAbort, EndedByFrontend: true, Line: 4,
	}}
	require.NoDiff(t, cmp.Diff(want, tr.Records), "(-want +got)")
}

func TestEscapes(t *testing.T) {
	line := `{"prompt_tokens":1,"output_tokens":1,"ttft_ms":1,"finish_reason":"\u0073top","mm_hashes":["\"\\\/\b\f\n\r\t\u0000\u20aC\ud83D\uDe00","é😀"]}`
	tr, err := readText(line, Options{})
	require.NoError(t, err)
	want := []string{"\"\\/\b\f\n\r\t\x00€😀", "é😀"}
	if diff := cmp.Diff(want, tr.Records[0].MMHashes); diff != "" || tr.Records[0].FinishReason != FinishStop {
		t.Errorf("%v (-want +got):\n%s", tr.Records[0].FinishReason, diff)
	}
}

func TestAbsentAndEmpty(t *testing.T) {
	tr, err := readText(`{"prompt_tokens":0,"output_tokens":0,"ttft_ms":0,"itl_ms":[],"block_hashes":[],"mm_hashes":[],"output_token_ids":[ ],"x":1}`, Options{})
	require.NoError(t, err)
	want := []Record{{
		Concurrency: 1, ITLMs: []float64{}, BlockHashes: []uint64{}, MMHashes: []string{},
		OutputTokenIDs: []uint32{}, FinishReason: FinishAbsent, Line: 1,
	}}
	require.NoDiff(t, cmp.Diff(want, tr.Records), "(-want +got)")
}

// TestNextReuse reads full and bare records in turn into one Record: nothing of
// one may be left in the next, and a fresh Record must share nothing.
func TestNextReuse(t *testing.T) {
	full := `{"prompt_tokens":1,"cached_tokens":1,"output_tokens":2,"ttft_ms":1,"itl_ms":[%d],"itl_tokens":[1],"itl_summary":{"mean_ms":1,"count":1},"concurrency":7,"arrival_ms":1,"itl_ctx":{"num_running":[1],"prefill_tokens":[0]},"block_hashes":[1],"mm_hashes":["a"],"prompt_token_ids":[1],"output_token_ids":[1,2],"finish_reason":"error","x":1}`
	bare := `{"prompt_tokens":2,"output_tokens":0,"ttft_ms":2}`
	text := fmt.Sprintf(full+"\n"+bare+"\n"+full+"\n", 1, 3)
	whole, err := readText(text, Options{KeepExtra: true})
	require.NoError(t, err)
	r, err := NewReader(strings.NewReader(text), "t", false, Options{KeepExtra: true})
	require.NoError(t, err)
	var rec Record
	for i := range whole.Records {
		require.NoError(t, r.Next(&rec))
		require.NoDiff(t, cmp.Diff(whole.Records[i], rec), "record %d (-fresh +reused)", i)
	}
	if whole.Records[0].ITLMs[0] != 1 || whole.Records[2].ITLMs[0] != 3 {
		t.Errorf("fresh records share storage: %v, %v", whole.Records[0].ITLMs, whole.Records[2].ITLMs)
	}
}

func TestLines(t *testing.T) {
	rec := `{"prompt_tokens":1,"output_tokens":1,"ttft_ms":1}`
	long := `{"prompt_tokens":1,"output_tokens":1,"ttft_ms":1,"x":"` + strings.Repeat("é", 1<<20) + `"}`
	tests := []struct {
		name, text string
		lines      []int
	}{
		{"empty file", "", nil},
		{"blank lines only", "\n \n\t\r\n", nil},
		{"meta only", `{"meta":{}}`, nil},
		{"no line feed at the end", rec, []int{1}},
		{"blank lines count", "\n\n" + rec + "\n \n" + rec + "\n\n", []int{3, 5}},
		{"meta after blank lines", "\n\n{\"meta\":{}}\n" + rec, []int{4}},
		{"carriage returns", rec + "\r\n" + rec + "\r\n", []int{1, 2}},
		{"unicode white space", "\u00a0" + rec + "\u2003\n", []int{1}},
		{"longer than any buffer", long + "\n" + rec + "\n" + long + "\n", []int{1, 2, 3}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			for name, src := range map[string]io.Reader{
				"whole":      strings.NewReader(tt.text),
				"half reads": iotest.HalfReader(strings.NewReader(tt.text)),
				"data with EOF": iotest.DataErrReader(strings.NewReader(
					tt.text)),
			} {
				r, err := NewReader(src, "t", false, Options{})
				require.NoErrorf(t, err, "%s", name)
				tr, err := r.ReadAll()
				require.NoErrorf(t, err, "%s", name)
				var lines []int
				for _, rec := range tr.Records {
					lines = append(lines, rec.Line)
				}
				require.NoDiff(t, cmp.Diff(tt.lines, lines), "%s: lines (-want +got)", name)
			}
		})
	}
}

func TestReadFault(t *testing.T) {
	rec := `{"prompt_tokens":1,"output_tokens":1,"ttft_ms":1}` + "\n"
	for _, gz := range []bool{false, true} {
		data := []byte(rec + rec)
		if gz {
			data = pack(t, rec+rec)
		}
		// A body that breaks off must not pass for a recorder that was killed.
		src := io.MultiReader(strings.NewReader(string(data[:len(data)-4])), iotest.ErrReader(io.ErrUnexpectedEOF))
		r, err := NewReader(src, "body", gz, Options{})
		require.NoError(t, err)
		_, err = r.ReadAll()
		wantError(t, err, "body: line")
		require.True(t, errors.Is(err, io.ErrUnexpectedEOF) && !r.Truncated(), "gzip %v: want the reader's own error, got %v", gz, err)
	}
	if _, err := NewReader(stuck{}, "stuck", false, Options{}); !errors.Is(err, io.ErrNoProgress) {
		t.Errorf("a reader that never gives: want io.ErrNoProgress, got %v", err)
	}
}

// stuck reads nothing, for ever.
type stuck struct{}

func (stuck) Read([]byte) (int, error) { return 0, nil }

// endless is a file that repeats a byte and has no end.
type endless byte

func (e endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = byte(e)
	}
	return len(p), nil
}

func TestLineWithoutEnd(t *testing.T) {
	for _, test := range []struct {
		name  string
		begin string
		of    byte
		want  string
	}{
		{"zeros", "", 0, "dev/endless: line 1, column 1: the file starts with a zero byte"},
		{"an object", "{", ' ', "dev/endless: line 1: the line has more than 1000000 bytes"},
		{"a later line", "{\"meta\":{}}\n{", ' ', "dev/endless: line 2: the line has more than 1000000 bytes"},
	} {
		t.Run(test.name, func(t *testing.T) {
			r, err := NewReader(io.MultiReader(strings.NewReader(test.begin), endless(test.of)), "dev/endless", false, Options{maxLine: 1_000_000})
			if err == nil {
				err = r.Next(new(Record))
			}
			require.ErrorContains(t, err, test.want)
		})
	}
}

func TestMaxBytes(t *testing.T) {
	bomb := pack(t, strings.Repeat(" ", 10<<20))
	_, err := readBytes(bomb, true, Options{MaxBytes: 1 << 20})
	wantError(t, err, "line 1", "larger than the limit of 1048576 bytes")
	if _, err := readBytes(bomb, true, Options{}); err != nil {
		t.Errorf("without a limit: %v", err)
	}
}

func TestOpen(t *testing.T) {
	dir := t.TempDir()
	missing := filepath.Join(dir, "none.jsonl")
	if _, err := Open(missing, Options{}); !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), missing) {
		t.Errorf("missing file: %v", err)
	}
	bad := filepath.Join(dir, "bad.jsonl")
	require.NoError(t, os.WriteFile(bad, []byte("{\n"), 0o600))
	_, err := Read(bad, Options{})
	wantError(t, err, bad+": line 1")
	_, err = Read(dir, Options{})
	require.True(t, err != nil && err.Error() == "trace: "+dir+" is a folder: want a file", "a folder: %v", err)
}

func TestHead(t *testing.T) {
	tests := []struct {
		name, file, text string
		want             Meta
		reject           string
	}{
		{"meta", "a.jsonl", "\n{\"meta\":{\"gpu\":\"H200\"}}\nnot read", Meta{GPU: new("H200")}, ""},
		{"record first", "a.jsonl", `{"prompt_tokens":1,"output_tokens":1,"ttft_ms":1}`, Meta{}, ""},
		{"bad record first", "a.jsonl", `{"prompt_tokens":1.5}`, Meta{}, ""},
		{"no object", "a.jsonl", `[1]`, Meta{}, ""},
		{"empty", "a.jsonl", ``, Meta{}, ""},
		{"empty gzip file", "a.jsonl.gz", ``, Meta{}, ""},
		{"broken", "a.jsonl", `{"meta":{"gpu":"H200"}`, Meta{}, "line 1"},
		{"not gzip", "a.jsonl.gz", `{"meta":{"gpu":"H200"}}`, Meta{}, "not gzip data"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), tt.file)
			require.NoError(t, os.WriteFile(path, []byte(tt.text), 0o600))
			r, err := Open(path, Options{})
			if tt.reject != "" {
				wantError(t, err, path, tt.reject)
				return
			}
			require.NoError(t, err)
			defer r.Close()
			require.NoDiff(t, cmp.Diff(tt.want, r.Meta()), "(-want +got)")
		})
	}
}
