// Command vllm-vcr-python parses the Python sources of vLLM releases for `vllm-vcr drift`, and must lie beside vllm-vcr or on
// PATH.
package main

import (
	"os"

	"github.com/vllm-vcr/conformance/internal/upstream/pyast/treesitter"
)

// version is set by the linker for releases.
var version string

func main() { os.Exit(treesitter.Main(version)) }
