package manifest

import (
	"os"
	"strings"
	"testing"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// TestRemoveLine takes each line out of the shipped manifest, which has a block of each.
func TestRemoveLine(t *testing.T) {
	text, err := os.ReadFile("../conformance/manifest.toml")
	require.NoError(t, err)
	var names []string
	for _, l := range shippedMatrix(t).Lines {
		names = append(names, l.Name)
	}
	before, _ := Parse("manifest.toml", text)
	for _, line := range names {
		t.Run(line, func(t *testing.T) {
			editor, err := NewEditor("manifest.toml", text, names)
			require.NoError(t, err)
			require.NoError(t, editor.RemoveLine(line))
			after := editor.Manifest()
			if got, want := len(after.Goldens), len(before.Goldens)-len(before.ForLine(line)); got != want || len(after.ForLine(line)) > 0 {
				t.Errorf("%d goldens, want %d", got, want)
			}
			got := string(editor.Bytes())
			require.True(t, !strings.Contains(got, " "+line+" GOLDENS") && strings.Count(got, "\n\n\n") <= strings.Count(string(text), "\n\n\n"), "markers or blank lines are left")
			require.True(t, len(before.ForLine(line)) != 0 || got == string(text), "a line that is not there changed the text")
		})
	}
}
