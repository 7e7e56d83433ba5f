package pd

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/BurntSushi/toml"

	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/engine/nixl"
	"github.com/vllm-vcr/conformance/internal/engine/nixl/pairs"
	"github.com/vllm-vcr/conformance/internal/testenv"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/player"
)

var updatePairs = flag.Bool("update", false, "write internal/engine/nixl/pairs/pairs.toml, and what the engines sent into internal/engine/nixl/testdata")

const pairsFile = "../../engine/nixl/pairs/pairs.toml"

// TestRealPairs measures what becomes of a request when a real prefill engine and a real decode engine of the releases in
// $VLLM_VCR_ENGINES are paired, and compares that with the table of pairs.
func TestRealPairs(t *testing.T) {
	releases := strings.Fields(os.Getenv("VLLM_VCR_ENGINES"))
	if len(releases) == 0 {
		t.Skip(`set VLLM_VCR_ENGINES to the releases to pair, such as "0.33.0 0.32.0": .ci/peers engine installs them`)
	}
	t.Setenv("UCX_TLS", "tcp,self,sm")
	table, err := pairs.Table()
	require.NoError(t, err)
	for _, of := range releases {
		prefill := startReal(t, of, "prefill", "{}")
		for _, release := range releases {
			var p pairs.Pair
			for _, known := range table {
				if known.Prefill == protocol.LineOf(of) && known.Decode == protocol.LineOf(release) {
					p = known
				}
			}
			var notes []string
			measure := func(name, config string) pairs.Outcome {
				decode := startReal(t, release, "decode", config)
				defer decode.stop()
				outcome, note := decode.pullFrom(t, prefill)
				t.Logf("prefill %s, decode %s, %s: %s: %s", of, release, name, outcome, note)
				notes = append(notes, name+": "+note)
				return outcome
			}
			checked := measure("default", "{}")
			lenient := checked
			if of != release {
				lenient = measure("enforce_handshake_compat false", `{"kv_connector_extra_config":{"enforce_handshake_compat":false}}`)
				require.Equal(t, measure("kv_load_failure_policy recompute", `{"kv_load_failure_policy":"recompute"}`), "recomputes", "prefill %s, decode %s: with kv_load_failure_policy recompute it", of, release)
			}
			if checked != p.Checked || lenient != p.Lenient {
				t.Errorf("prefill %s, decode %s: measured as %s and %s, and the table has %s and %s", of, release, checked, lenient, p.Checked, p.Lenient)
			}
			p.Checked, p.Lenient, p.Measured = checked, lenient, fmt.Sprintf("vLLM %s and %s on a CPU: %s", of, release, strings.Join(notes, "; "))
			if *updatePairs {
				keepPair(t, p)
			}
		}
		prefill.stop()
	}
}

// keepPair puts a measured pair into the file of pairs.
func keepPair(t *testing.T, p pairs.Pair) {
	var file struct {
		Pair []pairs.Pair `toml:"pair"`
	}
	_, err := toml.DecodeFile(pairsFile, &file)
	require.NoError(t, err)
	file.Pair = append(slices.DeleteFunc(file.Pair, func(q pairs.Pair) bool { return q.Prefill == p.Prefill && q.Decode == p.Decode }), p)
	text := bytes.NewBufferString("# Pairs that were measured with released engines on a CPU. All others follow from the profiles of the lines.\n" +
		"# Written by: VLLM_VCR_ENGINES=\"0.33.0 0.32.0\" go test ./internal/check/pd -run TestRealPairs -update -timeout 60m\n\n")
	e := toml.NewEncoder(text)
	e.Indent = ""
	require.NoError(t, e.Encode(file))
	require.NoError(t, os.WriteFile(pairsFile, text.Bytes(), 0o644))
}

// realSide is a real engine with a NixlConnector.
type realSide struct {
	*side
	stop func()
}

// startReal starts the CPU engine of a release.
func startReal(t *testing.T, release, id, config string) *realSide {
	t.Helper()
	peers := testenv.PeersDir(t)
	home := filepath.Join(peers, "engines", release)
	packages, err := filepath.Glob(filepath.Join(peers, "nixl", "lib", "python3*", "site-packages"))
	require.NoError(t, err)
	transfer := fmt.Sprintf(`{"kv_connector":"NixlConnector","kv_role":"kv_both","kv_buffer_device":"cpu","engine_id":"%s-%s",%s`, id, release, strings.TrimPrefix(config, "{"))
	transfer = strings.Replace(transfer, ",}", "}", 1)
	env := &check.Env{
		Context: t.Context(), Log: slog.New(slog.DiscardHandler), Timeouts: check.EngineTimeouts(), Versions: map[string]string{}, NIXL: testenv.NIXL(t),
		Engine: check.CommandEngine{Grace: time.Minute, Template: "env HF_HUB_OFFLINE=1 DO_NOT_TRACK=1 VLLM_NO_USAGE_STATS=1 VLLM_CPU_KVCACHE_SPACE=1 " +
			"VLLM_CPU_OMP_THREADS_BIND=nobind OMP_NUM_THREADS=1 VLLM_NIXL_SIDE_CHANNEL_HOST=127.0.0.1 PYTHONPATH=" + strings.Join(packages, ":") +
			fmt.Sprintf(" VLLM_NIXL_SIDE_CHANNEL_PORT=%d ", testenv.FreePort(t)) + home + "/bin/python -m vllm.entrypoints.cli.main serve ../../../testdata/model/tiny" + // the hash contains this text
			" --served-model-name tiny --headless --data-parallel-size 1 --data-parallel-address {handshake_host} --data-parallel-rpc-port {handshake_port}" +
			" --load-format dummy --dtype float32 --max-model-len 4096 --max-num-seqs 16 --block-size 128 --enforce-eager --kv-transfer-config '" + transfer + "'"}.Engine,
	}
	env.Timeouts.Idle = 90 * time.Second
	line := compat.Line{Name: protocol.LineOf(release), Tag: "v" + release}
	codec, err := check.CodecFor(line)
	require.NoError(t, err)
	s, err := env.Start(t.Context(), codec, player.Options{VLLMVersion: line.Tag})
	require.NoError(t, err)
	t.Cleanup(s.Close)
	d, err := newSide(env, line, s)
	require.NoError(t, err)
	d.ctx, d.f = t.Context(), &check.Outcome{}
	require.NoError(t, d.learn())
	return &realSide{d, s.Close}
}

