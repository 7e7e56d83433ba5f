// Package agent moves KV blocks between engines by NIXL. An [Agent] owns one region of memory, from which others read and into
// which it reads from others. Which block of the region belongs to which request is known by package nixl, not here.
package agent

import (
	"context"
	"time"
)

// An Agent is one NIXL agent with one region of DRAM. Its methods may be called by several goroutines.
type Agent interface {
	// Metadata is what a peer needs to connect to this agent: "agent_metadata" of the handshake. It changes when the agent
	// was started again.
	Metadata() []byte
	// Region is the address and length in bytes of the memory that peers may read. It changes with Metadata.
	Region() (base uint64, length int)
	// ReadAt and WriteAt access the bytes of the region by their offset.
	ReadAt(p []byte, offset int64) (int, error)
	WriteAt(p []byte, offset int64) (int, error)
	// Connect loads the metadata of a peer. Peers with the same metadata are the same.
	Connect(ctx context.Context, metadata []byte) (Peer, error)
	// Read copies blocks of the peer into the region, and sends it the notification, unless that is empty. It returns
	// when all bytes have arrived, or with the reason why they have not.
	Read(ctx context.Context, peer Peer, blocks []Block, notify string) error
	// Notify sends a notification without a read: the heartbeat of a lease, or the end of a request that reads nothing.
	Notify(ctx context.Context, peer Peer, text string) error
	// Notifications are those of peers, in the order of their arrival. The channel is closed with the agent. A caller must
	// take them: the agent keeps a limited number and drops the oldest.
	Notifications() <-chan Notification
	// Misbehave makes it a bad peer. It waits between two looks at what peers send, as over a slow link, and with die it ends in the
	// middle of the next read by a peer that is connected. Where UCX has shared memory, the bytes of a read do not pass the agent.
	Misbehave(ctx context.Context, pause time.Duration, die bool) error
	// DieReading begins a read and ends the agent in the middle of it. It is an error if the read is over too early for that.
	DieReading(ctx context.Context, peer Peer, blocks []Block) error
	// Close ends the agent and frees its memory.
	Close() error
}

// A Peer names a connected agent. It stays valid when this agent was started again.
type Peer string

// A Block is memory of a peer, at its address there, and where to put it.
type Block struct {
	Remote       uint64 // address in the peer's memory
	RemoteDevice int    // "device_id" of the peer
	Local        int64  // offset in the own region
	Len          int    // bytes
}

// A Notification is a text that a peer sent: "REQUEST_ID:TP" after a read.
type Notification struct {
	Peer Peer
	Text string
}
