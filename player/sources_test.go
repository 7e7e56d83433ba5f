package player

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/wire/pack"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/trace"
)

// said asks a source and returns the first token of its answer, or 0 where there is none.
func said(t *testing.T, s Source, r *protocol.Request) uint32 {
	t.Helper()
	script, err := s.Script(forSource(r))
	if err != nil {
		return 0
	}
	if script.Fill != nil && len(script.Tokens) == 0 {
		t.Fatalf("request %s was answered by the fallback of a strict source", r.ID)
	}
	return script.Tokens[0]
}

// images makes a request have multimodal items of these hashes.
func images(hashes ...string) change {
	return func(r *protocol.Request) {
		r.MMFeatures = pack.AppendArrayHeader(nil, len(hashes))
		for _, h := range hashes {
			r.MMFeatures = pack.AppendMapHeader(r.MMFeatures, 2)
			r.MMFeatures = pack.AppendString(r.MMFeatures, "modality")
			r.MMFeatures = pack.AppendString(r.MMFeatures, "image")
			r.MMFeatures = pack.AppendString(r.MMFeatures, "mm_hash")
			r.MMFeatures = pack.AppendString(r.MMFeatures, h)
		}
	}
}

func external(id string) change { return func(r *protocol.Request) { r.ExternalID = id } }

