// Package sources has the program vllm-vcr-python read the Python sources of a vLLM release, as package extract does. Few users
// need that, and its parser would be a tenth of vllm-vcr.
//
// The program gets one [Request] on stdin, and writes one [Result] to stdout, both as JSON. Its log goes to stderr.
package sources

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"time"

	"github.com/vllm-vcr/conformance/internal/upstream/pypi"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// Program is the name of the program that reads sources, without the suffix of an executable.
const Program = "vllm-vcr-python"

// A Request names a release.
type Request struct {
	// Name is what a person names: the URL of a wheel, a folder, a wheel on disk, or a version in the index.
	Name string
	// Wheel is a file of the index that was chosen already, instead of Name.
	Wheel   *pypi.File
	Index   string // URL; "" is the index that pip would ask
	Version string // of a folder that has none
	Yanked  bool   // a release that was withdrawn is wanted all the same
	Text    bool   // the profile is wanted as text too

	Verbose   bool
	LogFormat string // text or json
}

// A Result is what the sources of a release declare of its wire.
type Result struct {
	Profile *protocol.Profile // as far as it could be read
	// Gaps are what could not. Whoever compares the profile must say so.
	Gaps       []Gap
	Text       string // tables for people, if they are wanted
	Warning    string // what the reader should know: that the release was yanked, and why. Mostly empty.
	Downloaded int64  // bytes, the directory of the wheel included

	Error    string // why there is no profile; "" if there is one
	NotNamed bool   // the error is of a name that no release can have, nor any file
}

// A Gap is something of the wire that could not be read. A profile with gaps is not the whole wire of its release, so
// that no comparison with it can end in "nothing changed".
type Gap struct {
	protocol.Place        // without a module if none is concerned
	What           string // "struct EngineCoreRequest"
	Why            string // "it is declared under a condition"
}

// String returns "vllm/v1/engine/__init__.py:12: struct X: why".
func (g Gap) String() string {
	place := ""
	switch {
	case g.Module != "" && g.At > 0:
		place = fmt.Sprintf("%s:%d: ", g.Module, g.At)
	case g.Module != "":
		place = g.Module + ": "
	}
	return place + g.What + ": " + g.Why
}

// Read has the program at a path read a release, within the time of [Limited]. The log of the program goes to stderr. A result
// without a profile is an error too.
func Read(ctx context.Context, program string, request Request, stderr io.Writer) (result Result, err error) {
	ctx, cancel := Limited(ctx)
	defer cancel()
	text, err := json.Marshal(request)
	if err != nil {
		return result, err
	}
	cmd := exec.CommandContext(ctx, program)
	cmd.Stdin, cmd.Stderr, cmd.WaitDelay = bytes.NewReader(text), stderr, time.Second
	output, err := cmd.Output()
	switch {
	case ctx.Err() != nil:
		return result, context.Cause(ctx)
	case err != nil:
		return result, fmt.Errorf("%s ended without a result: %w", Program, err)
	}
	if err := json.Unmarshal(output, &result); err != nil {
		return Result{}, fmt.Errorf("%s wrote no result: %w", Program, err)
	}
	if result.Error != "" {
		err = errors.New(result.Error)
	}
	return result, err
}

// releaseTime is how long a release may take to be found and read. A server that sends a byte now and then never stalls.
const releaseTime = 5 * time.Minute

// Limited returns a context for finding and reading one release, downloads included, which takes a few seconds. Its cause is
// what took too long.
func Limited(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, releaseTime, fmt.Errorf("the release could not be read within %v", releaseTime))
}
