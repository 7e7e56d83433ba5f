package vllmrs_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/base/process"
	"github.com/vllm-vcr/conformance/internal/frontends/openai"
	"github.com/vllm-vcr/conformance/internal/frontends/vllmrs"
	"github.com/vllm-vcr/conformance/internal/testenv"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/player"
)

// vocabulary of the tiny model. Up to 0.29 an id beyond it fails its request.
const vocabulary = 2048

// Each real frontend reports every token of a player in front of HTTP, in the chunks in which they were said.
func TestRealFrontendsReportEveryToken(t *testing.T) {
	eachFrontend(t, func(t *testing.T, version string) {
		source := newScripts(200)
		server := behind(t, version, player.Options{Source: source})
		for _, stream := range []bool{false, true} {
			t.Run(fmt.Sprintf("stream=%v", stream), func(t *testing.T) {
				each(len(source.scripts), func(i int) {
					s := source.scripts[i]
					got, err := server.Complete(t.Context(), openai.Request{
						ID: fmt.Sprintf("replay-%d", i), Prompt: source.prompt(i), MaxTokens: len(s.Tokens), Stream: stream,
					})
					if err != nil {
						t.Error(err)
						return
					}
					want := openai.Completion{
						Tokens: s.Tokens, FinishReason: finishWords[s.Finish], PromptTokens: len(source.prompt(i)),
						CompletionTokens: len(s.Tokens), Terminal: 1,
					}
					if stream {
						want.Chunks = s.Chunks
					}
					require.NoDiff(t, cmp.Diff(want, got), "request %d (-want +got)", i)
				})
			})
		}
	})
}

// What the real frontends refuse is an error with their own words.
func TestRealFrontendsRefuse(t *testing.T) {
	eachFrontend(t, func(t *testing.T, version string) {
		server := behind(t, version, player.Options{Vocab: vocabulary, Limits: player.Limits{MaxModelLen: 100}})
		tests := []struct {
			name    string
			request openai.Request
			want    string
		}{
			{name: "an id beyond the vocabulary", request: openai.Request{Prompt: []uint32{5000}}, want: "5000"},
			{name: "a prompt beyond the context", request: openai.Request{Prompt: make([]uint32, 101), MaxTokens: 1}, want: "100"},
		}
		for _, test := range tests {
			for _, stream := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/stream=%v", test.name, stream), func(t *testing.T) {
					test.request.Stream = stream
					_, err := server.Complete(t.Context(), test.request)
					var status *openai.StatusError
					require.True(t, errors.As(err, &status) && status.Status == 400 && strings.Contains(status.Body, test.want), "got %v, want status 400 with %q", err, test.want)
				})
			}
		}
	})
}

// A request that the engine answers with an error fails alone, before and after its stream has begun.
func TestRealFrontendsPassErrorsOn(t *testing.T) {
	eachFrontend(t, func(t *testing.T, version string) {
		source := newScripts(1)
		server := behind(t, version, player.Options{Source: source})
		for _, stream := range []bool{false, true} {
			_, err := server.Complete(t.Context(), openai.Request{ID: "nobody", Prompt: []uint32{5}, Stream: stream})
			var status *openai.StatusError
			require.True(t, errors.As(err, &status), "stream=%v: got %v, want a StatusError", stream, err)
		}
		if _, err := server.Complete(t.Context(), openai.Request{ID: "replay-0", Prompt: []uint32{5}}); err != nil {
			t.Errorf("after that: %v", err)
		}
	})
}

// Without an engine the frontend gives up, and says so.
func TestRealFrontendsGiveUpWithoutAnEngine(t *testing.T) {
	eachFrontend(t, func(t *testing.T, version string) {
		server := start(t, version, vllmrs.Options{ReadyTimeout: time.Second})
		err := server.Healthy(t.Context())
		var exit *process.ExitError
		require.True(t, errors.As(err, &exit) && exit.Code == 1 && strings.Contains(err.Error(), "timed out while waiting for HELLO"), "got %v, want exit code 1 and what it waited for", err)
	})
}

// A frontend that dies under a request is an error with its end, not a hang.
func TestRealFrontendsDeathIsReported(t *testing.T) {
	eachFrontend(t, func(t *testing.T, version string) {
		asked := make(chan struct{})
		server := behind(t, version, player.Options{Source: stuck{asked}, Timing: player.Timing{Pace: player.PaceRecorded}})
		go func() {
			<-asked
			server.Close()
		}()
		_, err := server.Complete(t.Context(), openai.Request{Prompt: []uint32{5}})
		var exit *process.ExitError
		require.True(t, errors.As(err, &exit), "got %v, want the end of the process", err)
	})
}

