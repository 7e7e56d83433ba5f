package serve

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/vllm-vcr/conformance/internal/base/process"
	"github.com/vllm-vcr/conformance/internal/frontends/vllmrs"
	"github.com/vllm-vcr/conformance/internal/serve/builtin"
	"github.com/vllm-vcr/conformance/player"
)

const (
	// deathDelay is how long the end of a frontend may take to be known after its connections broke.
	deathDelay = 2 * time.Second
	// engineGrace is how long the player may take to end.
	engineGrace = 15 * time.Second
)

// A unit is a frontend and the player behind it.
type unit struct {
	rank     *rank
	engines  *Engines
	frontend *vllmrs.Server     // nil of one in this process
	local    *builtin.Server    // nil of one in another process
	stop     context.CancelFunc // the player
	ended    chan struct{}      // closed when the player has ended
	err      error              // why
}

// start starts frontend number n and its player. over is called at the end of either.
func (s *Server) start(ctx context.Context, n int, over context.CancelCauseFunc) (*unit, error) {
	cfg, at := &s.cfg, s.ranks[n]
	engines, err := cfg.Engines(ctx, fmt.Sprintf("tcp://127.0.0.1:%d", at.handshake.Number()), n)
	if err != nil {
		return nil, err
	}
	u := &unit{rank: at, engines: engines, ended: make(chan struct{})}
	if err := s.startFrontend(ctx, u); err != nil {
		engines.Close()
		return nil, err
	}
	run := engines.Group.Run
	if u.local != nil {
		run = u.local.Run
		at.local.Store(u.local)
	}
	at.group.Store(&engines.Group)
	running, stop := context.WithCancel(context.Background())
	u.stop = stop
	go func() {
		u.err = run(running)
		engines.Close()
		close(u.ended)
		over(errEngine)
	}()
	if u.frontend != nil {
		go func() {
			<-u.frontend.Done()
			over(errFrontend)
		}()
	}
	return u, nil
}

func (s *Server) startFrontend(ctx context.Context, u *unit) (err error) {
	cfg, engines := &s.cfg, u.engines
	if s.frontend == nil {
		opt := cfg.Frontend
		opt.Release = cfg.Release(engines.Group.Line())
		f, err := FindFrontend(ctx, opt)
		if err != nil {
			return &FindError{err}
		}
		if err := f.Check(cfg.Args, cfg.PlayerFlags); err != nil {
			return &FlagError{err}
		}
		s.frontend = &f
	}
	if s.frontend.Kind == Builtin {
		u.local, err = s.builtin(engines)
		return err
	}
	maxLoRAs := 0
	if engines.LoRA {
		maxLoRAs = lorasOf(engines.Group.Engines()[0])
	}
	u.frontend, err = vllmrs.Start(context.WithoutCancel(ctx), vllmrs.Options{
		Binary: s.frontend.Program, Before: s.frontend.before, ModelDir: cfg.Model.Dir, ServedName: cfg.Names[0], AlsoServed: cfg.Names[1:], Engines: engines.Count,
		Args: append(s.frontend.defaults(cfg.Model, maxLoRAs, engines, cfg.Args), cfg.Args...), Env: append(s.frontend.environment(), cfg.Env...),
		Handshake: u.rank.handshake, HTTP: u.rank.http, ReadyTimeout: cfg.ReadyTimeout, Output: cfg.Output, Log: cfg.Log,
	})
	return err
}

// builtin makes the frontend in this process.
func (s *Server) builtin(engines *Engines) (*builtin.Server, error) {
	opt := s.cfg.Builtin
	opt.Group, opt.Names, opt.Model, opt.Dir, opt.LoRA = engines.Group.(builtin.Engines), s.cfg.Names, s.cfg.Model.Name, s.cfg.Model.Dir, engines.LoRA
	opt.Tasks, opt.Release, opt.Env, opt.Log = engines.Tasks, s.cfg.Release(engines.Group.Line()), s.cfg.Env, s.cfg.Log
	opt.Flags.LanguageModelOnly = opt.Flags.LanguageModelOnly || engines.Compute
	return builtin.New(opt)
}

