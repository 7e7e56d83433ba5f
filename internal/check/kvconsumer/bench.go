package kvconsumer

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/internal/base/retry"
	"github.com/vllm-vcr/conformance/internal/base/safetext"
	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/engine/kvcache"
	"github.com/vllm-vcr/conformance/internal/engine/kvevents"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// The pool of each rank: small, so that a prompt of 8 blocks takes the place of all others.
const blockSize, poolBlocks = 16, 8

// topic is that of all ranks, in the form that routers of llm-d expect.
const topic = "kv@127.0.0.1:8000@tiny"

// bench is a consumer and the ranks that publish to it. It is used by one goroutine.
type bench struct {
	digests     bool // hashes are published as bytes
	bufferSteps int  // how many batches the replay endpoint has; 0 for the default
	at          check.KVEndpoints

	ctx      context.Context
	env      *check.Env
	f        *check.Outcome
	profile  *protocol.Profile
	ranks    []*rank
	consumer *check.ConsumerProcess
}

// rank is a pool of KV blocks with the publisher of its events.
type rank struct {
	b          *bench
	number     int
	pool       *kvcache.Pool
	pub        *kvevents.Publisher
	next       uint64 // number of the next batch
	stored     []kvcache.BlockStored
	subscribed chan struct{} // has an element when a consumer has subscribed to the topic
}

// open opens the sockets of the ranks.
func (b *bench) open(line compat.Line) error {
	codec, err := check.CodecFor(line)
	if err != nil {
		return err
	}
	b.profile = codec.Profile()
	b.at.Ranks, b.at.Topic, b.at.Line = max(b.at.Ranks, 1), topic, line.Name
	for range 20 { // another program may take a port
		if err = b.openAt(); err == nil {
			return nil
		}
		b.close()
	}
	return check.Infra(fmt.Errorf("no free ports for %s of KV events: %w", safetext.Count(b.at.Ranks, "rank"), err))
}

// openAt opens them at ports that follow each other.
func (b *bench) openAt() error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	port := l.Addr().(*net.TCPAddr).Port
	l.Close()
	b.at.Endpoint, b.at.Replay = fmt.Sprintf("tcp://127.0.0.1:%d", port), fmt.Sprintf("tcp://127.0.0.1:%d", port+b.at.Ranks)
	b.ranks = nil
	for n := range b.at.Ranks {
		r := &rank{b: b, number: n}
		b.ranks = append(b.ranks, r)
		if err := r.restart(); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) close() {
	if b.consumer != nil {
		b.consumer.Close()
	}
	for _, r := range b.ranks {
		if r.pub != nil {
			r.pub.Close()
		}
	}
}

// open opens the sockets of a rank again, with the next batch of this number.
func (r *rank) open(next uint64) (err error) {
	if r.pub != nil {
		r.pub.Close()
		r.pub = nil
	}
	onHost := func(endpoint string) string { return strings.Replace(endpoint, "127.0.0.1", "*", 1) } // vLLM listens at endpoints with a * only
	r.next, r.subscribed = next, make(chan struct{}, 1)
	subscribed := r.subscribed
	r.pub, err = kvevents.New(r.b.profile, kvevents.Options{
		Endpoint: onHost(r.b.at.Endpoint), ReplayEndpoint: onHost(r.b.at.Replay), Host: "127.0.0.1", Topic: topic, Rank: r.number, First: next,
		BufferSteps: r.b.bufferSteps, Digests: r.b.digests, Log: r.b.env.Log,
		Subscribed: func(prefix string) {
			if !strings.HasPrefix(topic, prefix) {
				return
			}
			select {
			case subscribed <- struct{}{}:
			default:
			}
		},
	})
	return err
}

// restart makes the rank that of an engine that has just started.
func (r *rank) restart() (err error) {
	r.pool, err = kvcache.New(kvcache.Options{
		Blocks: 1 + poolBlocks, BlockSize: blockSize, Caching: true, Events: true, Rules: kvcache.RulesOf(r.b.at.Line),
	})
	if err != nil {
		return err
	}
	return r.open(0)
}

