package main

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"

	"github.com/vllm-vcr/conformance/internal/base/atomicfile"
	"github.com/vllm-vcr/conformance/internal/golden"
	"github.com/vllm-vcr/conformance/internal/golden/s3store"
	"github.com/vllm-vcr/conformance/trace"
)

// isLocation reports whether the name of a trace is not that of a file: s3://bucket/key, https://host/path or
// hf://organization/repository/path.
func isLocation(name string) bool { return strings.Contains(name, "://") }

// openTraceAt opens a trace: a file, or what a location names. The caller closes it.
func openTraceAt(env *environment, name string, opt trace.Options) (*trace.Reader, error) {
	in, err := inputAt(env, name)
	if err != nil {
		return nil, err
	}
	return in.trace(opt)
}

// openStepsAt opens step statistics: a file, or what a location names. The caller closes it.
func openStepsAt(env *environment, name string) (*trace.StepReader, error) {
	in, err := inputAt(env, name)
	if err != nil {
		return nil, err
	}
	if in.file {
		return trace.OpenSteps(name, trace.Options{})
	}
	return trace.NewStepReader(bytes.NewReader(in.data), in.name, isGzipped(in.data), in.limited(trace.Options{})), nil
}

// readAt opens a trace, reads it, and prints what is odd about it.
func readAt[T any](env *environment, name string, read func(*trace.Reader) (T, error)) (got T, err error) {
	r, err := openTraceAt(env, name, trace.Options{})
	if err != nil {
		return got, err
	}
	defer r.Close()
	defer env.reads(name, r.Position)()
	if got, err = read(r); err == nil {
		printWarnings(env, r.Warnings())
	}
	return got, err
}

func printWarnings(env *environment, warnings []string) {
	for _, warning := range warnings {
		env.printErr(warning)
	}
}

// input is a file, or the bytes that a location named. They were fetched once and may be read several times.
type input struct {
	name string // for messages: without what is secret in a location
	file bool
	data []byte
}

func inputAt(env *environment, name string) (in input, err error) {
	if !isLocation(name) {
		return input{name: name, file: true}, nil
	}
	store := golden.Store{S3: s3store.Options{}, Log: env.log}
	data, err := store.Read(env.running, name) // at most golden.DefaultMaxSize
	var failed *golden.FetchError
	if errors.As(err, &failed) && failed.Tries > 0 {
		err = infra(err) // else nothing was requested: the location is wrong
	}
	return input{name: golden.Scrub(name), data: data}, err
}

// trace opens the input as a trace. The caller closes it.
func (in input) trace(opt trace.Options) (*trace.Reader, error) {
	if in.file {
		return trace.Open(in.name, opt)
	}
	return trace.NewReader(bytes.NewReader(in.data), in.name, isGzipped(in.data), in.limited(opt))
}

// hasSHA256 holds the bytes of the input against a digest, unless that is empty.
func (in input) hasSHA256(want string) (err error) {
	if want == "" {
		return nil
	}
	got := fmt.Sprintf("%x", sha256.Sum256(in.data))
	if in.file {
		got, err = atomicfile.SHA256(in.name)
	}
	if err == nil && got != want {
		err = fmt.Errorf("%s: the sha256 is %s, and --trace-sha256 wants %s", in.name, got, want)
	}
	return err
}

// limited bounds what fetched bytes inflate to.
func (in input) limited(opt trace.Options) trace.Options {
	if opt.MaxBytes == 0 {
		opt.MaxBytes = min(trace.InflatedLimit(int64(len(in.data))), maxInflated)
	}
	return opt
}

// maxInflated bounds what the bytes of a server inflate to: 4 GiB.
const maxInflated = 4 << 30

// isGzipped looks at the first bytes, as a location may end in anything. No JSON begins with them.
func isGzipped(data []byte) bool { return bytes.HasPrefix(data, []byte{0x1f, 0x8b}) }
