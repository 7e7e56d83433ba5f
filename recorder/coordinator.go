package recorder

import (
	"context"

	"github.com/vllm-vcr/conformance/internal/wire/zmq"
)

// share is the gate of a coordinator's address. All engines are told the same one, as
// a frontend compares what they say of it; so a connection to it is nobody's in
// particular, and its messages count as those of the engine that was first.
func (s *session) share(l *link, typ zmq.Type) (string, error) {
	t := s.tap
	t.mu.Lock()
	defer t.mu.Unlock()
	if gate := t.shared[l.upstream]; gate != nil {
		return gate.Endpoint(), nil
	}
	gate, err := t.openGate(s.host, l.channel.String(), typ)
	if err != nil {
		return "", err
	}
	l.gate = gate
	t.shared[l.upstream] = gate
	t.wg.Go(func() { s.serveShared(t.coordinator, l) })
	return gate.Endpoint(), nil
}

// serveShared relays the connections of all engines until ctx ends.
func (s *session) serveShared(ctx context.Context, l *link) {
	defer l.gate.Close()
	for {
		engine, err := l.gate.Accept(ctx)
		if err != nil {
			return
		}
		s.tap.wg.Go(func() { s.coordinate(ctx, l, engine) })
	}
}

// coordinate relays the connection of one engine. That it ends means nothing: the
// engine's other links tell what has become of it.
func (s *session) coordinate(ctx context.Context, l *link, engine *zmq.Conn) {
	frontend, err := zmq.DialAs(ctx, l.upstream, engine.Peer(), zmq.Options{})
	if err != nil {
		engine.Close()
		s.tap.log.Error("the coordinator does not answer", "link", l.String(), "cause", err)
		return
	}
	_, _ = zmq.Relay(ctx, engine, frontend, s.witness(l, FromEngine), s.witness(l, FromFrontend))
}
