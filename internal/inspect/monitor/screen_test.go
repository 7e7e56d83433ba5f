package monitor

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// A terminal shows what a person would see: lines that scrolled up, and the one with the cursor.
type terminal struct {
	t *testing.T

	mu    sync.Mutex
	lines []string
	row   []byte
	at    int
}

func (m *terminal) Write(p []byte) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i := 0; i < len(p); i++ {
		rest := p[i:]
		switch {
		case bytes.HasPrefix(rest, []byte("\x1b[K")):
			m.row, i = m.row[:m.at], i+2
		case bytes.HasPrefix(rest, []byte("\x1b[1;31m")):
			m.put([]byte("<red>")...)
			i += 6
		case bytes.HasPrefix(rest, []byte("\x1b[0m")):
			m.put([]byte("</red>")...)
			i += 3
		case rest[0] == '\r':
			m.at = 0
		case rest[0] == '\n':
			m.lines, m.row, m.at = append(m.lines, string(m.row)), nil, 0
		case rest[0] < ' ':
			m.t.Errorf("unknown control sequence %q", rest)
		default:
			m.put(rest[0])
		}
	}
	return len(p), nil
}

func (m *terminal) put(text ...byte) {
	m.row = append(m.row[:m.at], text...)
	m.at = len(m.row)
}

// seen is everything on the screen; the last line is the one with the cursor.
func (m *terminal) seen() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append(slices.Clone(m.lines), string(m.row))
}

func newTerminal(t *testing.T, width int) (*terminal, *Screen) {
	m := &terminal{t: t}
	return m, &Screen{w: m, width: func() int { return width }}
}

func TestScreen(t *testing.T) {
	tests := []struct {
		name   string
		width  int
		colour bool
		do     func(*Screen)
		want   []string
	}{
		{"nothing", 80, false, func(*Screen) {}, []string{""}},
		{"log only", 80, false, func(s *Screen) { fmt.Fprintln(s, "a"); fmt.Fprintln(s, "b") }, []string{"a", "b", ""}},
		{"line only", 80, false, func(s *Screen) { s.Draw("", "one") }, []string{"one"}},
		{"redrawn shorter", 80, false, func(s *Screen) { s.Draw("", "longer"); s.Draw("", "one") }, []string{"one"}},
		{"log above line", 80, false, func(s *Screen) {
			s.Draw("", "one")
			fmt.Fprintln(s, "log")
			s.Draw("", "two")
		}, []string{"log", "two"}},
		{"lines at once", 80, false, func(s *Screen) { s.Draw("", "one"); fmt.Fprint(s, "a\nb\n") }, []string{"a", "b", "one"}},
		{"line in two writes", 80, false, func(s *Screen) {
			s.Draw("", "one")
			fmt.Fprint(s, "lo")
			s.Draw("", "two")
			fmt.Fprint(s, "")
			fmt.Fprint(s, "g\n")
		}, []string{"log", "two"}},
		{"taken away", 80, false, func(s *Screen) { s.Draw("", "one"); s.Draw("", ""); fmt.Fprintln(s, "log") }, []string{"log", ""}},
		{"cut at the edge", 10, false, func(s *Screen) { s.Draw("", "123456789abc") }, []string{"123456789"}},
		{"fits", 10, false, func(s *Screen) { s.Draw("", "123456789") }, []string{"123456789"}},
		{"alarm first", 80, false, func(s *Screen) { s.Draw("ALARM", "rest") }, []string{"ALARM | rest"}},
		{"alarm alone", 80, false, func(s *Screen) { s.Draw("ALARM", "") }, []string{"ALARM"}},
		{"alarm is not cut", 5, false, func(s *Screen) { s.Draw("ALARM", "rest") }, []string{"ALARM"}},
		{"rest is cut", 10, false, func(s *Screen) { s.Draw("ALARM", "rest") }, []string{"ALARM | r"}},
		{"alarm in red", 10, true, func(s *Screen) { s.Draw("ALARM", "rest") }, []string{"<red>ALARM</red> | r"}},
		{"no width", 0, true, func(s *Screen) { s.Draw("", "rest") }, []string{""}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			m, s := newTerminal(t, test.width)
			s.colour = test.colour
			test.do(s)
			require.NoDiff(t, cmp.Diff(test.want, m.seen()), "-want +got")
		})
	}
}

// TestScreenOfMany: log lines of several goroutines stay whole beside a line that is redrawn all the time.
func TestScreenOfMany(t *testing.T) {
	m, s := newTerminal(t, 80)
	var all sync.WaitGroup
	for i := range 4 {
		all.Go(func() {
			for n := range 100 {
				fmt.Fprintf(s, "log %d %d\n", i, n)
				s.Draw("ALARM", fmt.Sprintf("state %d %d", i, n))
			}
		})
	}
	all.Wait()
	s.Draw("", "")
	if len(m.lines) != 400 || len(m.row) != 0 {
		t.Fatalf("%d lines and %q, want 400 and nothing", len(m.lines), m.row)
	}
	for _, line := range m.lines {
		require.True(t, strings.HasPrefix(line, "log ") && !strings.Contains(line, "state"), "garbled: %q", line)
	}
}

type brokenWriter struct{}

func (brokenWriter) Write([]byte) (int, error) { return 0, errors.New("gone") }

func TestScreenReportsLostLogs(t *testing.T) {
	s := &Screen{w: brokenWriter{}, width: func() int { return defaultWidth }}
	s.Draw("", "one")
	if _, err := fmt.Fprintln(s, "log"); err == nil {
		t.Error("no error from a terminal that is gone")
	}
}

func TestNoScreen(t *testing.T) {
	file, err := os.Create(t.TempDir() + "/log")
	require.NoError(t, err)
	defer file.Close()
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	require.NoError(t, err)
	defer null.Close()
	noEnv := func(string) (string, bool) { return "", false }
	require.True(t, NewScreen(&bytes.Buffer{}, noEnv) == nil && NewScreen(file, noEnv) == nil && NewScreen(null, noEnv) == nil, "a buffer, a file or /dev/null counts as a terminal")
}
