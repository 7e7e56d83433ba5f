package conformance

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/vllm-vcr/conformance/internal/frontend"
	"github.com/vllm-vcr/conformance/internal/protocol"
	"github.com/vllm-vcr/conformance/internal/zmq"
	"github.com/vllm-vcr/conformance/player"
)

// Subject is an engine under test.
type Subject interface {
	// Run serves the frontend until ctx ends, which is no error, or it fails.
	Run(ctx context.Context) error
}

// Engine makes a subject that is to play what the options say, and to dial their
// Handshake. What it cannot play it refuses before any socket is opened.
type Engine func(player.Options) (Subject, error)

// Player is the embedded engine, [player.Player].
func Player(opt player.Options) (Subject, error) {
	p, err := player.New(opt)
	if err != nil {
		return nil, err
	}
	return p, nil
}

// session is a subject under test, connected to a frontend of ours.
type session struct {
	front  *frontend.Frontend
	engine frontend.Engine
	ctx    context.Context // ends with the subject, its error as the cause
	cancel context.CancelCauseFunc
	done   chan struct{} // the subject has ended
	limits Timeouts

	// Of a replay:
	byID    map[string]*stream
	outputs protocol.Outputs // scratch
	strays  []string         // ids of outputs that belong to no request
	indexes map[int]int      // the engine indexes of messages, and the first message that had each
	frames  int              // messages received
	quiet   *time.Timer      // ends the replay when nothing comes
}

// errSubjectEnded is the cause when a subject returns without an error while it
// is needed.
var errSubjectEnded = errors.New("it ended while it was needed")

// launch runs a subject. A subject that ends ends the returned context at once,
// with its error as the cause; done is closed after that.
func launch(ctx context.Context, s Subject) (running context.Context, cancel context.CancelCauseFunc, done chan struct{}) {
	running, cancel = context.WithCancelCause(ctx)
	done = make(chan struct{})
	go func() {
		defer close(done)
		err := s.Run(running)
		if err == nil {
			err = errSubjectEnded
		}
		cancel(coded(CodeEngineEnded, fmt.Errorf("engine: %w", err)))
	}()
	return running, cancel, done
}

// boot starts a subject and takes it through the handshake.
func (r *Runner) boot(ctx context.Context, codec *protocol.Codec, opt player.Options) (*session, error) {
	front, err := frontend.Listen(frontend.Options{Codec: codec, HandshakeTimeout: r.Timeouts.Connect})
	if err != nil {
		return nil, infraError{coded(CodeFrontend, fmt.Errorf("frontend: %w", err))}
	}
	// Ours is the deadline that counts; the player's lies behind it.
	opt.Handshake, opt.HandshakeTimeout, opt.Log = front.Handshake(), 2*r.Timeouts.Connect, r.Log
	opt.Codec = codec
	engine, err := r.Engine(opt)
	if err != nil {
		front.Close()
		return nil, coded(CodeStart, fmt.Errorf("engine: %w", err))
	}
	s := &session{front: front, limits: r.Timeouts}
	s.ctx, s.cancel, s.done = launch(ctx, engine)
	connect, stop := context.WithTimeoutCause(s.ctx, r.Timeouts.Connect,
		infraError{coded(CodeNoHandshake, fmt.Errorf("no handshake within %v", r.Timeouts.Connect))})
	defer stop()
	if s.engine, err = front.Accept(connect); err != nil {
		err = s.explain(err)
		s.close()
		return nil, coded(CodeHandshake, err)
	}
	return s, nil
}

// explain prefers the reason why the subject ended over what its end caused. A
// subject that is seen to go is waited for, so that its reason is known.
func (s *session) explain(err error) error {
	if errors.Is(err, frontend.ErrEngineGone) || errors.Is(err, protocol.ErrEngineDead) || errors.Is(err, zmq.ErrNoPeer) {
		select {
		case <-s.ctx.Done():
		case <-time.After(s.limits.Idle):
		}
	}
	if cause := context.Cause(s.ctx); cause != nil {
		return cause
	}
	return err
}

// close stops the subject, waits for it and closes the frontend.
func (s *session) close() {
	s.cancel(context.Canceled)
	<-s.done
	s.front.Close()
}
