package replay

import (
	"context"
	"fmt"
	"sync"

	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/frontends/openai"
	"github.com/vllm-vcr/conformance/internal/frontends/vllmrs"
	"github.com/vllm-vcr/conformance/player"
	"github.com/vllm-vcr/conformance/trace"
)

// throughFrontend replays a golden behind the real frontend of its line:
// the requests go in as OpenAI completions by token ids, and the same streams
// must come out of HTTP.
func throughFrontend(ctx context.Context, e *check.Env, g *check.Golden, c check.Case) (f check.Outcome, err error) {
	if g.Streams == 0 {
		return f, NothingToReplay(g)
	}
	checkPin(&f, g)
	streams := RecordedStreams(g.Trace)
	server, err := vllmrs.Start(ctx, vllmrs.Options{
		Binary: c.Variant.Frontend.Binary, ModelDir: c.Variant.Frontend.ModelDir, ReadyTimeout: e.Timeouts.Connect, Log: e.Log,
	})
	if err != nil {
		return f, check.Infra(check.WithCode(check.CodeFrontend, err))
	}
	defer server.Close()
	var faults refusals
	ctx, stop, err := playBehind(ctx, e, server, player.Options{
		Codec: g.Codec, VLLMVersion: check.PlayedVersion(c.Line), Trace: g.Trace, Replay: player.ReplayOptions{Strict: true}, OnRefused: faults.add,
	})
	if err != nil {
		return f, err
	}
	defer stop()
	if err := awaitFrontend(ctx, e, server); err != nil {
		return f, err
	}
	err = completeAll(ctx, server, streams, c.Variant)
	faults.explain(streams)
	if err != nil {
		return f, explainCause(ctx, err)
	}
	compareStreams(&f, g, streams, c.Variant.Stream)
	return f, nil
}

// playBehind starts a player for a real frontend. The returned context ends
// with the player's error as its cause; stop ends the player and waits.
func playBehind(ctx context.Context, e *check.Env, server *vllmrs.Server, opt player.Options) (context.Context, func(), error) {
	opt.Handshake, opt.HandshakeTimeout, opt.Log = server.Handshake(), 2*e.Timeouts.Connect, e.Log
	engine, err := e.Engine(opt)
	if err != nil {
		return nil, nil, check.WithCode(check.CodeStart, fmt.Errorf("engine: %w", err))
	}
	running, cancel, done := check.Launch(ctx, engine)
	return running, func() { cancel(context.Canceled); <-done }, nil
}

// awaitFrontend waits until the frontend serves. That it does not, although the engine
// is there, lies around the engine.
func awaitFrontend(ctx context.Context, e *check.Env, server *vllmrs.Server) error {
	ready, stop := server.Patience(ctx, e.Timeouts.Connect, fmt.Errorf("it does not serve within %v", e.Timeouts.Connect))
	defer stop()
	err := server.Healthy(ready)
	if err != nil && ctx.Err() == nil {
		return check.Infra(check.WithCode(check.CodeFrontend, err))
	}
	if err != nil {
		return explainCause(ctx, err)
	}
	return nil
}

func explainCause(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return fmt.Errorf("%w (%w)", cause, err)
	}
	return err
}

// completeAll sends the streams' completions, so many at a time.
func completeAll(ctx context.Context, server *vllmrs.Server, streams []*Stream, v check.Variant) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	work := make(chan *Stream)
	var workers sync.WaitGroup
	for range max(v.Concurrency, 1) {
		workers.Go(func() {
			for st := range work {
				if err := st.complete(ctx, server, v.Stream); err != nil {
					cancel(fmt.Errorf("request %d: %w", st.Index, err))
				}
			}
		})
	}
	for _, st := range streams {
		select {
		case work <- st:
			continue
		case <-ctx.Done():
		}
		break
	}
	close(work)
	workers.Wait()
	return context.Cause(ctx)
}

// complete sends one stream as a completion and takes what comes back.
func (s *Stream) complete(ctx context.Context, server *vllmrs.Server, streamed bool) error {
	got, err := server.Complete(ctx, openai.Request{
		ID: s.ID(), Prompt: s.Prompt, MaxTokens: max(len(s.Record.OutputTokenIDs), 1), Stream: streamed,
	})
	if err != nil {
		return err
	}
	s.got, s.gotChunks, s.terminals = got.Tokens, got.Chunks, got.Terminal
	reason, known := trace.ParseFinishReason(got.FinishReason)
	if !known {
		s.wrong = append(s.wrong, s.problem(CodeFinishReason, "finish_reason %q through HTTP", got.FinishReason).
			Compared(s.Record.FinishReason, got.FinishReason))
	}
	s.Finish = reason
	if got.PromptTokens != len(s.Prompt) || got.CompletionTokens != len(got.Tokens) {
		s.wrong = append(s.wrong, s.problem(CodeUsage, "usage counts %d prompt and %d completion tokens, expected %d and %d",
			got.PromptTokens, got.CompletionTokens, len(s.Prompt), len(got.Tokens)).
			Compared([]int{len(s.Prompt), len(got.Tokens)}, []int{got.PromptTokens, got.CompletionTokens}))
	}
	return nil
}
