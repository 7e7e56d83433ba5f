package vcr_test

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// TestWalks: what docs/architecture.md follows a golden and a token through is there: each function in one of the files of
// its row.
func TestWalks(t *testing.T) {
	text, err := os.ReadFile("docs/architecture.md")
	require.NoError(t, err)
	_, walks, _ := strings.Cut(string(text), "## Two walks")
	walks, _, _ = strings.Cut(walks, "## Decisions")
	quoted := regexp.MustCompile("`([^`]+)`")
	rows := 0
	for row := range strings.Lines(walks) {
		cells := strings.Split(row, "|")
		if len(cells) != 5 || !strings.Contains(cells[2], "`") {
			continue
		}
		rows++
		var sources strings.Builder
		folder := ""
		for _, file := range quoted.FindAllStringSubmatch(cells[3], -1) {
			path := file[1]
			if !strings.Contains(path, "/") {
				path = folder + path // in the folder of the file before it
			}
			folder = path[:strings.LastIndex(path, "/")+1]
			sources.WriteString(source(t, path))
		}
		for _, name := range quoted.FindAllStringSubmatch(cells[2], -1) {
			function := name[1][strings.LastIndex(name[1], ".")+1:]
			if !regexp.MustCompile(`(?m)^func (\([^)]*\) )?` + function + `[\[(]`).MatchString(sources.String()) {
				t.Errorf("docs/architecture.md names %s in%s, and it is not there", name[1], strings.TrimRight(cells[3], " "))
			}
		}
	}
	require.True(t, rows >= 15, "%d rows were read: the tables have another form", rows)
}

// source is the text of a Go file, or of all of a package.
func source(t *testing.T, path string) string {
	t.Helper()
	names := []string{path}
	if !strings.HasSuffix(path, ".go") {
		entries, err := os.ReadDir(path)
		require.NoError(t, err)
		names = nil
		for _, entry := range entries {
			if strings.HasSuffix(entry.Name(), ".go") {
				names = append(names, path+"/"+entry.Name())
			}
		}
	}
	var text strings.Builder
	for _, name := range names {
		data, err := os.ReadFile(name)
		require.NoError(t, err)
		text.Write(data)
	}
	return text.String()
}
