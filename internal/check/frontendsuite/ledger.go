package frontendsuite

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/vllm-vcr/conformance/internal/check"

	"github.com/vllm-vcr/conformance/internal/base/safetext"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/internal/wire/zmq"
)

// ledger holds what a frontend under test has said to its engine, in its order. It
// is safe for use by several goroutines.
type ledger struct {
	codec *protocol.Codec

	mu      sync.Mutex
	init    []byte   // the answer to HELLO
	heard   []*heard // of all input sockets
	bytes   int
	dropped int           // messages that were not kept
	said    [][][]byte    // what the engine said, if anybody asks for it
	size    int           // of that, in bytes
	keeps   bool          // somebody does
	more    chan struct{} // closed, and replaced, when something arrives
}

// heard is one message on an input socket.
type heard struct {
	number     int // from 1
	client     int // whose socket
	kind       byte
	frames     [][]byte
	mismatches []protocol.Mismatch
	// What it is, as far as it decodes:
	request *protocol.Request
	aborted []string
	call    protocol.UtilityCall
	// finds, unless nil, reports whether another payload in its place is not as expected.
	finds func(payload []byte) bool
}

// What is kept of a frontend that never stops talking.
const (
	maxHeard      = 100_000
	maxHeardBytes = 256 << 20
)

func newLedger(codec *protocol.Codec) *ledger {
	return &ledger{codec: codec, more: make(chan struct{})}
}

// take adds a message, whose frames it keeps.
func (l *ledger) take(client int, frames [][]byte) {
	h := &heard{client: client, frames: frames, mismatches: l.codec.CheckMessage(frames)}
	if len(frames) > 1 && len(frames[0]) == 1 {
		h.read(l.codec)
	}
	size := 0
	for _, f := range frames {
		size += len(f)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.heard) >= maxHeard || l.bytes+size > maxHeardBytes {
		l.dropped++
		return
	}
	l.bytes += size
	l.heard = append(l.heard, h)
	h.number = len(l.heard)
	close(l.more)
	l.more = make(chan struct{})
}

// maxSaidBytes bounds what is kept of the engine's messages: what comes later holds nothing new.
const maxSaidBytes = 32 << 20

// say keeps a message of the engine, whose frames nobody changes.
func (l *ledger) say(frames [][]byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.keeps || len(frames) == 0 || l.size > maxSaidBytes {
		return
	}
	for _, f := range frames {
		l.size += len(f)
	}
	l.said = append(l.said, frames)
}

func (l *ledger) exchange() check.Exchange {
	l.mu.Lock()
	defer l.mu.Unlock()
	x := check.Exchange{Codec: l.codec, Init: l.init, Said: l.said}
	for _, h := range l.heard {
		x.Sent, x.Finds = append(x.Sent, h.frames), append(x.Finds, h.finds)
	}
	return x
}

// drop counts a message that was not kept.
func (l *ledger) drop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.dropped++
}

// overflow says how much was not kept, "" if nothing.
func (l *ledger) overflow() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.dropped == 0 {
		return ""
	}
	return fmt.Sprintf("%s to the engine not looked at: too large, or after too many others (kept: %s of %s)",
		safetext.Count(l.dropped, "message"), safetext.Count(len(l.heard), "message"), safetext.Count(l.bytes, "byte"))
}

// read decodes the message leniently: what is wrong with it has been found.
func (h *heard) read(codec *protocol.Codec) {
	h.kind = h.frames[0][0]
	switch h.kind {
	case protocol.TypeAdd:
		h.request = new(protocol.Request)
		_ = codec.DecodeRequest(h.frames[1], h.request)
	case protocol.TypeAbort:
		h.aborted, _ = protocol.DecodeAbort(h.frames[1])
	case protocol.TypeUtility:
		h.call, _ = protocol.DecodeUtilityCall(h.frames[1])
	}
}

// mark is the number of messages so far.
func (l *ledger) mark() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.heard)
}

// since lists the messages after a mark that match.
func (l *ledger) since(mark int, match func(*heard) bool) []*heard {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(l.heard[mark:]), func(h *heard) bool { return !match(h) })
}

// await waits for as many messages after a mark that match. With fewer it returns
// those that came before ctx ended.
func (l *ledger) await(ctx context.Context, mark, n int, match func(*heard) bool) []*heard {
	for {
		l.mu.Lock()
		more := l.more
		l.mu.Unlock()
		if found := l.since(mark, match); len(found) >= n || ctx.Err() != nil {
			return found
		}
		select {
		case <-more:
		case <-ctx.Done():
		}
	}
}

func (l *ledger) setInit(payload []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.init = payload
}

func (l *ledger) initial() []byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.init
}

func isAdd(h *heard) bool     { return h.kind == protocol.TypeAdd }
func isUtility(h *heard) bool { return h.kind == protocol.TypeUtility }

func asks(prompt []uint32) func(*heard) bool {
	return func(h *heard) bool { return h.request != nil && slices.Equal(h.request.PromptTokenIDs, prompt) }
}

func calls(methods ...string) func(*heard) bool {
	return func(h *heard) bool { return h.kind == protocol.TypeUtility && slices.Contains(methods, h.call.Method) }
}

// hearing is the witness of an input socket.
type hearing struct {
	ledger *ledger
	client int
}

// Message implements [zmq.Observer].
func (w hearing) Message(s zmq.Relayed) {
	// What is not owned is gone when this returns.
	wire := s.Wire
	if !s.Owned {
		wire = slices.Clone(wire)
	}
	frames, err := zmq.SplitFrames(nil, wire)
	if err != nil || s.Elided > 0 {
		w.ledger.drop()
		return
	}
	w.ledger.take(w.client, frames)
}

// Passed implements [zmq.Observer].
func (hearing) Passed() {}

// HungUp implements [zmq.Observer].
func (hearing) HungUp() {}

// Limits implements [zmq.Observer].
func (hearing) Limits() (message int64, tails bool) { return maxHeardBytes / 4, true }
