package golden

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"net/url"
	"strings"

	"github.com/vllm-vcr/conformance/internal/base/retry"
)

// Read returns the bytes at a location that a person named, at most MaxSize of them. They are not registered, so they are not
// verified, and neither taken from the cache nor put into it. Beside the locations of goldens it takes http:// of this
// machine. An error is a [*FetchError] about a trace.
func (s *Store) Read(ctx context.Context, location string) ([]byte, error) {
	data, err := s.readNamed(ctx, location)
	return data, ofTrace(err)
}

func (s *Store) readNamed(ctx context.Context, location string) ([]byte, error) {
	p := pin{what: aTrace, location: shown(location), max: s.maxSize()}
	src, err := s.named(location)
	if err != nil {
		return nil, p.refused(err)
	}
	if !src.remote {
		body, err := src.open(ctx, Span{})
		if err != nil {
			return nil, p.failed(err, 0)
		}
		defer body.Close()
		data, err := readUpTo(body.ReadCloser, p.limit())
		if err != nil {
			return nil, p.failed(err, 0)
		}
		if int64(len(data)) > p.max {
			return nil, p.tooLarge()
		}
		return data, nil
	}
	out := &sink{store: s, pin: p, form: inMemory, hash: sha256.New(), memory: new(bytes.Buffer)}
	ctx, stop := retry.WithLongest(ctx, p.limit())
	defer stop()
	t := transfer{store: s, pin: p, src: src, out: out, size: -1}
	if err := t.run(ctx); err != nil {
		return nil, p.cannot(err, t.tries)
	}
	if out.size > p.max {
		return nil, p.tooLarge()
	}
	return out.memory.Bytes(), nil
}

// aTrace is what messages call what a person named.
const aTrace = "trace"

// named is the source of a location that a person named.
func (s *Store) named(location string) (source, error) {
	if where, err := url.Parse(location); err == nil && strings.EqualFold(where.Scheme, "http") {
		if !isPlainLoopback(where) {
			return source{}, errors.New("it is plain http, which anybody on the way can change: want https, or http on this machine alone (127.0.0.1)")
		}
		return source{open: s.openHTTPS(where, nil), remote: true}, nil
	}
	return s.source(location)
}

// ofTrace is an error of a golden as one of a trace that a person named: there is no manifest to look into.
func ofTrace(err error) error {
	var failed *FetchError
	if !errors.As(err, &failed) {
		return err
	}
	failed.What = aTrace
	switch {
	case isHub(failed.Location):
	case failed.Cause == CauseNoKey:
		failed.Hint = "check the location"
	case failed.Cause == causeWeb:
		failed.Hint = "the server wants credentials, but https locations are read without"
	case failed.Cause == CauseRedirect:
		failed.Hint = "name the place itself"
	case failed.Cause == causeTooLarge:
		failed.Hint = "download the trace and name the file"
	}
	return failed
}
