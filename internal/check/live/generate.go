package live

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/internal/base/atomicfile"
	"github.com/vllm-vcr/conformance/internal/base/safetext"
	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/check/invariant"
	"github.com/vllm-vcr/conformance/internal/wire/pack"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/manifest"
	"github.com/vllm-vcr/conformance/player"
	"github.com/vllm-vcr/conformance/trace"
)

// Sessions is the assertion of the suite generated.
const Sessions check.Assertion = "sessions"

// CodeRecorded is of an engine that replays a trace.
const CodeRecorded check.Code = "E027" // an answer is not the recorded one

//go:embed generate.md
var generateCodes string

// GeneratedChecks are those of the suite generated.
var GeneratedChecks = []check.Check{{
	Name: Sessions, Codes: generateCodes, Levels: []check.Level{check.LevelCore, check.LevelStatistics, check.LevelUtilities, check.LevelLogprobs}, Run: runSessions,
}}

// GeneratedCases are those of the suite generated on a line. An engine that replays a trace gets the smallest golden.
func GeneratedCases(line compat.Line, mf *manifest.Manifest, gating bool) []check.Case {
	c := check.Case{Line: line, Suite: check.SuiteGenerated, Assertion: Sessions, Gating: gating}
	for _, g := range mf.ForLine(line.Name) {
		if g.Role == manifest.Fidelity && (c.Golden.ID == "" || g.Size < c.Golden.Size) {
			c.Golden, c.Entry = g, fmt.Sprintf("%s:%d", mf.File, g.Pos)
		}
	}
	return []check.Case{c}
}

// A Session is what a frontend sends to an engine, as a file has it.
type Session struct {
	Clients int    `json:"clients,omitempty"`
	Steps   []Step `json:"steps"`
	Shows   string `json:"shows,omitempty"` // the first failure
}

// A Step is a message of a frontend, or a wait for the end of a request. Requests are numbered from 0.
type Step struct {
	Do      string `json:"do"` // ask, abort, await, call, pause; a pause ends before the next await
	Client  int    `json:"client,omitempty"`
	Request int    `json:"request,omitempty"` // of abort and await
	Method  string `json:"method,omitempty"`  // of call

	// Of a request: the record that answers it, of an engine that replays a trace, else what is asked for.
	Record         int      `json:"record,omitempty"`
	Prompt         []uint32 `json:"prompt,omitempty"`
	MaxTokens      int      `json:"max_tokens,omitempty"`
	MinTokens      int      `json:"min_tokens,omitempty"`
	StopEven       bool     `json:"stop_at_even_tokens,omitempty"` // all even ids below 2000 are stop_token_ids
	Logprobs       *int     `json:"logprobs,omitempty"`
	PromptLogprobs *int     `json:"prompt_logprobs,omitempty"`
	Temperature    float64  `json:"temperature,omitempty"`
	IgnoreEOS      bool     `json:"ignore_eos,omitempty"`
}

// messages is how many a session has.
func (s *Session) messages() int {
	waits := 0
	for _, step := range s.Steps {
		if step.Do == "await" {
			waits++
		}
	}
	return len(s.Steps) - waits
}

// maxShrink bounds the time in which a failing session is made smaller. An engine that starts within quickStart is started
// again after each failure. It is silent when it does nothing for minSilence, or for slowly times the longest wait in the first session.
const (
	maxShrink  = 20 * time.Second
	quickStart = time.Second
	minSilence = 250 * time.Millisecond
	slowly     = 10
)

// generator sends sessions to engines, and keeps the smallest that fails.
type generator struct {
	ctx     context.Context
	env     *check.Env
	c       check.Case
	golden  *check.Golden
	f       *check.Outcome
	records []*trace.Record // in the order of arrival
	order   []int           // of records, the longest answer first: it is open when an abort comes
	l       *live           // nil until an engine runs
	quick   bool            // it starts quickly
	fresh   bool            // the session was the first that it got
	longest time.Duration   // that an answer was waited for in the first session
	number  int             // of requests
	played  int             // sessions
	results map[string][]check.Failure
	best    *Session        // the smallest that fails each time
	loose   *Session        // one that failed once
	wrong   []check.Failure // of best, or of loose
	err     error           // why no more session can be sent
}

