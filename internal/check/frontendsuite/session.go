package frontendsuite

import (
	"cmp"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/internal/base/process"
	"github.com/vllm-vcr/conformance/internal/base/retry"
	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/frontends/openai"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/player"
	"github.com/vllm-vcr/conformance/trace"
)

// frontendSession is a frontend under test with a player behind it, for all cases of
// a line.
type frontendSession struct {
	env      *check.Env
	line     compat.Line
	codec    *protocol.Codec
	trace    *trace.Trace // what the player may say; nil without a golden
	frontend *check.FrontendProcess
	client   *openai.Client
	ledger   *ledger
	speaker  *speaker
	tap      *tap

	ctx     context.Context // ends with the frontend or the player, the reason as its cause
	cancel  context.CancelCauseFunc
	player  context.CancelFunc
	ended   chan struct{} // the player and the tap have
	refused error         // why the frontend has never served, nil if it has
	lostAt  string        // the assertion that saw that it does not serve, or no more
	over    bool          // the engine was taken away

	model    string            // as requests name it
	version  string            // what the frontend says it is, "" if it does not
	sampled  []uint32          // the ids of the text sampler, nil if they are not known
	alphabet []uint32          // ids that the tokenizer knows
	form     promptForm        // of prompts
	texts    map[string]string // of prompts, unless they are ids, by the key of their ids
	eos      *uint32           // the end of sequence, as far as it is known
	// reference is what the released frontend sends that this one is held to, nil before it is known.
	reference *expectation
	hangs     int             // answers that did not come
	prompts   int             // made so far
	judged    int             // messages of the ledger that were looked at
	told      map[string]bool // what was found wrong with messages
}

// openFrontend starts the frontend and a player, and waits until the one serves or
// it is known why not.
func openFrontend(ctx context.Context, e *check.Env, g *check.Golden, line compat.Line) (*frontendSession, error) {
	codec, err := check.CodecFor(line)
	if err != nil {
		return nil, err
	}
	s := &frontendSession{env: e, line: line, codec: codec, trace: g.Trace, ledger: newLedger(codec), speaker: new(speaker), told: map[string]bool{}}
	s.ledger.keeps = e.Exchanged != nil
	if s.frontend, err = e.Frontend.Start(line); err != nil {
		return nil, err
	}
	e.AnnounceFrontend(s.frontend)
	s.client = openai.NewClient(s.frontend.URL, "")
	s.ctx, s.cancel = context.WithCancelCause(e.Context)
	patience := cmp.Or(e.Frontend.ReadyTimeout, e.Timeouts.Connect)
	if err := s.play(e, patience); err != nil {
		s.Close()
		return nil, err
	}
	go s.watch()
	starting, stop := s.frontend.Patience(s.ctx, patience, fmt.Errorf("it does not serve within %v", patience))
	defer stop()
	defer context.AfterFunc(ctx, stop)()
	if s.refused = s.healthy(starting); s.refused == nil {
		s.refused = s.registered(starting)
	}
	if s.refused == nil {
		s.identify(starting)
	}
	return s, nil
}

// watch ends the session with the process.
func (s *frontendSession) watch() {
	select {
	case <-s.frontend.Done():
		s.cancel(check.WithCode(check.CodeFrontend, fmt.Errorf("the frontend ended: %w", s.frontend.Exit())))
	case <-s.ctx.Done():
	}
}