func TestMatches(t *testing.T) {
	long, short := count(100, 10), count(0, 3)
	other := slices.Concat(long[:9], []uint32{7})
	tests := []struct {
		name  string
		match Match
		opt   ReplayOptions
		takes []take // take i says token i+1
		mark  func(records []trace.Record)
		asks  []*protocol.Request
		want  []uint32
	}{
		{
			name: "exact: by ids, a tail of less than a block included", match: MatchExact,
			takes: []take{{prompt: long}, {prompt: other}, {prompt: short}},
			asks:  []*protocol.Request{ask("a", other, 9), ask("b", long, 9), ask("c", short, 9), ask("d", long[:9], 9), ask("e", nil, 9)},
			want:  []uint32{2, 1, 3, 0, 0},
		},
		{
			name: "exact: by chain and length where ids were not recorded", match: MatchExact,
			takes: []take{{prompt: long}, {prompt: long[:9]}, {prompt: short}},
			mark:  withoutPrompts,
			asks:  []*protocol.Request{ask("a", other, 9), ask("b", long[:9], 9), ask("c", long[:8], 9), ask("d", short, 9)},
			want:  []uint32{1, 2, 0, 0},
		},
		{
			name: "exact: one after the other, then the first again", match: MatchExact,
			takes: []take{{prompt: long}, {prompt: long}},
			asks:  []*protocol.Request{ask("a", long, 9), ask("b", long, 9), ask("c", long, 9)},
			want:  []uint32{1, 2, 1},
		},
		{
			name: "exact and once: one after the other, then none", match: MatchExact, opt: ReplayOptions{Once: true},
			takes: []take{{prompt: long}, {prompt: long}},
			asks:  []*protocol.Request{ask("a", long, 9), ask("b", long, 9), ask("c", long, 9)},
			want:  []uint32{1, 2, 0},
		},
		{
			name: "exact: prompts that differ only in their images", match: MatchExact,
			takes: []take{{prompt: long}, {prompt: long}, {prompt: long}},
			mark:  func(r []trace.Record) { r[1].MMHashes, r[2].MMHashes = []string{"cat"}, []string{"dog"} },
			asks: []*protocol.Request{
				ask("a", long, 9, images("dog")), ask("b", long, 9, images("cat")), ask("c", long, 9), ask("d", long, 9, images("cow")),
			},
			want: []uint32{3, 2, 1, 0},
		},
		{
			name: "prefix: the same images go first", match: MatchPrefix,
			takes: []take{{prompt: long}, {prompt: long}},
			mark:  func(r []trace.Record) { r[0].MMHashes, r[1].MMHashes = []string{"cat"}, []string{"dog"} },
			asks:  []*protocol.Request{ask("a", long, 9, images("dog")), ask("b", long, 9, images("dog"))},
			want:  []uint32{2, 2},
		},
		{
			name: "prefix: a system prompt alone is not enough", match: MatchPrefix, opt: ReplayOptions{MinDepth: 8},
			takes: []take{{prompt: count(0, 16)}},
			asks: []*protocol.Request{
				ask("a", slices.Concat(count(0, 4), count(50, 12)), 9), ask("b", slices.Concat(count(0, 8), count(50, 8)), 9),
				ask("c", slices.Concat(count(0, 7), count(50, 8)), 9),
			},
			want: []uint32{0, 1, 0},
		},
		{
			name: "prefix: a depth within a block counts where ids are recorded", match: MatchPrefix, opt: ReplayOptions{MinDepth: 6},
			takes: []take{{prompt: count(0, 16)}},
			asks: []*protocol.Request{
				ask("a", slices.Concat(count(0, 6), count(50, 8)), 9), ask("b", slices.Concat(count(0, 5), count(50, 8)), 9),
			},
			want: []uint32{1, 0},
		},
		{
			name: "prefix and once: a retry is not served a longer record", match: MatchPrefix, opt: ReplayOptions{Once: true},
			takes: []take{{prompt: long[:8]}, {prompt: long}},
			asks:  []*protocol.Request{ask("a", long[:8], 9), ask("b", long[:8], 9), ask("c", long, 9)},
			want:  []uint32{1, 0, 2},
		},
		{
			name: "index and once", match: MatchIndex, opt: ReplayOptions{Once: true},
			takes: []take{{prompt: long}, {prompt: long}},
			asks:  []*protocol.Request{ask("replay-1", long, 9), ask("replay-1", long, 9), ask("replay-0", long, 9)},
			want:  []uint32{2, 0, 1},
		},
		{
			name: "request id: the engine's, the client's, and without random digits", match: MatchRequestID,
			takes: []take{{prompt: long}, {prompt: long}, {prompt: long}, {prompt: long}},
			mark: func(r []trace.Record) {
				for i, id := range []string{`"x"`, `"cmpl-job-1-0a1b2c3d"`, `"cmpl-job-2-0a1b2c3d"`, `7`} {
					r[i].Extra = map[string]json.RawMessage{"request_id": json.RawMessage(id)}
				}
			},
			asks: []*protocol.Request{
				ask("x", nil, 9), ask("cmpl-job-1-0a1b2c3d", nil, 9), ask("cmpl-job-2-ffffffff", nil, 9),
				ask("anything", nil, 9, external("cmpl-job-1")), ask("7", nil, 9), ask("cmpl-job-3-0a1b2c3d", nil, 9),
			},
			want: []uint32{1, 2, 3, 2, 0, 0},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			for i := range test.takes {
				test.takes[i].output = []uint32{uint32(i + 1)}
			}
			tr := cassette(t, test.takes...)
			if test.mark != nil {
				test.mark(tr.Records)
			}
			test.opt.Match, test.opt.Strict = test.match, true
			replay, err := NewReplay(tr, test.opt)
			must(t, err)
			for range 2 { // the second time after a rewind
				var got []uint32
				for _, r := range test.asks {
					got = append(got, said(t, replay, r))
				}
				equal(t, "records", test.want, got)
				replay.Rewind()
			}
		})
	}
}

func withoutPrompts(records []trace.Record) {
	for i := range records {
		records[i].PromptTokenIDs = nil
	}
}

func TestTracesThatCannotBeMatched(t *testing.T) {
	tests := []struct {
		name  string
		match Match
		mark  func(records []trace.Record)
		want  string
	}{
		{"exact without prompts and chains", MatchExact, func(r []trace.Record) { r[0].PromptTokenIDs, r[0].BlockHashes = nil, nil }, "no record has prompt_token_ids"},
		{"exact with half a chain", MatchExact, func(r []trace.Record) { r[0].PromptTokenIDs, r[0].BlockHashes = nil, r[0].BlockHashes[:1] }, "no record has prompt_token_ids"},
		{"request id without one", MatchRequestID, nil, "no record has a request_id"},
		{"unknown", "best", nil, `match "best": want one of ["index" "prefix" "exact" "request-id"]`},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			tr := cassette(t, take{prompt: count(0, 8), output: []uint32{1}})
			if test.mark != nil {
				test.mark(tr.Records)
			}
			_, err := NewReplay(tr, ReplayOptions{Match: test.match})
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want an error with %q", err, test.want)
			}
		})
	}
}

