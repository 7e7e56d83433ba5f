package main

import (
	"context"
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

// wireOptions say how the predicted requests are sent to a real frontend.
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
	to.Server = func(w *inspect.Workload, e inspect.Engine, fit *latency.Fit) ([]trace.Record, error) {
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
func answerOverWire(ctx context.Context, env *environment, with wireServer, w *inspect.Workload, e inspect.Engine, fit *latency.Fit) ([]trace.Record, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	server, err := vllmrs.Start(ctx, vllmrs.Options{Binary: with.program, ModelDir: with.model, ServedName: wireModel, Log: env.log})
	if err != nil {
		return nil, err
	}
	defer server.Close()
	group, err := player.NewGroup([]player.Options{{
		Handshake: server.Handshake(), VLLMVersion: with.line, Vocab: wireVocabulary, Log: env.log,
		Limits:  player.Limits{MaxModelLen: e.MaxModelLen, MaxNumSeqs: e.MaxNumSeqs, MaxNumBatchedTokens: e.MaxNumBatchedTokens},
		KVCache: player.KVCacheOptions{BlockSize: e.BlockSize, NumGPUBlocks: e.Blocks, NoPrefixCaching: !e.Caching},
		Timing:  player.Timing{Pace: player.PaceModelled, Latency: fit},
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

// askOverWire sends one request, and measures when its tokens come.
func askOverWire(ctx context.Context, client *openai.Client, begun time.Time, a inspect.Asked) (r trace.Record, err error) {
	prompt := make([]uint32, len(a.Prompt))
	for i, id := range a.Prompt {
		prompt[i] = id % wireVocabulary
	}
	sent := time.Now()
	arrival := milliseconds(sent.Sub(begun))
	r = trace.Record{PromptTokens: len(prompt), ArrivalMs: &arrival, ITLMs: []float64{}, Concurrency: 1, FinishReason: trace.FinishLength}
	stream, err := client.Open(ctx, "/v1/completions", map[string]any{
		"model": wireModel, "prompt": prompt, "max_tokens": a.Output, "ignore_eos": true, "temperature": 0, "stream": true, "return_token_ids": true,
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
			r.ITLMs = append(r.ITLMs, milliseconds(now.Sub(last)))
		}
		r.OutputTokens, last = r.OutputTokens+tokens, now
	}
	if r.OutputTokens != a.Output {
		return r, fmt.Errorf("an answer has %d tokens, want %d", r.OutputTokens, a.Output)
	}
	return r, nil
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
