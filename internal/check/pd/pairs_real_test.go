package pd

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
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
	"github.com/vllm-vcr/conformance/trace"
)

var (
	updatePairs = flag.Bool("update", false, "write internal/engine/nixl/pairs/pairs.toml")
	frames      = flag.String("frames", "", "folder to write what engines say, alone and in pairs of one line, for golden add --role nixl")
)

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
	const byDefault, recompute, lenient = "default", "kv_load_failure_policy recompute", "enforce_handshake_compat false"
	configs := []struct{ name, config string }{
		{recompute, `{"kv_load_failure_policy":"recompute"}`},
		{byDefault, "{}"}, // the prefill engines decode, too
		{lenient, `{"kv_connector_extra_config":{"enforce_handshake_compat":false}}`},
	}
	prefills := startAll(t, releases, "prefill", "{}")
	for i, d := range prefills {
		d.alone(t, releases[i])
	}
	outcomes, notes := map[[3]string]pairs.Outcome{}, map[[2]string][]string{}
	for _, c := range configs[:min(len(releases)*2-1, len(configs))] { // one release has no pair to be lenient with
		decodes := prefills
		if c.name != byDefault {
			decodes = startAll(t, releases, "decode", c.config)
		}
		for _, same := range []bool{true, false} { // a pair of one line first, whose messages are goldens
			for i, of := range releases {
				for j, release := range releases {
					if same != (i == j) || i == j && c.name != recompute {
						continue
					}
					outcome, note := decodes[j].pullFrom(t, prefills[i])
					t.Logf("prefill %s, decode %s, %s: %s: %s", of, release, c.name, outcome, note)
					outcomes[[3]string{of, release, c.name}] = outcome
					notes[[2]string{of, release}] = append(notes[[2]string{of, release}], c.name+": "+note)
					if i == j { // and back
						outcome, note = prefills[i].pullFrom(t, decodes[j])
						t.Logf("prefill %s, decode %s, back: %s: %s", of, release, outcome, note)
						decodes[j].keepFrames(t, "pair", of)
					}
				}
			}
		}
		for _, d := range decodes {
			if c.name != byDefault {
				d.s.Close()
			}
		}
	}
	for pair, note := range notes {
		at := slices.IndexFunc(table, func(p pairs.Pair) bool {
			return p.Prefill == protocol.LineOf(pair[0]) && p.Decode == protocol.LineOf(pair[1])
		})
		p, got := table[at], func(config string) pairs.Outcome { return outcomes[[3]string{pair[0], pair[1], config}] }
		checked, leniently := got(byDefault), got(lenient)
		if pair[0] == pair[1] {
			checked, leniently = got(recompute), got(recompute)
		} else if p.Checked == pairs.Refuses {
			require.Equal(t, got(recompute), "recomputes", "%v: with kv_load_failure_policy recompute it", pair)
		}
		if checked != p.Checked || leniently != p.Lenient {
			t.Errorf("%v: measured as %s and %s, and the table has %s and %s", pair, checked, leniently, p.Checked, p.Lenient)
		}
		p.Checked, p.Lenient, p.Measured = checked, leniently, fmt.Sprintf("vLLM %s and %s on a CPU: %s", pair[0], pair[1], strings.Join(note, "; "))
		if *updatePairs {
			keepPair(t, p)
		}
	}
}

// startAll starts the engines of the releases, two at a time.
func startAll(t *testing.T, releases []string, id, config string) []*side {
	all, places := make([]*side, len(releases)), make(chan bool, 2)
	var starts sync.WaitGroup
	for i, release := range releases {
		starts.Go(func() {
			places <- true
			defer func() { <-places }()
			all[i] = startReal(t, release, id, config)
		})
	}
	starts.Wait()
	if slices.Contains(all, nil) {
		t.FailNow()
	}
	return all
}

// alone judges an engine before it has another one, by a decode and by prefills of ours.
func (d *side) alone(t *testing.T, release string) {
	for _, c := range []struct {
		name  string
		judge func(*side) error
	}{
		{"handshake", (*side).checkHandshake}, {"prefill", (*side).checkParams}, {"decode", (*side).checkPull}, {"four-prefills", (*side).checkFourPrefills},
	} {
		err := d.f.End(c.judge(d))
		t.Logf("%s, %s: %s", release, c.name, d.f.Note)
		if err != nil || len(d.f.Failures) > 0 {
			t.Errorf("%s, %s: %v %v", release, c.name, err, d.f.Failures)
		}
		d.keepFrames(t, c.name, release)
	}
	d.env.FramesOut = nil
}

