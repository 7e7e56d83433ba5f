package check

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/vllm-vcr/conformance/internal/base/atomicfile"
	"github.com/vllm-vcr/conformance/internal/base/safetext"
)

// maxShrink bounds the time in which a failing session is made smaller.
const maxShrink = 20 * time.Second

// slowly is how much longer a quick start may take on a busy machine.
const slowly = 10

// A Search sends random sessions to a subject, and keeps the smallest that fails.
type Search[S any] struct {
	Env   *Env
	Draw  func(*rapid.T) *S
	Start func() error // a subject
	// Send sends a session to the subject, and reports whether that is lost. An error ends the search.
	Send func(*S) (wrong []Failure, lost bool, err error)
	Stop func()
	Size func(*S) (messages, steps int)
	// Check refuses a session of a file, and Shows notes the first failure in the one that is written.
	Check func(*S) error
	Shows func(s *S, failure string)
	// Without leaves out a step; nil if that is left to rapid, which needs many more sessions for it.
	Without func(s *S, step int) *S
	// QuickStart is the time within which a subject starts that is started again after each failure. 0: it is not. On a busy machine a
	// subject that uses a processor for no longer is quick too: Ran, unless nil, is how long it has, if that is known.
	QuickStart time.Duration
	Ran        func() (ran time.Duration, known bool)

	Quick   bool // the subject starts quickly
	Played  int  // sessions
	running bool
	fresh   bool // the session was the first that the subject got
	results map[string][]Failure
	best    *S        // the smallest that fails each time
	loose   *S        // one that failed once
	wrong   []Failure // of best, or of loose
	err     error     // why no more session can be sent
}

// Found reports whether a session fails, and smaller ones are looked for.
func (g *Search[S]) Found() bool { return g.best != nil }

// Run sends random sessions after the first, or the one of a file.
func (g *Search[S]) Run(ctx context.Context, f *Outcome, first *S) error {
	defer g.stop()
	g.results = map[string][]Failure{}
	file := g.Env.Generate.File
	wrong := g.Play(first)
	if g.Env.Generate.Sessions == 0 {
		s := new(S)
		data, err := os.ReadFile(file)
		if err == nil {
			err = json.Unmarshal(data, s)
		}
		if err == nil {
			err = g.Check(s)
		}
		if err != nil {
			return Infra(WithCode(CodeStart, fmt.Errorf("--session %s: %w", file, err)))
		}
		f.Failures = g.Play(s)
		return g.err
	}
	if g.best, g.wrong = first, wrong; len(wrong) == 0 {
		g.best = nil
		g.search(ctx)
	}
	often := ""
	if g.best == nil {
		if g.loose == nil {
			return g.err
		}
		g.best, often = g.loose, ", but not each time"
	}
	f.Failures = g.wrong
	g.Shows(g.best, g.wrong[0].Message)
	messages, _ := g.Size(g.best)
	note := fmt.Sprintf("session %d failed%s; the smallest that does has %s", g.Played, often, safetext.Count(messages, "message"))
	if file == "" {
		f.AddNote(note)
		return nil
	}
	f.AddNote(note + " and is in " + file)
	data, err := json.MarshalIndent(g.best, "", "  ")
	if err == nil {
		err = atomicfile.Write(file, append(data, '\n'), 0o644)
	}
	return err
}

// failedTB is what rapid fails instead of a test.
type failedTB struct {
	testing.TB
	failed bool
}

func (*failedTB) Helper()                 {}
func (*failedTB) Name() string            { return "vllm-vcr-sessions" }
func (*failedTB) Logf(string, ...any)     {}
func (t *failedTB) Errorf(string, ...any) { t.failed = true }
func (t *failedTB) Failed() bool          { return t.failed }
func (t *failedTB) FailNow()              { panic(t) }