// healthy waits until the frontend answers.
func (u *unit) healthy(ctx context.Context) error {
	if u.frontend != nil {
		return u.frontend.Healthy(ctx)
	}
	select {
	case <-u.engines.Group.Ready():
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// gone is closed when the frontend has ended; nil of one in this process, which ends with its engines only.
func (u *unit) gone() <-chan struct{} {
	if u.frontend == nil {
		return nil
	}
	return u.frontend.Done()
}

// close ends the frontend, then the player.
func (u *unit) close() {
	if u.rank.local.Store(nil); u.frontend != nil {
		_ = u.frontend.Close()
	}
	u.stop()
	late := time.NewTimer(engineGrace)
	defer late.Stop()
	select {
	case <-u.ended:
	case <-late.C:
	}
}

var (
	errEngine   = errors.New("the player ended")
	errFrontend = errors.New("the frontend ended")
)

// A FindError reports a frontend that is not there, or cannot be fetched.
type FindError struct{ error }

// Unwrap returns the cause.
func (e *FindError) Unwrap() error { return e.error }

// A FlagError reports a flag in Config.Args that the frontend does not have, or that serve sets itself.
type FlagError struct{ error }

// An EndedError reports a frontend that ended by itself. What it wrote last is in its log.
type EndedError struct{ Exit *process.ExitError }

func (e *EndedError) Error() string {
	return fmt.Sprintf("the frontend ended by itself: %s; its log says more, and --restart starts it again", e.Exit.Status)
}
func (e *EndedError) Unwrap() error { return e.Exit }

// Code is the exit code of the frontend, as a shell has it after a signal: 137 after SIGKILL. A frontend that ended
// without an error has failed here all the same.
func (e *EndedError) Code() int {
	switch code := e.Exit.Code; {
	case code > 0:
		return code
	case code < 0:
		if signal := e.Exit.Signal(); signal > 0 {
			return 128 + signal
		}
	}
	return 3
}

// notReady is the error of a start that failed: the end of a player or of a frontend, if there is one, with the last
// that the frontend wrote.
func notReady(units []*unit, err error) error {
	if engine := engineError(units); engine != nil {
		return engine
	}
	if exit := exitOf(units); exit != nil {
		return fmt.Errorf("the frontend did not start: %w", exit)
	}
	return err
}

// cause is the error of the first cause of an end: a player whose frontend is gone ends too, and the other way round.
func cause(units []*unit, err error) error {
	if !errors.Is(err, errEngine) && !errors.Is(err, errFrontend) {
		return err
	}
	if engine := engineError(units); engine != nil {
		return engine
	}
	if exit := exitOf(units); exit != nil {
		return &EndedError{exit}
	}
	for _, u := range units {
		select {
		case <-u.ended:
			return fmt.Errorf("%w: %w", errEngine, u.err)
		default:
		}
	}
	return err
}

// engineError is the error of a player that has one of its own; nil without one.
func engineError(units []*unit) error {
	for _, u := range units {
		select {
		case <-u.ended:
			if u.err != nil && !errors.Is(u.err, player.ErrFrontendGone) {
				return fmt.Errorf("%w: %w", errEngine, u.err)
			}
		default:
		}
	}
	return nil
}

// exitOf is how a frontend ended; nil if none has. A player notices the end of its frontend before the system says so.
func exitOf(units []*unit) *process.ExitError {
	late := time.NewTimer(deathDelay)
	defer late.Stop()
	for _, u := range units {
		select {
		case <-u.gone():
			return u.frontend.Exit()
		default:
		}
		select {
		case <-u.ended:
			select {
			case <-u.gone():
				return u.frontend.Exit()
			case <-late.C:
				return nil
			}
		default:
		}
	}
	return nil
}
