package nixl

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vllm-vcr/conformance/internal/engine/kvtransfer"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/internal/wire/pack"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/internal/wire/zmq"
)

// tiny is the model of the engines that answered with testdata/handshake-LINE.msgpack: vLLM on a CPU, --dtype float32.
var tiny = Config{
	Model: "/work/shared/model/tiny", DType: "torch.float32", KVHeads: 2, HeadSize: 32, Layers: 2, AttnBackend: "CPU_ATTN",
}

// TestAnswersOfEngines: what real engines answered is written as they wrote it, with the hash that they computed.
func TestAnswersOfEngines(t *testing.T) {
	files, err := filepath.Glob("testdata/handshake-*.msgpack")
	if err != nil || len(files) < 1 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		name := strings.TrimSuffix(strings.TrimPrefix(filepath.Base(file), "handshake-"), ".msgpack")
		t.Run(name, func(t *testing.T) {
			l, frame := load(t, name), readFile(t, file)
			p, err := l.DecodePayload(frame)
			require.NoError(t, err)
			m, err := l.DecodeMetadata(p)
			require.NoError(t, err)
			if got := l.Encode(m, p.Hash); !bytes.Equal(got, frame) {
				t.Errorf("it is written as\n%s\nand the engine wrote\n%s", pack.Format(got), pack.Format(frame))
			}
			if hash, err := l.CompatibilityHash(tiny); err != nil || hash != p.Hash {
				t.Errorf("the hash is %s, and the engine's %s (%v)", hash, p.Hash, err)
			}
		})
	}
}

// TestPairsOfEngines: what engines of a real pair sent is what the player writes: the request of the decode engine, and the
// kv_transfer_params of the prefill engine.
func TestPairsOfEngines(t *testing.T) {
	files, err := filepath.Glob("testdata/params-*.msgpack")
	if err != nil || len(files) < 1 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		name := strings.TrimSuffix(strings.TrimPrefix(filepath.Base(file), "params-"), ".msgpack")
		if request := readFile(t, "testdata/request-"+name+".msgpack"); !bytes.Equal(request, load(t, name).Request(0, 0)) {
			t.Errorf("%s: the engine asks with %s", name, pack.Format(request))
		}
		raw := readFile(t, file)
		params, err := kvtransfer.DecodeParams(raw)
		require.NoError(t, err)
		offer := kvtransfer.Offer{Cache: params.Cache, Blocks: params.Cache.Blocks, Computed: 383, TensorParallel: 1}
		if got := offer.Encode(name); !bytes.Equal(got, raw) {
			t.Errorf("%s: the player writes\n%s\nand the engine\n%s", name, pack.Format(got), pack.Format(raw))
		}
	}
}

// TestHashes: the hashes are what compute_nixl_compatibility_hash of each release returns for this model.
func TestHashes(t *testing.T) {
	var want map[string]string
	require.NoError(t, json.Unmarshal(readFile(t, "testdata/hashes.json"), &want))
	for _, line := range protocol.Lines() {
		c := tiny
		c.Model, c.DType = "/models/tiny-ü", "torch.bfloat16"
		if got, err := load(t, line).CompatibilityHash(c); err != nil || got != want[line] {
			t.Errorf("%s: %s, want %q (%v)", line, got, want[line], err)
		}
	}
}

// TestHandshake: every line's client and server understand each other, and a request of another line's form gets no answer, but does not end
// the server either, as it does that of a real engine.
func TestHandshake(t *testing.T) {
	frame := readFile(t, "testdata/handshake-0.33.msgpack")
	for _, line := range protocol.Lines() {
		t.Run(line, func(t *testing.T) {
			l := load(t, line)
			p, err := load(t, "0.33").DecodePayload(frame)
			require.NoError(t, err)
			m, err := load(t, "0.33").DecodeMetadata(p)
			require.NoError(t, err)
			payload := l.Encode(m, "HASH")
			answers := func(r Rank, _ []byte) []byte {
				if r != (Rank{TP: 1}) {
					return nil
				}
				return payload
			}
			s, err := l.Serve("127.0.0.1:0", answers, nil, slog.New(slog.DiscardHandler))
			require.NoError(t, err)
			defer s.Close()
			for _, wrong := range [][]byte{l.Request(0, 0), l.Request(0, 2), {}, {0xc1}, {0x93, 1}, pack.AppendArray(nil, pack.AppendInt(nil, 1))} {
				conn, err := zmq.Dial(t.Context(), "tcp://"+s.Address(), zmq.Dealer, zmq.Options{})
				require.NoError(t, err)
				defer conn.Close()
				require.NoError(t, conn.Send(nil, wrong))
				require.NoError(t, conn.Send(wrong, nil, wrong))
			}
			a, err := l.Handshake(t.Context(), s.Address(), 0, 1)
			require.NoError(t, err)
			again, err := l.DecodeMetadata(a.Payload)
			require.NoError(t, err)
			require.True(t, a.Hash == "HASH" && again.EngineID == m.EngineID && again.Blocks == m.Blocks && again.Stride(1) == m.Stride(1), "hash %s, metadata %+v", a.Hash, again)
			require.Equal(t, a.Clock > 0, l.HasClock(), "clock %v", a.Clock)
		})
	}
}

func TestNotifications(t *testing.T) {
	for _, text := range []string{"cmpl-1-0:1", "a:b:2", "HB:a", "HB:a,b"} {
		n, err := ParseNotification(text)
		require.True(t, err == nil && n.String() == text, "%q is read as %+v (%v)", text, n, err)
	}
	for _, text := range []string{"", "a", ":1", "a:", "a:0", "a:x", "a:99999999999999999999"} {
		if n, err := ParseNotification(text); err == nil {
			t.Errorf("%q is read as %+v", text, n)
		}
	}
}

func TestAsPython(t *testing.T) {
	in, want := `{"a,:\"":[1,"ü😀"],"b":null}`, `{"a,:\"": [1, "\u00fc\ud83d\ude00"], "b": null}`
	require.Equal(t, string(asPython([]byte(in))), want, "as Python")
}

func load(t *testing.T, line string) *Line {
	t.Helper()
	l, err := Load(line)
	require.NoError(t, err)
	return l
}

func readFile(t *testing.T, path string) []byte {
	t.Helper()
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	return text
}
