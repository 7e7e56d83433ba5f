package conformance

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/check/replay"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/manifest"
	"github.com/vllm-vcr/conformance/trace"
)

// captureLine is the line of the session that these tests take their frames from.
const captureLine = "0.33"

// capturedFrames reads a captured session; change may change or drop messages.
func capturedFrames(tb testing.TB, meta string, change func(i int, m *trace.Message) bool) []byte {
	tb.Helper()
	return framesOf(tb, captureLine+".0-multiturn-s7", meta, change)
}

// framesOf reads the captured session in a file.
func framesOf(tb testing.TB, name, meta string, change func(i int, m *trace.Message) bool) []byte {
	tb.Helper()
	r, err := trace.OpenFrames(filepath.Join(repoCaptures, name+".jsonl.gz"), trace.Options{})
	require.NoError(tb, err)
	defer r.Close()
	var b bytes.Buffer
	var head json.RawMessage
	if meta != "" {
		head = json.RawMessage(meta)
	}
	w, err := trace.NewFrameWriter(&b, true, head)
	require.NoError(tb, err)
	var m trace.Message
	for i := 0; ; i++ {
		if err := r.Next(&m); err == io.EOF {
			break
		} else if err != nil {
			tb.Fatal(err)
		}
		if change != nil && !change(i, &m) {
			continue
		}
		require.NoError(tb, w.Write(&m))
		if i%100 == 0 {
			require.NoError(tb, w.Flush())
		}
	}
	require.NoError(tb, w.Close())
	return b.Bytes()
}

// framesMetaText is what the tap writes first.
const framesMetaText = `{"record_tokens":true,"block_size":16,"model":"tiny","gpu":"cpu","tp":1,"max_num_seqs":64,` +
	`"vllm_tag":"v0.33.0","engine_config":"enforce_eager=true","recorder_version":"v1"}`

// copyWithFrames is a copy with frames in the place of the trace.
func copyWithFrames(t *testing.T, data []byte) *manifestCopy {
	t.Helper()
	d := copyManifest(t)
	d.Line, d.ID, d.Workload, d.Role = captureLine, "wire-multiturn-s7", "multiturn-s7", manifest.Wire
	d.Trace = filepath.Join(filepath.Dir(d.Trace), "frames.jsonl.gz")
	writeTo(t, d.Trace, data)
	return d
}

// What the recorder was not told is given: the meta line has it then, and the session, which has eight requests in flight
// at a time, is repeated as any other.
func TestRegisterFramesWithFacts(t *testing.T) {
	for _, test := range []struct {
		name, meta string
		facts      Facts
		want       string // of the refusal
	}{
		{name: "all of them", facts: Facts{GPU: "cpu", Model: "tiny", VLLMTag: "v0.33.0", EngineConfig: "enforce_eager=true"}},
		{name: "the rest", meta: `{"gpu":"cpu","vllm_tag":"v0.33.0"}`, facts: Facts{Model: "tiny", EngineConfig: "enforce_eager=true", GPU: "cpu"}},
		{name: "none", want: "no meta line, so what was captured is unknown"},
		{name: "too few", facts: Facts{GPU: "cpu", Model: "tiny", VLLMTag: "v0.33.0"}, want: "meta.engine_config is missing: record with --engine-config, or give it to golden add"},
		{name: "others", meta: `{"gpu":"H200"}`, facts: Facts{GPU: "cpu"}, want: `meta.gpu is "H200", and --gpu says "cpu"`},
	} {
		for _, role := range []manifest.Role{manifest.Wire, manifest.Frames} {
			t.Run(test.name+" of role "+string(role), func(t *testing.T) {
				d := copyWithFrames(t, capturedFrames(t, test.meta, nil))
				d.Role, d.Facts = role, test.facts
				done, err := Register(t.Context(), d.Registration)
				if test.want != "" {
					require.ErrorContains(t, err, test.want)
					return
				}
				require.NoError(t, err)
				if g := done.Golden; g.ConfigHash != trace.ConfigHash("cpu", "v0.33.0", "enforce_eager=true") || g.Model != "tiny" || g.Role != role {
					t.Errorf("%+v", g)
				}
			})
		}
	}
}

func TestRegisterWire(t *testing.T) {
	d := copyWithFrames(t, capturedFrames(t, framesMetaText, nil))
	done := d.register(t)
	require.True(t, done.Messages >= 100, "%d messages", done.Messages)
	g := done.Golden
	if g.ConfigHash != trace.ConfigHash("cpu", "v0.33.0", "enforce_eager=true") || g.VLLMVersion != "0.33.0" || g.RecorderVersion != "v1" ||
		g.Records != 0 || g.TokensSHA256 != "" || g.Role != manifest.Wire {
		t.Errorf("%+v", g)
	}
	// Its plan has what can be asserted of frames, and nothing complains of the rest.
	store := NewStore(StoreOptions{Dir: d.Goldens})
	cases, err := NewPlan(d.Matrix, d.parsed(t), Selection{Lines: []string{captureLine}, Goldens: []string{d.ID}, Enforce: EnforceAll})
	require.NoError(t, err)
	var checks []string
	for _, c := range cases {
		checks = append(checks, c.Check())
	}
	require.NoDiff(t, cmp.Diff([]string{"integrity", "line", "provenance", "wire"}, checks), "plan, -want +got")
	report := (&Runner{Store: store}).Run(t.Context(), cases)
	require.True(t, report.ExitCode == ExitOK && report.Counts[Pass] == len(cases), "%s: %+v", report.Reason, report.Results)
	if again := d.register(t); again.Changed || again.Stored {
		t.Errorf("again: %+v", again)
	}
	// And what is wrong with it is found.
	damaged, err := os.ReadFile(done.Location)
	require.NoError(t, err)
	damaged[len(damaged)/2] ^= 1
	report = (&Runner{Store: memory{damaged, "wire.jsonl.gz"}}).Run(t.Context(), cases)
	require.True(t, report.ExitCode == ExitFail && report.Results[0].Verdict == Fail, "damaged: %s: %+v", report.Reason, report.Results)
	for i := range cases {
		cases[i].Golden.ConfigHash = strings.Repeat("0", 64)
	}
	report = (&Runner{Store: store}).Run(t.Context(), cases)
	require.True(t, report.ExitCode == ExitFail && report.Results[2].Verdict == Fail, "other config_hash: %s: %+v", report.Reason, report.Results)
}

