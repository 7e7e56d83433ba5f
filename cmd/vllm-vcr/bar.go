package main

import (
	"fmt"
	"strings"
	"sync"

	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/inspect/monitor"
	"github.com/vllm-vcr/conformance/internal/report"
)

// barColumns is how wide the bar itself is.
const barColumns = 24

// bar is the last line of a terminal during a run: how much of it is done, what failed,
// and the case that runs.
type bar struct {
	screen *monitor.Screen
	cases  []conformance.Case

	mu          sync.Mutex
	done, wrong int
}

// openBar shows a bar on stderr, and has everything else that goes there written above
// it. It returns nil, on which the bar's methods do nothing, where nobody would see a
// line redrawn: stderr is no terminal or a dumb one, NO_COLOR or CI is set, or every
// case is logged anyway.
func openBar(env *environment, cases []conformance.Case) *bar {
	if env.verbose || env.logFormat != "text" || env.getenv("NO_COLOR") != "" || env.getenv("CI") != "" {
		return nil
	}
	screen := monitor.NewScreen(env.stderr, env.lookupEnv)
	if screen == nil {
		return nil
	}
	env.stderr = screen
	if err := env.openLog(); err != nil {
		return nil // not reached: the format was read before
	}
	b := &bar{screen: screen, cases: cases}
	b.draw()
	return b
}

// add counts a result.
func (b *bar) add(r conformance.Result) {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.done++
	if r.Verdict.Red() {
		b.wrong++
	}
	b.draw()
}

// close takes the line away.
func (b *bar) close() {
	if b != nil {
		b.screen.Draw("", "")
	}
}

func (b *bar) draw() {
	alarm, now := "", ""
	if b.wrong > 0 {
		alarm = fmt.Sprintf("%d failed", b.wrong)
	}
	if b.done < len(b.cases) {
		now = " " + report.OneLine(b.cases[b.done].Name())
	}
	filled := barColumns * b.done / max(len(b.cases), 1)
	line := "[" + strings.Repeat("#", filled) + strings.Repeat(".", barColumns-filled) + "]"
	b.screen.Draw(alarm, fmt.Sprintf("%s %d/%d%s", line, b.done, len(b.cases), now))
}
