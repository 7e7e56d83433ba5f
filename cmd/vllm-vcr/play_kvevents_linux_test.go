package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/vmihailenco/msgpack/v5"

	"github.com/vllm-vcr/conformance/internal/frontends/openai"
	"github.com/vllm-vcr/conformance/internal/frontends/vllmrs"
	"github.com/vllm-vcr/conformance/internal/testenv"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/internal/wire/zmq"
)

// A storedBlock is what events say of a block of the prefix cache.
type storedBlock struct {
	Hash, Parent string // hex
	Tokens       string
	Keys         any
}

const kvBlockSize = 32

// kvPrompts share beginnings; each fills blocks that none before it did.
func kvPrompts() (bodies []map[string]any) {
	prompt := func(from, shared, tokens int) []int {
		var ids []int
		for i := range tokens {
			if i < shared {
				ids = append(ids, 300+i)
			} else {
				ids = append(ids, 300+(from*37+i*11)%1500)
			}
		}
		return ids
	}
	for i, p := range [][]int{
		prompt(1, 0, 100), prompt(2, 200, 200), prompt(3, 64, 300), prompt(4, 130, 161), prompt(5, 200, 330), prompt(6, 0, kvBlockSize),
	} {
		body := map[string]any{"model": "tiny", "prompt": p, "max_tokens": 1, "temperature": 0}
		if i%3 == 2 {
			body["cache_salt"] = "pepper"
		}
		bodies = append(bodies, body)
	}
	return bodies
}

// TestKVEventsOfPromptsAsEngines asks released engines and the player, behind the same real frontend, for the same
// prompts: both publish the same blocks, with the same hashes, in the same order.
func TestKVEventsOfPromptsAsEngines(t *testing.T) {
	versions := strings.Fields(os.Getenv("VLLM_VCR_ENGINES"))
	if len(versions) == 0 {
		t.Skip("set VLLM_VCR_ENGINES to the releases to start, such as \"0.33.0 0.27.1\": .ci/peers engine installs them")
	}
	t.Setenv("PYTHONHASHSEED", "0")
	t.Setenv("VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES", "0")
	for _, version := range versions {
		t.Run(version, func(t *testing.T) {
			said := map[string][]storedBlock{}
			for name, run := range map[string]func(*testing.T, *vllmrs.Server, string, ...string){
				"engine": runReleasedEngine, "player": runPlayer,
			} {
				t.Run(name, func(t *testing.T) {
					said[name] = publishedBehind(t, version, run)
				})
			}
			if len(said["engine"]) < 20 {
				t.Errorf("the engine published %d blocks", len(said["engine"]))
			}
			if d := cmp.Diff(said["engine"], said["player"]); d != "" {
				t.Errorf("(-engine +player):\n%s", d)
			}
		})
	}
}

// publishedBehind starts an engine behind a frontend, asks for the prompts one after the other, and returns what the
// engine has published then.
func publishedBehind(t *testing.T, version string, run func(t *testing.T, server *vllmrs.Server, version string, args ...string)) []storedBlock {
	server, err := vllmrs.Start(t.Context(), vllmrs.Options{
		Binary: testenv.Frontend(t, version), ModelDir: testenv.ModelDir(t), ServedName: "tiny", ReadyTimeout: 4 * time.Minute,
	})
	require.NoError(t, err)
	t.Cleanup(func() { server.Close() })
	dir := t.TempDir()
	endpoint, again := "ipc://"+filepath.Join(dir, "pub"), "ipc://"+filepath.Join(dir, "again")
	run(t, server, version, "--block-size", fmt.Sprint(kvBlockSize), "--prefix-caching-hash-algo", "sha256_cbor", "--kv-events-config",
		fmt.Sprintf(`{"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": %q, "replay_endpoint": %q}`, endpoint, again))
	require.NoError(t, server.Healthy(t.Context()))
	client := openai.NewClient(server.URL(), "tiny")
	defer client.Close()
	bodies := kvPrompts()
	for _, body := range bodies {
		answer, err := client.Send(t.Context(), "POST", "/v1/completions", body)
		if err != nil || answer.Status != 200 {
			t.Fatalf("%v, %d: %s", err, answer.Status, answer.Body)
		}
	}
	// The last prompt fills one block. An engine publishes beside its work, so it may come after the answer.
	last := bodies[len(bodies)-1]["prompt"].([]int)
	for {
		blocks := publishedSoFar(t, again)
		if n := len(blocks); n > 0 && blocks[n-1].Tokens == fmt.Sprint(last) {
			return blocks
		}
	}
}

