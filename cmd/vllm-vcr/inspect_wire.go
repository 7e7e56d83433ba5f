package main

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/pflag"

	"github.com/vllm-vcr/conformance/internal/engine/latency"
	"github.com/vllm-vcr/conformance/internal/frontends/openai"
	"github.com/vllm-vcr/conformance/internal/frontends/vllmrs"
	"github.com/vllm-vcr/conformance/internal/inspect"
	"github.com/vllm-vcr/conformance/internal/serve"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/player"
	"github.com/vllm-vcr/conformance/trace"
)

// wireOptions are the flags of sending the predicted requests to a real frontend.
type wireOptions struct {
	on       bool
	frontend string
}

func (opts *wireOptions) add(flags *pflag.FlagSet) {
	flags.BoolVar(&opts.on, "over-wire", false, "send the requests to a released vllm-rs with a player behind it, in real time, and predict the times that the client measures (--runs is then 1 by default)")
	flags.StringVar(&opts.frontend, "frontend", serve.Rust, "frontend of --over-wire: rust (the released vllm-rs of the newest line, which is fetched if it is not here), or the `PATH` of a vllm-rs")
}

// wireVocabulary is that of the model of the goldens, which the frontend is started with.
const wireVocabulary = 2048

// wireModel is its name in requests.
const wireModel = "model"

// open finds the frontend, and lets it answer the requests of a calibration.
func (opts *wireOptions) open(ctx context.Context, env *environment, to *inspect.Options) (closeAll func(), err error) {
	line := protocol.Newest()
	release := releasesOf([]string{line})[0]
	if opts.frontend == serve.Python {
		return nil, errors.New("--frontend python: --over-wire needs a vllm-rs")
	}
	steps := openSteps(env)
	found, err := serve.FindFrontend(ctx, serve.FrontendOptions{
		Wanted: opts.frontend, Release: release, Log: env.log, Progress: func(step string) { steps.show("frontend "+release, step) },
	})
	steps.close()
	if err != nil {
		return nil, engineError(err)
	}
	if opts.frontend != serve.Rust {
		if version, err := vllmrs.Version(ctx, found.Program); err == nil {
			line = protocol.LineOf(version)
		}
	}
	folder, err := os.MkdirTemp("", "vllm-vcr-model-")
	if err != nil {
		return nil, infra(err)
	}
	closeAll = func() { os.RemoveAll(folder) }
	if err := writeModel(folder); err != nil {
		closeAll()
		return nil, infra(err)
	}
	to.Server = func(w *inspect.Workload, e inspect.Engine, fit latency.Learned) ([]trace.Record, error) {
		fmt.Fprintf(env.stderr, "vllm-vcr: sending %d requests of %s to vllm-rs\n", w.Len(), w.Name)
		records, err := answerOverWire(ctx, env, wireServer{found.Program, folder, line}, w, w.WithBlocks(e), fit)
		if err != nil {
			return nil, infra(fmt.Errorf("%s over the wire: %w", w.Name, err))
		}
		return records, nil
	}
	return closeAll, nil
}

// wireServer is what answers: a vllm-rs with a model folder, and a player of a line.
type wireServer struct{ program, model, line string }

// answerOverWire starts frontend and player, sends the workload, and returns what the client saw.
func answerOverWire(ctx context.Context, env *environment, with wireServer, w *inspect.Workload, e inspect.Engine, fit latency.Learned) ([]trace.Record, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	server, err := vllmrs.Start(ctx, vllmrs.Options{Binary: with.program, ModelDir: with.model, ServedName: wireModel, Log: env.log})
	if err != nil {
		return nil, err
	}
	defer server.Close()
	group, err := player.NewGroup([]player.Options{{
		Handshake: server.Handshake(), VLLMVersion: with.line, Vocab: wireVocabulary, Log: env.log, Source: saidIn(w),
		Limits:   player.Limits{MaxModelLen: e.MaxModelLen, MaxNumSeqs: e.MaxNumSeqs, MaxNumBatchedTokens: e.MaxNumBatchedTokens},
		KVCache:  player.KVCacheOptions{BlockSize: e.BlockSize, NumGPUBlocks: e.Blocks, NoPrefixCaching: !e.Caching},
		Timing:   player.Timing{Pace: player.PaceModelled, Latency: fit},
		Decoding: player.Decoding{SpeculativeTokens: fit.Drafts(), TokensPerStep: max(fit.Block(), 1)},
	}})
	if err != nil {
		return nil, err
	}
	playing, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- group.Run(playing) }()
	defer func() { stop(); <-ended }()
	if err := server.Healthy(ctx); err != nil {
		return nil, err
	}
	client := openai.NewClient(server.URL(), wireModel)
	defer client.Close()
	records := make([]trace.Record, w.Len())
	begun := time.Now()
	err = w.Replay(ctx, func(ctx context.Context, i int, a inspect.Asked) (err error) {
		records[i], err = askOverWire(ctx, client, begun, a)
		return err
	})
	return records, err
}