// prompt reads BLOCKS@FIRST-TOKEN, perhaps with what else decides about its blocks. It has a token more.
func prompt(text string) (*kvcache.Sequence, error) {
	text, with, _ := strings.Cut(text, "+")
	var blocks int
	var first uint32
	if _, err := fmt.Sscanf(text, "%d@%d", &blocks, &first); err != nil {
		return nil, fmt.Errorf("cases.txt: prompt %q: %w", text, err)
	}
	tokens := make([]uint32, blocks*blockSize+1)
	for i := range tokens {
		tokens[i] = first + uint32(i)
	}
	s := kvcache.NewSequence(tokens)
	switch with {
	case "adapter":
		s.Extra.LoRA = kvcache.LoRA{ID: 1, Name: "adapter", Path: "/adapter"}
	case "salt":
		s.Extra.Salt = "salt"
	case "image":
		s.Extra.Features = []kvcache.Feature{{ID: "image", Offset: 3, Length: 8}}
	}
	return s, nil
}

// compute computes the prompts, and sends one batch.
func (r *rank) compute(prompts string, send func(float64, []kvcache.Event) error) error {
	for _, text := range strings.Fields(prompts) {
		s, err := prompt(text)
		if err != nil {
			return err
		}
		cached := r.pool.Lookup(s)
		// The last token is computed only to know the next one, so a prompt of all blocks has room.
		s.Tokens = s.Tokens[:len(s.Tokens)/blockSize*blockSize]
		if !r.pool.Allocate(s, cached, len(s.Tokens)-cached, 0) {
			return check.Infra(fmt.Errorf("no room for a prompt of %d tokens", len(s.Tokens)))
		}
		r.pool.Free(s)
	}
	return r.send(send)
}

func (r *rank) reset() error {
	if !r.pool.Reset() {
		return check.Infra(errors.New("the pool was not reset"))
	}
	return r.send(r.pub.Publish)
}

func (r *rank) send(send func(float64, []kvcache.Event) error) error {
	events := r.pool.TakeEvents()
	if len(events) == 0 {
		return check.Infra(fmt.Errorf("rank %d: the step changed nothing", r.number))
	}
	for _, e := range events {
		if e, is := e.(kvcache.BlockStored); is {
			r.stored = append(r.stored, e)
		}
	}
	return r.batch(send, events)
}

func (r *rank) batch(send func(float64, []kvcache.Event) error, events []kvcache.Event) error {
	r.next++
	return send(float64(time.Now().UnixMicro())/1e6, events)
}

// places are others than the cache of the pool, in which the same blocks may be.
var places = map[string]kvcache.Place{"group": {Group: 1, Kind: "sliding_window"}, "CPU": {Medium: "CPU"}}

// elsewhere publishes that all blocks that were stored are at another place, too, or no longer.
func (r *rank) elsewhere(name string, are bool) error {
	var events []kvcache.Event
	for _, e := range r.stored {
		if e.Place = places[name]; are {
			events = append(events, e)
			continue
		}
		for _, hash := range e.Hashes {
			events = append(events, kvcache.BlockRemoved{Hash: hash, Place: e.Place})
		}
	}
	return r.batch(r.pub.Publish, events)
}

// start starts the consumer, and waits until it is ready and has subscribed to all ranks.
func (b *bench) start() (err error) {
	if b.consumer, err = b.env.Consumer.Start(b.ctx, b.at); err != nil {
		return err
	}
	ctx, stop := b.consumer.Patience(b.ctx, b.env.Timeouts.Connect, errTime)
	defer stop()
	answer, err := b.next(ctx, "ready", b.env.Timeouts.Connect)
	if err != nil {
		if ended := (check.EndError{}); errors.As(err, &ended) {
			ended.Code = CodeProtocol // it never followed it
			err = ended
		}
		return err
	}
	if answer.Verb != "ready" {
		return check.Ends(CodeProtocol, `the first line of the consumer has the verb %q: want {"verb": "ready"} when it has subscribed`, answer.Verb)
	}
	for _, r := range b.ranks {
		if err := r.awaitSubscription(); err != nil {
			return err
		}
	}
	return nil
}

var errTime = errors.New("too late")

// awaitSubscription waits until the consumer has subscribed, or subscribed again.
func (r *rank) awaitSubscription() error {
	ctx, stop := r.b.consumer.Patience(r.b.ctx, r.b.env.Timeouts.Idle, errTime)
	defer stop()
	select {
	case <-r.subscribed:
		return nil
	case <-ctx.Done():
		if err := context.Cause(r.b.ctx); err != nil {
			return err
		}
		at, _ := protocol.KVEventsOfRank(r.b.at.Endpoint, r.number)
		return check.Ends(CodeUnheard, "rank %d: within %v the consumer did not subscribe at %s to a topic that %q begins with",
			r.number, r.b.env.Timeouts.Idle, at, topic)
	}
}

