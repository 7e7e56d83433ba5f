package nixl

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"github.com/vllm-vcr/conformance/internal/wire/pack"
	"github.com/vllm-vcr/conformance/internal/wire/zmq"
)

const (
	// HandshakeTimeout is how long a decode engine waits for an answer, as in vLLM.
	HandshakeTimeout = 5 * time.Second
	maxFrame         = 16 << 20 // bytes of an answer; metadata of 100 regions has 20 kB
)

// A Rank names a worker of an engine.
type Rank struct{ PP, TP int }

// Answers are what a side channel has for each worker: the first frame of its answer, see [Line.Encode]. A worker without one gets no answer.
// The request is as it came.
type Answers func(worker Rank, request []byte) []byte

// A Server is the side channel of a prefill engine. Unlike that of a real engine it goes on after a request that it cannot read.
type Server struct {
	line    *Line
	l       *zmq.Listener
	answers Answers
	allowed func(address string) error
	log     *slog.Logger
	done    chan struct{}
	began   time.Time
}

// Serve answers requests at HOST:PORT until [Server.Close]; port 0 is any that is free. Peers that allowed refuses get no answer; nil allows
// all. answers is called for each request.
func (l *Line) Serve(address string, answers Answers, allowed func(address string) error, log *slog.Logger) (*Server, error) {
	listener, err := zmq.Listen("tcp://"+address, zmq.Router, zmq.Options{MaxFrame: 1 << 12})
	if err != nil {
		return nil, fmt.Errorf("side channel: %w: VLLM_NIXL_SIDE_CHANNEL_HOST and _PORT say where it is", err)
	}
	s := &Server{line: l, l: listener, answers: answers, allowed: allowed, log: log, done: make(chan struct{}), began: time.Now()}
	go s.serve()
	return s, nil
}

// Address is where the side channel listens.
func (s *Server) Address() string { return s.l.Endpoint()[len("tcp://"):] }

// Close ends the side channel.
func (s *Server) Close() {
	_ = s.l.Close()
	<-s.done
}

// Clock is the clock that answers have, in seconds: like time.perf_counter of vLLM it counts from any moment.
func (s *Server) Clock() float64 { return time.Since(s.began).Seconds() }

func (s *Server) serve() {
	defer close(s.done)
	for {
		d, err := s.l.Recv(context.Background())
		if err != nil {
			return
		}
		if d.Kind == zmq.Received {
			if err := s.answer(d); err != nil {
				s.log.Warn("the side channel does not answer", "peer", d.Peer.String(), "error", err)
			}
		}
	}
}

func (s *Server) answer(d zmq.Delivery) error {
	if s.allowed != nil {
		if err := s.allowed(d.Peer.Addr); err != nil {
			return err
		}
	}
	if len(d.Message) != 2 || len(d.Message[0]) != 0 {
		return fmt.Errorf("a message of %d frames: want an empty one and a request, as a REQ socket sends", len(d.Message))
	}
	pp, tp, known, err := s.line.ParseRequest(d.Message[1])
	if err != nil {
		return err
	}
	if !known {
		s.log.Warn("the side channel answers a request of another word", "peer", d.Peer.String())
	}
	payload := s.answers(Rank{pp, tp}, d.Message[1])
	if payload == nil {
		return fmt.Errorf("there is no worker of pipeline rank %d and tensor-parallel rank %d", pp, tp)
	}
	frames := [][]byte{{}, payload}
	if s.line.HasClock() {
		frames = append(frames, pack.AppendFloat64(nil, s.Clock()))
	}
	return s.l.Send(d.Peer.Identity, frames...)
}

// An Answer is what a side channel answered.
type Answer struct {
	*Payload
	Frame []byte // of the payload, as it came
	// Clock is that of the prefill engine when it answered, in seconds; 0 before 0.26.
	Clock float64
	Took  time.Duration
}

// ErrNoHandshake is in the error of a side channel that did not answer.
var ErrNoHandshake = errors.New("no handshake")

// Handshake asks the side channel at HOST:PORT for the metadata of a worker, within [HandshakeTimeout]. The error names the address and what
// is wrong with its answer, which it does not quote.
func (l *Line) Handshake(ctx context.Context, address string, pp, tp int) (*Answer, error) {
	ctx, cancel := context.WithTimeout(ctx, HandshakeTimeout)
	defer cancel()
	a, err := l.handshake(ctx, address, pp, tp)
	if err != nil {
		return nil, fmt.Errorf("side channel %s: %w", address, err)
	}
	return a, nil
}

func (l *Line) handshake(ctx context.Context, address string, pp, tp int) (*Answer, error) {
	conn, err := zmq.Dial(ctx, "tcp://"+address, zmq.Dealer, zmq.Options{MaxFrame: maxFrame})
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoHandshake, err)
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.SetReadDeadline(time.Unix(1, 0)) })()
	asked := time.Now()
	if err := conn.Send(nil, l.Request(pp, tp)); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoHandshake, err)
	}
	frames, err := conn.Recv()
	if err != nil {
		if ctx.Err() != nil {
			err = fmt.Errorf("no answer within %v: it is not the side channel of a vLLM %s, or has no such worker", HandshakeTimeout, l.Name)
		}
		return nil, fmt.Errorf("%w: %w", ErrNoHandshake, err)
	}
	a := &Answer{Took: time.Since(asked)}
	want := len(l.Messages["handshake reply"].Keys) - 1 // without the identity
	if len(frames) != want || len(frames[0]) != 0 {
		return nil, fmt.Errorf("it answers with %d frames, and vLLM %s with %d", len(frames), l.Name, want)
	}
	a.Frame = frames[1]
	if a.Payload, err = l.DecodePayload(a.Frame); err != nil {
		return nil, err
	}
	if l.HasClock() {
		cur := pack.NewCursor(frames[2])
		if a.Clock, err = cur.Float(); err != nil {
			return nil, fmt.Errorf("clock: %w", err)
		}
	}
	return a, nil
}

// JoinAddress is HOST:PORT.
func JoinAddress(host string, port int) string { return net.JoinHostPort(host, fmt.Sprint(port)) }
