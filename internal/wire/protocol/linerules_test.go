package protocol

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

func TestLineRules(t *testing.T) {
	tests := []struct {
		rule LineRule
		line string
		want bool
	}{
		{PlainBlockKeys, "0.25", true},
		{PlainBlockKeys, "0.30", true},
		{PlainBlockKeys, "v0.31.0", false},
		{FreedBlocksLast, "0.26", false},
		{FreedBlocksLast, "v0.27.1", true},
		{FreedBlocksLast, "0.28", false},
		{FirstRankBeginsWaves, "0.28", false},
		{FirstRankBeginsWaves, "0.29", true},
		{FirstRankBeginsWaves, "0.33", false},
		{TransferCountsHandshakes, "0.30", false},
		{TransferCountsHandshakes, "0.31", true},
		{TransferCountsLate, "0.31", false},
		{TransferCountsLate, "v0.32.0", true},
		{TransferHasGeneration, "0.9", false},
		{TransferHasGeneration, "v0.33.0rc1", true},
		{TransferHasGeneration, "1.0", true},
		{TransferHasGeneration, Nightly, true},
		{RustRefusesLongerOutput, Nightly, false},
		{GuidanceGoesOn, "0.32", true},
		{GuidanceGoesOn, "0.33", false},
		{XgrammarCompilesChoices, "0.32", false},
	}
	for _, tt := range tests {
		require.Equal(t, tt.rule.Holds(tt.line), tt.want, "rule %d holds for %s", tt.rule, tt.line)
	}
}

// TestLineRuleTable: every rule has a row and a source, and changes with some line.
func TestLineRuleTable(t *testing.T) {
	for r := range XgrammarCompilesChoices + 1 {
		row := lineRules[r]
		require.True(t, row.source != "", "rule %d has no source", r)
		require.True(t, row.since != "" || row.until != "", "rule %d holds for every line", r)
	}
	if n := int(XgrammarCompilesChoices) + 1; len(lineRules) != n {
		t.Errorf("%d rules have a row, want %d", len(lineRules), n)
	}
}

// aLine is a line or a release as a literal.
var aLine = regexp.MustCompile(`^v?0\.[1-9][0-9](\.[0-9]+)?$`)

// TestNoLineInCode: no product code but the table names a line, so that none can be compared.
func TestNoLineInCode(t *testing.T) {
	root := filepath.Join("..", "..", "..")
	files := 0
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			_, notNested := os.Stat(filepath.Join(path, "go.mod"))
			nested := notNested == nil && path != root
			if nested || slices.Contains([]string{"testdata", "testenv", ".git", "tools"}, d.Name()) {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") || d.Name() == "linerules.go" {
			return nil
		}
		files++
		fset := token.NewFileSet()
		file, err := parser.ParseFile(fset, path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
				if text, _ := strconv.Unquote(lit.Value); aLine.MatchString(text) {
					t.Errorf("%s: %s: give what depends on the line a name in linerules.go", fset.Position(lit.Pos()), lit.Value)
				}
			}
			return true
		})
		return nil
	})
	if err != nil || files < 100 {
		t.Fatalf("%d files read: %v", files, err)
	}
}
