package trace

import (
	"crypto/sha256"
	"encoding/hex"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

func TestChunks(t *testing.T) {
	tests := []struct {
		name string
		rec  Record
		want []int
	}{
		{"one token, no gaps", Record{OutputTokens: 1}, []int{1}},
		{"one each", Record{OutputTokens: 3, ITLMs: []float64{1, 1}}, []int{1, 1, 1}},
		{"sized", Record{OutputTokens: 6, ITLMs: []float64{1, 1}, ITLTokens: []uint32{2, 3}}, []int{1, 2, 3}},
		{"wide first chunk", Record{OutputTokens: 64, ITLMs: []float64{}}, []int{64}},
		{"first takes the rest", Record{OutputTokens: 9, ITLMs: []float64{1}}, []int{8, 1}},
		{"too many gaps", Record{OutputTokens: 2, ITLMs: []float64{1, 1, 1}}, []int{1, 1, 1, 1}},
		{"only a mean", Record{OutputTokens: 9, ITLSummary: &ITLSummary{MeanMs: 1, Count: 8}}, nil},
		{"no output", Record{}, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			require.NoDiff(t, cmp.Diff(tt.want, tt.rec.Chunks()), "(-want +got)")
		})
	}
}

func TestFinishReason(t *testing.T) {
	for i, s := range []string{"stop", "length", "abort", "error", "repetition"} {
		f, ok := ParseFinishReason(s)
		require.True(t, ok && f.String() == s && int(f) == i && int(f.Wire()) == i, "%s: want code %d, got %d, %v", s, i, f, ok)
	}
	for _, s := range []string{"", "Stop", "absent", "finish_reason(5)"} {
		if f, ok := ParseFinishReason(s); ok || f != FinishAbsent {
			t.Errorf("%q: accepted as %v", s, f)
		}
	}
	require.True(t, FinishAbsent.Wire() == uint8(FinishLength) && FinishAbsent.String() == "absent" && FinishReason(7).String() == "finish_reason(7)", "absent or unknown reason")
}

func TestReplaySubset(t *testing.T) {
	at := func(ms float64) Record { return Record{ArrivalMs: &ms} }
	records := []Record{at(5), {}, at(-1), at(5), {}, at(0), at(-1), at(5)}
	require.NoDiff(t, cmp.Diff([]int{2, 6, 5, 0, 3, 7}, ReplaySubset(records)), "(-want +got)")
	var ties []Record // of three arrivals in turn: 2, 1, 0, 2, …
	var want []int
	for i := range 300 {
		ties = append(ties, at(float64(2-i%3)))
		want = append(want, i%100*3+2-i/100)
	}
	require.NoDiff(t, cmp.Diff(want, ReplaySubset(ties)), "ties (-want +got)")
	if got := ReplaySubset([]Record{{}}); got != nil {
		t.Errorf("no arrivals: got %v", got)
	}
}

// TestArrivalDigest spells the digested bytes out.
func TestArrivalDigest(t *testing.T) {
	records := []Record{
		{ArrivalMs: new(2.0), OutputTokenIDs: []uint32{0x01020304, 5}, FinishReason: FinishRepetition},
		{ArrivalMs: new(1.0), FinishReason: FinishStop}, // no ids: left out, keeps its index
		{OutputTokenIDs: []uint32{9}},                   // no arrival: no stream
		{ArrivalMs: new(0.0), OutputTokenIDs: []uint32{}, FinishReason: FinishAbsent},
	}
	bytes := "" +
		"\x00\x00\x00\x00" + "\x00\x00\x00\x00" + "\x01" + // an absent reason ends as length
		"\x02\x00\x00\x00" + "\x02\x00\x00\x00" + "\x04\x03\x02\x01" + "\x05\x00\x00\x00" + "\x04"
	sum := sha256.Sum256([]byte(bytes))
	want := hex.EncodeToString(sum[:])
	if got := ArrivalDigest(records, ReplaySubset(records)); got != want {
		t.Errorf("want %s, got %s", want, got)
	}
}

