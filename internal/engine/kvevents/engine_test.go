package kvevents

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/engine/kvcache"
	"github.com/vllm-vcr/conformance/internal/testenv"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/internal/wire/pack"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// A capture is what testdata/engine.py wrote of a released engine.
type capture struct {
	Version   string
	Digests   bool
	Arguments struct {
		BlockSize  int    `json:"block_size"`
		Blocks     int    `json:"num_gpu_blocks_override"`
		StepTokens int    `json:"max_num_batched_tokens"`
		Algorithm  string `json:"prefix_caching_hash_algo"`
	}
	Config struct {
		BufferSteps int `json:"buffer_steps"`
		Topic       string
	}
	encoded []byte
	happens []happening
	live    [][][]byte
	replays []captureReplay
}

// A happening is a request or, if it has no prompt, a reset of the cache.
type happening struct {
	prompt, answer []uint32
	salt           string
}

type captureReplay struct {
	start  uint64
	frames [][][]byte
}

func captures(t *testing.T) []*capture {
	t.Helper()
	paths, err := filepath.Glob("testdata/engine-*.jsonl.gz")
	if err != nil || len(paths) < 3 {
		t.Fatalf("%d captures of engines: %v", len(paths), err)
	}
	var all []*capture
	for _, path := range paths {
		c := new(capture)
		testenv.GzipLines(t, path, func(text []byte) {
			var line []json.RawMessage
			require.NoError(t, json.Unmarshal(text, &line))
			c.line(t, line)
		})
		if len(c.live) < 20 || len(c.happens) < 20 || len(c.replays) < 4 {
			t.Fatalf("%s: %d messages, %d requests, %d replays", path, len(c.live), len(c.happens), len(c.replays))
		}
		all = append(all, c)
	}
	return all
}

func (c *capture) line(t *testing.T, line []json.RawMessage) {
	t.Helper()
	if line[0][0] == '{' {
		require.NoError(t, json.Unmarshal(line[0], c))
		return
	}
	switch kind := get[string](t, line[0]); kind {
	case "encoded":
		c.encoded = unhex(t, line[1])
	case "request":
		c.happens = append(c.happens, happening{
			prompt: get[[]uint32](t, line[1]), answer: get[[]uint32](t, line[2]), salt: get[string](t, line[3]),
		})
	case "reset":
		c.happens = append(c.happens, happening{})
	case "live":
		c.live = append(c.live, frames(t, line[1]))
	case "replay":
		r := captureReplay{start: get[uint64](t, line[1])}
		for _, answer := range get[[]json.RawMessage](t, line[2]) {
			r.frames = append(r.frames, frames(t, answer))
		}
		c.replays = append(c.replays, r)
	default:
		t.Fatalf("a line of kind %q", kind)
	}
}

func get[T any](t *testing.T, text json.RawMessage) (v T) {
	t.Helper()
	require.NoError(t, json.Unmarshal(text, &v))
	return v
}

func unhex(t *testing.T, text json.RawMessage) []byte {
	t.Helper()
	b, err := hex.DecodeString(get[string](t, text))
	require.NoError(t, err)
	return b
}

func frames(t *testing.T, text json.RawMessage) [][]byte {
	t.Helper()
	var all [][]byte
	for _, frame := range get[[]json.RawMessage](t, text) {
		all = append(all, unhex(t, frame))
	}
	return all
}

// run does in a pool what the requests, one after the other, made the engine's do, and
// calls step with the events of each of its steps.
func (c *capture) run(t *testing.T, step func([]kvcache.Event)) {
	t.Helper()
	pool, err := kvcache.New(kvcache.Options{
		Blocks: c.Arguments.Blocks, BlockSize: c.Arguments.BlockSize, Caching: true, Events: true, Seed: "0",
		Algorithm: kvcache.Algorithm(c.Arguments.Algorithm), Rules: kvcache.RulesOf(protocol.LineOf(c.Version)),
	})
	require.NoError(t, err)
	for _, h := range c.happens {
		if h.prompt == nil {
			if !pool.Reset() {
				t.Fatal("the pool was not reset")
			}
			continue
		}
		s := kvcache.NewSequence(append([]uint32(nil), h.prompt...))
		s.Extra.Salt = h.salt
		computed := pool.Lookup(s)
		for _, said := range h.answer {
			for computed < len(s.Tokens) {
				n := min(len(s.Tokens)-computed, c.Arguments.StepTokens)
				if !pool.Allocate(s, computed, n, 0) {
					t.Fatal("no room in the pool")
				}
				computed += n
				if computed < len(s.Tokens) {
					step(pool.TakeEvents())
				}
			}
			s.Tokens = append(s.Tokens, said)
			if len(s.Tokens) < len(h.prompt)+len(h.answer) {
				step(pool.TakeEvents())
			}
		}
		pool.Free(s)
		step(pool.TakeEvents())
	}
}