// search sends random sessions until one fails, and then smaller ones.
func (g *Search[S]) search(ctx context.Context) {
	testing.Init() // rapid asks for flags of package testing
	if !flag.Parsed() {
		_ = flag.CommandLine.Parse(nil)
	}
	for name, value := range map[string]string{
		"checks": strconv.Itoa(g.Env.Generate.Sessions), "seed": strconv.FormatUint(g.Env.Generate.Seed, 10), "nofailfile": "true",
		"shrinktime": maxShrink.String(),
	} {
		_ = flag.Set("rapid."+name, value) // each of them exists
	}
	defer func() { _ = recover() }() // of FailNow, and of rapid where a failure does not come again
	var deadline time.Time
	rapid.Check(&failedTB{}, func(t *rapid.T) {
		s := g.Draw(t)
		if g.err != nil || ctx.Err() != nil || g.best != nil && time.Now().After(deadline) {
			return
		}
		wrong := g.Play(s)
		if len(wrong) == 0 || g.best != nil && wrong[0].Code != g.wrong[0].Code {
			return
		}
		if !g.fails(s, wrong[0].Code) {
			if g.loose == nil {
				g.loose, g.wrong = s, wrong
			}
			return // not of a new subject
		}
		if g.best == nil {
			g.best, g.wrong = s, wrong
			g.reduce()
			deadline = time.Now().Add(maxShrink)
		}
		if g.smaller(s) {
			g.best, g.wrong = s, wrong
		}
		t.Fatal(wrong[0].Code)
	})
}

// reduce leaves out one step after the other, the last first, if the session then fails in the same way.
func (g *Search[S]) reduce() {
	if g.Without == nil {
		return
	}
	_, steps := g.Size(g.best)
	for end := time.Now().Add(maxShrink); steps > 0 && g.err == nil && time.Now().Before(end); {
		steps--
		s := g.Without(g.best, steps)
		if wrong := g.Play(s); len(wrong) > 0 && wrong[0].Code == g.wrong[0].Code && g.fails(s, wrong[0].Code) {
			g.best, g.wrong = s, wrong
		}
	}
}

// smaller reports whether a session is not larger than the best.
func (g *Search[S]) smaller(s *S) bool {
	messages, steps := g.Size(s)
	most, mostSteps := g.Size(g.best)
	return messages < most || messages == most && steps <= mostSteps
}

// fails reports whether a session that failed does so with a new subject, if that is quick.
func (g *Search[S]) fails(s *S, code Code) bool {
	if g.fresh || !g.Quick {
		return true
	}
	key, _ := json.Marshal(s)
	delete(g.results, string(key))
	wrong := g.Play(s)
	return len(wrong) > 0 && wrong[0].Code == code
}

// Play sends a session, and returns what is wrong.
func (g *Search[S]) Play(s *S) []Failure {
	key, err := json.Marshal(s)
	if wrong, known := g.results[string(key)]; known || err != nil {
		return wrong
	}
	if g.best == nil {
		g.Played++
	}
	if g.Env.Step != nil {
		messages, _ := g.Size(s)
		g.Env.Step(fmt.Sprintf("session %d of %d, %s", g.Played, max(g.Env.Generate.Sessions, 1), safetext.Count(messages, "message")))
	}
	if g.fresh = !g.running; g.fresh {
		begun := time.Now()
		if g.err = g.Start(); g.err != nil {
			return nil
		}
		took := time.Since(begun)
		g.running, g.Quick = true, took < g.QuickStart
		if g.Ran != nil && took < slowly*g.QuickStart {
			ran, known := g.Ran()
			g.Quick = g.Quick || known && ran < g.QuickStart
		}
	}
	wrong, lost, err := g.Send(s)
	if err != nil {
		g.err = err
		return nil
	}
	g.results[string(key)] = wrong
	if lost || len(wrong) > 0 && g.Quick {
		g.stop()
	}
	return wrong
}

func (g *Search[S]) stop() {
	if g.running {
		g.Stop()
		g.running = false
	}
}