// keepFrames writes what an engine has said from its start, for a golden of role nixl.
func (d *side) keepFrames(t *testing.T, what, release string) {
	if *frames == "" {
		return
	}
	path := filepath.Join(*frames, fmt.Sprintf("nixl-%s-%s.jsonl.gz", what, protocol.LineOf(release)))
	meta := fmt.Sprintf(`{"recorder_version":%q,"captured_at":%q}`, os.Getenv("RECORDER_VERSION"), time.Now().UTC().Format(time.RFC3339))
	data, err := check.WriteFrames(path, json.RawMessage(meta), d.tapped)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, data, 0o644))
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
		"# Written by: VLLM_VCR_ENGINES=\"0.33.0 0.32.0\" go test ./internal/check/pd -run TestRealPairs -update -timeout 90m\n\n")
	slices.SortFunc(file.Pair, func(p, q pairs.Pair) int { return strings.Compare(q.Prefill+q.Decode, p.Prefill+p.Decode) })
	e := toml.NewEncoder(text)
	e.Indent = ""
	require.NoError(t, e.Encode(file))
	require.NoError(t, os.WriteFile(pairsFile, text.Bytes(), 0o644))
}

// startReal starts the CPU engine of a release.
func startReal(t *testing.T, release, id, config string) *side {
	t.Helper()
	peers := testenv.PeersDir(t)
	home := filepath.Join(peers, "engines", release)
	packages, err := filepath.Glob(filepath.Join(peers, "nixl", "lib", "python3*", "site-packages"))
	require.NoError(t, err)
	transfer := fmt.Sprintf(`{"kv_connector":"NixlConnector","kv_role":"kv_both","kv_buffer_device":"cpu","engine_id":"%s-%s",%s`, id, release, strings.TrimPrefix(config, "{"))
	transfer = strings.Replace(transfer, ",}", "}", 1)
	env := &check.Env{
		Context: t.Context(), Log: slog.New(slog.DiscardHandler), Timeouts: check.EngineTimeouts(), Versions: map[string]string{}, NIXL: testenv.NIXL(t),
		FramesOut: func([]trace.Message) error { return nil },
		Engine: check.CommandEngine{Grace: time.Minute, Template: "env HF_HUB_OFFLINE=1 DO_NOT_TRACK=1 VLLM_NO_USAGE_STATS=1 VLLM_CPU_KVCACHE_SPACE=1 " +
			"VLLM_CPU_OMP_THREADS_BIND=nobind OMP_NUM_THREADS=1 VLLM_NIXL_SIDE_CHANNEL_HOST=127.0.0.1 PYTHONPATH=" + strings.Join(packages, ":") +
			fmt.Sprintf(" VLLM_NIXL_SIDE_CHANNEL_PORT=%d ", testenv.FreePort(t)) + home + "/bin/python -m vllm.entrypoints.cli.main serve ../../../testdata/model/tiny" + // the hash contains this text
			" --served-model-name tiny --headless --data-parallel-size 1 --data-parallel-address {handshake_host} --data-parallel-rpc-port {handshake_port}" +
			" --load-format dummy --dtype float32 --max-model-len 4096 --max-num-seqs 16 --block-size 128 --num-gpu-blocks-override 128 --enforce-eager --kv-transfer-config '" + transfer + "'"}.Engine,
	}
	env.Timeouts.Idle, env.Timeouts.Connect = 5*time.Minute, 30*time.Minute // of starved ones
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
	return d
}

// pullFrom has a prompt computed by the prefill engine, and answered by this one: what becomes of that.
func (d *side) pullFrom(t *testing.T, prefill *side) (pairs.Outcome, string) {
	const blocks = 3
	prompt := prefill.prompt(prefill.promptFor(blocks))
	k, err := prefill.keep(prompt)
	require.NoError(t, err)
	require.NoError(t, prefill.ours.Read(t.Context(), prefill.ours.peer, prefill.ours.descriptors(k.Blocks), ""))
	want := make([]byte, blocks*prefill.ours.blockLen())
	_, err = prefill.ours.ReadAt(want, 0)
	require.NoError(t, err)
	var asked atomic.Int32
	relay, err := prefill.nixl.Serve("127.0.0.1:0", func(_ nixl.Rank, request []byte) []byte {
		asked.Add(1)
		d.tap("nixl_request", trace.EngineToFrontend, request)
		a, err := prefill.shake()
		if err != nil {
			return nil
		}
		d.tap("nixl_reply", trace.FrontendToEngine, a.Frame)
		return a.Frame
	}, nil, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	defer relay.Close()
	params := withPort(k.reply.params, protocol.ViewOf(k.reply.params).Field("remote_port"), int(netip.MustParseAddrPort(relay.Address()).Port()))
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