// play starts the player, and the tap before it.
func (s *frontendSession) play(e *check.Env, patience time.Duration) error {
	tap, err := openTap(s.frontend, s.ledger)
	if err != nil {
		return err
	}
	s.tap = tap
	registration := s.registration()
	handshake, inputs, outputs := tap.endpoints()
	engine, err := check.Player(player.Options{
		Handshake: handshake, InputAddresses: inputs, OutputAddresses: outputs, HandshakeTimeout: 2 * patience, VLLMVersion: check.PlayedVersion(s.line), Codec: s.codec,
		Trace: registration, Source: s.speaker, Timing: player.Timing{Pace: player.PaceRecorded}, Log: slog.New(Demoted{e.Log.Handler()}),
		LoRA:     player.LoRAOptions{MaxLoRAs: 4},
		Transfer: &connector,
		Tolerant: true, // messages are judged by what the tap saw of them
	})
	if err != nil {
		tap.close()
		return err
	}
	playing, stop := context.WithCancel(s.ctx)
	s.player, s.ended = stop, make(chan struct{})
	tapped := make(chan error, 1)
	go func() { tapped <- tap.run(s.ctx) }()
	go func() {
		defer close(s.ended)
		if err := engine.Run(playing); err != nil {
			s.lost(err)
		}
		if err := <-tapped; err != nil && playing.Err() == nil {
			s.lost(err)
		}
	}()
	return nil
}

// Demoted is the log of a player whose refusals and losses are a part of the plan: the
// cases tell what is wrong of them.
type Demoted struct{ slog.Handler }

// Enabled implements [slog.Handler].
func (d Demoted) Enabled(ctx context.Context, level slog.Level) bool {
	return d.Handler.Enabled(ctx, min(level, slog.LevelInfo))
}

// Handle implements [slog.Handler].
func (d Demoted) Handle(ctx context.Context, r slog.Record) error {
	r.Level = min(r.Level, slog.LevelInfo)
	return d.Handler.Handle(ctx, r)
}

// lost ends the session. A frontend that goes hangs up before its end is known, and
// how it ended says more than that it hung up.
func (s *frontendSession) lost(err error) {
	patience, stop := s.frontend.Patience(context.Background(), exitPatience, nil)
	defer stop()
	select {
	case <-s.frontend.Done():
	case <-patience.Done():
		s.cancel(check.WithCode(check.CodeFrontend, fmt.Errorf("the engine side ended: %w; %s", err, s.frontend.Said())))
	case <-s.ctx.Done():
	}
}

// exitPatience is how long the end of a process may take to be known after its
// connections broke.
const exitPatience = time.Second

// registration is what the player registers with: as the golden's engine did, and
// as one that has adapters and can sleep, so that the frontend offers both.
func (s *frontendSession) registration() *trace.Trace {
	ready := protocol.DefaultReady(s.codec.Profile().Version)
	t := &trace.Trace{}
	if s.trace != nil {
		t.Name, t.Meta = s.trace.Name, s.trace.Meta
		if text := t.Meta.ReadyResponseHex; text != nil {
			if raw, err := hex.DecodeString(*text); err == nil {
				if recorded, err := protocol.DecodeReady(raw); err == nil {
					ready = recorded
				}
			}
		}
	}
	ready.SupportsLoRA, ready.MaxLoRAs, ready.EnableSleepMode = true, 4, true
	text := hex.EncodeToString(s.codec.AppendReady(nil, &ready))
	t.Meta.ReadyResponseHex = &text
	return t
}

// Pauses between two looks at /health.
const (
	firstLook = 5 * time.Millisecond
	lastLook  = 200 * time.Millisecond
)

// healthy waits until the frontend serves, and says why it does not.
func (s *frontendSession) healthy(ctx context.Context) error {
	for pause := firstLook; ; pause = min(2*pause, lastLook) {
		err := s.client.Health(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-time.After(pause):
			continue
		case <-s.frontend.Done():
			return s.frontend.Exit()
		case <-ctx.Done():
		}
		var exit *process.ExitError
		if cause := context.Cause(ctx); errors.As(cause, &exit) {
			return cause
		}
		return fmt.Errorf("%w; GET /health: %s; %s", context.Cause(ctx), excerpt(err.Error()), s.frontend.Said())
	}
}

// registered waits until the engine has registered: a gateway may be healthy before that.
func (s *frontendSession) registered(ctx context.Context) error {
	select {
	case <-s.tap.ready:
		return nil
	case <-s.frontend.Done():
		return s.frontend.Exit()
	case <-ctx.Done():
		return fmt.Errorf("%w; GET /health: 200, but no engine has registered; %s", context.Cause(ctx), s.frontend.Said())
	}
}

