package player

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/trace"
)

func TestReplayOfOneRecord(t *testing.T) {
	prompt := count(100, 6)
	spoken := take{prompt: prompt, output: []uint32{1, 2, 3, 4, 5, 6, 7}, chunks: []int{2, 1, 4}, finish: trace.FinishStop}
	for _, tt := range []struct {
		name   string
		take   take
		max    int
		change []change
		opt    Options
		chunks [][]uint32
		finish protocol.FinishReason
		stop   string
	}{
		{
			name: "chunks as recorded", take: spoken, max: 7,
			chunks: [][]uint32{{1, 2}, {3}, {4, 5, 6, 7}}, finish: protocol.FinishStop,
		},
		{
			name: "a larger max_tokens still ends where the record does", take: spoken, max: 1000,
			chunks: [][]uint32{{1, 2}, {3}, {4, 5, 6, 7}}, finish: protocol.FinishStop,
		},
		{
			name: "no max_tokens", take: spoken, change: []change{unlimited},
			chunks: [][]uint32{{1, 2}, {3}, {4, 5, 6, 7}}, finish: protocol.FinishStop,
		},
		{
			name: "a smaller max_tokens cuts in a chunk", take: spoken, max: 5,
			chunks: [][]uint32{{1, 2}, {3}, {4, 5}}, finish: protocol.FinishLength,
		},
		{
			name: "a smaller max_tokens cuts between chunks", take: spoken, max: 3,
			chunks: [][]uint32{{1, 2}, {3}}, finish: protocol.FinishLength,
		},
		{
			name: "one token", take: spoken, max: 1,
			chunks: [][]uint32{{1}}, finish: protocol.FinishLength,
		},
		{
			name: "max_tokens 0", take: spoken, max: 0,
			chunks: [][]uint32{{}}, finish: protocol.FinishLength,
		},
		{
			name: "max_model_len cuts", take: spoken, max: 1000, opt: Options{Limits: Limits{MaxModelLen: 10}},
			chunks: [][]uint32{{1, 2}, {3}, {4}}, finish: protocol.FinishLength,
		},
		{
			name: "max_model_len cuts without max_tokens", take: spoken, opt: Options{Limits: Limits{MaxModelLen: 8}},
			change: []change{unlimited}, chunks: [][]uint32{{1, 2}}, finish: protocol.FinishLength,
		},
		{
			name: "a prompt past max_model_len", take: spoken, max: 7, opt: Options{Limits: Limits{MaxModelLen: 5}},
			chunks: [][]uint32{{}}, finish: protocol.FinishError,
		},
		{
			name: "a record of no tokens", take: take{prompt: prompt, finish: trace.FinishStop}, max: 9,
			chunks: [][]uint32{{}}, finish: protocol.FinishStop,
		},
		{
			name: "a record without a reason ends as by length", max: 9,
			take:   take{prompt: prompt, output: []uint32{1}, finish: trace.FinishAbsent},
			chunks: [][]uint32{{1}}, finish: protocol.FinishLength,
		},
		{
			name: "recorded length", take: take{prompt: prompt, output: []uint32{1, 2}, finish: trace.FinishLength}, max: 9,
			chunks: [][]uint32{{1}, {2}}, finish: protocol.FinishLength,
		},
		{
			name: "recorded repetition", max: 9,
			take:   take{prompt: prompt, output: []uint32{8, 8}, finish: trace.FinishRepetition},
			chunks: [][]uint32{{8}, {8}}, finish: protocol.FinishRepetition, stop: `"repetition_detected"`,
		},
		{
			name: "recorded error", take: take{prompt: prompt, output: []uint32{1}, finish: trace.FinishError}, max: 9,
			chunks: [][]uint32{{1}}, finish: protocol.FinishError,
		},
		{
			name: "the stop id that ended the record is named", take: spoken, max: 9, change: []change{stopAt(9, 7)},
			chunks: [][]uint32{{1, 2}, {3}, {4, 5, 6, 7}}, finish: protocol.FinishStop, stop: "7",
		},
		{
			name: "an end-of-sequence token is not named", take: spoken, max: 9, change: []change{eos(7)},
			chunks: [][]uint32{{1, 2}, {3}, {4, 5, 6, 7}}, finish: protocol.FinishStop,
		},
		{
			name: "nor when it is among the stop ids", take: spoken, max: 9, change: []change{eos(7), stopAt(7)},
			chunks: [][]uint32{{1, 2}, {3}, {4, 5, 6, 7}}, finish: protocol.FinishStop,
		},
		{
			name: "a stop id in the middle did not stop the recording", take: spoken, max: 9, change: []change{stopAt(3)},
			chunks: [][]uint32{{1, 2}, {3}, {4, 5, 6, 7}}, finish: protocol.FinishStop,
		},
		{
			name: "a cut at a stop id has no stop reason", take: spoken, max: 3, change: []change{stopAt(3)},
			chunks: [][]uint32{{1, 2}, {3}}, finish: protocol.FinishLength,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.opt.Trace = cassette(t, tt.take)
			r := ran(t, tt.opt, ask("replay-0", tt.take.prompt, tt.max, tt.change...))
			got := r.answer("replay-0")
			equal(t, "chunks", tt.chunks, got.chunks)
			if got.finish != tt.finish || got.stop != tt.stop {
				t.Errorf("finished by %v, stop_reason %q, want %v, %q", got.finish, got.stop, tt.finish, tt.stop)
			}
			if len(r.byID) != 0 || len(r.scheduler.Running()) != 0 || r.held() != 0 {
				t.Errorf("left behind: %d requests, %d running, %d blocks", len(r.byID), len(r.scheduler.Running()), r.held())
			}
		})
	}
}