func TestRealFrontendsTellTheirVersion(t *testing.T) {
	eachFrontend(t, func(t *testing.T, version string) {
		got, err := vllmrs.Version(t.Context(), testenv.Frontend(t, version))
		var major, minor int
		if _, err := fmt.Sscanf(version, "%d.%d", &major, &minor); err != nil {
			t.Fatal(err)
		}
		switch {
		case minor >= 29 && got != version:
			t.Errorf("got %q, %v; want %s", got, err, version)
		case minor < 29 && (err == nil || !strings.Contains(err.Error(), "name the line")):
			t.Errorf("got %q, %v; want an error, as it is outside its package", got, err)
		}
	})
}

func eachFrontend(t *testing.T, test func(t *testing.T, version string)) {
	t.Helper()
	for _, version := range testenv.FrontendVersions() {
		t.Run(version, func(t *testing.T) { test(t, version) })
	}
}

func start(t *testing.T, version string, opt vllmrs.Options) *vllmrs.Server {
	t.Helper()
	opt.Binary, opt.ModelDir = testenv.Frontend(t, version), testenv.ModelDir(t)
	server, err := vllmrs.Start(t.Context(), opt)
	require.NoError(t, err)
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Logf("the last output of vllm-rs %s:\n%s", version, server.Tail())
		}
	})
	return server
}

// behind starts a frontend with a player behind it and waits until both are ready. The player ends before the frontend.
func behind(t *testing.T, version string, opt player.Options) *vllmrs.Server {
	t.Helper()
	server := start(t, version, vllmrs.Options{})
	opt.Handshake, opt.VLLMVersion = server.Handshake(), "v"+version
	engine, err := player.New(opt)
	require.NoError(t, err)
	ctx, cancel := context.WithCancelCause(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		cancel(fmt.Errorf("player: %w", engine.Run(ctx)))
	}()
	t.Cleanup(func() { cancel(nil); <-done })
	require.NoError(t, server.Healthy(ctx))
	return server
}

// each runs f for 0 to n-1, 64 at a time.
func each(n int, f func(i int)) {
	var running sync.WaitGroup
	slots := make(chan struct{}, 64)
	for i := range n {
		slots <- struct{}{}
		running.Go(func() {
			defer func() { <-slots }()
			f(i)
		})
	}
	running.Wait()
}

// scripts is a source that answers request replay-N with script N: random ids of the whole vocabulary, special ones and
// pieces of characters among them, in chunks of one to five, under every finish reason that is no error.
type scripts struct{ scripts []player.Script }

var finishWords = map[protocol.FinishReason]string{
	protocol.FinishStop: "stop", protocol.FinishLength: "length", protocol.FinishAbort: "abort", protocol.FinishRepetition: "repetition",
}

func newScripts(n int) *scripts {
	s := &scripts{}
	random := rand.New(rand.NewPCG(7, 11))
	reasons := []protocol.FinishReason{protocol.FinishStop, protocol.FinishLength, protocol.FinishAbort, protocol.FinishRepetition}
	for i := range n {
		script := player.Script{Finish: reasons[i%len(reasons)]}
		for range 1 + random.IntN(24) {
			chunk := 1 + random.IntN(5)
			script.Chunks = append(script.Chunks, chunk)
			for range chunk {
				script.Tokens = append(script.Tokens, random.Uint32N(vocabulary))
			}
		}
		if script.Finish == protocol.FinishStop {
			script.Tokens[len(script.Tokens)-1] = 2 // the model's end of sequence
		}
		s.scripts = append(s.scripts, script)
	}
	return s
}

func (s *scripts) Script(r *player.Request) (player.Script, error) {
	i, ok := player.ReplayIndex(r.ID, r.ExternalID)
	if !ok || i >= len(s.scripts) {
		return player.Script{}, fmt.Errorf("request %q names no script", r.ID)
	}
	if want := fmt.Sprintf("cmpl-replay-%d-", i); !strings.HasPrefix(r.ID, want) {
		return player.Script{}, fmt.Errorf("request %q, want %sXXXXXXXX", r.ID, want)
	}
	return s.scripts[i], nil
}

func (*scripts) prompt(i int) []uint32 { return []uint32{5, 6, 7 + uint32(i%vocabulary/2)}[:1+i%3] }

// stuck is a source whose answers never come.
type stuck struct{ asked chan struct{} }

func (s stuck) Script(*player.Request) (player.Script, error) {
	close(s.asked)
	return player.Script{Tokens: []uint32{5}, FirstToken: time.Hour}, nil
}
