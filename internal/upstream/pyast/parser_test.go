package pyast

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// newParser returns a parser that is closed with the test.
func newParser(t testing.TB) *Parser {
	t.Helper()
	p, err := New(t.Context())
	must(t, err)
	t.Cleanup(func() {
		if err := p.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return p
}

func parse(t testing.TB, p *Parser, source string) *Tree {
	t.Helper()
	tree, err := p.Parse(t.Context(), []byte(source))
	must(t, err)
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

func TestParseStops(t *testing.T) {
	p := newParser(t)
	long := []byte(strings.Repeat("a = 1\n", 10_000))
	ended := errors.New("ended")
	cancelled, cancel := context.WithCancelCause(t.Context())
	cancel(ended)
	tests := []struct {
		name    string
		ctx     context.Context
		timeout time.Duration
		want    error
	}{
		{name: "cancelled", ctx: cancelled, timeout: time.Hour, want: ended},
		{name: "too slow", ctx: t.Context(), timeout: time.Nanosecond, want: errTimeout},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			p.timeout = test.timeout
			if _, err := p.Parse(test.ctx, long); !errors.Is(err, test.want) {
				t.Errorf("got %v, want %v", err, test.want)
			}
			p.timeout = maxTime
			if tree := parse(t, p, string(long)); len(tree.Root.Children) != 10_000 {
				t.Errorf("afterwards %d statements were read", len(tree.Root.Children))
			}
		})
	}
}

// TestParseStopsWithinToken cancels while the parser looks for a token, where it does not ask whether to go on.
func TestParseStopsWithinToken(t *testing.T) {
	p := newParser(t)
	ctx, cancel := context.WithCancel(t.Context())
	asked := 0
	i, err := p.take(ctx)
	must(t, err)
	source := []byte(strings.Repeat("\\\n", 1<<20)) // each backslash has it read all that follows
	_, _, err = i.run(cancelOnErr{ctx, func() {
		if asked++; asked == 100 {
			cancel()
		}
	}}, source)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if asked > 500 {
		t.Errorf("it asked %d more times", asked-100)
	}
}

// cancelOnErr calls f whenever it is asked for its error.
type cancelOnErr struct {
	context.Context
	f func()
}

func (c cancelOnErr) Err() error {
	c.f()
	return c.Context.Err()
}

func TestParseAfterClose(t *testing.T) {
	p, err := New(t.Context())
	must(t, err)
	tree := parse(t, p, "a = 1")
	must(t, p.Close(t.Context()))
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

// TestParseKeepsInstances parses more than fits, bit by bit, in one instance; one that took much memory is not kept.
func TestParseKeepsInstances(t *testing.T) {
	p := newParser(t)
	source := strings.Repeat("def f(a, b=[1, 2, 3]): return {'a': a, 'b': b}\n", 200)
	parse(t, p, source)
	before := p.idle[0].module.Memory().Size()
	for range 50 {
		parse(t, p, source)
	}
	if after := p.idle[0].module.Memory().Size(); after != before || len(p.idle) != 1 {
		t.Errorf("%d instances, the memory grew from %d to %d bytes", len(p.idle), before, after)
	}
	if parse(t, p, strings.Repeat("x = [1, 2]\n", 40_000)); len(p.idle) != 0 {
		t.Errorf("one of %d bytes is kept", p.idle[0].module.Memory().Size())
	}
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
			if diff := cmp.Diff(want, names(tree), cmp.AllowUnexported(line{})); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if value, err := Literal(expression(t, tree)); value != "a\nb" {
				t.Errorf("the string is %q, %v", value, err)
			}
		})
	}
}

// TestModuleAsksForNothing pins that the module cannot reach files, clocks or the network: it is not even given WASI.
func TestModuleAsksForNothing(t *testing.T) {
	var imports []string
	for _, f := range newParser(t).compiled.ImportedFunctions() {
		from, name, _ := f.Import()
		imports = append(imports, from+"."+name)
	}
	if diff := cmp.Diff([]string{"env.stop"}, imports); diff != "" {
		t.Errorf("imports (-want +got):\n%s", diff)
	}
}

// TestModuleIsBuiltFromItsSources builds the module again, from what the registries have.
func TestModuleIsBuiltFromItsSources(t *testing.T) {
	if os.Getenv("VLLM_VCR_NETWORK") == "" {
		t.Skip("downloads a compiler of 90 MB: set VLLM_VCR_NETWORK=1")
	}
	out := filepath.Join(t.TempDir(), "python.wasm")
	cmd := exec.CommandContext(t.Context(), "python3", "wasm/build", out)
	if log, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, log)
	}
	built, err := os.ReadFile(out)
	must(t, err)
	if !bytes.Equal(built, module) {
		t.Errorf("wasm/build makes %d bytes, not the %d of python.wasm: run it, and commit both", len(built), len(module))
	}
}

func BenchmarkNew(b *testing.B) {
	for b.Loop() {
		p, err := New(b.Context())
		must(b, err)
		_ = p.Close(b.Context())
	}
}

func BenchmarkParse(b *testing.B) {
	source, err := os.ReadFile("testdata/python/serial_utils.py")
	must(b, err)
	p := newParser(b)
	b.SetBytes(int64(len(source)))
	for b.Loop() {
		if _, err := p.Parse(b.Context(), source); err != nil {
			b.Fatal(err)
		}
	}
}

// must ends the test if there is an error.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
