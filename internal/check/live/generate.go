package live

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"slices"
	"time"

	"pgregory.net/rapid"

	"github.com/vllm-vcr/conformance/compat"
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

// An engine that starts within quickStart is started again after each failure. It is silent when it does nothing for minSilence, or for
// slowly times the longest wait in the first session.
const (
	quickStart = time.Second
	minSilence = 250 * time.Millisecond
	slowly     = 10
)

// generator sends sessions to engines.
type generator struct {
	*check.Search[Session]
	ctx     context.Context
	env     *check.Env
	c       check.Case
	golden  *check.Golden
	f       *check.Outcome
	records []*trace.Record // in the order of arrival
	order   []int           // of records, the longest answer first: it is open when an abort comes
	l       *live           // nil until an engine runs
	longest time.Duration   // that an answer was waited for in the first session
	number  int             // of requests
}

// runSessions sends random sessions, or the one of a file.
func runSessions(ctx context.Context, e *check.Env, golden *check.Golden, c check.Case) (f check.Outcome, err error) {
	g := &generator{ctx: ctx, env: e, c: c, golden: golden, f: &f}
	g.Search = &check.Search[Session]{
		Env: e, Draw: func(t *rapid.T) *Session { return &Session{Steps: g.draw(t)} }, Start: g.start, Send: g.send, Stop: func() { g.l.s.Owner().Close() },
		Size:    func(s *Session) (messages, steps int) { return s.messages(), len(s.Steps) },
		Check:   func(s *Session) error { return s.check(g) },
		Without: (*Session).without,
		Ran: func() (time.Duration, bool) {
			ran, _, known := g.l.s.Busy()
			return ran, known
		},
		Shows: func(s *Session, failure string) { s.Clients, s.Shows = e.Generate.Clients, failure },
	}
	if e.Address == "" {
		g.QuickStart = quickStart
	}
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
	err = g.Run(ctx, &f, &Session{Steps: []Step{{Do: "ask", Prompt: []uint32{firstPlain}, MaxTokens: 3}}}) // how long an answer takes
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

// without leaves out a step, of a request also those about it.
func (s *Session) without(i int) *Session {
	smaller := &Session{Clients: s.Clients}
	asks, left := 0, -1
	for j, step := range s.Steps {
		switch {
		case step.Do == "ask":
			if asks++; j == i {
				left = asks - 1
			}
		case step.Do == "abort" || step.Do == "await":
			if left >= 0 && step.Request == left {
				continue
			} else if left >= 0 && step.Request > left {
				step.Request--
			}
		}
		if j != i {
			smaller.Steps = append(smaller.Steps, step)
		}
	}
	return smaller
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

// send sends a session, and returns what is wrong, and whether the engine is lost.
func (g *generator) send(s *Session) (wrong []check.Failure, lost bool, err error) {
	if g.longest > 0 {
		g.l.answered = true // an engine of this kind has, so no reason is looked for
		if g.Quick {
			g.l.short = max(minSilence, slowly*g.longest)
		}
	}
	var f check.Outcome
	g.l.begin(g.ctx, &f)
	err = g.perform(s)
	g.l.s.Close()
	if err != nil && g.ctx.Err() != nil {
		return nil, true, context.Cause(g.ctx)
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
	if g.longest == 0 {
		g.longest = g.l.longest
	}
	owner := g.l.s.Owner()
	return f.Failures, err != nil || owner.Lost != nil || owner.Context.Err() != nil, nil
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
		if g.Played > 1 {
			return errors.New("the engine at the address failed, and only its owner can start it again")
		}
		join = g.env.Join
	}
	s, err := join(g.env.Context, codec, opt)
	if err != nil {
		return err
	}
	g.l, g.number = newLive(g.env, g.c, codec, s), 0
	g.l.mixed = true
	if g.records != nil {
		g.l.record = map[*ask]*trace.Record{}
	}
	return nil
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
