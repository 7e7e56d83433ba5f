package selftest

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/wire/pack"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/internal/wire/zmq"
)

// consumer is a consumer of KV events with a defect, or "" for none.
type consumer struct {
	defect string
	at     check.KVEndpoints
	mu     sync.Mutex
	ranks  map[int]*index
}

// index is what a consumer knows of a rank.
type index struct {
	consumer *consumer
	endpoint string // of replay
	next     uint64
	last     float64        // time of the last batch
	blocks   map[string]int // how often each hash was stored, at each place
}

// flawed returns a consumer with the defect.
func flawed(defect string) func(context.Context, check.KVEndpoints, io.Reader, io.Writer) {
	return func(ctx context.Context, at check.KVEndpoints, in io.Reader, out io.Writer) {
		c := &consumer{defect: defect, at: at, ranks: map[int]*index{}}
		ctx, cancel := context.WithCancel(ctx)
		var reading sync.WaitGroup
		defer reading.Wait()
		defer cancel()
		for n := range at.Ranks {
			endpoint, _ := protocol.KVEventsOfRank(at.Endpoint, n)
			x := &index{consumer: c, blocks: map[string]int{}}
			x.endpoint, _ = protocol.KVEventsOfRank(at.Replay, n)
			c.ranks[n] = x
			if defect == "one-index" {
				c.ranks[n].blocks = c.ranks[0].blocks
			}
			if defect != "deaf" {
				reading.Go(func() { x.follow(ctx, endpoint) })
			}
		}
		if defect == "text" {
			fmt.Fprintln(out, "INFO consumer is ready")
		}
		if defect == "greets" {
			fmt.Fprintln(out, `{"verb": "hello"}`)
		}
		fmt.Fprintln(out, `{"verb": "ready"}`)
		for lines := bufio.NewScanner(in); lines.Scan() && defect != "dies"; {
			switch defect {
			case "hangs":
			case "answers-otherwise":
				fmt.Fprintln(out, `{"verb": "known"}`)
			default:
				fmt.Fprintln(out, c.cached())
			}
		}
	}
}

// cached is the answer to "ask".
func (c *consumer) cached() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	type known struct {
		Rank   int      `json:"rank"`
		Next   uint64   `json:"next"`
		Blocks []string `json:"blocks"`
	}
	var all []known
	for n, x := range c.ranks {
		blocks := map[string]bool{}
		for block := range x.blocks {
			hash, _, _ := strings.Cut(block, " ")
			blocks[hash] = true
		}
		all = append(all, known{n, x.next, slices.Collect(maps.Keys(blocks))})
	}
	text, _ := json.Marshal(map[string]any{"verb": "cached", "ranks": all})
	return string(text)
}

// follow reads the events of a rank, over one connection after the other.
func (x *index) follow(ctx context.Context, endpoint string) {
	for again := true; again && ctx.Err() == nil; again = x.consumer.defect != "connects-once" {
		conn, err := zmq.Dial(ctx, endpoint, zmq.Sub, zmq.Options{})
		if err != nil {
			return
		}
		stop := context.AfterFunc(ctx, func() { conn.Close() })
		err = conn.Subscribe([]byte("kv@"))
		for err == nil {
			var m zmq.Message
			if m, err = conn.Recv(); err == nil {
				x.arrived(ctx, m[len(m)-2], m[len(m)-1])
			}
		}
		stop()
		conn.Close()
	}
}

func (x *index) arrived(ctx context.Context, number, payload []byte) {
	n := binary.BigEndian.Uint64(number)
	b := protocol.ViewOf(payload)
	x.consumer.mu.Lock()
	defer x.consumer.mu.Unlock()
	defect := x.consumer.defect
	if time, _ := b.At(0).Float(); n < x.next && time > x.last && defect != "keeps-after-restart" {
		x.next = 0
		clear(x.blocks)
	}
	if n < x.next && defect != "counts-twice" {
		return // it came by a replay
	}
	if n > x.next && defect != "no-replay" && (x.next > 0 || defect != "joins-late") {
		x.replay(ctx)
	}
	x.apply(n, b)
}

// replay asks for the batches that are missing.
func (x *index) replay(ctx context.Context) {
	conn, err := zmq.Dial(ctx, x.endpoint, zmq.Dealer, zmq.Options{})
	if err != nil {
		return
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	err = conn.Send(nil, binary.BigEndian.AppendUint64(nil, x.next))
	for err == nil {
		var m zmq.Message
		if m, err = conn.Recv(); err != nil || len(m[len(m)-1]) == 0 {
			return
		}
		n := binary.BigEndian.Uint64(m[len(m)-2])
		if n > x.next && x.consumer.defect != "keeps-what-is-lost" {
			clear(x.blocks)
		}
		x.apply(n, protocol.ViewOf(m[len(m)-1]))
	}
}

func (x *index) apply(n uint64, b protocol.Value) {
	if n < x.next && x.consumer.defect != "counts-twice" {
		return
	}
	x.next = max(x.next, n+1)
	x.last, _ = b.At(0).Float()
	for pass := range 2 {
		for e := range b.At(1).Parts() {
			removes := e.Field("type").Text() == "BlockRemoved"
			switch x.consumer.defect {
			case "arrays": // a map cannot be read as an array
			case "removes-last":
				if removes == (pass == 1) {
					x.event(e)
				}
			default:
				if pass == 0 {
					x.event(e)
				}
			}
		}
	}
}

func (x *index) event(e protocol.Value) {
	defect, kind := x.consumer.defect, e.Field("type").Text()
	if kind == "AllBlocksCleared" && defect != "never-clears" {
		clear(x.blocks)
	}
	if defect == "no-keys" && e.Field("extra_keys").At(0).Len() > 0 {
		return
	}
	for hash := range e.Field("block_hashes").Parts() {
		name, raw := pack.Format(hash.Bytes()), pack.NewCursor(hash.Bytes())
		if digest, err := raw.Bin(); err == nil {
			if name = fmt.Sprintf("%x", digest); defect == "numbers-only" {
				continue
			}
		} else if number, ok := hash.Float(); ok && defect == "rounds" {
			name = fmt.Sprintf("%.0f", number)
		}
		if defect != "one-place" {
			name += fmt.Sprintf(" %s %s", e.Field("group_idx").Bytes(), e.Field("medium").Text())
		}
		switch {
		case kind == "BlockStored":
			x.blocks[name]++
		case defect == "never-removes":
		case defect == "counts-twice" && x.blocks[name] > 1:
			x.blocks[name]--
		default:
			delete(x.blocks, name)
		}
	}
}