func TestRegisterWireRefusals(t *testing.T) {
	drop := func(channel, direction string) func(int, *trace.Message) bool {
		return func(_ int, m *trace.Message) bool { return m.Channel != channel || m.Direction != direction }
	}
	tests := []struct {
		name, meta string
		change     func(int, *trace.Message) bool
		damage     func([]byte) []byte
		line       string
		says       string
	}{
		{name: "truncated", meta: framesMetaText, damage: func(b []byte) []byte { return b[:len(b)-4] }, says: "gzip stream ends without its trailer"},
		{name: "no meta line", says: "line 1: no meta line"},
		{name: "meta of another kind", meta: `{"gpu":7}`, says: "line 1: meta: json"},
		{name: "nothing about the engine", meta: `{}`, says: "meta.gpu is missing: record with --gpu"},
		{name: "wrong hash", meta: strings.Replace(framesMetaText, "{", `{"config_hash":"x",`, 1), says: `meta.config_hash is "x", but gpu, vllm_tag and engine_config`},
		{name: "other line", meta: framesMetaText, line: "0.32", says: `meta.vllm_version is "0.33.0", which is not of line 0.32`},
		{name: "no registration", meta: framesMetaText, change: drop("input", trace.EngineToFrontend), says: "no engine registers in it"},
		{name: "no handshake", meta: framesMetaText, change: drop("handshake", trace.EngineToFrontend), says: "no engine says READY in it"},
		{name: "no outputs", meta: framesMetaText, change: drop("output", trace.EngineToFrontend), says: "no output of an engine is in it"},
		{
			name: "outputs left out", meta: framesMetaText, says: "bytes of a message of the engine were left out",
			change: func(i int, m *trace.Message) bool {
				if i == 100 {
					*m = trace.Message{At: m.At, Channel: "output", Direction: trace.EngineToFrontend, Elided: 5}
				}
				return true
			},
		},
		{
			name: "registration that is none", meta: framesMetaText, says: "line 4: ready response: ",
			change: func(i int, m *trace.Message) bool {
				if m.Channel == "input" && m.Direction == trace.EngineToFrontend {
					m.Frames = [][]byte{{0xc1}}
				}
				return true
			},
		},
		{
			name: "handshake that is none", meta: framesMetaText, says: "line 2: handshake status: ",
			change: func(i int, m *trace.Message) bool {
				if i == 0 {
					m.Frames = [][]byte{{0xc1}}
				}
				return true
			},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			data := capturedFrames(t, test.meta, test.change)
			if test.damage != nil {
				data = test.damage(data)
			}
			d := copyWithFrames(t, data)
			if test.line != "" {
				d.Line = test.line
			}
			before := d.files(t)
			_, err := Register(t.Context(), d.Registration)
			wantRefusal(t, err, ExitFail, "frames.jsonl.gz", test.says)
			require.NoDiff(t, cmp.Diff(before, d.files(t)), "refused, but changed")
		})
	}
	t.Run("a trace", func(t *testing.T) {
		d := copyManifest(t)
		d.Role = manifest.Wire
		_, err := Register(t.Context(), d.Registration)
		wantRefusal(t, err, ExitFail, "run.jsonl.gz: line 2: ")
	})
}

// Whatever a frames file is, reading it ends in an error or in the meta of an
// engine that registered, and in a session whose messages have places in order.
func FuzzReadFrames(f *testing.F) {
	codec, err := protocol.CodecFor(captureLine)
	require.NoError(f, err)
	start := func(i int, m *trace.Message) bool { return i < 6 }
	f.Add(inflated(f, capturedFrames(f, framesMetaText, start)))
	f.Add(inflated(f, capturedFrames(f, framesMetaText, func(i int, m *trace.Message) bool { return i < 12 })))
	f.Add([]byte("{\"meta\":{}}\n{\"t\":1,\"note\":\"gone\"}\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		meta, messages, err := check.ReadFrames(text, "f.jsonl")
		require.True(t, err != nil || (meta.VLLMVersion != nil && meta.ReadyResponseHex != nil && *meta.ConfigHash != ""), "%q gives %+v", text, meta)
		if err != nil {
			return
		}
		w, err := replay.NewWireSession("f.jsonl", codec, messages)
		if err != nil {
			return
		}
		for i, s := range w.Sent {
			require.True(t, s.Place >= 0 && s.Place <= len(w.Said) && (i <= 0 || s.Place >= w.Sent[i-1].Place), "%q: message %d is sent before message %d of the engine", text, i, s.Place)
		}
	})
}