// runSessions sends random sessions, or the one of a file.
func runSessions(ctx context.Context, e *check.Env, golden *check.Golden, c check.Case) (f check.Outcome, err error) {
	g := &generator{ctx: ctx, env: e, c: c, golden: golden, f: &f, results: map[string][]check.Failure{}}
	defer g.stop()
	if e.Generate.Replays {
		if golden.Trace == nil {
			return f, errors.Join(golden.FetchErr, golden.ReadErr, fmt.Errorf("line %s has no golden whose trace the engine could replay", c.Line.Name))
		}
		for _, i := range trace.ReplaySubset(golden.Trace.Records) {
			g.order = append(g.order, len(g.records))
			g.records = append(g.records, &golden.Trace.Records[i])
		}
		slices.SortStableFunc(g.order, func(a, b int) int { return len(g.records[b].OutputTokenIDs) - len(g.records[a].OutputTokenIDs) })
	}
	g.play(&Session{Steps: []Step{{Do: "ask", Prompt: []uint32{firstPlain}, MaxTokens: 3}}}) // how long an answer takes
	if e.Generate.Sessions == 0 {
		var s Session
		data, err := os.ReadFile(e.Generate.File)
		if err == nil {
			err = json.Unmarshal(data, &s)
		}
		if err == nil {
			err = s.check(g)
		}
		if err != nil {
			return f, check.Infra(check.WithCode(check.CodeStart, fmt.Errorf("--session %s: %w", e.Generate.File, err)))
		}
		f.Failures = g.play(&s)
		return f, g.err
	}
	g.search()
	often := ""
	if g.best == nil {
		if g.loose == nil {
			return f, g.err
		}
		g.best, often = g.loose, ", but not each time"
	}
	f.Failures, g.best.Clients, g.best.Shows = g.wrong, e.Generate.Clients, g.wrong[0].Message
	data, err := json.MarshalIndent(g.best, "", "  ")
	if err == nil {
		err = atomicfile.Write(e.Generate.File, append(data, '\n'), 0o644)
	}
	f.AddNote(fmt.Sprintf("session %d failed%s; the smallest that does has %s and is in %s", g.played, often, safetext.Count(g.best.messages(), "message"), e.Generate.File))
	return f, err
}

