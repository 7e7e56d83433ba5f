// Command vllm-vcr-dataset reads datasets in Parquet and SQLite for `vllm-vcr play --dataset`, and writes Parquet for
// `vllm-vcr inspect convert`. It must lie beside vllm-vcr
// or on PATH.
package main

import (
	"os"

	"github.com/vllm-vcr/conformance/internal/engine/dataset/tables"
)

// version is set by the linker for releases.
var version string

func main() { os.Exit(tables.Main(version)) }
