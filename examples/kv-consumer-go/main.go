// Command kv-consumer-go keeps an index of the blocks that ranks of an engine have cached, from their KV events. It uses nothing of
// vllm-vcr, and is judged by
//
//	vllm-vcr conform --consumer-command './kv-consumer-go {endpoint} {replay_endpoint} {topic} {ranks}'
package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"log"
	"maps"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-zeromq/zmq4"
	"github.com/vmihailenco/msgpack/v5"
)

// rank is what is known of a rank.
type rank struct {
	replayEndpoint string

	mu     sync.Mutex
	next   uint64  // the sequence number of the next batch
	last   float64 // the time of the last batch
	blocks map[block]bool
}

// block is a block at a place: each place stores and removes it for itself.
type block struct {
	hash   string
	group  int
	medium string
}

// batch is the payload of a message.
type batch struct {
	_msgpack struct{} `msgpack:",as_array"`
	Time     float64
	Events   []struct {
		Type   string `msgpack:"type"`
		Hashes []any  `msgpack:"block_hashes"`
		Group  int    `msgpack:"group_idx"`
		Medium string `msgpack:"medium"`
	}
	Rank int
}

func main() {
	log.SetOutput(os.Stderr)
	if len(os.Args) != 5 {
		log.Fatal("usage: kv-consumer-go ENDPOINT REPLAY_ENDPOINT TOPIC RANKS")
	}
	count, err := strconv.Atoi(os.Args[4])
	if err != nil {
		log.Fatal(err)
	}
	var ranks []*rank
	for n := range count {
		r := &rank{replayEndpoint: ofRank(os.Args[2], n), blocks: map[block]bool{}}
		ranks = append(ranks, r)
		go r.follow(ofRank(os.Args[1], n), os.Args[3])
	}
	fmt.Println(`{"verb": "ready"}`)
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		if strings.Contains(lines.Text(), `"ask"`) {
			answer(ranks)
		}
	}
}

func answer(ranks []*rank) {
	var all []any
	for n, r := range ranks {
		r.mu.Lock()
		known := map[string]bool{}
		for b := range r.blocks {
			known[b.hash] = true
		}
		blocks := append([]string{}, slices.Collect(maps.Keys(known))...)
		all = append(all, map[string]any{"rank": n, "next": r.next, "blocks": blocks})
		r.mu.Unlock()
	}
	if err := json.NewEncoder(os.Stdout).Encode(map[string]any{"verb": "cached", "ranks": all}); err != nil {
		log.Fatal(err)
	}
}

// ofRank is the endpoint of a rank: rank N has the port plus N.
func ofRank(endpoint string, rank int) string {
	host, port, err := net.SplitHostPort(strings.TrimPrefix(endpoint, "tcp://"))
	if err != nil {
		log.Fatal(err)
	}
	number, err := strconv.Atoi(port)
	if err != nil {
		log.Fatal(err)
	}
	return "tcp://" + net.JoinHostPort(host, strconv.Itoa(number+rank))
}

// follow reads the events of a rank, over one connection after the other.
func (r *rank) follow(endpoint, topic string) {
	for ; ; time.Sleep(100 * time.Millisecond) {
		socket := zmq4.NewSub(context.Background())
		err := socket.SetOption(zmq4.OptionSubscribe, topic)
		if err == nil {
			err = socket.Dial(endpoint)
		}
		for err == nil {
			var m zmq4.Msg
			if m, err = socket.Recv(); err == nil && len(m.Frames) == 3 {
				r.arrived(binary.BigEndian.Uint64(m.Frames[1]), m.Frames[2])
			}
		}
		socket.Close()
	}
}

func (r *rank) arrived(number uint64, payload []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	b := decode(payload)
	if number < r.next {
		if b.Time <= r.last {
			return // a replay had it
		}
		clear(r.blocks) // the engine was started again
		r.next = 0
	}
	if number > r.next {
		if err := r.replay(); err != nil {
			log.Print("replay: ", err)
		}
	}
	r.apply(number, b)
}

// replay gets the batches that were missed. The engine has the last ones, 10,000 by default.
func (r *rank) replay() error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	socket := zmq4.NewDealer(ctx)
	defer socket.Close()
	if err := socket.Dial(r.replayEndpoint); err != nil {
		return err
	}
	if err := socket.Send(zmq4.NewMsgFrom([]byte{}, binary.BigEndian.AppendUint64(nil, r.next))); err != nil {
		return err
	}
	for {
		m, err := socket.Recv()
		if err != nil {
			return err
		}
		number := m.Frames[len(m.Frames)-2:] // 0.26 and later: an empty frame and the topic come first
		if len(number[1]) == 0 {
			return nil
		}
		r.apply(binary.BigEndian.Uint64(number[0]), decode(number[1]))
	}
}

func decode(payload []byte) (b batch) {
	if err := msgpack.Unmarshal(payload, &b); err != nil {
		log.Print("a batch that cannot be decoded: ", err)
	}
	return b
}

func (r *rank) apply(number uint64, b batch) {
	if number < r.next {
		return // it came twice
	}
	if number > r.next {
		clear(r.blocks) // what was missed may have removed any of them
	}
	r.next, r.last = number+1, b.Time
	for _, e := range b.Events {
		if e.Type == "AllBlocksCleared" {
			clear(r.blocks)
		}
		for _, hash := range e.Hashes {
			name := fmt.Sprint(hash)
			if bytes, ok := hash.([]byte); ok {
				name = fmt.Sprintf("%x", bytes)
			}
			if at := (block{name, e.Group, e.Medium}); e.Type == "BlockStored" {
				r.blocks[at] = true
			} else {
				delete(r.blocks, at)
			}
		}
	}
}
