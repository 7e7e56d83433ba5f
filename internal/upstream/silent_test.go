package upstream_test

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestEveryLineCounts takes each line out of the tiny release in turn: the profile is another one then, or there is a
// gap or an error. The lines of testdata/silent.txt make no difference to the wire.
func TestEveryLineCounts(t *testing.T) {
	files := tiny(t)
	p, _, err := extract(t, files)
	if err != nil {
		t.Fatal(err)
	}
	whole := placeless(profileText(t, p))
	var silent strings.Builder
	for _, name := range slices.Sorted(maps.Keys(files)) {
		text := files[name]
		lines := strings.SplitAfter(text, "\n")
		for i, line := range lines {
			if strings.TrimSpace(line) == "" {
				continue
			}
			files[name] = strings.Join(slices.Delete(slices.Clone(lines), i, i+1), "")
			p, gaps, err := extract(t, files)
			if err == nil && len(gaps) == 0 && placeless(profileText(t, p)) == whole {
				fmt.Fprintf(&silent, "%s:%d: %s", name, i+1, line)
			}
		}
		files[name] = text
	}
	if *update {
		if err := os.WriteFile("testdata/silent.txt", []byte(silent.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(readText(t, "testdata/silent.txt"), silent.String()); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}
