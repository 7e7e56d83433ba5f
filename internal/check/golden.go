package check

import (
	"bytes"
	"strings"
	"sync"

	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/manifest"
	"github.com/vllm-vcr/conformance/trace"
)

// EngineOption is an option in the engine_config of a recording, and whether that has it.
func EngineOption(meta trace.Meta, name string) (value string, has bool) {
	for option := range strings.SplitSeq(trace.Or(meta.EngineConfig, ""), ";") {
		if value, has = strings.CutPrefix(option, name+"="); has {
			return value, true
		}
	}
	return "", false
}

// Golden is a fetched golden and what was read of it, for all its cases.
type Golden struct {
	Registered manifest.Golden
	Location   string
	Integrity  Outcome
	Trace      *trace.Trace
	Codec      *protocol.Codec
	Frames     []trace.Message // of a golden of role wire or frames
	// Of the recorded streams: tokens_sha256, and what it was in older manifests.
	Digest, ArrivalDigest string
	Streams, Tokens       int

	// At most one of these is set. mismatch: the bytes are not the registered ones.
	FetchErr, Mismatch, ReadErr error
	// Blamed is the check that has reported it: one cause, one report.
	Blamed string
}

func (g *Golden) Read(line compat.Line, data []byte) (err error) {
	if g.Codec, err = CodecFor(line); err != nil {
		return err
	}
	if g.Registered.Role.Raw() {
		g.Trace = &trace.Trace{Name: g.Location}
		g.Trace.Meta, g.Frames, err = ReadFrames(data, g.Location)
		return err
	}
	reader, err := TraceReader(data, g.Location)
	if err != nil {
		return err
	}
	if g.Trace, err = reader.ReadAll(); err != nil {
		return err
	}
	g.Measure()
	return nil
}

// Measure looks at the streams that can be replayed.
func (g *Golden) Measure() {
	subset := trace.ReplaySubset(g.Trace.Records)
	g.Digest, g.ArrivalDigest = trace.TokensDigest(g.Trace.Records, subset), trace.ArrivalDigest(g.Trace.Records, subset)
	for _, i := range subset {
		if tokens := g.Trace.Records[i].OutputTokenIDs; tokens != nil {
			g.Streams++
			g.Tokens += len(tokens)
		}
	}
}

// Unusable is what keeps an assertion from being made: integrity needs only the
// bytes, the others a trace that reads.
func (g *Golden) Unusable(a Assertion) error {
	switch {
	case g.FetchErr != nil:
		return g.FetchErr
	case g.Mismatch != nil:
		return g.Mismatch
	case a != Integrity:
		return g.ReadErr
	}
	return nil
}

// TraceReader reads the trace of a golden, which is data, within bounds.
func TraceReader(data []byte, location string) (*trace.Reader, error) {
	opt, err := trace.GoldenOptions(data, location, trace.IsGzip(location))
	if err != nil {
		return nil, err
	}
	return trace.NewReader(bytes.NewReader(data), location, trace.IsGzip(location), opt)
}

// codecs are those of the lines, by the name of the profile. One is immutable, and to
// compile it takes as long as to read a golden: all who ask share it.
var codecs sync.Map

// CodecFor returns the codec of a line.
func CodecFor(line compat.Line) (*protocol.Codec, error) {
	name := ProfileName(line)
	if known, ok := codecs.Load(name); ok {
		return known.(*protocol.Codec), nil
	}
	codec, err := protocol.CodecFor(name)
	if err != nil {
		return nil, err
	}
	shared, _ := codecs.LoadOrStore(name, codec)
	return shared.(*protocol.Codec), nil
}

// ProfileName names the wire profile of a line. A release candidate has that of
// the release it leads to.
func ProfileName(l compat.Line) string {
	if l.Name == compat.RC {
		return l.Tag
	}
	return l.Name
}

// PlayedVersion is the release that the player of a line is to be. The main
// branch has no release, so its player is that of its profile.
func PlayedVersion(line compat.Line) string {
	if line.Name == compat.Nightly {
		return protocol.Nightly
	}
	return line.Tag
}
