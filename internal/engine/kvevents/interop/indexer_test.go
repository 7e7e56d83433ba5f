// Package interop lets what others wrote to read KV events read ours.
package interop

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/llm-d/llm-d-kv-cache/pkg/kvcache"
	"github.com/llm-d/llm-d-kv-cache/pkg/kvcache/kvblock"
	indexed "github.com/llm-d/llm-d-kv-cache/pkg/kvevents"
	"github.com/llm-d/llm-d-kv-cache/pkg/kvevents/engineadapter"

	ours "github.com/vllm-vcr/conformance/internal/engine/kvcache"
	"github.com/vllm-vcr/conformance/internal/engine/kvevents"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// patience ends tests that hang.
const patience = 60 * time.Second

// blockSize is that of the engines and of the indexer.
const blockSize = 16

// watchedIndex is the indexer's index, which tells of each change.
type watchedIndex struct {
	kvblock.Index
	changed chan string
}

func (w watchedIndex) Add(ctx context.Context, engine, request []kvblock.BlockHash, entries []kvblock.PodEntry) error {
	err := w.Index.Add(ctx, engine, request, entries)
	w.changed <- "add"
	return err
}

func (w watchedIndex) Evict(ctx context.Context, key kvblock.BlockHash, kind kvblock.KeyType, entries []kvblock.PodEntry) error {
	err := w.Index.Evict(ctx, key, kind, entries)
	w.changed <- "evict"
	return err
}

func (w watchedIndex) Clear(ctx context.Context, pod string) error {
	err := w.Index.Clear(ctx, pod)
	w.changed <- "clear"
	return err
}

// An indexer scores prompts by the events of engines that it subscribed to.
type indexer struct {
	t           *testing.T
	index       *kvcache.Indexer
	changed     chan string
	subscribers *indexed.SubscriberManager
}

func newIndexer(t *testing.T) *indexer {
	t.Helper()
	tokens, err := kvblock.NewChunkedTokenDatabase(&kvblock.TokenProcessorConfig{BlockSizeTokens: blockSize})
	if err != nil {
		t.Fatal(err)
	}
	config, err := kvcache.NewDefaultConfig()
	if err != nil {
		t.Fatal(err)
	}
	index, err := kvcache.NewKVCacheIndexer(t.Context(), config, tokens)
	if err != nil {
		t.Fatal(err)
	}
	x := &indexer{t: t, index: index, changed: make(chan string, 1000)}
	pool := indexed.NewPool(&indexed.Config{TopicFilter: "kv@", Concurrency: 2}, watchedIndex{index.KVBlockIndex(), x.changed}, tokens,
		engineadapter.NewVLLMAdapter())
	pool.Start(t.Context())
	x.subscribers = indexed.NewSubscriberManager(pool)
	t.Cleanup(func() {
		x.subscribers.Shutdown(context.Background())
		pool.Shutdown(context.Background())
	})
	return x
}

// await waits for changes of the index.
func (x *indexer) await(want ...string) {
	x.t.Helper()
	for i := range want {
		select {
		case got := <-x.changed:
			if got != want[i] {
				x.t.Errorf("the index was changed by %s, want %s", got, want[i])
			}
		case <-time.After(patience):
			x.t.Fatalf("the index was not changed: %v of %v", want[i:], want)
		}
	}
}

// scores are how many blocks of the prompt each engine has, from its beginning on. The
// indexer takes every text among a block's extra keys for an image, and vLLM's engines
// say the adapter's name there: who asks for an adapter's prompt has to name it twice.
func (x *indexer) scores(prompt []uint32, model, adapter string) map[string]float64 {
	x.t.Helper()
	var features []*kvblock.BlockExtraFeatures
	if adapter != "" {
		model = adapter
		named := &kvblock.BlockExtraFeatures{MMHashes: []kvblock.MMHash{{Hash: adapter}}}
		features = slices.Repeat([]*kvblock.BlockExtraFeatures{named}, len(prompt)/blockSize)
	}
	scores, err := x.index.ScoreTokens(x.t.Context(), prompt, model, nil, features)
	if err != nil {
		x.t.Fatal(err)
	}
	return scores
}

// An engine is a cache and the publisher of its events.
type engine struct {
	t    *testing.T
	pool *ours.Pool
	pub  *kvevents.Publisher
}

