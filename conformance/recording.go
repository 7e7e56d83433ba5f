package conformance

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/internal/golden"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/manifest"
	"github.com/vllm-vcr/conformance/trace"
)

// recording is a fetched golden and what was read of it, for all its cases.
type recording struct {
	registered manifest.Golden
	location   string
	integrity  finding
	trace      *trace.Trace
	codec      *protocol.Codec
	frames     []trace.Message // of a golden of role wire
	// Of the recorded streams:
	digest          string
	streams, tokens int

	// At most one of these is set. mismatch: the bytes are not the registered ones.
	fetchErr, mismatch, readErr error
	// blamed is the check that has reported it: one cause, one report.
	blamed string
}

// needsGolden tells whether a case reads its golden.
func needsGolden(c Case) bool { return c.Skip == "" && c.Golden.ID != "" }

// load fetches and reads a case's golden.
func (r *Runner) load(ctx context.Context, c Case) *recording {
	g := &recording{registered: c.Golden}
	if !needsGolden(c) {
		return g
	}
	if ctx.Err() != nil {
		g.fetchErr = notRun(ctx)
		return g
	}
	ctx, stop := context.WithTimeoutCause(ctx, r.Timeouts.Golden, &golden.TimeoutError{After: r.Timeouts.Golden})
	defer stop()
	var data []byte
	data, g.location, g.fetchErr = r.Store.Fetch(ctx, c.Golden)
	var mismatch *golden.MismatchError
	switch {
	case errors.As(g.fetchErr, &mismatch):
		g.fetchErr, g.mismatch = nil, g.fetchErr // which may tell of other locations too
	case errors.As(g.fetchErr, new(*golden.TimeoutError)):
		g.fetchErr = infraError{coded(CodeDeadline, g.fetchErr)}
	case g.fetchErr != nil:
		g.fetchErr = infraError{coded(CodeFetch, g.fetchErr)}
	default:
		if g.integrity = checkIntegrity(c.Golden, g.location, data); len(g.integrity.failures) > 0 {
			g.mismatch = errors.New(g.integrity.failures[0].Message)
		} else {
			g.readErr = coded(CodeGolden, g.read(c.Line, data))
		}
	}
	if g.mismatch != nil && len(g.integrity.failures) == 0 {
		g.integrity = wrongBytes(g.mismatch)
	}
	return g
}

// notRun is the error of a case that the end of the run came before.
func notRun(ctx context.Context) error {
	return infraError{coded(CodeNotRun, fmt.Errorf("not run: %w", context.Cause(ctx)))}
}

func (g *recording) read(line compat.Line, data []byte) (err error) {
	if g.codec, err = codecOf(line); err != nil {
		return err
	}
	if g.registered.Role == manifest.Wire {
		g.trace = &trace.Trace{Name: g.location}
		g.trace.Meta, g.frames, err = readFrames(data, g.location, trace.IsGzip(g.location))
		return err
	}
	reader, err := cassetteReader(data, g.location)
	if err != nil {
		return err
	}
	if g.trace, err = reader.ReadAll(); err != nil {
		return err
	}
	g.measure()
	return nil
}

// cassetteReader reads the cassette of a golden, which is data, within bounds.
func cassetteReader(data []byte, location string) (*trace.Reader, error) {
	opt, err := trace.GoldenOptions(data, location, trace.IsGzip(location))
	if err != nil {
		return nil, err
	}
	return trace.NewReader(bytes.NewReader(data), location, trace.IsGzip(location), opt)
}

// codecs are those of the lines, by the name of the profile. One is immutable, and to
// compile it takes as long as to read a golden: whoever asks shares it.
var codecs sync.Map

// codecOf returns the codec of a line.
func codecOf(line compat.Line) (*protocol.Codec, error) {
	name := profileName(line)
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

// measure looks at the streams that can be replayed.
func (g *recording) measure() {
	subset := trace.ReplaySubset(g.trace.Records)
	g.digest = trace.TokensDigest(g.trace.Records, subset)
	for _, i := range subset {
		if tokens := g.trace.Records[i].OutputTokenIDs; tokens != nil {
			g.streams++
			g.tokens += len(tokens)
		}
	}
}

// problem is what keeps an assertion from being made: integrity needs only the
// bytes, the others a trace that reads.
func (g *recording) problem(a Assertion) error {
	switch {
	case g.fetchErr != nil:
		return g.fetchErr
	case g.mismatch != nil:
		return g.mismatch
	case a != Integrity:
		return g.readErr
	}
	return nil
}

// playedVersion is the release that the player of a line is to be. The main
// branch has no release, so its player is that of its profile.
func playedVersion(line compat.Line) string {
	if line.Name == compat.Nightly {
		return protocol.Nightly
	}
	return line.Tag
}
