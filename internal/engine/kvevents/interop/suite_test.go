package interop

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/llm-d/llm-d-kv-cache/pkg/kvcache"
	"github.com/llm-d/llm-d-kv-cache/pkg/kvcache/kvblock"
	indexed "github.com/llm-d/llm-d-kv-cache/pkg/kvevents"
	"github.com/llm-d/llm-d-kv-cache/pkg/kvevents/engineadapter"

	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/check/kvconsumer"
)

// judgedIndex is the indexer of llm-d as a subject of the suite kv-consumer: it notes what its index is told, and which batch is applied.
type judgedIndex struct {
	kvblock.Index
	indexed.EngineAdapter

	mu     sync.Mutex
	next   uint64
	left   int // changes of the index that the last batch still makes
	blocks map[kvblock.BlockHash]bool
}

func (j *judgedIndex) ParseMessage(m *indexed.RawMessage) (pod, model string, batch indexed.EventBatch, err error) {
	pod, model, batch, err = j.EngineAdapter.ParseMessage(m)
	j.mu.Lock()
	defer j.mu.Unlock()
	j.next, j.left = m.Sequence+1, 0
	for _, e := range batch.Events {
		j.left++
		if removed, is := e.(*indexed.BlockRemovedEvent); is {
			j.left += len(removed.BlockHashes) - 1
		}
	}
	return pod, model, batch, err
}

func (j *judgedIndex) Add(ctx context.Context, engine, request []kvblock.BlockHash, entries []kvblock.PodEntry) error {
	return j.changed(j.Index.Add(ctx, engine, request, entries), func() {
		for _, hash := range engine {
			j.blocks[hash] = true
		}
	})
}

func (j *judgedIndex) Evict(ctx context.Context, key kvblock.BlockHash, kind kvblock.KeyType, entries []kvblock.PodEntry) error {
	return j.changed(j.Index.Evict(ctx, key, kind, entries), func() { delete(j.blocks, key) })
}

func (j *judgedIndex) Clear(ctx context.Context, pod string) error {
	return j.changed(j.Index.Clear(ctx, pod), func() { clear(j.blocks) })
}

func (j *judgedIndex) changed(err error, change func()) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	change()
	j.left--
	return err
}

// answer is what the suite is told. Ranks with one topic are one pod to the indexer.
func (j *judgedIndex) answer(ranks int) string {
	j.mu.Lock()
	defer j.mu.Unlock()
	next := j.next
	if j.left > 0 {
		next-- // it is being applied
	}
	var all []any
	for n := range ranks {
		var blocks []string
		for hash := range j.blocks {
			blocks = append(blocks, fmt.Sprint(uint64(hash)))
		}
		all = append(all, map[string]any{"rank": n, "next": next, "blocks": blocks})
	}
	text, _ := json.Marshal(map[string]any{"verb": "cached", "ranks": all})
	return string(text)
}

// consume is the indexer with the four verbs.
func consume(t *testing.T) func(context.Context, conformance.KVEndpoints, io.Reader, io.Writer) {
	return func(ctx context.Context, at conformance.KVEndpoints, in io.Reader, out io.Writer) {
		tokens, err := kvblock.NewChunkedTokenDatabase(&kvblock.TokenProcessorConfig{BlockSizeTokens: blockSize})
		if err != nil {
			t.Error(err)
			return
		}
		config, err := kvcache.NewDefaultConfig()
		if err != nil {
			t.Error(err)
			return
		}
		index, err := kvcache.NewKVCacheIndexer(ctx, config, tokens)
		if err != nil {
			t.Error(err)
			return
		}
		j := &judgedIndex{Index: index.KVBlockIndex(), EngineAdapter: engineadapter.NewVLLMAdapter(), blocks: map[kvblock.BlockHash]bool{}}
		pool := indexed.NewPool(&indexed.Config{TopicFilter: "kv@", Concurrency: 1}, j, tokens, j)
		pool.Start(ctx)
		defer pool.Shutdown(context.Background())
		subscribers := indexed.NewSubscriberManager(pool)
		defer subscribers.Shutdown(context.Background())
		host, port, _ := net.SplitHostPort(strings.TrimPrefix(at.Endpoint, "tcp://"))
		first, _ := strconv.Atoi(port)
		for n := range at.Ranks {
			if err := subscribers.EnsureSubscriber(ctx, fmt.Sprint(n), fmt.Sprintf("tcp://%s:%d", host, first+n), "kv@", true); err != nil {
				t.Error(err)
			}
		}
		fmt.Fprintln(out, `{"verb": "ready"}`)
		for lines := bufio.NewScanner(in); lines.Scan(); {
			fmt.Fprintln(out, j.answer(at.Ranks))
		}
	}
}

// TestSuiteOnLLMD: of the suite kv-consumer, the indexer of llm-d 0.9.0 fails what takes a replay: it asks for none. Not judged are digests,
// of which it keeps the last 64 bits, ranks, which are one pod to it if they have one topic, and places, which judgedIndex does not note.
func TestSuiteOnLLMD(t *testing.T) {
	runner := conformance.Runner{
		Consumer: &conformance.ConsumerUnderTest{Inside: consume(t)}, Timeouts: conformance.Timeouts{Connect: patience, Idle: 15 * time.Second}, EveryCase: true,
	}
	cases := slices.DeleteFunc(kvconsumer.Cases(compat.Line{Name: "0.33", Tag: "v0.33.0"}, true), func(c conformance.Case) bool {
		return slices.Contains([]conformance.Assertion{kvconsumer.Digests, kvconsumer.Ranks, kvconsumer.Restart, kvconsumer.Places}, c.Assertion)
	})
	got := map[conformance.Assertion]conformance.Code{}
	for _, r := range runner.Run(t.Context(), cases).Results {
		t.Logf("%s: %s %v", r.Case.Name(), r.Verdict, r.Failures)
		if r.Verdict != conformance.Pass && len(r.Failures) > 0 {
			got[r.Case.Assertion] = r.Failures[0].Code
		}
	}
	want := map[conformance.Assertion]conformance.Code{
		kvconsumer.Gap: kvconsumer.CodeStale, kvconsumer.Late: kvconsumer.CodeForgotten, kvconsumer.Reconnect: kvconsumer.CodeForgotten, kvconsumer.Lost: kvconsumer.CodeStale,
	}
	if !maps.Equal(got, want) {
		t.Errorf("failed cases %v, want %v", got, want)
	}
}
