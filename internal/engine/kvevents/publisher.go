package kvevents

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/vllm-vcr/conformance/internal/engine/kvcache"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/internal/wire/zmq"
)

// The defaults of vLLM's KVEventsConfig.
const (
	DefaultEndpoint     = "tcp://*:5557"
	DefaultBufferSteps  = 10_000
	DefaultHWM          = 100_000
	DefaultMaxQueueSize = 100_000
)

// Options has where and how KV events are published. It is vLLM's KVEventsConfig; what
// is left zero has the default there.
type Options struct {
	// Endpoint is where subscribers find the events. It is bound if it has a * or ::, is
	// ipc:// or has port 0; else the one subscriber that listens there is dialed.
	Endpoint string
	// Host is the address to listen on in the place of the * of endpoints; empty for all of this machine.
	Host string
	// ReplayEndpoint is where subscribers ask for what they missed; it is always bound.
	// Empty for none.
	ReplayEndpoint string
	// BufferSteps is how many batches are kept to be sent again.
	BufferSteps int
	// HWM is how many batches may wait for one subscriber before it misses some.
	HWM int
	// MaxQueueSize is only reported: there is no queue before the subscribers'.
	MaxQueueSize int
	// Topic is the first frame of each batch.
	Topic string
	// First is the number of the first batch; vLLM begins with 0.
	First uint64
	// Rank is the data-parallel one: batches name it, and it is added to the ports.
	Rank int
	// Digests writes hashes in all their bytes, as VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES=0
	// does; else they are numbers, their last 8 bytes.
	Digests bool
	// Arrays writes events as arrays on every line, and AtOnce publishes that the cache was emptied before the next step.
	// Both are what llm-d-inference-sim does.
	Arrays, AtOnce bool
	// Linger is how long Close lets subscribers take what waits for them. vLLM's drops it.
	Linger time.Duration
	// Subscribed is called with the topic that a subscriber asks for, by any goroutine; nil calls nothing.
	Subscribed func(prefix string)
	// Log gets subscriptions and errors of peers; nil logs nothing.
	Log *slog.Logger
}

func (o Options) withDefaults() (Options, error) {
	if o.BufferSteps < 0 || o.HWM < 0 || o.MaxQueueSize < 0 || o.Rank < 0 || o.Linger < 0 {
		return o, fmt.Errorf("KV events: negative option: buffer_steps %d, hwm %d, max_queue_size %d, rank %d, linger %v",
			o.BufferSteps, o.HWM, o.MaxQueueSize, o.Rank, o.Linger)
	}
	for _, d := range []struct {
		value *int
		is    int
	}{{&o.BufferSteps, DefaultBufferSteps}, {&o.HWM, DefaultHWM}, {&o.MaxQueueSize, DefaultMaxQueueSize}} {
		if *d.value == 0 {
			*d.value = d.is
		}
	}
	o.Endpoint = cmp.Or(o.Endpoint, DefaultEndpoint)
	o.Log = cmp.Or(o.Log, slog.New(slog.NewTextHandler(io.Discard, nil)))
	return o, nil
}

// Publisher publishes the KV events of one engine. Publish is for one goroutine; the
// others may be called by any.
type Publisher struct {
	opt    Options
	codec  *codec
	frames []part
	topic  []byte
	pub    *zmq.Publisher
	replay *replay // nil without an endpoint
	config protocol.KVEventsConfig

	refusals *zmq.RefusalLog

	next    uint64 // number of the next batch
	scratch []byte
}

// New opens the sockets. The profile is that of the line.
func New(profile *protocol.Profile, o Options) (*Publisher, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	p := &Publisher{opt: o, topic: []byte(o.Topic), next: o.First}
	if p.codec, err = newCodec(profile, o); err != nil {
		return nil, err
	}
	if p.frames, err = partsOf(profile, "KV events"); err != nil {
		return nil, err
	}
	p.config = protocol.KVEventsConfig{
		Enable: true, Publisher: "zmq", BufferSteps: o.BufferSteps, HWM: o.HWM, MaxQueueSize: o.MaxQueueSize, Topic: o.Topic,
	}
	if err := p.open(); err != nil {
		return nil, err
	}
	if o.ReplayEndpoint == "" {
		return p, nil
	}
	if err := p.openReplay(profile); err != nil {
		return nil, errors.Join(err, p.pub.Close())
	}
	return p, nil
}

func (p *Publisher) open() error {
	endpoint, err := protocol.KVEventsOfRank(p.opt.Endpoint, p.opt.Rank)
	if err != nil {
		return err
	}
	p.refusals = zmq.NewRefusalLog(p.opt.Log, "a connection to the KV events was refused")
	opt := zmq.PubOptions{
		Options: zmq.Options{Linger: p.opt.Linger}, HighWater: p.opt.HWM,
		Subscribed: func(peer zmq.Peer, prefix []byte) {
			p.opt.Log.Info("KV events subscribed to", "peer", peer.String(), "topic", string(prefix))
			if p.opt.Subscribed != nil {
				p.opt.Subscribed(string(prefix))
			}
		},
		Refused: p.refusals.Add,
	}
	p.config.Endpoint = endpoint
	if !Binds(endpoint) {
		p.pub, err = zmq.DialPub(endpoint, opt)
	} else if p.pub, err = zmq.ListenPub(p.opt.onHost(endpoint), opt); err == nil {
		p.config.Endpoint = reported(endpoint, p.pub.Endpoint())
	}
	if err != nil {
		return fmt.Errorf("KV events: %w", err)
	}
	return nil
}

