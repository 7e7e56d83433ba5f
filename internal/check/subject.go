package check

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/vllm-vcr/conformance/internal/base/process"
	"github.com/vllm-vcr/conformance/internal/frontends/coreclient"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/internal/wire/zmq"
	"github.com/vllm-vcr/conformance/player"
	"github.com/vllm-vcr/conformance/trace"
)

// Subject is an engine under test.
type Subject interface {
	// Run serves the frontend until ctx ends, which is not an error, or it fails.
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

// Session is a subject under test, connected to a frontend of ours.
type Session struct {
	Front   *coreclient.Frontend
	Engine  coreclient.Engine
	Subject Subject
	Remote  bool            // somebody else runs the subject
	Context context.Context // ends with the subject, its error as the cause
	Cancel  context.CancelCauseFunc
	Done    chan struct{} // the subject has ended; nil when remote
	Limits  Timeouts
	Lost    error    // why the engine is not to be talked to any more
	Shared  *Session // what this is a case's view of, nil when the case has it alone
}

// Conversation is what an engine said in a case that it passed.
type Conversation struct {
	Codec        *protocol.Codec
	Registration []byte
	Said         [][][]byte // the frames of each message on the output socket
	// Finds reports whether the case would have failed with other frames in the place of those of a message.
	Finds func(at int, frames [][]byte) bool
	// Registers does the same for another registration.
	Registers func(payload []byte) bool
}

// Exchange is what passed between a frontend under test and its engine while the frontend ran.
type Exchange struct {
	Codec *protocol.Codec
	Init  []byte     // the frontend's answer to HELLO
	Sent  [][][]byte // the frames of each message of the frontend on its input sockets
	Said  [][][]byte // and of each message of the engine on its output sockets
	// Finds reports, for each message of Sent, whether a check would find another payload in its place. It is nil for a message whose
	// values are not judged.
	Finds []func(payload []byte) bool
}

// Env is what the subjects of one run have in common: how they are started and for how long they are waited for, and the
// one that several cases use. It is used by one goroutine.
type Env struct {
	Engine    Engine // makes the engine of a case
	Address   string // where an engine that somebody else starts is awaited instead
	Logits    bool   // it sends logits as log-probabilities
	NIXL      string // a Python with nixl, for the suites prefill and decode
	Frontend  *FrontendUnderTest
	Consumer  *ConsumerUnderTest
	Router    *RouterUnderTest
	KeepAlive func(Attached) // nil unless subjects are kept alive
	Timeouts  Timeouts
	Log       *slog.Logger

	Context  context.Context   // of the whole run, which sessions live in that several cases use
	Versions map[string]string // what the subject calls itself, by line
	// Heard, unless nil, is called with what engines said in cases of fidelity. Wanted reports whether it has use for one of a line.
	Heard  func(line string, c Conversation)
	Wanted func(line string) bool
	// Exchanged, unless nil, is called with what passed between a frontend and its engine, once for each life of the frontend.
	Exchanged func(line string, x Exchange)
	Kept      Kept // what the cases of a suite share; the suite puts it there
	Generate  Generate
	// FramesOut, unless nil, is given the messages of an engine with a NixlConnector and of its side channel, up to the second case.
	FramesOut func([]trace.Message) error
	// Planned are the cases of the run.
	Planned []Case
	// Case is the name of the case that is being judged. Step, unless nil, is called with what a subject is waited for.
	Case string
	Step func(step string)

	sharing *sharing
}

// Generate is what the suite generated is to do.
type Generate struct {
	Sessions int    // how many random ones
	Seed     uint64 // of the first
	Clients  int    // of the frontend; 0 is 1
	Replays  bool   // the engine replays a trace
	// File is the session to send instead of random ones, and where the smallest session that fails is written otherwise, if there is a name.
	File string
}

// Kept is a subject that the cases of a suite share. A suite that replaces it closes it first.
type Kept interface {
	Close()
	Done() <-chan struct{} // closed when the subject has ended, nil if somebody else started it
}

// Plans reports whether the run has the case of the live suite.
func (e *Env) Plans(line string, a Assertion) bool {
	return slices.ContainsFunc(e.Planned, func(c Case) bool {
		return c.Suite == SuiteLive && c.Line.Name == line && c.Assertion == a && c.Skip == ""
	})
}

// errSubjectEnded is the cause when a subject returns without an error while it
// is needed.
var errSubjectEnded = errors.New("it ended while it was needed")

// Launch runs a subject. A subject that ends ends the returned context at once,
// with its error as the cause; done is closed after that.
func Launch(ctx context.Context, s Subject) (running context.Context, cancel context.CancelCauseFunc, done chan struct{}) {
	running, cancel = context.WithCancelCause(ctx)
	done = make(chan struct{})
	go func() {
		defer close(done)
		err := s.Run(running)
		if err == nil {
			err = errSubjectEnded
		}
		cancel(WithCode(CodeEngineEnded, fmt.Errorf("engine: %w", err)))
	}()
	return running, cancel, done
}

// Session is a session with a subject of the case's own, or with the engine that
// all cases share.
func (e *Env) Session(ctx context.Context, codec *protocol.Codec, opt player.Options) (*Session, error) {
	switch {
	case e.Address != "" && opt.Clock != nil:
		return nil, ErrNotStepped
	case e.Address != "":
		s, err := e.Share(e.Address, func() (*Session, error) { return e.Join(e.Context, codec, opt) })
		if err != nil {
			return nil, err
		}
		return s.During(ctx), nil
	case e.KeepAlive != nil:
		e.release()
		s, err := e.Share("", func() (*Session, error) { return e.Start(e.Context, codec, opt) })
		if err != nil {
			return nil, err
		}
		return s.During(ctx), nil
	}
	return e.Start(ctx, codec, opt)
}

// maxFrame bounds a message of a subject, in bytes: what a session asks for is
// answered with much less.
const maxFrame = 64 << 20

// Start starts a subject and takes it through the handshake.
func (e *Env) Start(ctx context.Context, codec *protocol.Codec, opt player.Options) (*Session, error) {
	s, err := e.Listen(codec, "")
	if err != nil {
		return nil, err
	}
	// Ours is the deadline that counts; the player's lies behind it.
	opt.Handshake, opt.HandshakeTimeout, opt.Log = s.Front.Handshake(), 2*e.Timeouts.Connect, e.Log
	opt.Codec = codec
	opt.InputAddresses, opt.OutputAddresses = s.Front.Addresses()
	if s.Subject, err = e.Engine(opt); err != nil {
		s.Front.Close()
		return nil, WithCode(CodeStart, fmt.Errorf("engine: %w", err))
	}
	s.Context, s.Cancel, s.Done = Launch(ctx, s.Subject)
	e.announce(s)
	return e.accept(s, opt.VLLMVersion)
}

// Listen opens the sockets of a session; address is where the engine is to dial,
// empty for any port.
func (e *Env) Listen(codec *protocol.Codec, address string) (*Session, error) {
	s := &Session{Limits: e.Timeouts}
	var err error
	s.Front, err = coreclient.Listen(coreclient.Options{
		Codec: codec, HandshakeAddress: address, Address: dataAddress(address), MaxFrame: maxFrame,
		Clients: e.Generate.Clients, HandshakeTimeout: min(e.Timeouts.Connect, mostZMQHandshake), Step: func(step string) { e.step(s, step) },
	})
	if err != nil {
		return nil, Infra(WithCode(CodeFrontend, fmt.Errorf("frontend: %w", err)))
	}
	return s, nil
}

// step reports the handshake. That of our own player takes a moment: it is shown for debugging only.
func (e *Env) step(s *Session, step string) {
	level := slog.LevelDebug
	if s.Remote || s.HasOwnTime() {
		level = slog.LevelInfo
		if e.Step != nil {
			e.Step(step)
		}
	}
	if e.Log != nil {
		e.Log.Log(context.Background(), level, "handshake", "step", step, "case", e.Case)
	}
}

// mostZMQHandshake bounds what peers of ZeroMQ do in a moment.
const mostZMQHandshake = 30 * time.Second

// accept takes the subject through the handshake; version is what it is to be.
func (e *Env) accept(s *Session, version string) (*Session, error) {
	if local, ok := s.Subject.(*commandSubject); ok && local.names("input_address") {
		s.Front.WithoutHandshake()
	}
	connect, stop := s.patience()(s.Context, e.Timeouts.Connect,
		Infra(WithCode(CodeNoHandshake, fmt.Errorf("no handshake within %v", e.Timeouts.Connect))))
	defer stop()
	if local, ok := s.Subject.(*commandSubject); ok && e.Timeouts.Stuck > 0 {
		var end context.CancelCauseFunc
		connect, end = context.WithCancelCause(connect)
		defer end(nil)
		local.watchIdle(connect, e.Timeouts.Stuck, func() {
			end(Infra(WithCode(CodeNoHandshake, fmt.Errorf("no handshake, and no sign of life within %v: "+
				"the engine used no processor time and wrote nothing; --start-timeout sets a fixed time instead", e.Timeouts.Stuck))))
		})
	}
	var err error
	if s.Engine, err = s.Front.Accept(connect); err != nil {
		noFiles := zmq.OutOfFiles(err)
		err = s.WithOutput(s.Explain(err))
		s.Close()
		if noFiles || zmq.OutOfFiles(err) {
			return nil, Infra(WithCode(CodeFrontend, err))
		}
		return nil, StartError{WithCode(CodeHandshake, err)}
	}
	e.Versions[protocol.LineOf(version)] = s.Engine.Ready.VLLMVersion
	return s, nil
}

// patience is [context.WithTimeoutCause]; of a process, the time in which others had the processors does not count.
func (s *Session) patience() func(context.Context, time.Duration, error) (context.Context, context.CancelFunc) {
	if local, ok := s.Owner().Subject.(*commandSubject); ok {
		return local.Patience
	}
	return context.WithTimeoutCause
}

// StartError is that of a subject that did not come through the handshake.
type StartError struct{ error }

// Unwrap returns the reason.
func (e StartError) Unwrap() error { return e.error }

// Explain prefers the reason why the subject ended over what its end caused, which a
// wrong message was not. A subject that is seen to go is waited for, so that its
// reason is known.
func (s *Session) Explain(err error) error {
	gone := errors.Is(err, coreclient.ErrEngineGone) || errors.Is(err, protocol.ErrEngineDead) || errors.Is(err, zmq.ErrNoPeer)
	// No reason is still to come where no peer is left to send it, nor when it was we who hung up.
	if gone && !s.Owner().Remote && !errors.Is(err, zmq.ErrTooLarge) {
		select {
		case <-s.Context.Done():
		case <-time.After(s.Limits.Idle):
		}
	}
	var wrong MessageError
	if errors.As(err, &wrong) {
		return err
	}
	if cause := context.Cause(s.Context); cause != nil {
		err = cause
	} else if gone {
		err = WithCode(CodeEngineEnded, err)
	}
	if gone {
		s.Lose(err)
	}
	return err
}

// Owner is the session that a case's view is of.
func (s *Session) Owner() *Session {
	if s.Shared != nil {
		return s.Shared
	}
	return s
}

func (s *Session) Lose(err error) {
	if owner := s.Owner(); owner.Lost == nil {
		owner.Lost = err
	}
}

// WithOutput adds what the subject wrote last to an error that does not tell.
func (s *Session) WithOutput(err error) error {
	writer, ok := s.Subject.(interface{ Output() string })
	var exit *process.ExitError
	if !ok || errors.As(err, &exit) {
		return err
	}
	if text := writer.Output(); text != "" {
		return fmt.Errorf("%w; the last of the engine's output:\n%s", err, text)
	}
	return err
}

// Close ends a case's use of a session, and the session itself unless others use
// it too.
func (s *Session) Close() {
	s.Cancel(context.Canceled)
	if s.Shared != nil {
		return
	}
	if !s.Remote {
		<-s.Done
	}
	s.Front.Close()
}

// OwnTimed is what a [Subject] may be besides: one that has a time of its own, as
// every engine has that is started by a command or awaited at an address. The
// assertion wire cannot judge it, so the replay suite checks everything that it says
// by the line's profile. That is less than to compare it with the real engine's words,
// and finds what a lenient frontend would not mind.
type OwnTimed interface {
	// OwnTime reports whether it has.
	OwnTime() bool
}

// HasOwnTime reports whether the engine of the session has a time of its own.
func (s *Session) HasOwnTime() bool {
	if s.Owner().Remote {
		return true
	}
	timed, ok := s.Subject.(OwnTimed)
	return ok && timed.OwnTime()
}

// ErrNotStepped is the error of an engine that has a time of its own.
var ErrNotStepped = errors.New("the engine under test does not take its answers and its time from the runner, without which its messages are not those of the recorded steps")

// MaxSurplus is how many outputs that were not asked for are read: an engine that
// never stops would never be judged.
const MaxSurplus = 20_000

var ErrFlood = WithCode(CodeEngineFlood, fmt.Errorf("the engine sent %d outputs more than were requested, and continues", MaxSurplus))

// A Silence watches for the time in which an engine sends nothing.
type Silence struct {
	session *Session
	timer   *time.Timer // nil of a process
	heard   atomic.Uint64
	end     context.CancelFunc
}

// WatchSilence calls silent when the engine has sent nothing for the session's limit. Of a process, the time in which others had
// the processors does not count.
func (s *Session) WatchSilence(silent func()) *Silence {
	w := &Silence{session: s, end: func() {}}
	command, ok := s.Subject.(*commandSubject)
	if !ok {
		w.timer = time.AfterFunc(s.Limits.Idle, silent)
		return w
	}
	var ctx context.Context
	ctx, w.end = context.WithCancel(s.Context)
	command.process.WatchSilence(ctx, s.Limits.Idle, w.heard.Load, silent)
	return w
}

// Heard notes that the engine has sent something.
func (w *Silence) Heard() {
	if w.heard.Add(1); w.timer != nil {
		w.timer.Reset(w.session.Limits.Idle)
	}
}

// Stop ends the watch, and reports whether a timer was running.
func (w *Silence) Stop() bool {
	w.end()
	return w.timer != nil && w.timer.Stop()
}

// LastCall ends a replay. Every line has it, and it changes nothing.
const LastCall = "is_sleeping"

// Timeouts bound every wait of a run. What is not positive has its default. A
// deadline that passes is an [Error] that lies around the subject.
type Timeouts struct {
	Connect time.Duration // start of a subject, up to READY
	// Stuck, unless 0, is the time in which an engine that a command started, and that is not ready, may use no processor and
	// write nothing; see [process.Process.WatchIdle]. It has no default.
	Stuck  time.Duration
	Idle   time.Duration // no output while a request is open
	GiveUp bool          // on an engine that has answered nothing, and whose process does nothing, before Idle has passed
	Golden time.Duration // the fetch of a golden, and each of its cases
}

// DefaultTimeouts are generous for a loaded CI machine.
func DefaultTimeouts() Timeouts {
	return Timeouts{Connect: 30 * time.Second, Idle: 10 * time.Second, Golden: 10 * time.Minute}
}

// dataAddress is where the sockets besides the handshake listen: any port of the
// same host.
func dataAddress(handshake string) string {
	host, _, err := net.SplitHostPort(strings.TrimPrefix(handshake, "tcp://"))
	if handshake == "" || err != nil {
		return ""
	}
	return "tcp://" + net.JoinHostPort(host, "0")
}