// subscribedLog tells when the indexer has subscribed.
type subscribedLog chan struct{}

func (s subscribedLog) Write(line []byte) (int, error) {
	if strings.Contains(string(line), "subscribed to") {
		close(s)
	}
	return len(line), nil
}

// engine starts one of 8 blocks that the indexer knows by its name.
func (x *indexer) engine(line, name string, digests bool) *engine {
	x.t.Helper()
	profile, err := protocol.LoadProfile(line)
	if err != nil {
		x.t.Fatal(err)
	}
	subscribed := make(subscribedLog)
	pub, err := kvevents.New(profile, kvevents.Options{
		Endpoint: "tcp://127.0.0.1:0", Topic: "kv@" + name + "@model", Digests: digests,
		Log: slog.New(slog.NewTextHandler(subscribed, nil)),
	})
	if err != nil {
		x.t.Fatal(err)
	}
	x.t.Cleanup(func() { pub.Close() })
	pool, err := ours.New(ours.Options{Blocks: 9, BlockSize: blockSize, Caching: true, Events: true, Rules: ours.RulesOf(line)})
	if err != nil {
		x.t.Fatal(err)
	}
	if err := x.subscribers.EnsureSubscriber(x.t.Context(), name, pub.Endpoint(), "kv@", true); err != nil {
		x.t.Fatal(err)
	}
	select {
	case <-subscribed:
	case <-time.After(patience):
		x.t.Fatalf("the indexer did not subscribe to %s", name)
	}
	return &engine{x.t, pool, pub}
}

// compute computes a prompt, and forgets who asked for it.
func (e *engine) compute(prompt []uint32, adapter string) {
	e.t.Helper()
	s := ours.NewSequence(prompt)
	if adapter != "" {
		s.Extra.LoRA = ours.LoRA{ID: 1, Name: adapter, Path: "/" + adapter}
	}
	cached := e.pool.Lookup(s)
	if !e.pool.Allocate(s, cached, len(prompt)-cached, 0) {
		e.t.Fatal("no room in the pool")
	}
	e.pool.Free(s)
	e.publish()
}

func (e *engine) publish() {
	e.t.Helper()
	if err := e.pub.Publish(1, e.pool.TakeEvents()); err != nil {
		e.t.Fatal(err)
	}
}

// prompt is so many blocks and a token.
func prompt(blocks int, first uint32) []uint32 {
	tokens := make([]uint32, blocks*blockSize+1)
	for i := range tokens {
		tokens[i] = first + uint32(i)
	}
	return tokens
}

// The indexer that routers of llm-d score prompts with reads the events of every line.
func TestIndexerOfLLMD(t *testing.T) {
	for _, line := range protocol.Lines() {
		for name, digests := range map[string]bool{"numbers": false, "digests": true} {
			t.Run(line+"/"+name, func(t *testing.T) {
				x := newIndexer(t)
				a, b := x.engine(line, "a", digests), x.engine(line, "b", digests)
				score := func(p []uint32, adapter string, want map[string]float64) {
					t.Helper()
					if got := x.scores(p, "model", adapter); !maps.Equal(got, want) {
						t.Errorf("scores %v, want %v", got, want)
					}
				}
				long, other := prompt(4, 0), prompt(6, 70_000)
				a.compute(long[:2*blockSize+1], "")
				x.await("add")
				a.compute(long, "") // the rest, whose parent the indexer has to know
				x.await("add")
				b.compute(long[:blockSize+1], "")
				x.await("add")
				score(long, "", map[string]float64{"a": 4, "b": 1})
				score(other, "", map[string]float64{})

				b.compute(long, "adapter")
				x.await("add")
				score(long, "adapter", map[string]float64{"b": 4})

				a.compute(other, "") // takes 7 of 8 blocks: all but the first of the other prompt
				x.await(append(slices.Repeat([]string{"evict"}, 3), "add")...)
				score(other, "", map[string]float64{"a": 6})
				score(long, "", map[string]float64{"a": 1, "b": 1})

				if !a.pool.Reset() {
					t.Fatal("the pool was not reset")
				}
				a.publish()
				x.await("clear")
				score(long, "", map[string]float64{"b": 1})
			})
		}
	}
}