// check refuses a session of a file that cannot be sent.
func (s *Session) check(g *generator) error {
	asks, clients := 0, max(g.env.Generate.Clients, 1)
	for i, step := range s.Steps {
		switch {
		case step.Client < 0 || step.Client >= clients:
			return fmt.Errorf("step %d: client %d of %d: give --clients", i, step.Client, clients)
		case (step.Do == "abort" || step.Do == "await") && (step.Request < 0 || step.Request >= asks):
			return fmt.Errorf("step %d: request %d of %d", i, step.Request, asks)
		case step.Do == "ask" && g.records != nil && (step.Record < 0 || step.Record >= len(g.records)):
			return fmt.Errorf("step %d: record %d of %d", i, step.Record, len(g.records))
		case step.Do == "ask" && g.records == nil && (len(step.Prompt) == 0 || step.MaxTokens < 1):
			return fmt.Errorf("step %d: a request has a prompt and max_tokens, or the engine replays a trace", i)
		case !slices.Contains([]string{"ask", "abort", "await", "call", "pause"}, step.Do):
			return fmt.Errorf("step %d: do %q: want ask, abort, await, call or pause", i, step.Do)
		case step.Do == "ask":
			asks++
		}
	}
	return nil
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
func (g *generator) search() {
	testing.Init() // rapid asks for flags of package testing
	if !flag.Parsed() {
		_ = flag.CommandLine.Parse(nil)
	}
	for name, value := range map[string]string{
		"checks": strconv.Itoa(g.env.Generate.Sessions), "seed": strconv.FormatUint(g.env.Generate.Seed, 10), "nofailfile": "true",
		"shrinktime": maxShrink.String(),
	} {
		_ = flag.Set("rapid."+name, value) // each of them exists
	}
	defer func() { _ = recover() }() // of FailNow, and of rapid where a failure does not come again
	var deadline time.Time
	rapid.Check(&failedTB{}, func(t *rapid.T) {
		s := &Session{Steps: g.draw(t)}
		if g.err != nil || g.ctx.Err() != nil || g.best != nil && time.Now().After(deadline) {
			return
		}
		wrong := g.play(s)
		if len(wrong) == 0 || g.best != nil && wrong[0].Code != g.wrong[0].Code {
			return
		}
		if !g.fails(s, wrong[0].Code) {
			if g.loose == nil {
				g.loose, g.wrong = s, wrong
			}
			return // not of a new engine
		}
		if g.best == nil {
			deadline = time.Now().Add(maxShrink)
		}
		if g.best == nil || s.messages() < g.best.messages() || s.messages() == g.best.messages() && len(s.Steps) <= len(g.best.Steps) {
			g.best, g.wrong = s, wrong
		}
		t.Fatal(wrong[0].Code)
	})
}

// draw makes the steps of a session. What comes first in a list is what a smaller session has.
func (g *generator) draw(t *rapid.T) []Step {
	drawn := rapid.SliceOfN(rapid.Custom(g.drawStep), 1, 12).Draw(t, "steps")
	var steps []Step
	asks := 0
	for _, step := range drawn {
		switch step.Do {
		case "ask":
			asks++
		case "abort", "await":
			if asks == 0 {
				continue
			}
			step.Request = asks - 1 - step.Request%asks
		}
		steps = append(steps, step)
	}
	return steps
}

func (g *generator) drawStep(t *rapid.T) Step {
	upTo := func(n int, what string) int { return rapid.IntRange(0, n).Draw(t, what) }
	step := Step{Do: rapid.SampledFrom([]string{"ask", "ask", "ask", "abort", "await", "call", "pause"}).Draw(t, "do")}
	if clients := g.env.Generate.Clients; clients > 1 {
		step.Client = upTo(clients-1, "client")
	}
	switch step.Do {
	case "abort", "await":
		step.Request = upTo(3, "back") // for now: how many requests ago
		step.Client = 0
	case "call":
		step.Method = rapid.SampledFrom(safeCalls[:len(safeCalls)-1]).Draw(t, "method").method // the last one needs LoRA
	case "ask":
		if g.records != nil {
			step.Record = g.order[upTo(len(g.records)-1, "record")]
			return step
		}
		first := upTo(3, "first") // so some prompts begin alike
		for i := range 1 + upTo(39, "prompt") {
			step.Prompt = append(step.Prompt, uint32(firstPlain+first*500+i*7))
		}
		step.MaxTokens = 1 + upTo(23, "max_tokens")
		n := upTo(4, "n")
		switch upTo(6, "kind") {
		case 1:
			step.StopEven = true
		case 2:
			step.StopEven, step.MinTokens = true, min(n, step.MaxTokens)
		case 3:
			step.Logprobs = &n
		case 4:
			step.PromptLogprobs = &n
		case 5:
			step.Temperature = 1
		case 6:
			step.IgnoreEOS = true
		}
	}
	return step
}

// fails reports whether a session that failed does so with a new engine, if that is quick.
func (g *generator) fails(s *Session, code check.Code) bool {
	if g.fresh || !g.quick {
		return true
	}
	key, _ := json.Marshal(s.Steps)
	delete(g.results, string(key))
	wrong := g.play(s)
	return len(wrong) > 0 && wrong[0].Code == code
}

// play sends a session, and returns what is wrong.
func (g *generator) play(s *Session) []check.Failure {
	key, err := json.Marshal(s.Steps)
	if wrong, known := g.results[string(key)]; known || err != nil {
		return wrong
	}
	if g.best == nil {
		g.played++
	}
	if g.env.Step != nil {
		g.env.Step(fmt.Sprintf("session %d of %d, %s", g.played, max(g.env.Generate.Sessions, 1), safetext.Count(s.messages(), "message")))
	}
	if g.fresh = g.l == nil; g.fresh {
		if g.err = g.start(); g.err != nil {
			return nil
		}
	}
	if g.longest > 0 {
		g.l.answered = true // an engine of this kind has, so no reason is looked for
		if g.quick {
			g.l.short = max(minSilence, slowly*g.longest)
		}
	}
	var f check.Outcome
	g.l.begin(g.ctx, &f)
	err = g.perform(s)
	g.l.s.Close()
	if err != nil && g.ctx.Err() != nil {
		g.err = context.Cause(g.ctx)
		return nil
	}
	if err != nil && !errors.Is(err, errUnreadable) && !errors.Is(err, errUnanswered) {
		f.Fail(check.FailureOf(err))
	}
	for _, wrong := range g.l.impossible {
		// Between sockets there is no order, so it is not known what the engine had read when it counted.
		if wrong.Code != invariant.CodeGauges || g.env.Generate.Clients < 2 {
			invariant.Add(&f, wrong)
		}
	}
	g.f.Asserted += f.Asserted + 1
	g.f.Tokens += f.Tokens
	g.results[string(key)] = f.Failures
	if g.longest == 0 {
		g.longest = g.l.longest
	}
	if owner := g.l.s.Owner(); err != nil || owner.Lost != nil || owner.Context.Err() != nil || len(f.Failures) > 0 && g.quick {
		g.stop()
	}
	return f.Failures
}

// start starts an engine, or waits for the one that somebody else starts.
func (g *generator) start() error {
	codec, err := check.CodecFor(g.c.Line)
	if err != nil {
		return err
	}
	opt := player.Options{VLLMVersion: check.PlayedVersion(g.c.Line)}
	if g.records != nil {
		opt.Trace, opt.Replay = g.golden.Trace, player.ReplayOptions{Match: player.MatchIndex, Strict: true}
	}
	join := g.env.Start
	if g.env.Address != "" {
		if g.played > 1 {
			return errors.New("the engine at the address failed, and only its owner can start it again")
		}
		join = g.env.Join
	}
	begun := time.Now()
	s, err := join(g.env.Context, codec, opt)
	if err != nil {
		return err
	}
	g.quick = g.env.Address == "" && time.Since(begun) < quickStart
	g.l, g.number = newLive(g.env, g.c, codec, s), 0
	g.l.mixed = true
	if g.records != nil {
		g.l.record = map[*ask]*trace.Record{}
	}
	return nil
}

func (g *generator) stop() {
	if g.l != nil {
		g.l.s.Owner().Close()
		g.l = nil
	}
}

// perform sends the steps, waits for the end of every request, and until the engine has read all: what was aborted is silent then.
func (g *generator) perform(s *Session) error {
	l, paused := g.l, false
	var asks []*ask
	resume := func() error {
		if !paused {
			return nil
		}
		paused = false
		return l.tryCall("resume_scheduler")
	}
	for _, step := range s.Steps {
		l.client = step.Client
		var err error
		switch step.Do {
		case "ask":
			a := g.asked(&step)
			asks = append(asks, a)
			err = l.send(a)
		case "abort":
			if a := asks[step.Request]; a.closed { // as by a frontend that does not know it yet
				err = l.s.Front.Abort(a.client, a.id)
			} else if !a.aborted {
				err = l.sendAbort(a)
			}
		case "await":
			if a := asks[step.Request]; !a.aborted {
				if err = resume(); err == nil {
					err = l.await(a)
				}
			}
		case "call":
			err = l.tryCall(step.Method)
		case "pause":
			if _, known := l.codec.Profile().Utilities["resume_scheduler"]; known && !paused {
				paused = true
				err = l.tryCall("pause_scheduler", pack.AppendString(nil, "keep"), pack.AppendBool(nil, false))
			}
		}
		if err != nil {
			return err
		}
	}
	if err := resume(); err != nil {
		return err
	}
	if err := l.await(slices.DeleteFunc(slices.Clone(asks), func(a *ask) bool { return a.aborted })...); err != nil {
		return err
	}
	for range 3 {
		for l.client = range l.s.Front.Clients() {
			if err := l.barrier(); err != nil {
				return err
			}
		}
		for _, a := range asks {
			a.closed = true
		}
	}
	clear(l.asks)
	clear(l.record)
	return nil
}

// asked is the request of a step.
func (g *generator) asked(step *Step) *ask {
	g.number++
	a := &ask{id: fmt.Sprintf("live-%d", g.number), client: step.Client, prompt: step.Prompt, sampling: greedy(step.MaxTokens)}
	s := &a.sampling
	s.MinTokens, s.Temperature, s.IgnoreEOS = step.MinTokens, step.Temperature, step.IgnoreEOS
	if step.StopEven {
		s.StopTokenIDs = evenTokens()
	}
	for to, from := range map[*int]*int{&s.Logprobs: step.Logprobs, &s.PromptLogprobs: step.PromptLogprobs} {
		if from != nil {
			*to = *from
		}
	}
	if g.records != nil {
		r := g.records[step.Record]
		a.id, a.prompt = fmt.Sprintf("replay-%d-%d", step.Record, g.number), r.PromptTokenIDs
		if a.prompt == nil {
			a.prompt = slices.Repeat([]uint32{firstPlain}, r.PromptTokens)
		}
		s.MaxTokens, s.Temperature = max(len(r.OutputTokenIDs), 1), 1
		g.l.record[a] = r
	}
	return a
}

// tryCall makes a call. What an engine does not have it may answer with a failure.
func (l *live) tryCall(method string, args ...[]byte) error {
	declared, known := l.codec.Profile().Utilities[method]
	if !known {
		return nil
	}
	if args == nil && method == resetPrefixCache.method {
		args = resetPrefixCache.args
	}
	answer, err := l.call(method, args...)
	if err == nil {
		l.checkAnswer(safeCall{method: method, mayFail: true}, declared, answer)
		l.f.Note = "" // of what is not available
	}
	return err
}

// takeRecorded compares an output with the record.
func (l *live) takeRecorded(a *ask, o *protocol.RequestOutput) {
	r := l.record[a]
	l.takeTokens(a, o.Tokens)
	got, want := a.tokens, r.OutputTokenIDs
	l.f.Asserted++
	if at := check.FirstDifference(want, got); at < len(got) {
		l.end(a, CodeRecorded, "new_token_ids", check.Around(want, at), check.Around(got, at), "token %d differs: expected %s, got %s", at, check.Around(want, at), check.Around(got, at))
	}
	if o.Finish == protocol.Unfinished {
		return
	}
	a.finish, a.closed = o.Finish, true
	l.f.Tokens += len(got)
	end := protocol.FinishReason(r.ReplayEnd() + 1)
	if o.Finish != end {
		l.end(a, CodeRecorded, "finish_reason", end, o.Finish, "it ended by %s, expected %s", o.Finish, end)
	} else if len(got) < len(want) {
		l.end(a, CodeRecorded, "new_token_ids", len(want), len(got), "it ended after %d of %d tokens", len(got), len(want))
	}
}
