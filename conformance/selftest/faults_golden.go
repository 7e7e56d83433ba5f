package selftest

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/check/replay"
	"github.com/vllm-vcr/conformance/manifest"
	"github.com/vllm-vcr/conformance/trace"
)

// stored is a golden as it is registered and as it lies there.
type stored struct {
	golden   manifest.Golden
	data     []byte
	location string
}

// register makes the bytes the registered ones; what the manifest says of their
// content stays.
func (b stored) register(data []byte) stored {
	sum := sha256.Sum256(data)
	b.data, b.golden.SHA256, b.golden.Size = data, hex.EncodeToString(sum[:]), int64(len(data))
	return b
}

// rewrite changes the trace, writes it anew, and registers the bytes.
func (b stored) rewrite(change func(*trace.Trace)) (stored, error) {
	t, err := readTrace(b)
	if err != nil {
		return b, err
	}
	change(t)
	var out bytes.Buffer
	w, err := trace.NewWriter(&out, trace.IsGzip(b.location), t.Meta)
	for i := range t.Records {
		if err == nil {
			err = w.Gather(&t.Records[i])
		}
	}
	if err == nil {
		err = w.Close()
	}
	return b.register(out.Bytes()), err
}

func readTrace(b stored) (*trace.Trace, error) {
	opt, err := trace.GoldenOptions(b.data, b.location, trace.IsGzip(b.location))
	if err != nil {
		return nil, err
	}
	opt.KeepExtra = true
	reader, err := trace.NewReader(bytes.NewReader(b.data), b.location, trace.IsGzip(b.location), opt)
	if err != nil {
		return nil, err
	}
	return reader.ReadAll()
}

// rewritten is a fault in the content of a golden that was registered with it.
func rewritten(change func(*scene, *trace.Trace)) func(*scene, stored) (stored, error) {
	return func(s *scene, b stored) (stored, error) {
		return b.rewrite(func(t *trace.Trace) { change(s, t) })
	}
}

// goldenFaults are in what is stored or registered, not in the engine.
func goldenFaults(s *scene) []Fault {
	return slices.Concat(bytesFaults(s), originFaults(s), []Fault{s.otherGolden()}, contentFaults(s), readyFaults())
}

// bytesFaults are bytes that are not the registered ones.
func bytesFaults(s *scene) []Fault {
	g := s.stored.golden
	digest := nowhere(replay.CodeDigest, "sha256").compares(g.SHA256, "")
	size := nowhere(replay.CodeSize, "size").compares(fmt.Sprint(g.Size+1), fmt.Sprint(g.Size))
	return []Fault{
		{
			Name: "flipped-bit", Says: "a bit of a stored golden has flipped", red: only(conformance.Integrity, digest), blames: true,
			store: func(_ *scene, b stored) (stored, error) {
				b.data = slices.Clone(b.data)
				b.data[len(b.data)/2] ^= 1
				return b, nil
			},
		},
		{
			Name: "cut-off", Says: "the end of a stored golden is missing", red: only(conformance.Integrity, digest), blames: true,
			store: func(_ *scene, b stored) (stored, error) {
				b.data = b.data[:len(b.data)-1]
				return b, nil
			},
		},
		{
			Name: "wrong-size", Says: "a golden has another size than registered", red: only(conformance.Integrity, size), blames: true,
			lacks: func(s *scene) string { return unless(g.Size > 0, "the golden has no size") },
			store: func(_ *scene, b stored) (stored, error) {
				b.golden.Size++
				return b, nil
			},
		},
	}
}

// originFaults are goldens of another engine or configuration than registered.
func originFaults(s *scene) []Fault {
	g := s.stored.golden
	hash := nowhere(replay.CodeOtherConfigHash, "config_hash")
	version := nowhere(replay.CodeOtherLine, "vllm_version").compares(s.profile.Line, "9.99.0")
	return []Fault{
		{
			Name: "other-configuration", Says: "the config_hash in a golden is not the registered one",
			red:   only(conformance.Provenance, hash.compares(g.ConfigHash, noHash)),
			store: rewritten(func(_ *scene, t *trace.Trace) { t.Meta.ConfigHash = new(noHash) }),
		},
		{
			Name: "other-registration", Says: "the registered config_hash is not that of the golden",
			red: only(conformance.Provenance, hash.compares(noHash, g.ConfigHash)),
			store: func(_ *scene, b stored) (stored, error) {
				b.golden.ConfigHash = noHash
				return b, nil
			},
		},
		{
			Name: "forged-configuration", Says: "the configuration in a golden is not that of its config_hash",
			red: only(conformance.Provenance, nowhere(replay.CodeTraceConfig, "engine_config")),
			lacks: func(s *scene) string {
				return unless(hasConfiguration(s.trace.Meta), "the golden has no configuration")
			},
			store: rewritten(func(_ *scene, t *trace.Trace) { t.Meta.EngineConfig = new(*t.Meta.EngineConfig + ";forged=true") }),
		},
		{
			Name: "other-version", Says: "a golden was captured from an engine of another line", red: only(conformance.SameLine, version),
			lacks: tracks,
			store: rewritten(func(_ *scene, t *trace.Trace) { t.Meta.VLLMVersion = new("9.99.0") }),
		},
		{
			Name: "no-version", Says: "a golden has no version of the engine", red: only(conformance.SameLine, nowhere(replay.CodeNoVersion, "vllm_version is missing")),
			store: rewritten(func(_ *scene, t *trace.Trace) { t.Meta.VLLMVersion = nil }),
		},
		{
			Name: "no-configuration", Says: "a golden has no config_hash", red: only(conformance.Provenance, nowhere(replay.CodeNoConfigHash, "config_hash is missing")),
			store: rewritten(func(_ *scene, t *trace.Trace) { t.Meta.ConfigHash = nil }),
		},
		{
			Name: "other-engine-configuration", Says: "the registered config_hash is not that of the registered configuration",
			red: only(conformance.Provenance, nowhere(replay.CodeManifestConfig, "of the manifest give config_hash")),
			store: func(_ *scene, b stored) (stored, error) {
				b.golden.GPU, b.golden.EngineConfig = "cpu", "model=other"
				return b, nil
			},
		},
		{
			Name: "other-count", Says: "a golden has another number of tokens than registered",
			red: only(conformance.Fidelity, nowhere(replay.CodeCount, "tokens = ").compares(fmt.Sprint(g.Tokens+1), fmt.Sprint(g.Tokens))),
			store: func(_ *scene, b stored) (stored, error) {
				b.golden.Tokens++
				return b, nil
			},
		},
	}
}