// Several players take their records from one replay, each of them once.
func TestReplayIsShared(t *testing.T) {
	const n = 200
	var takes []take
	for i := range n {
		takes = append(takes, take{prompt: count(0, 8), output: []uint32{uint32(i + 1)}})
	}
	replay, err := NewReplay(cassette(t, takes...), ReplayOptions{Match: MatchPrefix, Strict: true, Once: true})
	must(t, err)
	var players sync.WaitGroup
	served := make(chan uint32, n)
	for p := range 4 {
		players.Go(func() {
			for i := range n / 4 {
				served <- said(t, replay, ask(fmt.Sprintf("%d-%d", p, i), count(0, 8), 9))
			}
		})
	}
	players.Wait()
	close(served)
	seen := map[uint32]bool{}
	for token := range served {
		seen[token] = true
	}
	if len(seen) != n || seen[0] {
		t.Errorf("%d records were served, want each of %d once", len(seen), n)
	}
}

func TestReplaySummary(t *testing.T) {
	tr := cassette(t,
		take{prompt: count(0, 8), output: []uint32{1}}, take{prompt: count(0, 12), output: []uint32{2}},
		take{prompt: count(50, 8), output: []uint32{3}}, take{prompt: count(70, 8), output: []uint32{4}, without: "ids"},
	)
	replay, err := NewReplay(tr, ReplayOptions{Match: MatchPrefix, Once: true})
	must(t, err)
	for i, prompt := range [][]uint32{
		count(0, 8), count(0, 8), slices.Concat(count(0, 10), count(90, 9)), count(90, 8), nil,
	} {
		if _, err := replay.Script(forSource(ask(fmt.Sprint(i), prompt, 1))); err != nil {
			t.Fatal(err)
		}
	}
	want := ReplaySummary{
		Requests: 5, Whole: 1, Partial: 1, Unmatched: 2, Exhausted: 1, Depths: map[int]int{10: 1}, Records: 3, Unused: 1,
	}
	equal(t, "summary", want, replay.Summary())
	const text = "5 requests: 1 matched a whole prompt or an id, 1 a beginning (1 of 10 tokens), 2 nothing, " +
		"1 only used records; 0 were answered again; 1 of 3 records unused"
	equal(t, "text", text, replay.Summary().String())
}

func TestEcho(t *testing.T) {
	tests := []struct {
		name   string
		prompt []uint32
		max    int
		change []change
		want   []uint32
		finish protocol.FinishReason
	}{
		{name: "the prompt", prompt: []uint32{5, 6, 7}, max: 3, want: []uint32{5, 6, 7}, finish: protocol.FinishLength},
		{name: "a part of it", prompt: []uint32{5, 6, 7}, max: 2, want: []uint32{5, 6}, finish: protocol.FinishLength},
		{name: "and again", prompt: []uint32{5, 6, 7}, max: 7, want: []uint32{5, 6, 7, 5, 6, 7, 5}, finish: protocol.FinishLength},
		{name: "past its stop ids", prompt: []uint32{5, 6, 7}, max: 4, change: []change{eos(6), stopAt(5, 7)}, want: []uint32{5, 6, 7, 5}, finish: protocol.FinishLength},
		{name: "an empty prompt", max: 4, want: nil, finish: protocol.FinishStop},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			r := ran(t, Options{Source: Echo{}}, ask("a", test.prompt, test.max, test.change...))
			got := r.answer("a")
			if diff := cmp.Diff(test.want, got.tokens()); diff != "" || got.finish != test.finish {
				t.Errorf("finished by %v, want %v; tokens (-want +got):\n%s", got.finish, test.finish, diff)
			}
		})
	}
}