// An answer is a line of the consumer.
type answer struct {
	Verb  string `json:"verb"`
	Ranks []struct {
		Rank   int               `json:"rank"`
		Next   uint64            `json:"next"`   // number of the batch that it expects
		Blocks []json.RawMessage `json:"blocks"` // hashes: numbers, also as text, or bytes in hexadecimal
	} `json:"ranks"`
}

// next reads a line that has this verb, or another one.
func (b *bench) next(ctx context.Context, verb string, limit time.Duration) (a answer, err error) {
	line, err := b.consumer.Next(ctx)
	switch {
	case errors.Is(err, io.EOF):
		return a, check.Ends(CodeSilent, "the consumer ended, or closed its stdout, before it printed a line with the verb %q%s", verb, b.consumer.Output())
	case b.ctx.Err() != nil:
		return a, context.Cause(b.ctx)
	case err != nil:
		return a, check.Ends(CodeSilent, "the consumer did not print a line with the verb %q within %v%s", verb, limit, b.consumer.Output())
	}
	if err := json.Unmarshal([]byte(line), &a); err != nil {
		return a, check.Ends(CodeProtocol, "the consumer printed %q: want a line of JSON with the verb %q on stdout, and all else on stderr: %v", safetext.Clip(line, 200), verb, err)
	}
	return a, nil
}

// compare waits until the consumer has applied all batches, and compares what it believes with the pools. Unless all is set, it may
// know of fewer blocks than there are.
func (b *bench) compare(when string, all bool) error {
	limit := b.env.Timeouts.Idle
	ctx, stop := b.consumer.Patience(b.ctx, limit, errTime)
	defer stop()
	for pause := 2 * time.Millisecond; ; pause = min(2*pause, 100*time.Millisecond) {
		b.consumer.Send(`{"verb": "ask"}`)
		got, err := b.next(ctx, "cached", limit)
		if err != nil {
			return err
		}
		if got.Verb != "cached" {
			return check.Ends(CodeProtocol, `the consumer answers "ask" by the verb %q: want "cached"`, got.Verb)
		}
		behind := b.behind(got)
		if behind == nil {
			return b.judge(got, when, all)
		}
		if retry.Pause(ctx, pause) != nil {
			if err := context.Cause(b.ctx); err != nil {
				return err
			}
			return check.Ends(CodeBehind, "%s: %v, within %v", when, behind, limit)
		}
	}
}

// behind says which batches the consumer has not applied.
func (b *bench) behind(a answer) error {
	for _, r := range b.ranks {
		var next uint64
		for _, of := range a.Ranks {
			if of.Rank == r.number {
				next = of.Next
			}
		}
		if next != r.next {
			return fmt.Errorf("rank %d has published batches 0 to %d, and the consumer answers that it expects batch %d next", r.number, r.next-1, next)
		}
	}
	return nil
}

// judge compares the blocks of each rank.
func (b *bench) judge(a answer, when string, all bool) error {
	for _, r := range b.ranks {
		believed := map[string]bool{}
		for _, of := range a.Ranks {
			for _, block := range of.Blocks {
				if of.Rank == r.number {
					believed[strings.Trim(string(block), `"`)] = true
				}
			}
		}
		var missing []string
		for _, hash := range r.pool.Cached() {
			name := strconv.FormatUint(kvcache.IntHash(hash), 10)
			if b.digests {
				name = hex.EncodeToString(hash)
			}
			if b.f.Asserted++; !believed[name] {
				missing = append(missing, name)
			}
			delete(believed, name)
		}
		slices.Sort(missing)
		switch {
		case len(believed) > 0:
			example := ""
			for example = range believed {
				break
			}
			return check.Ends(CodeStale, "%s: the consumer believes that rank %d has %s more than it has, for example %s", when, r.number, safetext.Count(len(believed), "block"), safetext.Clip(example, 80))
		case len(missing) > 0 && all:
			return check.Ends(CodeForgotten, "%s: the consumer does not know of %s that rank %d has, for example %s", when, safetext.Count(len(missing), "block"), r.number, missing[0])
		}
		b.f.Asserted++ // an empty cache is one answer too
	}
	return nil
}