// said answers each prompt with what was said to it in the recording. Other tokens would not be in the prompt of the next turn, so the
// prefix cache would find less of it than it did in the recorded engine.
type said map[[sha256.Size]byte][][]uint32

func saidIn(w *inspect.Workload) said {
	s := said{}
	for i := range w.Len() {
		a := w.Asked(i)
		key := promptKey(ofVocabulary(a.Prompt))
		s[key] = append(s[key], ofVocabulary(a.Answer))
	}
	return s
}

// Script implements [player.Source]. Equal prompts are answered in the order of the recording.
func (s said) Script(r *player.Request) (player.Script, error) {
	key := promptKey(r.PromptTokenIDs)
	answers := s[key]
	if len(answers) == 0 {
		return player.Script{}, fmt.Errorf("a prompt of %d tokens is not in the recording", len(r.PromptTokenIDs))
	}
	if len(answers) > 1 {
		s[key] = answers[1:]
	}
	return player.Script{Tokens: answers[0], Finish: player.FinishLength, CachedTokens: player.LookUp}, nil
}

func promptKey(prompt []uint32) [sha256.Size]byte {
	var b []byte
	for _, id := range prompt {
		b = binary.LittleEndian.AppendUint32(b, id)
	}
	return sha256.Sum256(b)
}

// ofVocabulary are ids that the model of the frontend has.
func ofVocabulary(ids []uint32) []uint32 {
	all := make([]uint32, len(ids))
	for i, id := range ids {
		all[i] = id % wireVocabulary
	}
	return all
}

// askOverWire sends one request, and measures when its tokens come.
func askOverWire(ctx context.Context, client *openai.Client, begun time.Time, a inspect.Asked) (r trace.Record, err error) {
	prompt := ofVocabulary(a.Prompt)
	sent := time.Now()
	arrival := milliseconds(sent.Sub(begun))
	r = trace.Record{PromptTokens: len(prompt), ArrivalMs: &arrival, ITLMs: []float64{}, Concurrency: 1, FinishReason: trace.FinishLength}
	stream, err := client.Open(ctx, "/v1/completions", map[string]any{
		"model": wireModel, "prompt": prompt, "max_tokens": len(a.Answer), "ignore_eos": true, "temperature": 0, "stream": true, "return_token_ids": true,
	})
	if err != nil {
		return r, err
	}
	defer stream.Close()
	last := sent
	for {
		data, err := stream.Next()
		now := time.Now()
		if err != nil {
			return r, fmt.Errorf("an answer broke off after %d tokens: %w", r.OutputTokens, err)
		}
		if string(data) == openai.Done {
			break
		}
		var event openai.Response
		if err := json.Unmarshal(data, &event); err != nil || event.Failed() {
			return r, fmt.Errorf("after %d tokens the frontend sent %s", r.OutputTokens, openai.Quote(data))
		}
		tokens := 0
		for _, choice := range event.Choices {
			tokens += len(choice.TokenIDs)
		}
		switch {
		case tokens == 0:
			continue
		case r.OutputTokens == 0:
			r.TTFTMs = milliseconds(now.Sub(last))
		default:
			r.ITLMs, r.ITLTokens = append(r.ITLMs, milliseconds(now.Sub(last))), append(r.ITLTokens, uint32(tokens))
		}
		r.OutputTokens, last = r.OutputTokens+tokens, now
	}
	if r.OutputTokens != len(a.Answer) {
		return r, fmt.Errorf("an answer has %d tokens, want %d", r.OutputTokens, len(a.Answer))
	}
	return r, nil
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
