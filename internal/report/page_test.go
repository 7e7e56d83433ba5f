package report

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// TestTextIsEscaped: text becomes markup only where a file of this program, numbers or another page are inserted.
func TestTextIsEscaped(t *testing.T) {
	allowed := []string{"internal/report/page.go", "internal/upstream/drift/page.go", "internal/inspect/timelinepage.go"}
	trusted := regexp.MustCompile(`template\.(HTML|HTMLAttr|JS|JSStr|CSS|URL|Srcset)\(`)
	var found []string
	require.NoError(t, filepath.WalkDir("../..", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || filepath.Ext(path) != ".go" {
			return err
		}
		text, err := os.ReadFile(path)
		if name, _ := filepath.Rel("../..", path); trusted.Match(text) && filepath.Base(path) != "page_test.go" {
			found = append(found, name)
		}
		return err
	}))
	for _, name := range found {
		require.True(t, slices.Contains(allowed, name), "%s makes markup of a text", name)
	}
	require.True(t, len(found) >= len(allowed), "found %q, want %q", found, allowed)
}
