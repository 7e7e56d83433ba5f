package main

import (
	"bytes"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/player"
)

// TestPlayWarnings: what play logs once about requests, and about a vocabulary that cannot be the frontend's.
func TestPlayWarnings(t *testing.T) {
	recording := filepath.Join(t.TempDir(), "trace.jsonl")
	const text = `{"meta":{"block_size":4}}
{"prompt_tokens":4,"output_tokens":1,"ttft_ms":1.0,"arrival_ms":1.0,"output_token_ids":[2048],"finish_reason":"length","block_hashes":HASHES}
`
	const model = "../../testdata/model/tiny" // of 2048 tokens
	tests := []struct {
		name   string
		args   []string
		hashes string // of the recorded prompt; empty is no recording
		ids    []uint32
		want   []string // nil is no line
	}{
		{
			"index that no id names",
			[]string{"--replay-match=index", "--vocab-size=100"},
			"[7]",
			[]uint32{1},
			[]string{"no record answers", "request=cmpl-x-0a1b2c3d", "no record number", `gets="random tokens"`, "--replay-match prefix"},
		},
		{"request id", []string{"--replay-match=index", "--vocab-size=100", "--strict"}, "[7]", []uint32{1}, []string{"because of --strict"}},
		{"another prompt", []string{"--vocab-size=100"}, "[7]", []uint32{1, 2, 3, 4}, []string{"no recorded prompt", "tokenizer and chat template"}},
		{"no hashes", []string{"--vocab-size=100"}, "[]", []uint32{1}, []string{"no record number", "send the request ids replay-0"}},
		{
			"recording beyond the tokenizer",
			[]string{"--tokenizer=" + model, "--replay-match=index"},
			"[7]", nil,
			[]string{"the trace has token ids", "largest_id=2048", "tokenizer_size=2048"},
		},
		{"vocabulary beyond the tokenizer", []string{"--tokenizer=" + model, "--vocab-size=32000"}, "", nil, []string{"vocab_size=32000", "tokenizer_size=2048"}},
		{"small ids only", nil, "", []uint32{5, 1333}, []string{"drawn below 32000", "largest_id=1333", "--vocab-size"}},
		{"a large id", nil, "", []uint32{5, 151000}, nil},
		{"vocabulary given", []string{"--vocab-size=32000"}, "", []uint32{5}, nil},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			must := func(err error) {
				require.NoError(t, err)
			}
			var log bytes.Buffer
			env := &environment{log: slog.New(slog.NewTextHandler(&log, nil))}
			var opts sourceOptions
			flags := pflag.NewFlagSet("play", pflag.ContinueOnError)
			opts.add(flags)
			if test.hashes != "" {
				must(os.WriteFile(recording, []byte(strings.Replace(text, "HASHES", test.hashes, 1)), 0o600))
				test.args = append(test.args, "--trace="+recording)
			}
			must(flags.Parse(test.args))
			must(opts.check())
			opt := player.Options{Log: env.log}
			_, err := opts.source(t.Context(), env, &opt)
			must(err)
			for range 2 {
				if test.ids != nil {
					_, _ = opt.Source.Script(&player.Request{ID: "cmpl-x-0a1b2c3d", PromptTokenIDs: test.ids, Sampling: player.Sampling{EOSTokenID: 2}})
				}
			}
			if lines := strings.Count(log.String(), "\n"); lines > 1 || (lines == 0) != (test.want == nil) {
				t.Errorf("%d lines:\n%s", lines, log.String())
			}
			for _, want := range test.want {
				require.Contains(t, log.String(), want)
			}
		})
	}
}

// TestReplaySteps: a trace without token ids is answered with as many random tokens, in the recorded outputs and after the recorded
// times.
func TestReplaySteps(t *testing.T) {
	recording := filepath.Join(t.TempDir(), "trace.jsonl")
	const text = `{"prompt_tokens":4,"output_tokens":5,"ttft_ms":30.0,"itl_ms":[10.0,20.0],"itl_tokens":[1,2],"arrival_ms":1.0,"finish_reason":"stop"}
{"prompt_tokens":4,"output_tokens":3,"ttft_ms":7.0,"itl_summary":{"mean_ms":4.0,"count":2},"arrival_ms":2.0}
{"prompt_tokens":4,"output_tokens":2,"ttft_ms":7.0,"itl_ms":[4.0],"arrival_ms":3.0,"output_token_ids":[90,91]}
`
	require.NoError(t, os.WriteFile(recording, []byte(text), 0o600))
	script := func(id string, args ...string) player.Script {
		t.Helper()
		var opts sourceOptions
		flags := pflag.NewFlagSet("play", pflag.ContinueOnError)
		opts.add(flags)
		require.NoError(t, flags.Parse(append(args, "--replay-steps="+recording, "--vocab-size=50")))
		opt := player.Options{}
		if _, err := opts.source(t.Context(), newEnvironment(io.Discard, io.Discard, os.LookupEnv), &opt); err != nil {
			t.Fatal(err)
		}
		got, err := opt.Source.Script(&player.Request{ID: id, PromptTokenIDs: []uint32{1, 2, 3, 4}})
		require.NoError(t, err)
		return got
	}
	ms := time.Millisecond
	tests := []struct {
		id     string
		tokens int
		chunks []int
		first  time.Duration
		gaps   []time.Duration
		finish player.FinishReason
	}{
		{"replay-0", 5, []int{2, 1, 2}, 30 * ms, []time.Duration{10 * ms, 20 * ms}, player.FinishStop},
		{"replay-1", 3, []int{1, 1, 1}, 7 * ms, []time.Duration{4 * ms, 4 * ms}, player.FinishLength},
		{"replay-2", 2, []int{1, 1}, 7 * ms, []time.Duration{4 * ms}, player.FinishLength},
	}
	for _, test := range tests {
		got := script(test.id)
		if len(got.Tokens) != test.tokens || got.Fill != nil || got.FirstToken != test.first || got.Finish != test.finish ||
			!slices.Equal(got.Chunks, test.chunks) || !slices.Equal(got.Gaps, test.gaps) {
			t.Errorf("%s: got %+v, want %+v", test.id, got, test)
		}
		require.True(t, slices.Max(got.Tokens) < 50, "%s: tokens %v are not below 50", test.id, got.Tokens)
		if again, other := script(test.id), script(test.id, "--seed=7"); !slices.Equal(again.Tokens, got.Tokens) || slices.Equal(other.Tokens, got.Tokens) {
			t.Errorf("%s: the tokens %v do not depend on the seed alone: %v, and %v with another", test.id, got.Tokens, again.Tokens, other.Tokens)
		}
	}
}
