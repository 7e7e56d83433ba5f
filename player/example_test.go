package player_test

import (
	"context"
	"fmt"
	"log"
	"os/signal"
	"syscall"
	"time"

	"github.com/vllm-vcr/conformance/player"
	"github.com/vllm-vcr/conformance/trace"
)

// An engine that replays a trace behind a frontend that was started with
// --data-parallel-size-local 0.
func ExampleNew() {
	t, err := trace.Read("trace.jsonl.gz", trace.Options{})
	if err != nil {
		log.Fatal(err)
	}
	p, err := player.New(player.Options{
		Handshake: "tcp://127.0.0.1:29550",
		Trace:     t,
		Replay:    player.ReplayOptions{Match: player.MatchPrefix, Strict: true},
		Timing:    player.Timing{Pace: player.PaceRecorded},
	})
	if err != nil {
		log.Fatal(err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if err := p.Run(ctx); err != nil {
		log.Fatal(err)
	}
}

// Two data-parallel ranks with a modelled time for each step.
func ExampleNewGroup() {
	options, err := player.Ranks(player.Options{
		Handshake:   "tcp://127.0.0.1:29550",
		VLLMVersion: "0.33",
		Timing: player.Timing{
			Pace:    player.PaceModelled,
			Latency: &player.LatencyTimes{TimeToFirstToken: 120 * time.Millisecond, InterTokenLatency: 15 * time.Millisecond},
		},
		Limits: player.Limits{MaxNumSeqs: 64},
	}, 2)
	if err != nil {
		log.Fatal(err)
	}
	g, err := player.NewGroup(options)
	if err != nil {
		log.Fatal(err)
	}
	if err := g.Run(context.Background()); err != nil {
		log.Fatal(err)
	}
}

// A model of steps that is learned from a recording, and rates at which drafted tokens are accepted.
func ExampleLearnLatency() {
	recorded := &trace.Trace{Records: []trace.Record{
		{PromptTokens: 3, OutputTokens: 3, TTFTMs: 40, ITLMs: []float64{10, 10}, Concurrency: 1},
	}}
	model, err := player.LearnLatency(8192, recorded)
	if err != nil {
		log.Fatal(err)
	}
	decode := player.LatencyDecode{Request: &player.LatencyRequest{}, Context: 4, Tokens: 1}
	fmt.Println(model.Duration(&player.LatencyStep{Running: 1, Decodes: []player.LatencyDecode{decode}}))

	accepted, err := player.NewAcceptance(0.8, 0.5)
	if err != nil {
		log.Fatal(err)
	}
	_, err = player.New(player.Options{
		Handshake: "tcp://127.0.0.1:29550", Timing: player.Timing{Pace: player.PaceModelled, Latency: model},
		Decoding: player.Decoding{SpeculativeTokens: 2, Acceptance: accepted},
	})
	fmt.Println(err)
	// Output:
	// 10ms
	// <nil>
}

// answers is a source with one answer for each prompt.
type answers map[string][]uint32

func (a answers) Script(r *player.Request) (player.Script, error) {
	tokens, ok := a[fmt.Sprint(r.PromptTokenIDs)]
	if !ok {
		return player.Script{}, &player.Refusal{Code: "validation_error", Err: fmt.Errorf("no answer to %d tokens", len(r.PromptTokenIDs))}
	}
	return player.Script{Tokens: tokens, Finish: player.FinishStop, CachedTokens: player.LookUp}, nil
}

// A source decides what a request is answered with.
func ExampleSource() {
	source := answers{"[1 2 3]": {7, 8, 9}}
	for _, prompt := range [][]uint32{{1, 2, 3}, {4}} {
		script, err := source.Script(&player.Request{ID: "a", PromptTokenIDs: prompt})
		fmt.Println(script.Tokens, script.Finish, err)
	}
	// Output:
	// [7 8 9] stop <nil>
	// [] unfinished no answer to 1 tokens
}

// A replay answers with what was recorded, each record once here.
func ExampleNewReplay() {
	ms := 0.0
	t := &trace.Trace{Name: "made", Records: []trace.Record{{
		ArrivalMs: &ms, PromptTokens: 3, PromptTokenIDs: []uint32{1, 2, 3},
		OutputTokens: 2, OutputTokenIDs: []uint32{7, 8}, FinishReason: trace.FinishStop,
	}}}
	replay, err := player.NewReplay(t, player.ReplayOptions{Match: player.MatchExact, Once: true, Strict: true})
	if err != nil {
		log.Fatal(err)
	}
	r := &player.Request{ID: "a", PromptTokenIDs: []uint32{1, 2, 3}}
	for range 2 {
		script, err := replay.Script(r)
		fmt.Println(script.Tokens, script.Finish, err)
	}
	fmt.Println(replay.Summary())
	// Output:
	// [7 8] stop <nil>
	// [] unfinished made: request a: no record answers this request: record 0 (line 0) has answered another request already, and each record may answer one only
	// 2 requests: 1 matched a record by the whole prompt or the id, 0 by the beginning of the prompt, 0 no record, 1 only records that may not answer again; 0 got a record that had answered before; 0 of 1 records unused
}

func ExampleRandom() {
	random := player.Random{Seed: 1, Vocab: 100}
	script, _ := random.Script(&player.Request{ID: "a"}) // it refuses nothing
	fmt.Println(script.Fill(0), script.Fill(1), script.Fill(2))
	// Output: 0 6 19
}

func ExampleParseFaults() {
	faults, err := player.ParseFaults("refuse@0.01, delay:2s:20")
	fmt.Println(len(faults), faults[1].Delay, err)
	_, err = player.ParseFaults("melt")
	fmt.Println(err)
	// Output:
	// 2 2s <nil>
	// fault 1, "melt": no such fault: want one of refuse, fail:N, delay:TIME[:AFTER], stall[:AFTER], drop[:AFTER], error[:AFTER], wrong-token[:AFTER], kill[:AFTER], kv-forget, kv-slow:TIME, kv-lose
}

func ExampleReplayIndex() {
	// The client asked with X-Request-Id: replay-7, a Python frontend wrapped it.
	fmt.Println(player.ReplayIndex("cmpl-replay-7-0-1a2b3c4d", "cmpl-replay-7-0"))
	fmt.Println(player.ReplayIndex("cmpl-9f3e21aa", ""))
	// Output:
	// 7 true
	// 0 false
}
