package conformance

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/internal/base/process"
	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/frontends/openai"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/player"
	"github.com/vllm-vcr/conformance/trace"
)

// frontendSession is a frontend under test with a player behind it, for all cases of
// a line.
type frontendSession struct {
	line     compat.Line
	codec    *protocol.Codec
	trace    *trace.Trace // what the player may say; nil without a golden
	frontend *frontendProcess
	client   *openai.Client
	ledger   *ledger
	speaker  *speaker

	ctx     context.Context // ends with the frontend or the player, the reason as its cause
	cancel  context.CancelCauseFunc
	player  context.CancelFunc
	ended   chan struct{} // the player and the tap have
	refused error         // why the frontend has never served, nil if it has
	lostAt  string        // the assertion that saw that it does not serve, or no more
	over    bool          // the engine was taken away

	model    string          // as requests name it
	version  string          // what the frontend says it is, "" if it does not
	alphabet []uint32        // ids that the tokenizer knows
	prompts  int             // made so far
	judged   int             // messages of the ledger that were looked at
	told     map[string]bool // what was found wrong with messages
}

// frontendSession returns the session of a case's line, and opens it for the first
// one. Where the engine was taken away, a frontend that is started by a command is
// started again.
func (r *Runner) frontendSession(ctx context.Context, g *check.Golden, c Case) (*frontendSession, error) {
	if s := r.frontend; s != nil && s.line.Name == c.Line.Name && (!s.over || r.Frontend.Command == "") {
		return s, nil
	}
	r.closeFrontend()
	if r.Frontend == nil {
		return nil, check.WithCode(check.CodeFrontend, errors.New("no frontend under test: set Runner.Frontend"))
	}
	s, err := r.openFrontend(ctx, g, c.Line)
	if err != nil {
		r.frontend = &frontendSession{line: c.Line, lostAt: string(c.Assertion)}
		return nil, check.Infra(check.WithCode(check.CodeFrontend, fmt.Errorf("frontend: %w", err)))
	}
	r.frontend = s
	if s.version != "" {
		r.versions[c.Line.Name] = s.version
	}
	return s, nil
}

// openFrontend starts the frontend and a player, and waits until the one serves or
// it is known why not.
func (r *Runner) openFrontend(ctx context.Context, g *check.Golden, line compat.Line) (*frontendSession, error) {
	codec, err := check.CodecFor(line)
	if err != nil {
		return nil, err
	}
	s := &frontendSession{line: line, codec: codec, trace: g.Trace, ledger: newLedger(codec), speaker: new(speaker), told: map[string]bool{}}
	if s.frontend, err = r.Frontend.start(line); err != nil {
		return nil, err
	}
	r.announceFrontend(s.frontend)
	s.client = openai.NewClient(s.frontend.url, "")
	s.ctx, s.cancel = context.WithCancelCause(r.whole)
	patience := cmp.Or(r.Frontend.ReadyTimeout, r.Timeouts.Connect)
	if err := s.play(r, patience); err != nil {
		s.close()
		return nil, err
	}
	go s.watch()
	starting, stop := context.WithTimeoutCause(s.ctx, patience, fmt.Errorf("it does not serve within %v", patience))
	defer stop()
	defer context.AfterFunc(ctx, stop)()
	if s.refused = s.healthy(starting); s.refused == nil {
		s.identify(starting)
	}
	return s, nil
}

// watch ends the session with the process.
func (s *frontendSession) watch() {
	select {
	case <-s.frontend.done():
		s.cancel(check.WithCode(check.CodeFrontend, fmt.Errorf("the frontend ended: %w", s.frontend.exit())))
	case <-s.ctx.Done():
	}
}

// play starts the player, and the tap before it.
func (s *frontendSession) play(r *Runner, patience time.Duration) error {
	tap, err := openTap(s.frontend.handshake, s.ledger)
	if err != nil {
		return err
	}
	registration := s.registration()
	engine, err := Player(player.Options{
		Handshake: tap.gate.Endpoint(), HandshakeTimeout: 2 * patience, VLLMVersion: check.PlayedVersion(s.line), Codec: s.codec,
		Trace: registration, Source: s.speaker, Timing: player.Timing{Pace: player.PaceRecorded}, Log: slog.New(demoted{r.Log.Handler()}),
	})
	if err != nil {
		tap.gate.Close()
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

// demoted is the log of a player whose refusals and losses are a part of the plan: the
// cases tell what is wrong of them.
type demoted struct{ slog.Handler }

// Enabled implements [slog.Handler].
func (d demoted) Enabled(ctx context.Context, level slog.Level) bool {
	return d.Handler.Enabled(ctx, min(level, slog.LevelInfo))
}

// Handle implements [slog.Handler].
func (d demoted) Handle(ctx context.Context, r slog.Record) error {
	r.Level = min(r.Level, slog.LevelInfo)
	return d.Handler.Handle(ctx, r)
}

// lost ends the session. A frontend that goes hangs up before its end is known, and
// how it ended says more than that it hung up.
func (s *frontendSession) lost(err error) {
	select {
	case <-s.frontend.done():
	case <-time.After(exitPatience):
		s.cancel(check.WithCode(check.CodeFrontend, fmt.Errorf("the engine side ended: %w; %s", err, s.frontend.said())))
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
		case <-s.frontend.done():
			return s.frontend.exit()
		case <-ctx.Done():
		}
		var exit *process.ExitError
		if cause := context.Cause(ctx); errors.As(cause, &exit) {
			return cause
		}
		return fmt.Errorf("%w; GET /health: %s; %s", context.Cause(ctx), excerpt(err.Error()), s.frontend.said())
	}
}

// closeFrontend ends the session of the frontend under test.
func (r *Runner) closeFrontend() {
	if r.frontend == nil {
		return
	}
	r.frontend.close()
	if p := r.frontend.frontend; p != nil && p.process != nil && p.process.Killed() {
		r.Log.Warn("the frontend did not end by SIGTERM and was killed", "command", r.Frontend.Command)
	}
	r.frontend = nil
}

// close ends the player, then the frontend.
func (s *frontendSession) close() {
	if s.frontend == nil {
		return // it could not be started
	}
	s.takeEngine()
	s.cancel(context.Canceled)
	if s.ended != nil {
		<-s.ended
	}
	s.frontend.close()
	s.client.Close()
}

// takeEngine ends the player, which tells the frontend that the engine is dead.
func (s *frontendSession) takeEngine() {
	s.over = true
	if s.player != nil {
		s.player()
	}
}