// Close ends the player, then the frontend.
func (s *frontendSession) Close() {
	if s.frontend == nil {
		return // it could not be started
	}
	s.takeEngine()
	s.cancel(context.Canceled)
	if s.ended != nil {
		<-s.ended
	}
	if s.env.Exchanged != nil {
		s.env.Exchanged(s.line.Name, s.ledger.exchange())
	}
	s.frontend.Close()
	s.client.Close()
	if p := s.frontend.Process; p != nil && p.Killed() {
		s.env.Log.Warn("the frontend did not end by SIGTERM and was killed", "command", s.env.Frontend.Command)
	}
}

// Done is closed when the frontend has ended.
func (s *frontendSession) Done() <-chan struct{} {
	if s.frontend == nil {
		return nil
	}
	return s.frontend.Done()
}

// takeEngine ends the player, which shows the frontend that the engine is dead.
func (s *frontendSession) takeEngine() {
	s.over = true
	if s.player != nil {
		s.player()
	}
}

// speaker decides what the player says to a frontend under test: what was planned
// for a prompt, else the prompt itself. An echo comes out of HTTP as the text that
// went in, whatever the tokenizer is. It is safe for use by several goroutines.
type speaker struct {
	mu    sync.Mutex
	plans map[string]plan
}

// plan is what to say to one prompt.
type plan struct {
	script player.Script
	refuse error // instead of a script
	// ready, if not nil, is called before the answer begins: the engine waits for it.
	ready func()
}

// Script implements [player.Source].
func (s *speaker) Script(r *player.Request) (player.Script, error) {
	s.mu.Lock()
	p, planned := s.plans[promptKey(r.PromptTokenIDs)]
	s.mu.Unlock()
	switch {
	case !planned:
		return player.Script{Tokens: slices.Clone(r.PromptTokenIDs), Finish: protocol.FinishLength}, nil
	case p.ready != nil:
		p.ready()
	}
	return p.script, p.refuse
}

func (s *speaker) plan(prompt []uint32, p plan) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.plans == nil {
		s.plans = map[string]plan{}
	}
	s.plans[promptKey(prompt)] = p
}

func promptKey(prompt []uint32) string {
	key := make([]byte, 0, 4*len(prompt))
	for _, id := range prompt {
		key = append(key, byte(id), byte(id>>8), byte(id>>16), byte(id>>24))
	}
	return string(key)
}

// stuck is the pause before a token that is never said: longer than any run.
const stuck = 1000 * time.Hour

// stalling says the tokens and then nothing more, without an end.
func stalling(tokens []uint32) player.Script {
	s := player.Script{Tokens: append(slices.Clone(tokens), tokens[0]), Finish: protocol.FinishLength}
	s.Gaps = make([]time.Duration, len(tokens))
	s.Gaps[len(tokens)-1] = stuck
	return s
}

// identify asks what the model is called, and what the frontend is. What it does not
// tell stays empty.
func (s *frontendSession) identify(ctx context.Context) {
	var models struct {
		Data []struct {
			ID string `json:"id"`
		} `json:"data"`
	}
	for pause := firstLook; pause < lastLook && s.told200(ctx, "/v1/models", &models) && len(models.Data) == 0; pause *= 2 {
		_ = retry.Pause(ctx, pause) // a gateway lists the model of an engine a moment after its registration
	}
	if len(models.Data) > 0 {
		s.model = models.Data[0].ID
	}
	// "version" of a Rust frontend is what the engine registered as, and its own was
	// 0.1.0 for years.
	var version struct {
		Version string `json:"version"`
		Rust    string `json:"rust_frontend_version"`
	}
	if s.told200(ctx, "/version", &version) {
		s.version = cmp.Or(version.Rust, version.Version)
		if strings.HasPrefix(s.version, "0.1.") {
			s.version = ""
		}
	}
}

func (s *frontendSession) told200(ctx context.Context, path string, into any) bool {
	a, err := s.client.Send(ctx, http.MethodGet, path, nil)
	return err == nil && a.Status == http.StatusOK && json.Unmarshal(a.Body, into) == nil
}