// TestTokensDigest spells the digested bytes out.
func TestTokensDigest(t *testing.T) {
	records := []Record{
		{ArrivalMs: new(1.0), PromptTokenIDs: []uint32{7, 8}, PromptTokens: 2, OutputTokenIDs: []uint32{0x01020304, 5}, FinishReason: FinishRepetition},
		{ArrivalMs: new(2.0), PromptTokens: 3, FinishReason: FinishStop}, // no ids: left out
		{PromptTokens: 3, OutputTokenIDs: []uint32{9}},                   // no arrival: no stream
		{ArrivalMs: new(3.0), PromptTokens: 3, BlockHashes: []uint64{1}, MMHashes: []string{"a", "b"}, OutputTokenIDs: []uint32{}, FinishReason: FinishAbsent},
	}
	ids, hashes := sha256.Sum256([]byte("t\x07\x00\x00\x00\x08\x00\x00\x00")), sha256.Sum256([]byte("b\x03\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00a\nb\n"))
	answers := []string{
		string(ids[:]) + "\x02\x00\x00\x00" + "\x04\x03\x02\x01" + "\x05\x00\x00\x00" + "\x04",
		string(hashes[:]) + "\x00\x00\x00\x00" + "\x01", // an absent reason ends as length
	}
	slices.Sort(answers)
	sum := sha256.Sum256([]byte(strings.Join(answers, "")))
	want := hex.EncodeToString(sum[:])
	if got := TokensDigest(records, ReplaySubset(records)); got != want {
		t.Errorf("want %s, got %s", want, got)
	}
	// Another capture of the same requests: they arrive in another order.
	*records[0].ArrivalMs, *records[3].ArrivalMs = 3, 1
	if got := TokensDigest(records, ReplaySubset(records)); got != want {
		t.Errorf("another order: want %s, got %s", want, got)
	}
	records[0].OutputTokenIDs, records[3].OutputTokenIDs = records[3].OutputTokenIDs, records[0].OutputTokenIDs
	if got := TokensDigest(records, ReplaySubset(records)); got == want {
		t.Error("exchanged answers have the same digest")
	}
}

func TestValidateByHand(t *testing.T) {
	if r := small(1); r.Validate() != nil {
		t.Error(r.Validate())
	}
	for field, change := range map[string]func(*Record){
		"prompt_tokens":       func(r *Record) { r.PromptTokens = -1 },
		"cached_tokens":       func(r *Record) { r.CachedTokens = -1 },
		"output_tokens":       func(r *Record) { r.OutputTokens = -1 },
		"itl_summary.count":   func(r *Record) { r.ITLSummary = &ITLSummary{Count: -1} },
		"itl_summary.mean_ms": func(r *Record) { r.ITLSummary = &ITLSummary{MeanMs: 2e15} },
		"itl_summary":         func(r *Record) { r.ITLSummary = &ITLSummary{MeanMs: 1e12, Count: 2e12} },
		"finish_reason":       func(r *Record) { r.FinishReason = 5 },
		"ended_by_frontend":   func(r *Record) { r.EndedByFrontend = true },
		"request_error":       func(r *Record) { r.Error = new(RequestError) },
		"arrival_ms":          func(r *Record) { r.ArrivalMs = new(1e308) },
		"ttft_ms":             func(r *Record) { r.TTFTMs = -1.1e15 },
		"itl_ms[0]":           func(r *Record) { r.ITLMs = []float64{math.NaN()} },
		"itl_ms":              func(r *Record) { r.OutputTokens = 2 },
		"itl_tokens":          func(r *Record) { r.ITLTokens = []uint32{1} },
		"output_token_ids":    func(r *Record) { r.OutputTokenIDs = []uint32{} },
		"prompt_token_ids":    func(r *Record) { r.PromptTokenIDs = []uint32{1, 2} },
	} {
		r := small(1)
		change(&r)
		wantError(t, r.Validate(), field+": ")
	}
}
