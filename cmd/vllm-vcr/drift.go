package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"github.com/vllm-vcr/conformance/internal/report"
)

func newDriftCommand(env *environment) *cobra.Command {
	return group(&cobra.Command{
		Use:   "drift",
		Short: "Tell whether a release of vLLM still speaks what this build knows",
	}, newDriftCheckCommand(env), newDriftExtractCommand(env), newDriftDiffCommand(env), newDriftAdoptCommand(env), newDriftHistoryCommand(env), newDriftReleasesCommand(env), newDriftIssuesCommand(env))
}

// driftCache is the folder that frontends, models and sources are kept below.
func driftCache(named string) (string, error) {
	if named != "" {
		return filepath.Abs(named)
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find the cache directory: %w: name one by --cache", err)
	}
	return filepath.Join(dir, "vllm-vcr"), nil
}

// writeResult writes a result to a file, which is there whole or not at all, or to stdout if none is named.
func writeResult(env *environment, path string, write func(io.Writer) error) error {
	if path == "" {
		return write(env.stdout)
	}
	return report.WriteFile(path, write)
}
