package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
)

func (a *app) driftCommand() *cobra.Command {
	return group(&cobra.Command{
		Use:   "drift",
		Short: "Tell whether a release of vLLM still speaks what this build knows",
	}, a.driftCheckCommand(), a.driftExtractCommand(), a.driftDiffCommand(), a.driftAdoptCommand(), a.driftHistoryCommand(), a.driftReleasesCommand(), a.driftIssuesCommand())
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
