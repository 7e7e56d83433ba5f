// Command vllm-vcr-python reads the Python sources of vLLM releases for `vllm-vcr drift`, and must lie beside vllm-vcr or on
// PATH.
package main

import (
	"os"

	"github.com/vllm-vcr/conformance/internal/upstream/extract"
)

// version is set by the linker for releases.
var version string

func main() { os.Exit(extract.Main(version)) }