func TestReplayWithoutRecordedChunksSaysOneTokenAStep(t *testing.T) {
	tr := cassette(t, take{prompt: count(0, 4), output: []uint32{5, 6, 7}})
	tr.Records[0].ITLMs, tr.Records[0].ITLTokens = nil, nil
	tr.Records[0].ITLSummary = &trace.ITLSummary{MeanMs: 1, Count: 2}
	r := ran(t, Options{Trace: tr}, ask("replay-0", count(0, 4), 9))
	equal(t, "chunks", [][]uint32{{5}, {6}, {7}}, r.answer("replay-0").chunks)
}

func TestRequestsThatNoRecordAnswers(t *testing.T) {
	takes := []take{
		{prompt: count(0, 8), output: []uint32{1, 2}},
		{prompt: count(50, 8), output: []uint32{3}, without: "ids"},
	}
	for _, tt := range []struct {
		name    string
		match   Match
		request *protocol.Request
		reason  string // part of the refusal
	}{
		{"index past the last record", MatchIndex, ask("replay-2", count(0, 8), 4), "the trace has records 0 to 1"},
		{"id without a number", MatchIndex, ask("cmpl-x", count(0, 8), 4), "the id names no record"},
		{"record without ids", MatchIndex, ask("replay-1", count(50, 8), 4), "record 1 (line 3) has no output_token_ids"},
		{"prompt of another length", MatchIndex, ask("replay-0", count(0, 7), 4), "its prompt has 7 tokens, record 0 (line 2) has 8"},
		{"no shared block", MatchPrefix, ask("a", count(7, 8), 4), "no record shares the first 4 tokens of its prompt (8 tokens)"},
		{"prompt of less than a block", MatchPrefix, ask("a", count(0, 3), 4), "no record shares"},
		{"prefix of a record without ids", MatchPrefix, ask("a", count(50, 8), 4), "no record shares"},
		{"no prompt ids", MatchPrefix, ask("a", nil, 4), "no record shares"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := ran(t, Options{Trace: cassette(t, takes...), Replay: ReplayOptions{Match: tt.match, Strict: true}}, tt.request)
			got := r.answer(tt.request.ID)
			if got.finish != protocol.FinishError || len(got.tokens()) != 0 {
				t.Errorf("finished by %v with tokens %v, want an error without tokens", got.finish, got.tokens())
			}
			if !strings.Contains(got.err, tt.reason) || !strings.HasPrefix(got.err, "no_recording: ") {
				t.Errorf("error %s, want no_recording: and %q", got.err, tt.reason)
			}
			if len(r.refused) != 1 || !strings.Contains(r.refused[0], tt.reason) {
				t.Errorf("OnRefused was told %q, want one refusal with %q", r.refused, tt.reason)
			}
		})
		if strings.Contains(tt.name, "another length") {
			continue // a match by index that is not strict takes any prompt
		}
		t.Run(tt.name+", not strict", func(t *testing.T) {
			r := ran(t, Options{Trace: cassette(t, takes...), Replay: ReplayOptions{Match: tt.match}, Seed: 3, Vocab: 50}, tt.request)
			want := randomTokens(3, 50, tt.request.ID, 4)
			equal(t, "fallback tokens", want, r.answer(tt.request.ID).tokens())
			if len(r.refused) != 0 {
				t.Errorf("OnRefused was told %q", r.refused)
			}
		})
	}
}

