package player

import (
	"encoding/binary"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/engine/kvcache"
	"github.com/vllm-vcr/conformance/internal/engine/kvevents"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/internal/wire/zmq"
)

// subscribed tells of each subscription that a log says.
type subscribed chan struct{}

func (s subscribed) Write(line []byte) (int, error) {
	if strings.Contains(string(line), "subscribed to") {
		s <- struct{}{}
	}
	return len(line), nil
}

// subscribe returns a subscriber to an endpoint, whose publisher knows of it.
func (s subscribed) subscribe(t *testing.T, endpoint, topic string) *zmq.Conn {
	t.Helper()
	c, err := zmq.Dial(t.Context(), endpoint, zmq.Sub, zmq.Options{})
	must(t, err)
	t.Cleanup(func() { c.Close() })
	must(t, c.Subscribe([]byte(topic)))
	select {
	case <-s:
	case <-time.After(patience):
		t.Fatal("no publisher knows of the subscriber")
	}
	return c
}

// batch is what a subscriber gets, but for the time.
type batch struct {
	Topic  string
	Number uint64
	Events []any
	Rank   any
}

func nextBatch(t *testing.T, c *zmq.Conn) batch {
	t.Helper()
	must(t, c.SetReadDeadline(time.Now().Add(patience)))
	m, err := c.Recv()
	must(t, err)
	if len(m) != 3 || len(m[1]) != 8 {
		t.Fatalf("frames %q: want a topic, a number of 8 bytes and a batch", m)
	}
	said := loose(t, m[2]).([]any)
	if ts, ok := said[0].(float64); !ok || len(said) != 3 || time.Since(time.Unix(int64(ts), 0)).Abs() > time.Hour {
		t.Errorf("batch %v: want the time, events and a rank", said)
	}
	return batch{Topic: string(m[0]), Number: binary.BigEndian.Uint64(m[1]), Events: said[1].([]any), Rank: said[2]}
}

// registered is where the engine's registration says that its events are.
func registered(t *testing.T, s *session) string {
	t.Helper()
	config, _ := loose(t, s.engine.RawReady).(map[string]any)["kv_events_config"].(map[string]any)
	if config["enable_kv_cache_events"] != true || config["publisher"] != "zmq" || config["topic"] != "kv@pod@tiny" {
		t.Fatalf("registered with %v", config)
	}
	return config["endpoint"].(string)
}

// seeker is a parrot that looks prompts up in the player's own prefix cache.
type seeker struct{ parrot }

func (f *seeker) Script(r *Request) (Script, error) {
	script, err := f.parrot.Script(r)
	script.CachedTokens = LookUp
	return script, err
}

// kvEngine are options of an engine of 16 tokens a block that publishes, and whose
// hashes can be foretold.
func kvEngine(version string, events kvevents.Options) (Options, subscribed) {
	log := make(subscribed, 16)
	events.Topic = "kv@pod@tiny"
	events.Log = slog.New(slog.NewTextHandler(log, nil))
	return Options{
		VLLMVersion: version, KVCache: KVCacheOptions{Events: &events, HashAlgorithm: kvcache.SHA256CBOR, HashSeed: "0", BlockSize: 16}, Source: new(seeker),
	}, log
}

// kvPrompt is a request whose prompt fills two blocks, and whose answer a third one: all
// but its last token are computed.
func kvPrompt(id string, adapter *protocol.LoRA) *protocol.Request {
	return ask(id, count(0, 40), 9, func(r *protocol.Request) { r.LoRA = adapter })
}

