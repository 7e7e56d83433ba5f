package recorder

import (
	"fmt"

	"github.com/vllm-vcr/conformance/internal/wire/zmq"
)

// A witness queues what passes one way of a link.
type witness struct {
	session *session
	src     *source
}

func (s *session) witness(l *link, d Direction) zmq.Witness {
	return &witness{session: s, src: s.source(l, d)}
}

// Message implements [zmq.Witness].
func (w *witness) Message(s zmq.Sighting) { w.session.tap.queue.put(w.src, s) }

// Passed implements [zmq.Witness].
func (w *witness) Passed() { w.session.tap.queue.signal() }

// HungUp implements [zmq.Witness]. The handshake ends first, and that means nothing;
// of the other links the first says who went.
func (w *witness) HungUp() {
	if w.src.channel != Input && w.src.channel != Output || !w.src.rank.left.CompareAndSwap(false, true) {
		return
	}
	w.session.tap.queue.note(w.src, w.what())
	w.session.left <- w
}

// what says who has hung up.
func (w *witness) what() string {
	who := "the engine"
	if w.src.direction == FromFrontend {
		who = "the frontend"
	}
	return fmt.Sprintf("%s hung up on %s %d", who, w.src.channel, w.src.client)
}

// Limits implements [zmq.Witness]: tensors behind the second frame are of use to the
// raw frames alone.
func (w *witness) Limits() (message int64, tails bool) {
	return w.session.tap.cfg.MaxObserved, w.session.tap.cfg.Frames.Path != ""
}