// The same requests make the same batches as in the engines, byte for byte but for the
// time, and the same answers to those who ask for them again.
func TestAsEngines(t *testing.T) {
	for _, c := range captures(t) {
		t.Run(c.Version, func(t *testing.T) {
			p := publisher(t, profile(t, c.Version), Options{
				Endpoint: "tcp://127.0.0.1:0", ReplayEndpoint: "tcp://127.0.0.1:0",
				BufferSteps: c.Config.BufferSteps, Topic: c.Config.Topic, Digests: c.Digests,
			})
			sub := p.subscribe("kv@pod")
			said := 0
			c.run(t, func(events []kvcache.Event) {
				if len(events) == 0 {
					return
				}
				if said == len(c.live) {
					t.Fatalf("the engine said %d batches, then: %+v", said, events)
				}
				require.NoError(t, p.Publish(timeOf(t, c.live[said][2]), events))
				if d := cmp.Diff(readable(c.live[said]), readable(receive(t, sub))); d != "" {
					t.Fatalf("batch %d (-engine +ours):\n%s", said, d)
				}
				said++
			})
			require.True(t, said == len(c.live), "%d batches, the engine said %d", said, len(c.live))
			for _, want := range c.replays {
				got := p.askAgain(want.start)
				require.NoDiff(t, cmp.Diff(all(want.frames), all(got)), "asked for those from %d on (-engine +ours)", want.start)
			}
		})
	}
}

func all(messages [][][]byte) (texts []string) {
	for _, m := range messages {
		texts = append(texts, readable(m)...)
	}
	return texts
}

// readable is a message for a difference: its payload by what it says, and its bytes.
func readable(m [][]byte) []string {
	var texts []string
	for _, frame := range m {
		texts = append(texts, hex.EncodeToString(frame))
	}
	if payload := m[len(m)-1]; len(payload) > 0 {
		texts = append(texts, pack.Format(payload))
	}
	return texts
}

func timeOf(t *testing.T, payload []byte) float64 {
	t.Helper()
	c := pack.NewCursor(payload)
	if _, err := c.ArrayLen(); err != nil {
		t.Fatal(err)
	}
	ts, err := c.Float()
	require.NoError(t, err)
	return ts
}

// What no request of the captures has: adapters, features, another rank.
func TestEncodesAsEngines(t *testing.T) {
	number := func(n uint64) []byte { return fmt.Appendf(nil, "%024d%s", 0, binary8(n)) }
	events := []kvcache.Event{
		kvcache.BlockStored{
			Hashes: [][]byte{number(1<<64 - 2), number(1 << 63)}, Parent: number(1 << 33), Tokens: []uint32{1, 2, 3, 1<<32 - 1},
			BlockSize: 2, LoRA: kvcache.LoRA{ID: 3, Name: "adapter"},
			Keys: [][]kvcache.Key{{
				{Kind: kvcache.KeyLoRA, Text: "adapter"},
				{Kind: kvcache.KeyFeature, Text: "image", Offset: -3},
				{Kind: kvcache.KeySalt, Text: "salt"},
			}, nil},
		},
		kvcache.BlockRemoved{Hash: number(1 << 63)},
		kvcache.AllBlocksCleared{},
	}
	for _, c := range captures(t) {
		t.Run(c.Version, func(t *testing.T) {
			codec, err := newCodec(profile(t, c.Version), Options{Rank: 3})
			require.NoError(t, err)
			got := codec.appendBatch(nil, 1.5, events)
			if !bytes.Equal(got, c.encoded) {
				t.Errorf("(-engine +ours):\n%s", cmp.Diff(readable([][]byte{c.encoded}), readable([][]byte{got})))
			}
		})
	}
}

// The session of a request is in its events since 0.30, and no key of others. The bytes are those of
//
//	BlockStored(block_hashes=[2**64-2], parent_block_hash=None, token_ids=[1], block_size=1, lora_id=None,
//	    medium="GPU", lora_name=None, group_idx=0, kv_cache_spec_kind="full_attention", extra_keys=[None], session_id=…)
//
// for None and "s-1", in a KVEventBatch(ts=1.5, data_parallel_rank=0) that the encoder of msgspec wrote.
func TestEncodesSessions(t *testing.T) {
	const (
		begin = "a474797065ab426c6f636b53746f726564ac626c6f636b5f68617368657391cffffffffffffffffeb1706172656e745f626c6f636b5f68617368c0" +
			"a9746f6b656e5f6964739101aa626c6f636b5f73697a6501a76c6f72615f6964c0a66d656469756da3475055a96c6f72615f6e616d65c0" +
			"aa65787472615f6b65797391c0a967726f75705f69647800b26b765f63616368655f737065635f6b696e64ae66756c6c5f617474656e74696f6e"
		session = "aa73657373696f6e5f6964a3732d31"
		batch   = "93cb3ff800000000000092"
	)
	block := kvcache.BlockStored{
		Hashes: [][]byte{binary8(1<<64 - 2)}, Tokens: []uint32{1}, BlockSize: 1, Keys: [][]kvcache.Key{nil},
	}
	named := block
	named.Session = "s-1"
	for _, tt := range []struct{ name, line, want string }{
		{name: "more than 15 keys", line: "0.33", want: batch + "de000b" + begin + "de000c" + begin + session + "00"},
		{name: "15 keys", line: "0.32", want: batch + "8b" + begin + "8c" + begin + session + "00"},
		{name: "before there were sessions", line: "0.29", want: batch + "8b" + begin + "8b" + begin + "00"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			codec, err := newCodec(profile(t, tt.line), Options{})
			require.NoError(t, err)
			got := codec.appendBatch(nil, 1.5, []kvcache.Event{block, named})
			require.NoDiff(t, cmp.Diff(tt.want, hex.EncodeToString(got)), "(-engine +ours)")
		})
	}
}

func binary8(n uint64) []byte {
	b := make([]byte, 8)
	for i := range b {
		b[i] = byte(n >> (56 - 8*i))
	}
	return b
}

func profile(t testing.TB, line string) *protocol.Profile {
	t.Helper()
	p, err := protocol.LoadProfile(line)
	require.NoError(t, err)
	return p
}
