package conformance

import (
	"slices"
	"strings"
	"testing"

	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/internal/check/replay"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/manifest"
	"github.com/vllm-vcr/conformance/player"
)

// What repeats is one failure that counts the rest.
func TestRepeatedDifferences(t *testing.T) {
	g := pinnedWire(t)
	runner := Runner{Store: g, Engine: func(opt player.Options) (Subject, error) {
		opt.KVCache.BlockSize = 64
		return player.New(opt)
	}}
	report := runner.Run(t.Context(), g.plan(t, onlyWire))
	r := report.Results[0]
	if r.Verdict != Fail || len(r.Failures) > replay.MaxWireFailures {
		t.Fatalf("%s with %d failures", r.Verdict, len(r.Failures))
	}
	at := slices.IndexFunc(r.Failures, func(f Failure) bool { return f.Path == "EngineCoreOutputs.scheduler_stats.kv_cache_usage" })
	require.True(t, at >= 0 && strings.Contains(r.Failures[at].Message, " more like it)"), "failures %+v", r.Failures)
}

// The runner judges engines whose answers are tampered with, or who end.
func TestWireSubjects(t *testing.T) {
	sabotage := func(change func(*player.Script)) Engine {
		return func(opt player.Options) (Subject, error) {
			opt.Source = saboteur{opt.Source, func(r *player.Request, s *player.Script) error {
				if strings.HasPrefix(r.ID, "cmpl-25c6b550-") {
					change(s)
				}
				return nil
			}}
			return player.New(opt)
		}
	}
	inOwnTime := func(change func(*player.Script)) Engine {
		return func(opt player.Options) (Subject, error) {
			if opt.Clock != nil {
				opt.Clock = nil
				return player.New(opt)
			}
			recorded, err := player.NewReplay(opt.Trace, player.ReplayOptions{Match: opt.Replay.Match, Strict: true})
			if err != nil {
				return nil, err
			}
			opt.Source = saboteur{recorded, func(r *player.Request, s *player.Script) error {
				if r.ID == "replay-20" {
					change(s)
				}
				return nil
			}}
			return player.New(opt)
		}
	}
	tests := []struct {
		name    string
		subject Engine
		verdict Verdict
		code    Code
		says    string
	}{
		{"a player", Player, Pass, "", ""},
		{"none of the cached tokens", sabotage(func(s *player.Script) { s.CachedTokens = 16 }), Fail, replay.CodeWireValue, "line 315: request 20: EngineCoreOutputs.outputs[0].prefill_stats.num_computed_tokens: expected 52, got 36"},
		{"a time of its own", inOwnTime(func(*player.Script) {}), Pass, "", ""},
		{"a time of its own and another token", inOwnTime(func(s *player.Script) { s.Tokens[3]++ }), Fail, replay.CodeToken, "request 20 (line 313): token 3 differs: "},
	}
	g := pinnedWire(t)
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			r := g.judged(t, Runner{Engine: test.subject}, onlyWire).Results[0]
			if r.Verdict != test.verdict || !strings.Contains(saidBy(r), test.says) {
				t.Errorf("%s: %q, want %s: %q", r.Verdict, saidBy(r), test.verdict, test.says)
			}
			if test.code != "" && r.Failures[0].Code != test.code {
				t.Errorf("code %s, want %s", r.Failures[0].Code, test.code)
			}
		})
	}
}

// Sessions of many requests at a time, and of prompts that go on where answers
// ended, are replayed as well.
func TestWireOfBusySessions(t *testing.T) {
	for _, test := range []struct{ file, tag string }{
		{"0.27.1-multiturn-s7", "v0.27.1"}, {"0.33.0-multiturn-s7", "v0.33.0"}, {"0.27.1-edge-s1", "v0.27.1"},
	} {
		t.Run(test.file, func(t *testing.T) {
			g := &subjectGolden{line: compat.Line{Name: protocol.LineOf(test.tag), Tag: test.tag}}
			g.Line, g.ID, g.Role, g.BucketPath = g.line.Name, test.file, manifest.Wire, test.file+".jsonl.gz"
			g.register(framesOf(t, test.file, framesMetaText, nil))
			mustAgree(bootedWire(t, g), t, 300)
		})
	}
}
