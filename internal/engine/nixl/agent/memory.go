package agent

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// InMemory, in place of an interpreter in [Options], is an agent within this process, without NIXL. It reaches the others of its kind.
const InMemory = "in memory"

var (
	inMemory sync.Map // by name
	started  atomic.Uint64
)

// spacing is the distance of the addresses of two regions.
const spacing = 1 << 36

type memory struct {
	name  string
	base  uint64
	texts chan Notification

	mu     sync.Mutex
	bytes  []byte
	closed bool
	dies   bool
}

func newMemory(opt Options) *memory {
	number := started.Add(1)
	m := &memory{
		name: fmt.Sprintf("%s-%d", opt.Name, number), base: number * spacing, bytes: make([]byte, opt.Length), texts: make(chan Notification, maxNotifications),
	}
	inMemory.Store(m.name, m)
	return m
}

var errPeerGone = errors.New("NIXL: the peer is gone")

// reach calls f with a peer that is not closed.
func reach(peer string, f func(*memory) error) error {
	found, ok := inMemory.Load(peer)
	if !ok {
		return errPeerGone
	}
	m := found.(*memory)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return errPeerGone
	}
	return f(m)
}

func (m *memory) Metadata() []byte                   { return []byte(m.name) }
func (m *memory) Region() (uint64, int)              { return m.base, len(m.bytes) }
func (m *memory) Notifications() <-chan Notification { return m.texts }

func (m *memory) ReadAt(p []byte, at int64) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return copy(p, m.bytes[at:]), nil
}

func (m *memory) WriteAt(p []byte, at int64) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return copy(m.bytes[at:], p), nil
}

func (m *memory) Connect(_ context.Context, metadata []byte) (Peer, error) {
	return Peer(metadata), reach(string(metadata), func(*memory) error { return nil })
}

func (m *memory) Read(ctx context.Context, peer Peer, blocks []Block, notify string) error {
	for i, b := range blocks {
		p := make([]byte, b.Len)
		err := reach(string(peer), func(of *memory) error {
			if of.dies && i >= len(blocks)/2 {
				of.end()
				return errPeerGone
			}
			if at := b.Remote - of.base; b.Remote < of.base || at > uint64(len(of.bytes)-b.Len) {
				return fmt.Errorf("NIXL: block %d: the peer has no such memory", i)
			}
			copy(p, of.bytes[b.Remote-of.base:])
			return nil
		})
		if err != nil {
			return err
		}
		if _, err := m.WriteAt(p, b.Local); err != nil {
			return err
		}
	}
	if notify == "" {
		return nil
	}
	return m.Notify(ctx, peer, notify)
}

func (m *memory) Notify(_ context.Context, peer Peer, text string) error {
	return reach(string(peer), func(to *memory) error {
		select {
		case to.texts <- Notification{Peer: Peer(m.name), Text: text}:
		default: // nobody takes them
		}
		return nil
	})
}

func (m *memory) Misbehave(_ context.Context, _ time.Duration, die bool) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.dies = die
	return nil
}

func (m *memory) DieReading(ctx context.Context, peer Peer, blocks []Block) error {
	return errors.Join(m.Read(ctx, peer, blocks[:len(blocks)/2], ""), m.Close())
}

func (m *memory) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.end()
	return nil
}

// end is Close with the lock.
func (m *memory) end() {
	if !m.closed {
		m.closed = true
		inMemory.Delete(m.name)
		close(m.texts)
	}
}
