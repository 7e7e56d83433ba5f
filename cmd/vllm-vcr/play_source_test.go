package main

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"

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
				if err != nil {
					t.Fatal(err)
				}
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
			must(opts.check(flags, false))
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
				if !strings.Contains(log.String(), want) {
					t.Errorf("without %q:\n%s", want, log.String())
				}
			}
		})
	}
}
