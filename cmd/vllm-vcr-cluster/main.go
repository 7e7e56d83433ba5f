// Command vllm-vcr-cluster captures goldens in a Kubernetes cluster. It is called by `vllm-vcr capture submit`, status,
// fetch, clean and run, and must lie beside vllm-vcr or on PATH.
package main

import (
	"os"

	"github.com/vllm-vcr/conformance/internal/capture/cluster"
)

// version is set by the linker for releases.
var version string

func main() { os.Exit(cluster.Main(version)) }