func TestIndexMatchTakesAnyPromptUnlessStrict(t *testing.T) {
	r := ran(t, Options{Trace: cassette(t, take{prompt: count(0, 8), output: []uint32{1, 2}})}, ask("replay-0", count(0, 3), 4))
	equal(t, "tokens", []uint32{1, 2}, r.answer("replay-0").tokens())
}

func TestIndexIsThePositionByArrival(t *testing.T) {
	tr := cassette(t,
		take{prompt: count(0, 4), output: []uint32{11}}, take{prompt: count(0, 4), output: []uint32{12}},
		take{prompt: count(0, 4), output: []uint32{13}},
	)
	late, early := 9.0, 3.0
	tr.Records[0].ArrivalMs, tr.Records[1].ArrivalMs, tr.Records[2].ArrivalMs = &late, nil, &early
	r := ran(t, Options{Trace: tr, Replay: ReplayOptions{Strict: true}}, ask("replay-0", count(0, 4), 1), ask("replay-1", count(0, 4), 1), ask("replay-2", count(0, 4), 1))
	for id, want := range map[string][]uint32{"replay-0": {13}, "replay-1": {11}, "replay-2": {}} {
		if diff := cmp.Diff(want, r.answer(id).chunks[0]); diff != "" {
			t.Errorf("%s (-want +got):\n%s", id, diff)
		}
	}
}

func TestIndexIsReadFromTheExternalID(t *testing.T) {
	tr := cassette(t, take{prompt: count(0, 4), output: []uint32{10}}, take{prompt: count(0, 4), output: []uint32{11}})
	r := ran(t, Options{Trace: tr, Replay: ReplayOptions{Strict: true}}, ask("req-1-00000000", count(0, 4), 1, func(r *protocol.Request) { r.ExternalID = "req-1" }))
	equal(t, "tokens", []uint32{11}, r.answer("req-1-00000000").tokens())
}

func TestNewReplayRefusesWhatCannotBeReplayed(t *testing.T) {
	for _, tt := range []struct {
		name  string
		match Match
		takes []take
		alter func(*trace.Trace)
		want  string
	}{
		{"no record", MatchIndex, nil, nil, "test.jsonl: no record has arrival_ms"},
		{
			"no arrival", MatchIndex,
			[]take{{prompt: count(0, 4), output: []uint32{1}}},
			func(tr *trace.Trace) { tr.Records[0].ArrivalMs = nil }, "test.jsonl: no record has arrival_ms",
		},
		{
			"no ids", MatchPrefix,
			[]take{{prompt: count(0, 4), output: []uint32{1}, without: "ids"}},
			nil,
			"test.jsonl: no record has output_token_ids",
		},
		{
			"no hashes", MatchPrefix,
			[]take{{prompt: count(0, 4), output: []uint32{1}, without: "hashes"}},
			nil,
			"test.jsonl: no record has block_hashes",
		},
		{
			"no block size", MatchPrefix,
			[]take{{prompt: count(0, 4), output: []uint32{1}}},
			func(tr *trace.Trace) { tr.Meta.BlockSize = nil }, "test.jsonl: meta.block_size is 0",
		},
		{"unknown match", "order", []take{{prompt: count(0, 4), output: []uint32{1}}}, nil, `match "order": want one of`},
		{
			"garbled registration", MatchIndex,
			[]take{{prompt: count(0, 4), output: []uint32{1}}},
			func(tr *trace.Trace) { s := "81a1"; tr.Meta.ReadyResponseHex = &s }, "test.jsonl: meta.ready_response_hex: ",
		},
		{
			"registration that is no hex", MatchIndex,
			[]take{{prompt: count(0, 4), output: []uint32{1}}},
			func(tr *trace.Trace) { s := "81zz"; tr.Meta.ReadyResponseHex = &s }, "test.jsonl: meta.ready_response_hex: ",
		},
		{
			"unknown line", MatchIndex,
			[]take{{prompt: count(0, 4), output: []uint32{1}}},
			func(tr *trace.Trace) { s := "0.7.2"; tr.Meta.VLLMVersion = &s }, `no wire profile for vLLM line "0.7.2"`,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tr := cassette(t, tt.takes...)
			if tt.alter != nil {
				tt.alter(tr)
			}
			_, err := New(Options{Trace: tr, Replay: ReplayOptions{Match: tt.match}})
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("New: %v, want an error with %q", err, tt.want)
			}
		})
	}
}