func runPlayer(t *testing.T, server *vllmrs.Server, version string, args ...string) {
	start(t, append([]string{
		"play", "--frontend-handshake", server.Handshake(), "--vllm-version", version, "--num-gpu-blocks-override", "64",
	}, args...)...)
}

func runReleasedEngine(t *testing.T, server *vllmrs.Server, version string, args ...string) {
	home := filepath.Join(testenv.PeersDir(t), "engines", version)
	port := server.Handshake()[strings.LastIndex(server.Handshake(), ":")+1:]
	cmd := exec.Command(filepath.Join(home, "bin", "python"), append([]string{
		"-m", "vllm.entrypoints.cli.main", "serve", testenv.ModelDir(t), "--served-model-name", "tiny", "--headless",
		"--data-parallel-size", "1", "--data-parallel-address", "127.0.0.1", "--data-parallel-rpc-port", port, "--load-format", "dummy",
		"--dtype", "float32", "--max-model-len", "1024", "--enforce-eager", "--enable-prefix-caching", "--num-gpu-blocks-override", "64",
	}, args...)...)
	cmd.Env = append(os.Environ(), "HF_HUB_OFFLINE=1", "DO_NOT_TRACK=1", "VLLM_NO_USAGE_STATS=1", "VLLM_CPU_KVCACHE_SPACE=1",
		"VLLM_CPU_OMP_THREADS_BIND=nobind", "OMP_NUM_THREADS=1", "VLLM_CACHE_ROOT="+filepath.Join(home, "cache"))
	testenv.Process(t, "engine "+version, cmd)
}

// publishedSoFar asks for all batches again, and returns the blocks that they say were stored.
func publishedSoFar(t *testing.T, endpoint string) (blocks []storedBlock) {
	t.Helper()
	c, err := zmq.Dial(t.Context(), endpoint, zmq.Dealer, zmq.Options{})
	require.NoError(t, err)
	defer c.Close()
	require.NoError(t, c.Send(nil, make([]byte, 8)))
	for next := uint64(0); ; next++ {
		require.NoError(t, c.SetReadDeadline(time.Now().Add(time.Minute)))
		m, err := c.Recv()
		require.NoError(t, err)
		payload, number := m[len(m)-1], m[len(m)-2]
		if len(payload) == 0 {
			return blocks
		}
		if got := binary.BigEndian.Uint64(number); got != next {
			t.Fatalf("batch %d follows %d", got, next-1)
		}
		blocks = append(blocks, blocksOf(t, payload)...)
	}
}

// blocksOf returns the stored blocks of a batch one by one.
func blocksOf(t *testing.T, payload []byte) (blocks []storedBlock) {
	t.Helper()
	d := msgpack.NewDecoder(bytes.NewReader(payload))
	d.UseLooseInterfaceDecoding(true)
	batch, err := d.DecodeSlice()
	require.NoError(t, err)
	for _, e := range batch[1].([]any) {
		event := e.(map[string]any)
		if event["type"] != "BlockStored" || fmt.Sprint(event["block_size"]) != fmt.Sprint(kvBlockSize) {
			t.Fatalf("an event %v", event)
		}
		parent, _ := event["parent_block_hash"].(string)
		tokens := slices.Collect(slices.Chunk(event["token_ids"].([]any), kvBlockSize))
		for i, h := range event["block_hashes"].([]any) {
			blocks = append(blocks, storedBlock{
				Hash: fmt.Sprintf("%x", h), Parent: fmt.Sprintf("%x", parent), Tokens: fmt.Sprint(tokens[i]),
				Keys: event["extra_keys"].([]any)[i],
			})
			parent = h.(string)
		}
	}
	return blocks
}
