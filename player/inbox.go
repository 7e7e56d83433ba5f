package player

import (
	"sync"

	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// eventKind says what an event is of.
type eventKind uint8

const (
	ofClient        eventKind = iota
	waveBegan                 // of the coordinator: wave and exclude, or broken
	waveJoined                // of the ranks in this process: wave
	waveEnded                 // likewise
	coordinatorGone           // gone says why
	ofEngine                  // do
)

// event is something that a socket's reader hands to the engine.
type event struct {
	kind    eventKind
	client  int
	request *protocol.Request
	abort   []string
	call    *protocol.UtilityCall
	// broken is a message that did not decode; what could be read of it is in
	// request or call.
	broken error
	// gone is set when the connection ended.
	gone error
	// wave and exclude are what the kind says.
	wave, exclude int
	// do is what the engine asked to be done later.
	do func()
}

// inbox is the unbounded queue between the sockets' readers and the engine:
// a frontend must never be blocked on its requests while the engine is blocked
// on its answers. Its size is that of the requests in flight.
type inbox struct {
	mu     sync.Mutex
	events []event
	spare  []event
	wake   chan struct{}
	pool   sync.Pool
}

func newInbox() *inbox {
	return &inbox{
		wake: make(chan struct{}, 1),
		pool: sync.Pool{New: func() any { return new(protocol.Request) }},
	}
}

// put adds an event and wakes the engine.
func (b *inbox) put(e event) {
	b.mu.Lock()
	b.events = append(b.events, e)
	b.mu.Unlock()
	b.ring()
}

// ring wakes the engine.
func (b *inbox) ring() {
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// take returns what came since the last call. The slice is valid until then.
func (b *inbox) take() []event {
	b.mu.Lock()
	defer b.mu.Unlock()
	taken := b.events
	clear(b.spare)
	b.events, b.spare = b.spare[:0], taken
	return taken
}

// request returns a request to decode into; recycle gives it back.
func (b *inbox) request() *protocol.Request  { return b.pool.Get().(*protocol.Request) }
func (b *inbox) recycle(r *protocol.Request) { b.pool.Put(r) }
