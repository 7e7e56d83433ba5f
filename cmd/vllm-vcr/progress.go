package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/term"

	"github.com/vllm-vcr/conformance/internal/base/safetext"
	"github.com/vllm-vcr/conformance/internal/inspect/monitor"
)

// progressEvery is how often the progress is printed where stderr is not a terminal.
const progressEvery = 10 * time.Second

// The values of --color.
const (
	colorAuto   = "auto"
	colorAlways = "always"
	colorNever  = "never"
)

// wantedColour is what was asked for: --color, else FORCE_COLOR, else NO_COLOR, else colorAuto, which is what the terminal
// can show.
func (env *environment) wantedColour() string {
	force := env.getenv("FORCE_COLOR")
	switch {
	case env.color == colorAlways, env.color == colorNever:
		return env.color
	case force == "0" || force == "false":
		return colorNever
	case force != "":
		return colorAlways
	case env.getenv("NO_COLOR") != "":
		return colorNever
	}
	return colorAuto
}

// colours reports whether what is written to a stream has colours.
func (env *environment) colours(w io.Writer) bool {
	wanted := env.wantedColour()
	file, ok := w.(*os.File)
	return wanted == colorAlways || wanted == colorAuto && ok && env.getenv("TERM") != "dumb" && term.IsTerminal(int(file.Fd()))
}

// screen is the terminal of stderr, nil if there is none or with --quiet.
func (env *environment) screen() *monitor.Screen {
	if env.quiet {
		return nil
	}
	return monitor.NewScreen(env.stderr, func(name string) (string, bool) {
		if name == "NO_COLOR" {
			return map[string]string{colorNever: "1"}[env.wantedColour()], true
		}
		return env.lookupEnv(name)
	})
}

// every calls do each [progressEvery], until stop is called, which waits for it.
func (env *environment) every(do func()) (stop func()) {
	ticks, stopTicks := env.ticks(progressEvery)
	done := make(chan struct{})
	var running sync.WaitGroup
	running.Go(func() {
		for {
			select {
			case <-ticks:
				do()
			case <-done:
				return
			}
		}
	})
	return func() {
		stopTicks()
		close(done)
		running.Wait()
	}
}

// realTicks are those of the clock.
func realTicks(every time.Duration) (<-chan time.Time, func()) {
	ticker := time.NewTicker(every)
	return ticker.C, ticker.Stop
}

// barColumns is how wide the bar itself is.
const barColumns = 24

// bar shows how far a command is that does one thing after another: how many are done, how many failed, and which is being done.
// It is the last line of a terminal, elsewhere a line each [progressEvery].
type bar struct {
	env    *environment
	screen *monitor.Screen // nil where there is none
	stop   func()          // the lines
	what   string          // they are, such as "cases"
	names  []string        // nil where they are not known before

	mu          sync.Mutex
	done, wrong int
	step        string // of what is being done, "" when that is not known
	last        bool   // the line in which all are done has been printed
}

// openBar shows a bar on stderr, and returns the environment that writes everything else above it. The bar is nil, on
// which its methods do nothing, with --quiet, and where everything is logged anyway. On a terminal with NO_COLOR or CI set
// nothing is redrawn.
func openBar(env *environment, what string, names []string) (*bar, *environment) {
	if env.quiet || env.verbose || env.logFormat != "text" {
		return nil, env
	}
	b := &bar{env: env, what: what, names: names}
	if env.getenv("NO_COLOR") == "" && env.getenv("CI") == "" {
		b.screen = env.screen()
	}
	if b.screen == nil {
		b.stop = env.every(b.print)
		return b, env
	}
	b.draw()
	return b, env.above(b.screen)
}

// add counts one that is done.
func (b *bar) add(wrong bool) {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.done++
	b.step = ""
	if wrong {
		b.wrong++
	}
	if b.screen != nil {
		b.draw()
	}
}

// show shows what the running one waits for.
func (b *bar) show(step string) {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.step = ": " + step; b.screen != nil {
		b.draw()
	}
}

// close takes the line away, or ends the lines.
func (b *bar) close() {
	switch {
	case b == nil:
	case b.screen != nil:
		b.screen.Draw("", "")
	default:
		b.stop()
	}
}

// now is the name of what is being done, "" when that is not known.
func (b *bar) now() string {
	if b.done < len(b.names) {
		return " " + safetext.Line(b.names[b.done]+b.step)
	}
	return ""
}

func (b *bar) draw() {
	alarm := ""
	if b.wrong > 0 {
		alarm = fmt.Sprintf("%d failed", b.wrong)
	}
	filled := barColumns * b.done / max(len(b.names), 1)
	line := "[" + strings.Repeat("#", filled) + strings.Repeat(".", barColumns-filled) + "]"
	b.screen.Draw(alarm, fmt.Sprintf("%s %d/%d%s", line, b.done, len(b.names), b.now()))
}

// print writes a line of its own. Where all are done, it does so once: what is kept alive after that makes no progress.
func (b *bar) print() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.last {
		return
	}
	b.last = len(b.names) > 0 && b.done == len(b.names)
	line := fmt.Sprintf("%d", b.done)
	if len(b.names) > 0 {
		line += fmt.Sprintf(" of %d", len(b.names))
	}
	line += " " + b.what + " done"
	if b.wrong > 0 {
		line += fmt.Sprintf(", %d failed", b.wrong)
	}
	if now := b.now(); now != "" {
		line += "; running:" + now
	}
	fmt.Fprintln(b.env.stderr, "vllm-vcr: "+line)
}

// steps shows what is being done: as the last line of a terminal, elsewhere as a line each, which is repeated with the time
// that the step takes already.
type steps struct {
	env    *environment // writes above the line
	screen *monitor.Screen
	stop   func()

	mu    sync.Mutex
	last  string
	since time.Time
}

// openSteps shows steps on stderr. What else goes there meanwhile is written through the env of the result.
func openSteps(env *environment) *steps {
	if !env.verbose && env.logFormat == "text" && env.getenv("CI") == "" {
		if screen := env.screen(); screen != nil {
			return &steps{env: env.above(screen), screen: screen}
		}
	}
	s := &steps{env: env}
	s.stop = env.every(s.repeat)
	return s
}

// show shows a step of something. Several goroutines may call it.
func (s *steps) show(what, step string) {
	line := safetext.Line(what + ": " + step)
	switch {
	case s.screen != nil:
		s.screen.Draw("", line)
	case !s.env.quiet:
		s.mu.Lock()
		defer s.mu.Unlock()
		s.last, s.since = line, s.env.now()
		fmt.Fprintln(s.env.stderr, line)
	}
}

// repeat prints that the last step is still being done.
func (s *steps) repeat() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.last != "" {
		fmt.Fprintf(s.env.stderr, "%s (for %s)\n", s.last, s.env.now().Sub(s.since).Round(time.Second))
	}
}

// close takes the line away, or ends the lines.
func (s *steps) close() {
	if s.screen != nil {
		s.screen.Draw("", "")
		return
	}
	s.stop()
}
