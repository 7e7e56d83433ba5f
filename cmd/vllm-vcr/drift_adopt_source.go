package main

import (
	"context"
	"fmt"
	"os"
	"strings"

	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/upstream/extract"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// adoptedProfile is the wire profile of a release: out of a file that has one, or else read from the sources of the release. What
// could not be read of them is an error, as nobody may build on half a profile.
func adoptedProfile(ctx context.Context, env *environment, source, index string) (*protocol.Profile, error) {
	if strings.HasSuffix(source, ".json") {
		return readProfile(source)
	}
	profile, gaps, err := extractProfile(ctx, env, source, index, extract.Options{})
	if err != nil {
		return nil, err
	}
	if len(gaps) == 0 {
		return profile, nil
	}
	for _, g := range gaps {
		env.printErr("not read: " + g.String())
	}
	return nil, exitError{conformance.ExitInfra, fmt.Errorf("release %s could not be read as a whole: %d parts of its wire are not "+
		"known, see above: nothing was written", profile.Version, len(gaps))}
}

// readProfile reads a file that drift extract wrote.
func readProfile(path string) (*protocol.Profile, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, exitError{conformance.ExitInfra, err}
	}
	defer file.Close()
	p, err := protocol.ReadProfile(file)
	if err != nil {
		return nil, exitError{conformance.ExitInfra, fmt.Errorf("%s: %w", path, err)}
	}
	return p, nil
}
