package zmq

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"sync"
)

// table is a ROUTER's way from an identity to a connection.
type table struct {
	mu      sync.RWMutex
	entries map[string]*entry
	next    uint32 // of the identities given to peers that have none
}

// entry holds an identity from before the peer's READY is answered until after
// its Gone is in the inbox, so that Gone of one peer comes before Joined of the
// next.
type entry struct {
	conn   *Conn
	joined bool          // may be sent to
	left   chan struct{} // closed when the identity is free again
}

func newTable() *table {
	// As in libzmq, made-up identities begin at random: those of an earlier run are
	// unlikely to mean somebody else now.
	return &table{entries: make(map[string]*entry), next: rand.Uint32()}
}

// claim reserves the identity peer announced, or gives it one. A peer that is on
// its way out is waited for until ctx ends; one that is connected keeps the
// identity.
func (t *table) claim(ctx context.Context, peer *Peer, conn *Conn) error {
	for {
		holder := t.reserve(peer, conn)
		if holder == nil {
			return nil
		}
		if !holder.conn.gone.Load() && !holder.conn.closed.Load() {
			return fmt.Errorf("%w: %x, by %s", ErrIdentityTaken, peer.Identity, holder.conn.peer)
		}
		select {
		case <-holder.left:
		case <-ctx.Done():
			return fmt.Errorf("%w: %x, by a peer that is leaving", ErrIdentityTaken, peer.Identity)
		}
	}
}

// reserve returns the holder of the identity, or nil when conn has become it.
func (t *table) reserve(peer *Peer, conn *Conn) *entry {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(peer.Identity) == 0 {
		peer.Identity = t.unusedLocked()
	}
	if holder := t.entries[string(peer.Identity)]; holder != nil {
		return holder
	}
	t.entries[string(peer.Identity)] = &entry{conn: conn, left: make(chan struct{})}
	return nil
}

// unusedLocked makes up an identity as libzmq does: a zero byte and a number.
func (t *table) unusedLocked() []byte {
	for {
		id := binary.BigEndian.AppendUint32([]byte{0}, t.next)
		t.next++
		if t.entries[string(id)] == nil {
			return id
		}
	}
}

// join opens the way to a peer whose handshake is over.
func (t *table) join(identity []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.entries[string(identity)].joined = true
}

// leave frees the identity if conn holds it.
func (t *table) leave(identity []byte, conn *Conn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if e := t.entries[string(identity)]; e != nil && e.conn == conn {
		delete(t.entries, string(identity))
		close(e.left)
	}
}

// find returns the connection to a peer, nil when there is none.
func (t *table) find(identity []byte) *Conn {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if e := t.entries[string(identity)]; e != nil && e.joined {
		return e.conn
	}
	return nil
}
