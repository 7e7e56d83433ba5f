package conformance

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/vllm-vcr/conformance/internal/check"

	"github.com/vllm-vcr/conformance/internal/check/replay"
	"github.com/vllm-vcr/conformance/internal/frontends/coreclient"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/internal/wire/zmq"
	"github.com/vllm-vcr/conformance/player"
)

// rawEngine is an engine core that says the right thing, and at the end of a replay whatever a
// test wants: what no player of ours would say.
type rawEngine struct {
	opt    player.Options
	codec  *protocol.Codec
	source player.Source
	input  *zmq.Conn
	output *zmq.Conn

	// atEnd comes before the answer to the call that ends a replay.
	atEnd func(e *rawEngine) error
}

// raw makes rawEngines.
func raw(atEnd func(e *rawEngine) error) Engine {
	return func(opt player.Options) (Subject, error) {
		codec, err := protocol.CodecFor(opt.VLLMVersion)
		if err != nil {
			return nil, err
		}
		source, err := player.NewReplay(opt.Trace, player.ReplayOptions{Match: player.MatchIndex, Strict: true})
		return &rawEngine{opt: opt, codec: codec, source: source, atEnd: atEnd}, err
	}
}

func (e *rawEngine) Run(ctx context.Context) error {
	if err := e.connect(ctx); err != nil {
		return err
	}
	defer e.output.Close()
	defer e.input.Close()
	defer context.AfterFunc(ctx, func() { e.input.Close() })()
	for {
		m, err := e.input.Recv()
		if ctx.Err() != nil {
			return nil
		}
		if err == nil {
			err = e.handle(m)
		}
		if err != nil {
			return err
		}
	}
}

// connect goes through the handshake, step by step.
func (e *rawEngine) connect(ctx context.Context) error {
	opt := zmq.Options{Identity: protocol.Identity(0), Linger: time.Second}
	shake, err := zmq.Dial(ctx, e.opt.Handshake, zmq.Dealer, opt)
	if err != nil {
		return err
	}
	defer shake.Close()
	var steps protocol.EngineHandshake
	if err := shake.Send(steps.Hello()); err != nil {
		return err
	}
	m, err := shake.Recv()
	if err != nil {
		return err
	}
	at, err := steps.Init(m[len(m)-1])
	if err != nil {
		return err
	}
	if e.input, err = zmq.Dial(ctx, at.Inputs[0], zmq.Dealer, opt); err != nil {
		return err
	}
	if e.output, err = zmq.Dial(ctx, at.Outputs[0], zmq.Push, opt); err != nil {
		return err
	}
	ready := protocol.DefaultReady("0.33.0")
	if err := e.input.Send(e.codec.AppendReady(nil, &ready)); err != nil {
		return err
	}
	return shake.Send(steps.Ready())
}

func (e *rawEngine) handle(m zmq.Message) error {
	if m[0][0] == protocol.TypeUtility {
		call, err := protocol.DecodeUtilityCall(m[1])
		if err == nil && e.atEnd != nil {
			err = e.atEnd(e)
		}
		if err != nil {
			return err
		}
		answer, err := e.codec.UtilityResult(0, call, false, 1)
		if err != nil {
			return err
		}
		return e.output.Send(answer...)
	}
	var r protocol.Request
	if err := e.codec.DecodeRequest(m[1], &r); err != nil {
		return err
	}
	script, err := e.source.Script(&player.Request{ID: r.ID, ExternalID: r.ExternalID, PromptTokenIDs: r.PromptTokenIDs})
	if err != nil {
		return err
	}
	said := 0
	for _, n := range script.Chunks {
		finish := protocol.Unfinished
		if said+n == len(script.Tokens) {
			finish = script.Finish
		}
		if err := e.say(r.ID, finish, script.Tokens[said:said+n]...); err != nil {
			return err
		}
		said += n
	}
	return nil
}

// say sends one output, of whatever request.
func (e *rawEngine) say(id string, finish protocol.FinishReason, tokens ...uint32) error {
	b := e.codec.NewBatch(0)
	stream := e.codec.NewStream(&protocol.Request{ID: id, Sampling: protocol.Sampling{
		Logprobs: protocol.NoLogprobs, PromptLogprobs: protocol.NoLogprobs,
	}})
	if err := b.Add(stream, &protocol.Output{Tokens: tokens, Finish: finish}); err != nil {
		return err
	}
	m, err := b.Finish(nil, 1)
	if err != nil {
		return err
	}
	return e.output.Send(m...)
}

// TestIdleStartsAnew: every message of the subject gives it the idle time again.
func TestIdleStartsAnew(t *testing.T) {
	g := usualGolden(t)
	runner := (&Runner{Store: g}).begin(t.Context())
	loaded := runner.load(t.Context(), Case{Line: g.line, Golden: g.Golden})
	s, err := replay.Boot(t.Context(), runner.env, loaded.Codec, player.Options{VLLMVersion: g.line.Tag, Trace: loaded.Trace})
	require.NoError(t, err)
	defer s.Close()
	s.Limits.Idle = 0
	over := make(chan struct{})
	s.Quiet = s.WatchSilence(func() { close(over) })
	<-over
	s.Limits.Idle = never
	require.NoError(t, s.Front.Submit(replay.RecordedStreams(loaded.Trace)[0].Request()))
	if _, err := s.Receive(t.Context()); err != nil {
		t.Fatal(err)
	}
	require.True(t, s.Quiet.Stop(), "a message came, and the idle time runs on from before")
}

// TestExplain: the reason why a subject ended comes before what its end caused,
// and an end that is seen before its reason is known is waited for.
func TestExplain(t *testing.T) {
	reason := errors.New("engine: out of memory")
	session := func() *check.Session {
		s := &check.Session{Limits: Timeouts{Idle: never}}
		s.Context, s.Cancel = context.WithCancelCause(t.Context())
		return s
	}
	other := errors.New("other")
	t.Run("nothing known", func(t *testing.T) {
		if err := session().Explain(other); err != other {
			t.Errorf("got %v, want %v", err, other)
		}
	})
	t.Run("reason known", func(t *testing.T) {
		s := session()
		s.Cancel(reason)
		if err := s.Explain(other); err != reason {
			t.Errorf("got %v, want %v", err, reason)
		}
	})
	for _, seen := range []error{coreclient.ErrEngineGone, protocol.ErrEngineDead, zmq.ErrNoPeer} {
		t.Run(strings.ReplaceAll(seen.Error(), " ", "_"), func(t *testing.T) {
			s := session()
			go s.Cancel(reason)
			if err := s.Explain(fmt.Errorf("next: %w", seen)); err != reason {
				t.Errorf("got %v, want %v", err, reason)
			}
		})
	}
	t.Run("a reason that never comes", func(t *testing.T) {
		s := session()
		s.Limits.Idle = time.Millisecond
		require.ErrorIs(t, s.Explain(zmq.ErrNoPeer), zmq.ErrNoPeer)
	})
}
