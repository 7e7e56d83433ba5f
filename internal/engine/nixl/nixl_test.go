package nixl

import (
	"encoding/json"
	"log/slog"
	"os"
	"testing"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/internal/wire/pack"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/internal/wire/zmq"
)

// TestHashes: the hashes are what compute_nixl_compatibility_hash of each release returns for this model.
func TestHashes(t *testing.T) {
	var want map[string]string
	require.NoError(t, json.Unmarshal(readFile(t, "testdata/hashes.json"), &want))
	for _, line := range protocol.Lines() {
		c := Config{Model: "/models/tiny-ü", DType: "torch.bfloat16", KVHeads: 2, HeadSize: 32, Layers: 2, AttnBackend: "CPU_ATTN"}
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