// readyFaults are in what a golden has of the registration of its engine.
func readyFaults() []Fault {
	ready := func(name, says string, red map[conformance.Assertion]want, text *string) Fault {
		return Fault{Name: name, Says: says, red: red, store: func(_ *scene, b stored) (stored, error) {
			if text == nil {
				b.golden.Role = manifest.Schema
			}
			return b.rewrite(func(t *trace.Trace) { t.Meta.ReadyResponseHex = text })
		}}
	}
	unreadable := func(parts ...string) map[conformance.Assertion]want {
		return and(only(conformance.Schema, nowhere(check.CodeBadReady, parts...)), conformance.Fidelity, nowhere(check.CodeEngineEnded, "ready_response_hex"))
	}
	return []Fault{
		ready("golden-registration-of-text", "the registration in a golden is not hexadecimal", unreadable("invalid byte"), new("zz")),
		ready("golden-registration-of-list", "the registration in a golden is not a map", unreadable("is not a msgpack map"), new("93010203")),
		ready("golden-without-registration", "a golden of role schema has no registration", only(conformance.Schema, nowhere(check.CodeNoReady, "is missing")), nil),
	}
}

// contentFaults are streams that were changed after registration, in a file that
// was registered anew.
func contentFaults(s *scene) []Fault {
	pin := nowhere(replay.CodePin, "tokens_sha256", "changed after registration").compares(s.stored.golden.TokensSHA256, "")
	changed := func(name, says string, change func(s *scene, t *trace.Trace)) Fault {
		return Fault{
			Name: name, Says: says + ", and the file registered anew",
			red: only(conformance.Fidelity, pin), lacks: unpinned, store: rewritten(change),
		}
	}
	return []Fault{
		changed("changed-token", "a token of a golden was changed after registration", func(s *scene, t *trace.Trace) {
			s.record(t).OutputTokenIDs[s.target.middle()] = otherToken
		}),
		changed("changed-finish", "a finish reason of a golden was changed after registration", func(s *scene, t *trace.Trace) {
			if r := s.record(t); s.target.finish == trace.FinishStop {
				r.FinishReason = trace.FinishLength
			} else {
				r.FinishReason = trace.FinishStop
			}
		}),
		changed("lost-record", "a record of a golden was lost after registration", func(s *scene, t *trace.Trace) {
			at := trace.ReplaySubset(t.Records)[s.target.index]
			t.Records = slices.Delete(t.Records, at, at+1)
		}),
	}
}

// noHash is the config_hash of no configuration.
var noHash = strings.Repeat("0", 64)

func unless(holds bool, reason string) string {
	if holds {
		return ""
	}
	return reason
}

func unpinned(s *scene) string {
	return unless(s.stored.golden.TokensSHA256 != "", "the golden has no tokens_sha256")
}

// tracks says that the line has any version.
func tracks(s *scene) string {
	return unless(!compat.IsTracker(s.cases[0].Line.Name), "the line stands for any version")
}

func hasConfiguration(m trace.Meta) bool {
	return m.GPU != nil && m.VLLMTag != nil && m.EngineConfig != nil
}

// record is the target's in a trace like the scene's.
func (s *scene) record(t *trace.Trace) *trace.Record {
	return &t.Records[trace.ReplaySubset(t.Records)[s.target.index]]
}

// otherGolden is the golden of another line in the place of this one's.
func (s *scene) otherGolden() Fault {
	f := Fault{
		Name: "other-line", Says: "a golden is that of another line, registered for this one",
		lacks: func(s *scene) string {
			if s.donor == nil {
				return "no other line has a golden"
			}
			return tracks(s)
		},
		store: func(s *scene, b stored) (stored, error) { return b.register(s.donor.stored.data), nil },
	}
	if s.donor == nil {
		return f
	}
	line := nowhere(replay.CodeOtherLine, "vllm_version").compares(s.profile.Line, s.donor.profile.Line)
	f.red = map[conformance.Assertion]want{
		conformance.SameLine:   line,
		conformance.Provenance: nowhere(replay.CodeOtherConfigHash, "config_hash"),
		conformance.Fidelity:   nowhere(replay.CodePin, "tokens_sha256"),
	}
	for _, field := range s.donor.profile.Structs["EngineCoreReadyResponse"].Fields {
		if s.profile.Structs["EngineCoreReadyResponse"].Index(field.Name) < 0 {
			f.red[conformance.Schema] = nowhere(check.CodeReadyMissing).in("EngineCoreReadyResponse.").compares("", "missing")
		}
	}
	return f
}