func (p *Publisher) openReplay(profile *protocol.Profile) error {
	endpoint, err := protocol.KVEventsOfRank(p.opt.ReplayEndpoint, p.opt.Rank)
	if err != nil {
		return err
	}
	r := &replay{topic: p.topic, history: &history{most: p.opt.BufferSteps}, refusals: p.refusals}
	if r.entry, err = partsOf(profile, "KV events replay"); err != nil {
		return err
	}
	if r.end, err = partsOf(profile, "KV events replay end"); err != nil {
		return err
	}
	if r.gate, err = zmq.OpenGate(p.opt.onHost(endpoint), zmq.Router, zmq.Options{MaxFrame: maxRequest, MaxStranger: maxRequest}, r.refusals.Add); err != nil {
		return fmt.Errorf("replay of KV events: %w", err)
	}
	bound := reported(endpoint, r.gate.Endpoint())
	p.config.ReplayEndpoint = &bound
	p.replay = r
	r.run()
	return nil
}

// maxRequest bounds what is received from an asker: two frames, of 8 bytes in all.
const maxRequest = 4 << 10

// Endpoint is where subscribers find the events: as configured for the rank, or where
// they are if the system chose the port.
func (p *Publisher) Endpoint() string { return p.config.Endpoint }

// Bound reports whether the publisher listens at [Publisher.Endpoint]; if not, it connects to a subscriber that listens there.
func (p *Publisher) Bound() bool { return Binds(p.opt.Endpoint) }

// ReplayEndpoint is where to ask for batches again; empty if nowhere.
func (p *Publisher) ReplayEndpoint() string {
	if p.config.ReplayEndpoint == nil {
		return ""
	}
	return *p.config.ReplayEndpoint
}

// Config is what an engine reports of its publisher when it registers.
func (p *Publisher) Config() *protocol.KVEventsConfig {
	config := p.config
	return &config
}

// Dropped is how many batches slow subscribers missed, counted for each.
func (p *Publisher) Dropped() uint64 { return p.pub.Dropped() }

// Publish sends the events of one step, if there are any, at ts seconds since 1970. It
// reads the events and does not keep them. The error is [net.ErrClosed] after Close.
func (p *Publisher) Publish(ts float64, events []kvcache.Event) error {
	return p.publish(ts, events, p.pub.Send)
}

// Withhold does what Publish does, but no subscriber gets the batch: it has to ask for it again.
func (p *Publisher) Withhold(ts float64, events []kvcache.Event) error {
	return p.publish(ts, events, func(zmq.Message) error { return nil })
}

func (p *Publisher) publish(ts float64, events []kvcache.Event, send func(zmq.Message) error) error {
	if len(events) == 0 {
		return nil
	}
	seq := p.next
	p.next++
	if p.replay == nil && !p.pub.Wanted(p.topic) {
		return nil
	}
	p.scratch = binary.BigEndian.AppendUint64(p.scratch[:0], seq)
	p.scratch = p.codec.appendBatch(p.scratch, ts, events)
	// Those who wait for it and the history share this copy.
	b := make(batch, len(p.scratch))
	copy(b, p.scratch)
	if p.replay != nil {
		p.replay.history.add(b)
	}
	return send(message(p.frames, p.topic, b))
}

// Close ends both sockets. The error names the subscribers that did not take everything within
// [Options.Linger].
func (p *Publisher) Close() error {
	err := p.pub.Close()
	if p.replay != nil {
		err = errors.Join(err, p.replay.close())
	}
	p.refusals.Close()
	return err
}

// onHost is an endpoint with the address of Host.
func (o Options) onHost(endpoint string) string {
	if o.Host == "" {
		return endpoint
	}
	return strings.Replace(endpoint, "*", o.Host, 1)
}

// Binds reports whether an engine listens at the endpoint, by the rule that vLLM has;
// it dials others. Port 0 cannot be dialed.
func Binds(endpoint string) bool {
	return strings.Contains(endpoint, "*") || strings.Contains(endpoint, "::") || strings.HasPrefix(endpoint, "ipc://") ||
		anyPort(endpoint)
}

// anyPort reports whether the endpoint leaves the port to the system.
func anyPort(endpoint string) bool {
	return strings.HasPrefix(endpoint, "tcp://") && (strings.HasSuffix(endpoint, ":0") || strings.HasSuffix(endpoint, ":*"))
}

// reported is what a ready response says of an endpoint that was bound: what was
// configured, or where it is if the system chose the port.
func reported(configured, bound string) string {
	if !anyPort(configured) {
		return configured
	}
	host, port, err := net.SplitHostPort(strings.TrimPrefix(bound, "tcp://"))
	if ip := net.ParseIP(host); err == nil && ip != nil && ip.IsUnspecified() {
		return "tcp://" + net.JoinHostPort(nodeIP(), port)
	}
	return bound
}

// nodeIP is the address of this machine towards others: the one it would send from to
// 192.0.2.1, an address for documentation. Nothing is sent.
func nodeIP() string {
	c, err := net.Dial("udp4", "192.0.2.1:9")
	if err != nil {
		return "127.0.0.1"
	}
	defer c.Close()
	host, _, err := net.SplitHostPort(c.LocalAddr().String())
	if err != nil {
		return "127.0.0.1"
	}
	return host
}

// A history keeps the last batches, for subscribers that missed some.
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

// A replay sends batches again, to each client in a goroutine of its own.
type replay struct {
	gate    *zmq.Gate
	history *history
	topic   []byte
	entry   []part
	end     []part

	refusals *zmq.RefusalLog

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
					r.refusals.Add(fmt.Errorf("replay for %s: %w", c.Peer(), err))
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
			r.refusals.Add(fmt.Errorf("request for KV events ignored: %s: %w", c.Peer(), err))
			continue
		}
		c.Trust()
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
