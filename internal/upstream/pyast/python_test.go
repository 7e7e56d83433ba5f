package pyast

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/testenv"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// A pythonView is what testdata/unparse.py says of a file.
type pythonView struct {
	File, Error string
	Classes     [][]any
	Expressions [][]any
	Parameters  [][]any
}

// askPython has a real Python read files.
func askPython(t *testing.T, python string, files []string) []pythonView {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), python, "testdata/unparse.py")
	cmd.Stdin = strings.NewReader(strings.Join(files, "\n") + "\n")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v\n%s", python, err, stderr.String())
	}
	var views []pythonView
	for line := range bytes.Lines(out) {
		var view pythonView
		require.NoError(t, json.Unmarshal(line, &view))
		views = append(views, view)
	}
	if len(views) != len(files) {
		t.Fatalf("Python read %d of %d files", len(views), len(files))
	}
	return views
}

// TestPython compares with what a real Python reads in real files.
func TestPython(t *testing.T) {
	python := testenv.Python(t)
	files, err := filepath.Glob("testdata/python/*.py")
	if err != nil || len(files) < 5 {
		t.Fatalf("testdata/python has %d files: %v", len(files), err)
	}
	compareWithPython(t, python, files)
}

// grammarFaults are files of releases in which the grammar disagrees with Python, and why. What differs in them is
// logged. None is near the wire.
var grammarFaults = map[string]string{
	"vllm/benchmarks/sweep/plot.py":                                        faultWith,
	"vllm/benchmarks/sweep/plot_pareto.py":                                 faultWith,
	"vllm/models/kimi_k3/nvidia/specialized_decode/cutedsl/moe/experts.py": "`a & b ^ c` is read as a & (b ^ c)",
	"vllm/vllm_flash_attn/cute/interface.py":                               "`return a, *(b)` is an error: no parentheses",
	"vllm/entrypoints/openai/responses/utils.py":                           "half a surrogate has no canonical text",
}

const faultWith = "`with a if b else c as d` is read as a if b else (c as d)"

// faultOf returns what is known to be wrong about a file, or "".
func faultOf(path string) string {
	for suffix, fault := range grammarFaults {
		if strings.HasSuffix(filepath.ToSlash(path), "/"+suffix) {
			return fault
		}
	}
	return ""
}

// TestPythonOfRelease compares all that installed vLLM releases hold.
func TestPythonOfRelease(t *testing.T) {
	versions := strings.Fields(os.Getenv("VLLM_VCR_ENGINES"))
	if len(versions) == 0 {
		t.Skip("thousands of files: set VLLM_VCR_ENGINES to versions that .ci/peers engine installed")
	}
	python := testenv.Python(t)
	for _, version := range versions {
		t.Run(version, func(t *testing.T) {
			home := filepath.Join(testenv.PeersDir(t), "engines", version)
			var files []string
			err := filepath.WalkDir(filepath.Join(home, "lib"), func(path string, entry fs.DirEntry, err error) error {
				if strings.Contains(path, "/site-packages/vllm/") && strings.HasSuffix(path, ".py") {
					files = append(files, path)
				}
				return err
			})
			if err != nil || len(files) < 1000 {
				t.Fatalf("%s: %d Python files of vllm: %v", home, len(files), err)
			}
			compareWithPython(t, python, files)
		})
	}
}

func compareWithPython(t *testing.T, python string, files []string) {
	t.Helper()
	p := newParser(t)
	compared := 0
	for _, view := range askPython(t, python, files) {
		source, err := os.ReadFile(view.File)
		require.NoError(t, err)
		tree, err := p.Parse(t.Context(), source)
		if err != nil {
			t.Errorf("%s: %v", view.File, err)
			continue
		}
		if view.Error != "" {
			t.Errorf("%s: Python cannot read it: %s", view.File, view.Error)
			continue
		}
		complain := t.Errorf
		if fault := faultOf(view.File); fault != "" {
			t.Logf("%s: %s", view.File, fault)
			complain = t.Logf
		}
		for _, e := range tree.Errors() {
			complain("%s:%d: %s", view.File, e.Line, e.What)
		}
		require.NoDiff(t, gocmp.Diff(sortedText(slices.Concat(view.Classes, view.Parameters)), sortedText(definitions(tree))), "%s: classes and functions (-Python +here)", view.File)
		compared += len(view.Parameters) + compareExpressions(complain, tree, view)
	}
	t.Logf("%d files, %d expressions and signatures", len(files), compared)
	if compared < 10*len(files) {
		t.Errorf("only %d expressions were compared", compared)
	}
}

func definitions(tree *Tree) (all [][]any) {
	for n := range tree.Root.All() {
		row := []any{n.ByField("name").Text(), n.Line}
		switch n.Kind {
		case "function_definition":
			row = append(row, Canonical(n.ByField("parameters")))
			fallthrough
		case "class_definition":
			all = append(all, row)
		}
	}
	return all
}

func sortedText(rows [][]any) []string {
	var lines []string
	for _, row := range rows {
		lines = append(lines, fmt.Sprint(row...))
	}
	slices.Sort(lines)
	return lines
}

type place struct{ start, end int }

// wrappers are nodes that are no expressions and may hold nothing but one.
var wrappers = []string{"module", "block", "expression_statement", "with_clause", "with_item", "case_pattern"}

// compareExpressions finds each expression of Python by its place, and returns how many there are.
func compareExpressions(complain func(string, ...any), tree *Tree, view pythonView) int {
	nodes := map[place]*Node{}
	for n := range tree.Root.All() {
		if at := (place{n.Start, n.End}); n.Named && nodes[at] == nil && !slices.Contains(wrappers, n.Kind) {
			nodes[at] = n
		}
	}
	starts := []int{0, 0} // of each line
	for i, c := range tree.Source {
		if c == '\n' {
			starts = append(starts, i+1)
		}
	}
	if bytes.HasPrefix(tree.Source, []byte("\ufeff")) {
		starts[1] = 3
	}
	number := func(v any) int { return int(v.(float64)) }
	for _, e := range view.Expressions {
		at := place{starts[number(e[0])] + number(e[1]), starts[number(e[2])] + number(e[3])}
		want := e[4].(string)
		if nodes[at] == nil {
			complain("%s:%v: no node for %s", view.File, e[0], want)
		} else if got := Canonical(nodes[at]); got != want {
			complain("%s:%v: %s\ngot  %s\nwant %s", view.File, e[0], nodes[at].Kind, got, want)
		}
	}
	return len(view.Expressions)
}
