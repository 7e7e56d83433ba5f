package pyast

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

func FuzzParse(f *testing.F) {
	p := newParser(f)
	files, err := filepath.Glob("testdata/python/*.py")
	require.NoError(f, err)
	for _, path := range files {
		source, err := os.ReadFile(path)
		require.NoError(f, err)
		f.Add(source[:min(len(source), 4000)])
		for line := range strings.Lines(string(source)) {
			if strings.Contains(path, "tricky") {
				f.Add([]byte(line))
			}
		}
	}
	f.Add([]byte("x = 1 2"))
	f.Add([]byte("\x00"))
	f.Add([]byte("\xff"))
	f.Fuzz(func(t *testing.T, source []byte) {
		if len(source) > 10_000 {
			return
		}
		tree, err := p.Parse(t.Context(), source)
		if err != nil {
			if utf8.Valid(source) && !strings.Contains(string(source), "\x00") && !strings.Contains(err.Error(), "more than a minute") {
				t.Errorf("it is text, and yet: %v", err)
			}
			return
		}
		check(t, p, tree)
	})
}

// check reads all that can be read of a tree.
func check(t *testing.T, p *Parser, tree *Tree) {
	t.Helper()
	broken := tree.Errors()
	for _, e := range broken {
		if e.Line < 1 || e.Column < 1 || strings.ContainsAny(e.What, "\n\r\x1b") {
			t.Errorf("%+v", e)
		}
		if strings.HasPrefix(e.What, "the parser could not") {
			t.Error("an error without a place")
		}
	}
	for n := range tree.Root.All() {
		if n.Start > n.End || n.Line < 1 || n.Parent != nil && (n.Start < n.Parent.Start || n.End > n.Parent.End) {
			t.Errorf("%s from %d to %d in line %d, in %v", n.Kind, n.Start, n.End, n.Line, n.Parent)
		}
		if _, err := Literal(n); err == nil && len(n.Errors()) > 0 {
			t.Errorf("%q has a value", n.Text())
		}
		if text := Canonical(n); strings.Contains(text, "\n") {
			t.Errorf("%q has two lines", text)
		}
	}
	if len(broken) == 0 {
		checkStable(t, p, tree)
	}
}

// checkStable tests that what Canonical writes is what it reads again.
func checkStable(t *testing.T, p *Parser, tree *Tree) {
	t.Helper()
	for n := range tree.Root.All() {
		if n.Field != "right" && n.Field != "value" || n.Parent.Kind == "subscript" {
			continue
		}
		once := Canonical(n)
		again := parse(t, p, "x = "+once+"\n")
		if len(again.Errors()) > 0 {
			continue // not an expression alone
		}
		if twice := Canonical(expression(t, again)); once != twice {
			t.Errorf("%q is %s, and then %s", n.Text(), once, twice)
		}
	}
}
