package main

import (
	"bytes"
	"errors"
	"strings"

	"github.com/vllm-vcr/conformance/internal/golden"
	"github.com/vllm-vcr/conformance/internal/golden/s3store"
	"github.com/vllm-vcr/conformance/trace"
)

// isLocation reports whether the name of a trace is not that of a file: s3://bucket/key, https://host/path or
// hf://organization/repository/path.
func isLocation(name string) bool { return strings.Contains(name, "://") }

// readTraceAt reads a whole trace: a file, or what a location names.
func readTraceAt(env *environment, name string, opt trace.Options) (*trace.Trace, error) {
	if !isLocation(name) {
		return trace.Read(name, opt)
	}
	r, err := openTraceAt(env, name, opt)
	if err != nil {
		return nil, err
	}
	return r.ReadAll()
}

// openTraceAt opens a trace: a file, or what a location names. The caller closes it.
func openTraceAt(env *environment, name string, opt trace.Options) (*trace.Reader, error) {
	if !isLocation(name) {
		return trace.Open(name, opt)
	}
	data, err := fetchLocation(env, name)
	if err != nil {
		return nil, err
	}
	if opt.MaxBytes == 0 {
		opt.MaxBytes = min(trace.InflatedLimit(int64(len(data))), mostInflated)
	}
	return trace.NewReader(bytes.NewReader(data), golden.Scrub(name), isGzipped(data), opt)
}

// mostInflated bounds what the bytes of a server inflate to: 4 GiB.
const mostInflated = 4 << 30

// isGzipped tells by the first bytes, as a location may end in anything. No JSON begins with them.
func isGzipped(data []byte) bool { return bytes.HasPrefix(data, []byte{0x1f, 0x8b}) }

// fetchLocation gets the bytes that a location names, at most golden.DefaultMaxSize of them.
func fetchLocation(env *environment, location string) ([]byte, error) {
	store := golden.Store{S3: s3store.Options{}, Log: env.log}
	data, err := store.Read(env.running, location)
	var failed *golden.FetchError
	if errors.As(err, &failed) && failed.Tries > 0 {
		return nil, infra(err)
	}
	return data, err // nothing was requested: the location is wrong
}
