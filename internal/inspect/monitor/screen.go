package monitor

import (
	"bytes"
	"io"
	"os"
	"sync"

	"golang.org/x/term"
)

// eraseLine moves to the start of the line and clears it: ECMA-48, CR and EL.
const eraseLine = "\r\x1b[K"

// defaultWidth is assumed of a terminal that does not report its width.
const defaultWidth = 80

// A Screen is a terminal with one line at the bottom that is redrawn, below the lines that are written to it. A log that
// writes to it and a line that is drawn on it do not garble each other. It is safe for use by several goroutines.
type Screen struct {
	width  func() int // columns
	colour bool

	mu          sync.Mutex
	w           io.Writer
	alarm, line string // see Draw
	torn        bool   // what was written last did not end its line
}

// NewScreen returns the screen of w, or nil if w is not a terminal on which a line can be redrawn. It has colours unless
// NO_COLOR is set and not empty, see no-color.org.
func NewScreen(w io.Writer, lookupEnv func(string) (string, bool)) *Screen {
	file, ok := w.(*os.File)
	if !ok || !term.IsTerminal(int(file.Fd())) {
		return nil
	}
	if kind, _ := lookupEnv("TERM"); kind == "dumb" {
		return nil
	}
	noColour, _ := lookupEnv("NO_COLOR")
	return &Screen{w: w, colour: noColour == "", width: func() int {
		width, _, err := term.GetSize(int(file.Fd()))
		if err != nil || width < 1 {
			return defaultWidth
		}
		return width
	}}
}

// Write writes lines above the redrawn one.
func (s *Screen) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(p) == 0 {
		return 0, nil
	}
	var b bytes.Buffer
	if s.shown() {
		b.WriteString(eraseLine)
	}
	b.Write(p)
	s.torn = p[len(p)-1] != '\n'
	if s.shown() {
		b.WriteString(s.drawn())
	}
	if _, err := s.w.Write(b.Bytes()); err != nil {
		return 0, err
	}
	return len(p), nil
}

// Draw replaces the line. An alarm comes before it, in red where there are colours, and is never cut off; the rest is
// cut at the edge of the terminal, as a line that is wrapped cannot be redrawn. Both are ASCII. Without either the line
// is taken away.
func (s *Screen) Draw(alarm, line string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if alarm == s.alarm && line == s.line {
		return
	}
	had := s.shown()
	s.alarm, s.line = alarm, line
	if s.torn {
		return
	}
	text := s.drawn()
	if had || s.shown() {
		text = eraseLine + text
	}
	// Nothing is lost with a line that cannot be drawn: what it says is counted elsewhere.
	_, _ = io.WriteString(s.w, text)
}

// shown reports whether the line is on the screen: not while somebody else's is unfinished.
func (s *Screen) shown() bool { return !s.torn && (s.line != "" || s.alarm != "") }

// drawn is the line as it is sent to the terminal.
func (s *Screen) drawn() string {
	// The last column stays free: some terminals wrap as soon as it is written.
	room := s.width() - 1
	alarm, line := s.alarm, s.line
	if alarm != "" && line != "" {
		line = " | " + line
	}
	line = line[:max(0, min(len(line), room-len(alarm)))]
	if alarm != "" && s.colour {
		alarm = "\x1b[1;31m" + alarm + "\x1b[0m"
	}
	return alarm + line
}
