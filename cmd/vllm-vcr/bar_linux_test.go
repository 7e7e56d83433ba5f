package main

import (
	"bufio"
	"bytes"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// barCases are three cases of a run.
func barCases() []conformance.Case {
	var cases []conformance.Case
	for _, line := range []string{"0.33", "0.32", "0.31"} {
		cases = append(cases, conformance.Case{Line: compat.Line{Name: line}})
	}
	return cases
}

// TestBarOnTerminal: a real terminal shows the bar, what is logged above it, and
// nothing of it at the end.
func TestBarOnTerminal(t *testing.T) {
	screen, programs := terminal(t, 60)
	outer := newEnvironment(nil, programs, func(string) (string, bool) { return "", false })
	outer.logFormat = "text"
	b, env := openBar(outer, "cases", caseNames(barCases()))
	if b == nil {
		t.Fatal("no bar on a terminal")
	}
	b.add(false)
	env.log.Warn("slow store")
	b.add(true)
	b.add(false)
	b.close()
	if _, err := env.stderr.Write([]byte("the end\n")); err != nil {
		t.Fatal(err)
	}
	programs.Close()
	const erase, first = "\r\x1b[K", "[########................] 1/3 0.32"
	seen := readUntil(t, screen, "the end\r\n")
	rest, _ := io.ReadAll(screen) // ends in EIO: the other end is closed
	if seen += string(rest); !strings.HasSuffix(seen, erase+"the end\r\n") {
		t.Errorf("the terminal got %q, want nothing of the bar at its end", seen)
	}
	for _, want := range []string{
		erase + "[........................] 0/3 0.33" + erase + first, // it begins with the first case
		erase + "time=",            // the log takes the place of the bar
		"slow store\"\r\n" + first, // which is drawn again below
		erase + "\x1b[1;31m1 failed\x1b[0m | [################........] 2/3 0.31",
		erase + "\x1b[1;31m1 failed\x1b[0m | [########################] 3/3",
	} {
		require.Contains(t, seen, want)
	}
}

// TestNoBar: where a redrawn line is no use there is none, and every byte is log.
func TestNoBar(t *testing.T) {
	tests := []struct {
		name   string
		env    map[string]string
		change func(*environment)
		want   bool
	}{
		{name: "terminal", change: func(*environment) {}, want: true},
		{name: "CI", env: map[string]string{"CI": "true"}},
		{name: "NO_COLOR", env: map[string]string{"NO_COLOR": "1"}},
		{name: "empty CI", env: map[string]string{"CI": ""}, want: true},
		{name: "dumb terminal", env: map[string]string{"TERM": "dumb"}},
		{name: "--quiet", change: func(env *environment) { env.quiet = true }},
		{name: "every case is logged", change: func(env *environment) { env.verbose = true }},
		{name: "logs for machines", change: func(env *environment) { env.logFormat = "json" }},
		{name: "no terminal", change: func(env *environment) { env.stderr = &bytes.Buffer{} }},
		{name: "a file", change: func(env *environment) { env.stderr, _ = os.Open(os.DevNull) }},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			_, programs := terminal(t, 60)
			defer programs.Close()
			env := newEnvironment(nil, programs, func(name string) (string, bool) { v, ok := test.env[name]; return v, ok })
			env.logFormat = "text"
			if test.change != nil {
				test.change(env)
			}
			b, inner := openBar(env, "cases", caseNames(barCases()))
			if isBar := b != nil && b.screen != nil; isBar != test.want || (inner.stderr != env.stderr) != test.want {
				t.Fatalf("bar %v, want %v", isBar, test.want)
			}
			b.add(false) // does nothing without one
			b.close()
		})
	}
}

// TestProgressLines: where nobody sees a line redrawn, each tick prints how far the command is.
func TestProgressLines(t *testing.T) {
	r, w, err := os.Pipe()
	require.NoError(t, err)
	defer r.Close()
	defer w.Close()
	lines := bufio.NewScanner(r)
	ticks := make(chan time.Time)
	env := newEnvironment(nil, w, func(string) (string, bool) { return "", false })
	env.logFormat = "text"
	env.ticks = func(every time.Duration) (<-chan time.Time, func()) {
		require.Equal(t, every, 10*time.Second, "a line every")
		return ticks, func() {}
	}
	want := func(line string) {
		t.Helper()
		ticks <- time.Time{}
		if lines.Scan(); lines.Text() != line {
			t.Errorf("the line is %q, want %q", lines.Text(), line)
		}
	}
	b, _ := openBar(env, "cases", caseNames(barCases()))
	want("vllm-vcr: 0 of 3 cases done; running: 0.33")
	b.show("waiting for HELLO\x1b[31m")
	want("vllm-vcr: 0 of 3 cases done; running: 0.33: waiting for HELLO")
	b.add(true)
	b.add(false)
	want("vllm-vcr: 2 of 3 cases done, 1 failed; running: 0.31")
	b.add(false)
	want("vllm-vcr: 3 of 3 cases done, 1 failed")
	b.close()

	now := time.Unix(100, 0)
	env.now = func() time.Time { return now }
	s := openSteps(env)
	s.show("engine 0.33.0", "installs")
	if lines.Scan(); lines.Text() != "engine 0.33.0: installs" {
		t.Errorf("the step is %q", lines.Text())
	}
	now = now.Add(20 * time.Second)
	want("engine 0.33.0: installs (for 20s)")
	s.close()

	env.quiet = true
	if b, _ := openBar(env, "cases", nil); b != nil {
		t.Error("--quiet has progress")
	}
}
