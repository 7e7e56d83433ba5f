package pyast

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

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
			if statements := len(parse(t, p, string(long)).Root.Children); statements != 10_000 {
				t.Errorf("afterwards %d statements were read", statements)
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
	require.NoError(t, err)
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

// TestModuleAsksForNothing pins that the module cannot reach files, clocks or the network: it is not even given WASI.
func TestModuleAsksForNothing(t *testing.T) {
	var imports []string
	for _, f := range newParser(t).compiled.ImportedFunctions() {
		from, name, _ := f.Import()
		imports = append(imports, from+"."+name)
	}
	require.NoDiff(t, cmp.Diff([]string{"env.stop"}, imports), "imports (-want +got)")
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
	require.NoError(t, err)
	if !bytes.Equal(built, module) {
		t.Errorf("wasm/build makes %d bytes, not the %d of python.wasm: run it, and commit both", len(built), len(module))
	}
}

func BenchmarkNew(b *testing.B) {
	for b.Loop() {
		p, err := New(b.Context())
		require.NoError(b, err)
		_ = p.Close(b.Context())
	}
}