// hashesOf are the hashes that blocks of those 40 tokens and of 8 again have, from a pool
// of their own, as numbers.
func hashesOf(t *testing.T, line string, adapter *protocol.LoRA) (numbers []any) {
	t.Helper()
	pool, err := kvcache.New(kvcache.Options{
		Blocks: 9, BlockSize: 16, Caching: true, Events: true, Algorithm: kvcache.SHA256CBOR, Seed: "0", Rules: kvcache.RulesOf(line),
	})
	must(t, err)
	tokens := kvPrompt("", nil).PromptTokenIDs
	s := kvcache.NewSequence(append(tokens, tokens[:8]...))
	if adapter != nil {
		s.Extra.LoRA = kvcache.LoRA{ID: adapter.ID, Name: adapter.Name, Path: adapter.Path}
	}
	if !pool.Allocate(s, 0, len(s.Tokens), 0) {
		t.Fatal("no room in the pool")
	}
	for _, h := range pool.TakeEvents()[0].(kvcache.BlockStored).Hashes {
		numbers = append(numbers, kvcache.IntHash(h))
	}
	return numbers
}

// The registration tells where the events are, and there they are: one batch for each
// step that changed the cache, numbered, with the adapter's name.
func TestKVEvents(t *testing.T) {
	adapter := &protocol.LoRA{Name: "adapter", ID: 3, Path: "/adapters/3"}
	for _, version := range []string{"0.27.1", "0.33.0"} {
		t.Run(version, func(t *testing.T) {
			opt, log := kvEngine(version, kvevents.Options{Endpoint: "tcp://127.0.0.1:0", ReplayEndpoint: "tcp://127.0.0.1:0"})
			opt.EngineIndex, opt.DataParallelSize = 3, 4
			s := connect(t, opt, 1)
			c := log.subscribe(t, registered(t, s), "kv@pod")
			s.submit(kvPrompt("a", adapter))
			s.finished(0, 1)
			s.submit(kvPrompt("b", nil))
			s.finished(0, 1)
			s.submit(kvPrompt("again", nil)) // finds two blocks
			s.finished(0, 1)
			s.reply(0, "reset_prefix_cache", arg(false), arg(false))
			talk := kvPrompt("c", nil)
			talk.SessionID = "talk"
			s.submit(talk)
			s.finished(0, 1)

			line := protocol.LineOf(version)
			ofTalk := func(event map[string]any) map[string]any {
				if version != "0.27.1" { // whose frontends name no session
					event["session_id"] = "talk"
				}
				return event
			}
			adapted, plain := hashesOf(t, line, adapter), hashesOf(t, line, nil)
			want := [][]any{
				{stored(adapted[:2], nil, 0, 32, adapter)},
				{stored(adapted[2:], adapted[1], 32, 48, adapter)},
				{stored(plain[:2], nil, 0, 32, nil)},
				{stored(plain[2:], plain[1], 32, 48, nil)},
				{stored(plain[2:], plain[1], 32, 48, nil)},
				{map[string]any{"type": "AllBlocksCleared"}, ofTalk(stored(plain[:2], nil, 0, 32, nil))},
				{ofTalk(stored(plain[2:], plain[1], 32, 48, nil))},
			}
			for i, events := range want {
				want := batch{Topic: "kv@pod@tiny", Number: uint64(i), Events: events, Rank: int64(3)}
				if d := gocmp.Diff(want, nextBatch(t, c)); d != "" {
					t.Fatalf("(-want +got):\n%s", d)
				}
			}
		})
	}
}

// stored is the event of blocks of the tokens that [kvPrompt] has and then says again.
func stored(hashes []any, parent any, from, to int, adapter *protocol.LoRA) map[string]any {
	var id, name, key any
	if adapter != nil {
		id, name, key = adapter.ID, adapter.Name, []any{adapter.Name}
	}
	var tokens []any
	for i := from; i < to; i++ {
		tokens = append(tokens, int64(i%40))
	}
	return map[string]any{
		"type": "BlockStored", "block_hashes": hashes, "parent_block_hash": parent, "token_ids": tokens, "block_size": int64(16),
		"lora_id": id, "medium": "GPU", "lora_name": name, "extra_keys": slices.Repeat([]any{key}, len(hashes)),
		"group_idx": int64(0), "kv_cache_spec_kind": "full_attention",
	}
}
