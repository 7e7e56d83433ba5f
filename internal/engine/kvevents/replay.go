package kvevents

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"

	"github.com/vllm-vcr/conformance/internal/wire/zmq"
)

// A history keeps the last batches, for those who missed some.
type history struct {
	mu      sync.Mutex
	batches []batch // a ring once it is full
	first   int     // the oldest
	most    int
}

func (h *history) add(b batch) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.batches) < h.most {
		h.batches = append(h.batches, b)
		return
	}
	h.batches[h.first] = b
	h.first = (h.first + 1) % h.most
}

// since returns the batches that are kept from number start on.
func (h *history) since(start uint64) []batch {
	h.mu.Lock()
	defer h.mu.Unlock()
	var found []batch
	for i := range h.batches {
		if b := h.batches[(h.first+i)%len(h.batches)]; binary.BigEndian.Uint64(b) >= start {
			found = append(found, b)
		}
	}
	return found
}

// A replay answers who asks for batches again, each in a goroutine of its own.
type replay struct {
	gate    *zmq.Gate
	history *history
	topic   []byte
	entry   []part
	end     []part
	log     *slog.Logger

	cancel context.CancelFunc
	wg     sync.WaitGroup
}

func (r *replay) run() {
	ctx, cancel := context.WithCancel(context.Background())
	r.cancel = cancel
	r.wg.Go(func() {
		for {
			c, err := r.gate.Accept(ctx)
			if err != nil {
				return
			}
			r.wg.Go(func() {
				stop := context.AfterFunc(ctx, func() { _ = c.Close() })
				defer stop()
				defer c.Close()
				if err := r.serve(c); err != nil && ctx.Err() == nil {
					r.log.Warn("replay of KV events ended", "peer", c.Peer().String(), "error", err)
				}
			})
		}
	})
}

// serve answers one asker until it leaves.
func (r *replay) serve(c *zmq.Conn) error {
	for {
		asked, err := c.Recv()
		if errors.Is(err, zmq.ErrPeerGone) || errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			return err
		}
		start, err := readStart(asked)
		if err != nil {
			r.log.Warn("request for KV events ignored", "peer", c.Peer().String(), "error", err)
			continue
		}
		if err := r.answer(c, start); err != nil {
			return err
		}
	}
}

// readStart returns the number of the first batch that is asked for. As in vLLM it may
// have any number of bytes; one of more than 8 is behind all there are.
func readStart(m zmq.Message) (uint64, error) {
	if len(m) != 2 || len(m[0]) != 0 {
		return 0, fmt.Errorf("%d frames: want an empty one and the number of the first batch, big-endian", len(m))
	}
	var start uint64
	for _, b := range m[1] {
		if start>>56 != 0 {
			return 1<<64 - 1, nil
		}
		start = start<<8 | uint64(b)
	}
	return start, nil
}

func (r *replay) answer(c *zmq.Conn, start uint64) error {
	for _, b := range r.history.since(start) {
		if err := c.Write(message(r.entry, r.topic, b)...); err != nil {
			return err
		}
	}
	return c.Send(message(r.end, r.topic, nil)...)
}

func (r *replay) close() error {
	r.cancel()
	err := r.gate.Close()
	r.wg.Wait()
	return err
}
