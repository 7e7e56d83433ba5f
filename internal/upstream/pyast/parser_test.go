package pyast

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// newParser returns a parser that is closed with the test.
func newParser(t testing.TB) *Parser {
	t.Helper()
	p, err := New(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close(context.Background())) })
	return p
}

func parse(t testing.TB, p *Parser, source string) *Tree {
	t.Helper()
	tree, err := p.Parse(t.Context(), []byte(source))
	require.NoError(t, err)
	return tree
}

// expression returns the right side of the one assignment in source.
func expression(t testing.TB, tree *Tree) *Node {
	t.Helper()
	for n := range tree.Root.All() {
		if n.Kind == "assignment" {
			return n.ByField("right")
		}
	}
	t.Fatalf("no assignment in %q", tree.Source)
	return nil
}

func TestParseRefuses(t *testing.T) {
	p := newParser(t)
	tests := []struct{ name, source, want string }{
		{"not UTF-8", "a = 1\r\nb = '\xff'\n", `line 2: byte 0xff is not UTF-8`},
		{"half a character", "a = '\xe2\x98", `line 1: byte 0xe2 is not UTF-8`},
		{"a replacement character before", "a = '\ufffd'\r\rb = '\xc0'", `line 3: byte 0xc0 is not UTF-8`},
		{"NUL", "a = 1\nb = '\x00'\n", `line 2: a NUL byte`},
		{"too long", strings.Repeat("#", MaxSource+1), `source of 1048577 bytes: at most 1048576 are read`},
		{"too many nodes", strings.Repeat("a=1\n", 100_000), fmt.Sprintf("nodes: at most %d are read", MaxNodes)},
		{"too deep", strings.Repeat("[", 20_000) + strings.Repeat("]", 20_000), `line 1: nested deeper than 10000 levels`},
		{"too long a sum", "a = 1" + strings.Repeat(" +\\\n1", 12_000), `nested deeper than 10000 levels`},
		{"beyond memory", strings.Repeat("(", MaxSource), `the source needs more than 128 MB of memory to be parsed`},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if testing.Short() && len(test.source) == MaxSource {
				t.Skip("takes seconds")
			}
			tree, err := p.Parse(t.Context(), []byte(test.source))
			if tree != nil || err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want an error with %q", err, test.want)
			}
			if tree := parse(t, p, "a = 1\n"); len(tree.Errors()) > 0 {
				t.Errorf("the parser is of no use afterwards: %v", tree.Errors())
			}
		})
	}
}

func TestParseAfterClose(t *testing.T) {
	p := newParser(t)
	tree := parse(t, p, "a = 1")
	require.NoError(t, p.Close(t.Context()))
	if got := expression(t, tree).Text(); got != "1" {
		t.Errorf("the tree has become %q", got)
	}
	if _, err := p.Parse(t.Context(), nil); err == nil || !strings.Contains(err.Error(), "is closed") {
		t.Errorf("got %v", err)
	}
}

// TestParseAtOnce has goroutines share a parser, each of them with a file of its own.
func TestParseAtOnce(t *testing.T) {
	p := newParser(t)
	var group sync.WaitGroup
	for worker := range 8 {
		group.Go(func() {
			for round := range 20 {
				want := strings.Repeat(fmt.Sprintf("x%d = %d\n", worker, round), 50*(worker+1))
				tree, err := p.Parse(t.Context(), []byte(want))
				if err != nil {
					t.Error(err)
					return
				}
				if got := len(tree.Root.Children); got != 50*(worker+1) || len(tree.Errors()) > 0 {
					t.Errorf("worker %d: %d statements, %v", worker, got, tree.Errors())
				}
				last := tree.Root.Children[len(tree.Root.Children)-1]
				if got := last.Text(); got != fmt.Sprintf("x%d = %d", worker, round) {
					t.Errorf("worker %d: %q is of another", worker, got)
				}
			}
		})
	}
	group.Wait()
}

func TestParseLineEnds(t *testing.T) {
	p := newParser(t)
	const unix = "\ufeffclass A:\n\tx: int = '''a\nb'''\n\n\ty = 2 # c\nz = \\\n3\n"
	type line struct {
		text string
		line int
	}
	names := func(tree *Tree) (all []line) {
		for n := range tree.Root.All() {
			if n.Kind == "identifier" || n.Kind == "integer" {
				all = append(all, line{n.Text(), n.Line})
			}
		}
		return all
	}
	want := []line{{"A", 1}, {"x", 2}, {"int", 2}, {"y", 5}, {"2", 5}, {"z", 6}, {"3", 7}}
	for _, end := range []string{"\n", "\r\n", "\r"} {
		t.Run(fmt.Sprintf("%q", end), func(t *testing.T) {
			tree := parse(t, p, strings.ReplaceAll(unix, "\n", end))
			if broken := tree.Errors(); len(broken) > 0 {
				t.Fatal(broken)
			}
			require.NoDiff(t, cmp.Diff(want, names(tree), cmp.AllowUnexported(line{})), "(-want +got)")
			if value, err := Literal(expression(t, tree)); value != "a\nb" {
				t.Errorf("the string is %q, %v", value, err)
			}
		})
	}
}

func BenchmarkParse(b *testing.B) {
	source, err := os.ReadFile("testdata/python/serial_utils.py")
	require.NoError(b, err)
	p := newParser(b)
	b.SetBytes(int64(len(source)))
	for b.Loop() {
		if _, err := p.Parse(b.Context(), source); err != nil {
			b.Fatal(err)
		}
	}
}