// pullFrom has a prompt computed by the prefill engine, and answered by this one: what becomes of that.
func (d *realSide) pullFrom(t *testing.T, prefill *realSide) (pairs.Outcome, string) {
	const blocks = 3
	prompt := prefill.prompt(prefill.promptFor(blocks))
	k, err := prefill.keep(prompt)
	require.NoError(t, err)
	keep(t, "params", prefill, k.reply.params)
	require.NoError(t, prefill.ours.Read(t.Context(), prefill.ours.peer, prefill.ours.descriptors(k.Blocks), ""))
	want := make([]byte, blocks*prefill.ours.blockLen())
	_, err = prefill.ours.ReadAt(want, 0)
	require.NoError(t, err)
	var asked atomic.Int32
	relay, err := prefill.nixl.Serve("127.0.0.1:0", func(r nixl.Rank, request []byte) []byte {
		asked.Add(1)
		keep(t, "request", d, request)
		a, err := prefill.nixl.Handshake(t.Context(), prefill.address, r.PP, r.TP)
		if err != nil {
			return nil
		}
		return a.Frame
	}, nil, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	defer relay.Close()
	params := bytes.Replace(k.reply.params, portOf(prefill.address), portOf(relay.Address()), 1)
	if bytes.Equal(params, k.reply.params) {
		t.Fatal("kv_transfer_params have another port than the side channel")
	}
	began := time.Now()
	r, err := d.ask(prompt, 4, params)
	took := time.Since(began).Round(10 * time.Millisecond)
	if check.CodeOf(err) == check.CodeSilence {
		return pairs.Hangs, fmt.Sprintf("no answer within %v", took)
	}
	require.NoError(t, err)
	reason := ""
	if text := d.s.WithOutput(errors.New("")).Error(); strings.Contains(text, "NIXL compatibility hash mismatch") {
		reason = ": NIXL compatibility hash mismatch"
	}
	if _, err := prefill.nixl.Handshake(t.Context(), prefill.address, 0, 0); err != nil {
		return pairs.Breaks, err.Error()
	}
	if r.tokens == 0 {
		require.NoError(t, prefill.ours.notify(t.Context(), k, 1))
		return pairs.Refuses, fmt.Sprintf("%s after %v, with %d handshakes%s", r.finish, took, asked.Load(), reason)
	}
	if _, err := prefill.awaitInUse(0, releaseLimit, CodeRelease, "read"); err != nil {
		require.NoError(t, prefill.ours.notify(t.Context(), k, 1))
		return "recomputes", fmt.Sprintf("%d tokens after %v, and nothing was read, with %d handshakes%s", r.tokens, took, asked.Load(), reason)
	}
	own, err := d.keep(prompt)
	require.NoError(t, err)
	got, err := d.ours.read(t.Context(), own, 1)
	require.NoError(t, err)
	wrong := differing(want[:(blocks-1)*d.ours.blockLen()], got[:(blocks-1)*d.ours.blockLen()], blocks-1)
	if own.cached < (blocks-1)*d.logicalBlock() || wrong > 0 {
		t.Errorf("%d tokens cached, %d of %d blocks differ from those of the prefill engine", own.cached, wrong, blocks-1)
	}
	return pairs.Works, fmt.Sprintf("%d tokens after %v, and %d of %d full blocks are those of the prefill engine", r.tokens, took, blocks-1-wrong, blocks-1)
}

// keep writes what a real engine sent to the other.
func keep(t *testing.T, what string, by *realSide, sent []byte) {
	if *updatePairs {
		require.NoError(t, os.WriteFile(fmt.Sprintf("../../engine/nixl/testdata/%s-%s.msgpack", what, by.nixl.Name), sent, 0o644))
	}
}

// portOf is the port of an address in MessagePack.
func portOf(address string) []byte {
	var port int
	fmt.Sscanf(address[strings.LastIndex(address, ":")+1:], "%d", &port)
	return []byte{0xcd, byte(port >> 8), byte(port)}
}
