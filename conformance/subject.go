package conformance

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/vllm-vcr/conformance/internal/base/process"
	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/frontends/coreclient"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/internal/wire/zmq"
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
	front   *coreclient.Frontend
	engine  coreclient.Engine
	subject Subject
	remote  bool            // somebody else runs the subject
	ctx     context.Context // ends with the subject, its error as the cause
	cancel  context.CancelCauseFunc
	done    chan struct{} // the subject has ended; nil when remote
	limits  Timeouts
	lost    error    // why the engine is not to be talked to any more
	shared  *session // what this is a case's view of, nil when the case has it alone

	// Of a replay:
	byID    map[string]*stream
	outputs protocol.Outputs // scratch
	strays  []string         // ids of outputs that belong to no request
	surplus int              // outputs beyond what was asked for
	indexes map[int]int      // the engine indexes of messages, and the first message that had each
	frames  int              // messages received
	quiet   *time.Timer      // ends the replay when nothing comes
	layout  *layoutCheck     // of every message; nil for an engine that takes its time from us
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
		cancel(check.WithCode(check.CodeEngineEnded, fmt.Errorf("engine: %w", err)))
	}()
	return running, cancel, done
}

// boot yields a session for a case. The messages of an engine with a time of its own
// are checked in it.
func (r *Runner) boot(ctx context.Context, codec *protocol.Codec, opt player.Options) (*session, error) {
	s, err := r.sessionFor(ctx, codec, opt)
	if err == nil && s.hasOwnTime() {
		s.layout = &layoutCheck{codec: codec}
	}
	return s, err
}

// sessionFor is a session with a subject of the case's own, or with the engine that
// all cases share.
func (r *Runner) sessionFor(ctx context.Context, codec *protocol.Codec, opt player.Options) (*session, error) {
	switch {
	case r.Address != "" && opt.Clock != nil:
		return nil, errNotStepped
	case r.Address != "":
		s, err := r.share(r.Address, func() (*session, error) { return r.join(r.run(ctx), codec, opt) })
		if err != nil {
			return nil, err
		}
		return s.during(ctx), nil
	case r.KeepAlive != nil:
		r.release()
		s, err := r.share("", func() (*session, error) { return r.start(r.run(ctx), codec, opt) })
		if err != nil {
			return nil, err
		}
		return s.during(ctx), nil
	}
	return r.start(ctx, codec, opt)
}

// maxFrame bounds a message of a subject, in bytes: what a session asks for is
// answered with much less.
const maxFrame = 64 << 20

// start starts a subject and takes it through the handshake.
func (r *Runner) start(ctx context.Context, codec *protocol.Codec, opt player.Options) (*session, error) {
	s, err := r.listen(codec, "")
	if err != nil {
		return nil, err
	}
	// Ours is the deadline that counts; the player's lies behind it.
	opt.Handshake, opt.HandshakeTimeout, opt.Log = s.front.Handshake(), 2*r.Timeouts.Connect, r.Log
	opt.Codec = codec
	if s.subject, err = r.Engine(opt); err != nil {
		s.front.Close()
		return nil, check.WithCode(check.CodeStart, fmt.Errorf("engine: %w", err))
	}
	s.ctx, s.cancel, s.done = launch(ctx, s.subject)
	r.announce(s)
	return r.accept(s, opt.VLLMVersion)
}

// listen opens the sockets of a session; address is where the engine is to dial,
// empty for any port.
func (r *Runner) listen(codec *protocol.Codec, address string) (*session, error) {
	front, err := coreclient.Listen(coreclient.Options{
		Codec: codec, HandshakeAddress: address, Address: dataAddress(address), MaxFrame: maxFrame,
		HandshakeTimeout: min(r.Timeouts.Connect, mostZMQHandshake),
	})
	if err != nil {
		return nil, check.Infra(check.WithCode(check.CodeFrontend, fmt.Errorf("frontend: %w", err)))
	}
	return &session{front: front, limits: r.Timeouts}, nil
}

// mostZMQHandshake bounds what peers of ZeroMQ do in a moment.
const mostZMQHandshake = 30 * time.Second

// accept takes the subject through the handshake; version is what it is to be.
func (r *Runner) accept(s *session, version string) (*session, error) {
	connect, stop := context.WithTimeoutCause(s.ctx, r.Timeouts.Connect,
		check.Infra(check.WithCode(check.CodeNoHandshake, fmt.Errorf("no handshake within %v", r.Timeouts.Connect))))
	defer stop()
	var err error
	if s.engine, err = s.front.Accept(connect); err != nil {
		err = s.withOutput(s.explain(err))
		s.close()
		return nil, check.WithCode(check.CodeHandshake, err)
	}
	if r.versions != nil {
		r.versions[protocol.LineOf(version)] = s.engine.Ready.VLLMVersion
	}
	return s, nil
}

// explain prefers the reason why the subject ended over what its end caused, which a
// wrong message was not. A subject that is seen to go is waited for, so that its
// reason is known.
func (s *session) explain(err error) error {
	gone := errors.Is(err, coreclient.ErrEngineGone) || errors.Is(err, protocol.ErrEngineDead) || errors.Is(err, zmq.ErrNoPeer)
	if gone && s.outlives(err) {
		select {
		case <-s.ctx.Done():
		case <-time.After(s.limits.Idle):
		}
	}
	var wrong check.MessageError
	if errors.As(err, &wrong) {
		return err
	}
	if cause := context.Cause(s.ctx); cause != nil {
		err = cause
	} else if gone {
		err = check.WithCode(check.CodeEngineEnded, err)
	}
	if gone {
		s.lose(err)
	}
	return err
}

// outlives tells whether a reason is still to come: not where nobody is there to
// tell it, nor when it was we who hung up.
func (s *session) outlives(err error) bool {
	return !s.owner().remote && !errors.Is(err, zmq.ErrTooLarge)
}

// owner is the session that a case's view is of.
func (s *session) owner() *session {
	if s.shared != nil {
		return s.shared
	}
	return s
}

func (s *session) lose(err error) {
	if owner := s.owner(); owner.lost == nil {
		owner.lost = err
	}
}

// withOutput adds what the subject wrote last to an error that does not tell.
func (s *session) withOutput(err error) error {
	writer, ok := s.subject.(interface{ Output() string })
	var exit *process.ExitError
	if !ok || errors.As(err, &exit) {
		return err
	}
	if text := writer.Output(); text != "" {
		return fmt.Errorf("%w; the last of the engine's output:\n%s", err, text)
	}
	return err
}

// close ends a case's use of a session, and the session itself unless others use
// it too.
func (s *session) close() {
	if s.shared != nil {
		s.leave()
		return
	}
	s.cancel(context.Canceled)
	if !s.remote {
		<-s.done
	}
	s.front.Close()
}
