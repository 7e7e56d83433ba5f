package extract

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"github.com/vllm-vcr/conformance/internal/base/program"
	"github.com/vllm-vcr/conformance/internal/upstream/pyast"
	"github.com/vllm-vcr/conformance/internal/upstream/pypi"
	"github.com/vllm-vcr/conformance/internal/upstream/sources"
)

// Main is vllm-vcr-python: it reads the release that the request on stdin names, and writes the result to stdout, see package
// sources. It returns the exit code. version is that which the linker set, if it did.
func Main(version string) int {
	switch {
	case len(os.Args) > 1 && os.Args[1] == "version":
		fmt.Println(program.Version(version))
		return 0
	case len(os.Args) > 1:
		fmt.Fprintln(os.Stderr, "vllm-vcr-python: want no arguments: `vllm-vcr drift` starts this program")
		return 2
	}
	var request sources.Request
	err := json.NewDecoder(os.Stdin).Decode(&request)
	if err == nil {
		out := json.NewEncoder(os.Stdout)
		out.SetEscapeHTML(false) // defaults stay as they are written
		err = out.Encode(read(context.Background(), request))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 3
	}
	return 0
}

// read finds and reads a release.
func read(ctx context.Context, request sources.Request) (result sources.Result) {
	ctx, cancel := sources.Limited(ctx)
	defer cancel()
	log := program.NewLog(os.Stderr, request.Verbose, request.LogFormat)
	release, err := Open(ctx, &pypi.Index{URL: request.Index, Log: log}, request)
	if err == nil {
		defer release.Close()
		result.Warning = release.Warning
		var parser *pyast.Parser
		if parser, err = pyast.New(ctx); err == nil {
			result.Profile, result.Gaps, err = Extract(ctx, parser, release)
		}
		if err == nil && request.Text {
			result.Text = profileText(result.Profile)
		}
		result.Downloaded = release.Downloaded()
	}
	if err != nil {
		result.Error, result.NotNamed = err.Error(), errors.Is(err, ErrNotNamed)
	}
	return result
}
