package frontendsuite

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"pgregory.net/rapid"

	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/frontends/openai"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/manifest"
	"github.com/vllm-vcr/conformance/player"
)

// Sessions is the assertion of the suite generated about frontends.
const Sessions check.Assertion = "http-sessions"

// GeneratedChecks are those of the suite generated about frontends.
var GeneratedChecks = []check.Check{{Name: Sessions, Levels: []check.Level{check.LevelCore, check.LevelStructured, check.LevelLogprobs}, Run: runSessions}}

// GeneratedCases are those of the suite generated on a line.
func GeneratedCases(line compat.Line, mf *manifest.Manifest, gating bool) []check.Case {
	c := check.Case{Line: line, Suite: check.SuiteGenerated, Assertion: Sessions, Gating: gating}
	if g, ok := spokenGolden(mf.ForLine(line.Name)); ok {
		c.Golden, c.Entry = g, fmt.Sprintf("%s:%d", mf.File, g.Pos)
	}
	return []check.Case{c}
}

// A Session is what clients do to a frontend, and what the engine behind it says, as a file has it.
type Session struct {
	Steps []Step `json:"steps"`
	Shows string `json:"shows,omitempty"` // the first failure
}

// A Step is an HTTP request, or what its client does. Requests are numbered from 0, and run at the same time.
type Step struct {
	Do      string `json:"do"`                // ask; leave: close the connection; await: read the answer to its end
	Request int    `json:"request,omitempty"` // of leave and await

	// Of a request:
	Prompt string   `json:"prompt,omitempty"` // text or chat; none: token ids
	Stream bool     `json:"stream,omitempty"`
	N      int      `json:"n,omitempty"`
	With   []string `json:"with,omitempty"` // the requests of the case requests whose parameters it has
	// What the engine says: Tokens ids from the First on, Chunk in a message, and how it ends: by length, stop (a token), eos, repetition,
	// error, never, or text (a stop string, which the frontend finds).
	Tokens int    `json:"tokens,omitempty"`
	First  int    `json:"first,omitempty"`
	Chunk  int    `json:"chunk,omitempty"`
	Ends   string `json:"ends,omitempty"`
}

// The ends of an answer, the simplest first.
var ends = []string{"length", "stop", "eos", "repetition", "never", "text", "error"}

// Forms of prompts in a session.
const (
	textPrompt = "text"
	chatPrompt = "chat"
)

// maxSteps bounds a session. A request has the parameters of up to maxWith others. maxNotes bounds what is said of requests that were not taken.
const (
	maxNotes = 5
	maxSteps = 10
	maxWith  = 3
)

// A frontend that starts within quickStart is started again after each failure. What does not come in a failing session, or a smaller one,
// is waited for for minSilence, or slowly times the longest session.
const (
	quickStart = 5 * time.Second
	minSilence = 500 * time.Millisecond
	slowly     = 10
)

// generator sends sessions to frontends.
type generator struct {
	*check.Search[Session]
	ctx     context.Context
	env     *check.Env
	golden  *check.Golden
	c       check.Case
	f       *check.Outcome
	all     []probe
	choices map[bool][]string // names of probes that a request may have the parameters of, by whether they are chats
	s       *frontendSession
	longest time.Duration
	made    map[string][]uint32 // the ids of prompts that are not ids, by form and number; nil if they are not known
	notes   map[string]bool     // of what was not taken
	decoded map[string]string   // texts of tokens, of earlier requests
}

// runSessions sends random sessions, or the one of a file, to a frontend under test.
func runSessions(ctx context.Context, e *check.Env, golden *check.Golden, c check.Case) (f check.Outcome, err error) {
	if e.Frontend == nil {
		return f, check.WithCode(check.CodeFrontend, errors.New("no frontend under test: set Runner.Frontend"))
	}
	g := &generator{ctx: ctx, env: e, golden: golden, c: c, f: &f, choices: map[bool][]string{}, notes: map[string]bool{}, decoded: map[string]string{}}
	if g.all, err = probes(); err != nil {
		return f, err
	}
	for _, p := range g.all {
		if combines(p) {
			g.choices[p.Chat] = append(g.choices[p.Chat], p.Name)
		}
	}
	g.Search = &check.Search[Session]{
		Env: e, Draw: func(t *rapid.T) *Session { return &Session{Steps: g.draw(t)} }, Start: g.start, Send: g.send, Stop: func() { g.s.Close() },
		Size: func(s *Session) (messages, steps int) {
			for _, step := range s.Steps {
				if step.Do != "await" {
					messages++
				}
				steps += 1 + len(step.With) + step.N
			}
			return messages, steps
		},
		Check: func(s *Session) error { return s.check(g) },
		Shows: func(s *Session, failure string) { s.Shows = failure },
	}
	if e.Frontend.Command != "" {
		g.QuickStart = quickStart
	}
	err = g.Run(ctx, &f, &Session{Steps: []Step{{Do: "ask", Tokens: 3, Ends: "length"}}})
	notes := slices.Sorted(maps.Keys(g.notes))
	for _, note := range notes[:min(len(notes), maxNotes)] {
		f.AddNote(note)
	}
	return f, err
}

// combines reports whether a request may have the parameters of a probe next to others: they say nothing about the form of the answer, or
// about what the end of a step decides.
func combines(p probe) bool {
	for _, key := range []string{"stop", "stream", "request_id", "tools", "reasoning_effort", "chat_template_kwargs", "return_tokens_as_token_ids"} {
		if p.Body[key] != nil {
			return false
		}
	}
	return !p.Adapter && len(p.Body)+len(p.Header) > 0
}

// check refuses a session of a file that cannot be sent.
func (s *Session) check(g *generator) error {
	asks := 0
	for i, step := range s.Steps {
		switch step.Do {
		case "leave", "await":
			if step.Request < 0 || step.Request >= asks {
				return fmt.Errorf("step %d: request %d of %d", i, step.Request, asks)
			}
		case "ask":
			asks++
			for _, name := range step.With {
				if !slices.ContainsFunc(g.all, func(p probe) bool { return p.Name == name && combines(p) && p.Chat == (step.Prompt == chatPrompt) }) {
					return fmt.Errorf("step %d: with %q: want some of %q", i, name, g.choices[step.Prompt == chatPrompt])
				}
			}
			if step.Tokens < 1 || step.N < 0 || step.First < 0 || step.Chunk < 0 || !slices.Contains(ends, step.Ends) {
				return fmt.Errorf("step %d: a request has tokens above 0, n, first and chunk from 0, and ends by one of %q", i, ends)
			}
			if !slices.Contains([]string{"", textPrompt, chatPrompt}, step.Prompt) {
				return fmt.Errorf("step %d: prompt %q: want %s, %s or none", i, step.Prompt, textPrompt, chatPrompt)
			}
		default:
			return fmt.Errorf("step %d: do %q: want ask, leave or await", i, step.Do)
		}
	}
	return nil
}

// draw makes the steps of a session. What comes first in a list is what a smaller session has.
func (g *generator) draw(t *rapid.T) (steps []Step) {
	asks := 0
	for _, step := range rapid.SliceOfN(rapid.Custom(g.drawStep), 1, maxSteps).Draw(t, "steps") {
		if step.Do == "ask" {
			asks++
		} else if step.Request = asks - 1 - step.Request; step.Request < 0 {
			continue
		}
		steps = append(steps, step)
	}
	return steps
}

func (g *generator) drawStep(t *rapid.T) Step {
	upTo := func(n int, what string) int { return rapid.IntRange(0, n).Draw(t, what) }
	step := Step{Do: rapid.SampledFrom([]string{"ask", "ask", "ask", "await", "leave"}).Draw(t, "do")}
	if step.Do != "ask" {
		step.Request = upTo(3, "back") // for now: how many requests ago
		return step
	}
	step.Prompt = rapid.SampledFrom([]string{"", "", textPrompt, chatPrompt}).Draw(t, "prompt")
	step.Stream = upTo(1, "stream") == 1
	step.Tokens, step.First, step.Chunk = 1+upTo(11, "tokens"), upTo(3, "first"), upTo(4, "chunk")
	step.Ends = ends[upTo(len(ends)-1, "ends")]
	if upTo(7, "n") > 5 {
		step.N = 2
	}
	choices := g.choices[step.Prompt == chatPrompt]
	for range upTo(maxWith, "with") {
		if name := choices[upTo(len(choices)-1, "parameters")]; !slices.Contains(step.With, name) {
			step.With = append(step.With, name)
		}
	}
	return step
}

// start starts a frontend, and learns of it what the other suite learns from its first requests.
func (g *generator) start() (err error) {
	if g.s, err = openFrontend(g.ctx, g.env, g.golden, g.c.Line); err != nil {
		return check.Infra(check.WithCode(check.CodeFrontend, fmt.Errorf("frontend: %w", err)))
	}
	if g.s.version != "" {
		g.env.Versions[g.c.Line.Name] = g.s.version
	}
	g.made = map[string][]uint32{}
	return nil
}

// send sends a session, and returns what is wrong, and whether the frontend is lost.
func (g *generator) send(s *Session) (wrong []check.Failure, lost bool, err error) {
	var f check.Outcome
	k := &frontendCase{frontendSession: g.s, Outcome: &f, golden: g.golden, limit: g.env.Timeouts.Idle, name: string(Sessions), whole: g.ctx}
	if g.Found() && g.Quick {
		k.limit = min(k.limit, max(minSilence, slowly*g.longest))
	}
	var stop context.CancelCauseFunc
	k.ctx, stop = context.WithCancelCause(g.ctx)
	defer stop(nil)
	defer context.AfterFunc(g.s.ctx, func() { stop(context.Cause(g.s.ctx)) })()
	g.s.told = map[string]bool{}
	begun := time.Now()
	if g.s.refused != nil {
		k.refusal()
	} else {
		if g.s.reference == nil {
			k.compareProbes(func(probe) bool { return false })
			if k.judged = k.ledger.mark(); k.lostAt == "" {
				f = check.Outcome{} // the session shows it
			}
		}
		begun = time.Now()
		g.perform(k, s)
	}
	k.judgeMessages()
	if g.ctx.Err() != nil {
		return nil, true, context.Cause(g.ctx)
	}
	if len(f.Failures) == 0 {
		g.longest = max(g.longest, time.Since(begun))
	}
	g.f.Asserted += f.Asserted + 1
	g.f.Tokens += f.Tokens
	return f.Failures, k.lostAt != "" || g.s.ctx.Err() != nil, nil
}

// talk is a request of a session.
type talk struct {
	*Step
	what   string
	probe  probe // the parameters that it has
	form   string
	prompt []uint32
	script player.Script
	finish string // finish_reason
	stop   string // stop_reason as JSON, or anyStop
	route  string
	body   object
	want   map[string]any // what reaches the engine, nil if that is not known
	mark   int
	leave  context.CancelFunc
	done   chan struct{} // the reply is there
	reply  *openai.Reply
	ended  bool
	left   bool // its client has
	hung   bool
}

// perform makes the requests, and judges all at the end.
func (g *generator) perform(k *frontendCase, s *Session) {
	var talks []*talk
	for i := range s.Steps {
		step := &s.Steps[i]
		switch {
		case k.lostAt != "":
			return
		case step.Do == "ask":
			t := g.plan(k, step, len(talks))
			talks = append(talks, t)
			t.begin(k)
		default:
			talks[step.Request].end(k, step.Do == "leave")
		}
	}
	for _, t := range talks {
		t.end(k, false)
	}
	ids := map[string]int{}
	for _, t := range talks {
		if k.lostAt == "" {
			g.judge(k, t, ids)
		}
	}
}

// stopWord is in the text [sampler].
const stopWord = "jumps"

// plan decides what a request asks for and what the engine says.
func (g *generator) plan(k *frontendCase, step *Step, number int) *talk {
	t := &talk{Step: step, what: fmt.Sprintf("request %d of the session", number), route: k.route(), finish: "length", done: make(chan struct{})}
	g.promptOf(k, t, number)
	vocabulary := k.vocabulary()
	letters := k.alphabet[:max(len(k.alphabet)-len(vocabulary), 1)]
	var tokens []uint32
	for i := range step.Tokens {
		tokens = append(tokens, letters[(7*i+5*step.First)%len(letters)])
	}
	most, own, like := len(tokens)+8, object{}, ""
	ends := step.Ends
	if ends == "eos" && k.eos == nil || ends == "text" && (k.sampled == nil || t.form == chatPrompt) {
		ends = "length"
	}
	t.script = plainly(tokens)
	switch ends {
	case "length":
		most = len(tokens)
	case "stop":
		t.script, own, like = plainly(append(tokens, vocabulary[0])), object{"stop_token_ids": []any{aWord + "0"}}, "stop_token_ids"
		t.script.Finish, t.finish, t.stop = protocol.FinishStop, "stop", fmt.Sprint(vocabulary[0])
	case "eos":
		t.script, own = plainly(append(tokens, *k.eos)), object{"ignore_eos": false}
		t.script.Finish, t.finish = protocol.FinishStop, "stop"
	case "repetition":
		t.script.Finish, t.finish, t.stop = protocol.FinishRepetition, "repetition", anyStop
	case "never":
		t.script = stalling(tokens)
	case "text":
		t.script, own, like = stalling(k.sampled), object{"stop": []any{stopWord}}, "stop string"
		most, t.finish, t.stop = len(k.sampled)+8, "stop", asJSON(stopWord)
	}
	if size := step.Chunk; size > 1 {
		n := len(t.script.Tokens)
		if t.script.Gaps != nil { // they are between outputs, and the last one does not end
			n = len(t.script.Gaps)
			t.script.Gaps = t.script.Gaps[(size-1)*(n/size):]
		}
		t.script.Chunks = slices.Repeat([]int{size}, n/size)
	}
	p := plan{script: t.script}
	if ends == "error" {
		p.refuse = errRefusedByPlan
	}
	k.speaker.plan(t.prompt, p)

	names := g.parameters(t, own, like, most)
	t.body = t.body.with(k.written(map[string]any(t.probe.Body)).(map[string]any)).with(object{"max_tokens": most})
	if step.Stream {
		t.body = t.body.with(streamed)
		names = append(names, "a stream")
	}
	if step.N > 1 {
		t.body = t.body.with(object{"n": step.N, "temperature": 0.5})
		return t // what its requests have is not known
	}
	if t.want = g.expected(k.reference, t.form == chatPrompt, names); t.want != nil {
		t.want["sampling_params.max_tokens"], t.want["prompt_token_ids"] = float64(most), aPrompt
		if ends == "text" {
			t.want["sampling_params.stop"] = anyValue
		}
	}
	return t
}

// promptOf gives the request a prompt that no other of the session has.
func (g *generator) promptOf(k *frontendCase, t *talk, number int) {
	common := object{"model": k.model, "temperature": 0, "return_token_ids": true}
	if t.form = t.Prompt; t.form != "" {
		route, part := completionsRoute, object{"prompt": fmt.Sprintf("the quick brown fox %d jumps", 90_000+number)}
		if t.form == chatPrompt {
			route, part = chatRoute, object{"messages": []object{{"role": "user", "content": fmt.Sprintf("%s %d", sampler, number)}}}
		}
		key := fmt.Sprint(t.form, number)
		ids, known := g.made[key]
		if !known {
			if h := k.tokenized(route, part); h != nil {
				ids = slices.Clone(h.request.PromptTokenIDs)
			}
			g.made[key] = ids
		}
		if ids != nil {
			t.prompt, t.route, t.body = ids, route, common.with(part)
			return
		}
		g.notes["no prompt that is a "+t.form] = true
	}
	t.form = ""
	if k.form == promptChat {
		t.form = chatPrompt
	}
	t.prompt = k.prompt()
	t.body = k.body(t.prompt, 1)
}

// parameters gives the request those of the probes that it is to have, as far as vLLM takes them together, next to its own. It returns the
// probes.
func (g *generator) parameters(t *talk, own object, like string, most int) (names []string) {
	merged := probe{Name: "no parameters", Body: own, Header: map[string]string{}, Core: t.form == "" && t.N < 2}
	if like != "" {
		names = append(names, like)
	}
	for _, name := range t.With {
		at := slices.IndexFunc(g.all, func(p probe) bool { return p.Name == name })
		p := g.all[at]
		other := func(key string) string { // of two that say the same
			return map[string]string{"response_format": "structured_outputs", "structured_outputs": "response_format"}[key]
		}
		contrary := p.Chat != (t.form == chatPrompt) || p.Body["min_tokens"] != nil && most < 2 || p.Body["prompt_logprobs"] != nil && t.Stream
		for key, value := range p.Body {
			was, has := merged.Body[key]
			contrary = contrary || has && asJSON(was) != asJSON(value) || merged.Body[other(key)] != nil
		}
		if !contrary {
			merged.Body, merged.Core, names = merged.Body.with(p.Body), merged.Core && p.Core, append(names, name)
			maps.Copy(merged.Header, p.Header)
		}
	}
	if len(names) > 0 {
		merged.Name = strings.Join(names, ", ")
	}
	t.probe = merged
	return names
}

// expected is what the reference sends for a request with the parameters of several probes: of each, what it changes. Where two change the
// same field in other ways any value is taken.
func (g *generator) expected(x *expectation, chat bool, names []string) map[string]any {
	if x == nil {
		return nil
	}
	want := maps.Clone(x.Fields[g.all[0].Name])
	if chat {
		maps.Copy(want, x.Fields[chatPrompt])
	}
	changed := map[string]bool{}
	for _, name := range names {
		own := x.Fields[name]
		if own == nil {
			return nil // it refuses that
		}
		for path, value := range own {
			if changed[path] && !sameCarried(want[path], value) {
				value = anyValue
			}
			want[path], changed[path] = value, true
		}
	}
	return want
}

// begin sends the request, and waits until it has reached the engine, or is answered.
func (t *talk) begin(k *frontendCase) {
	t.mark = k.ledger.mark()
	var ctx context.Context
	ctx, t.leave = context.WithCancel(k.ctx)
	reached, stop := k.patience()
	defer stop()
	go func() {
		defer stop() // nothing more reaches the engine
		defer close(t.done)
		a, err := k.client.SendWith(ctx, t.probe.Header, http.MethodPost, t.route, t.body)
		t.reply = openai.ReadReply(a, t.Stream)
		t.reply.Err = err
	}()
	k.ledger.await(reached, t.mark, max(t.N, 1), asks(t.prompt))
}

// end waits for the answer, or has the client leave.
func (t *talk) end(k *frontendCase, leave bool) {
	if t.ended {
		return
	}
	t.ended = true
	defer t.leave()
	if t.left = leave || t.Ends == "never"; t.left {
		_, other := k.says(plainly(k.words(1)))
		k.post("a request that shows that "+t.what+" has been sent", other)
	} else {
		ctx, stop := k.patience()
		defer stop()
		select {
		case <-t.done:
		case <-ctx.Done():
			t.hung = true
		}
	}
	t.leave()
	<-t.done
}

// judge reports what is wrong with what reached the engine and with the answer.
func (g *generator) judge(k *frontendCase, t *talk, ids map[string]int) {
	r, found := t.reply, k.ledger.since(t.mark, asks(t.prompt))
	k.Asserted++
	if r.Err == nil && r.Status >= 400 && r.Status < 500 && len(found) == 0 && !t.probe.Core {
		what := t.probe.Name
		if t.N > 1 {
			what = fmt.Sprintf("n=%d", t.N)
		}
		g.notes[fmt.Sprintf("not taken (status %d): %s", r.Status, what)] = true
		return
	}
	if n := max(t.N, 1); len(found) != n {
		if len(found) == 0 && r.Err != nil && !k.stillServes(t.what, r.Err.Error()) {
			return
		}
		k.fail(check.Failed(CodeNoRequest, "%s: expected %d such at the engine, got %d (status %d: %s)", t.what, n, len(found), r.Status, r.Failure).
			Within(-1, "EngineCoreRequest.prompt_token_ids").Compared(n, len(found)))
		return
	}
	for _, h := range found {
		k.identity(t.probe.Name, h, ids)
		if t.want != nil {
			k.judgeProbe(t.probe, h, t.prompt, t.want)
		}
	}
	switch {
	case t.left:
		if t.Ends == "never" {
			k.aborted(t.what+", whose client has left", t.mark, found[0])
		}
	case t.hung:
		k.hangs++
		k.fail(check.Failed(CodeHangs, "%s: POST %s: no answer within %v", t.what, t.route, k.limit).Compared("an answer", "none"))
	case r.Err != nil:
		if k.stillServes(t.what, r.Err.Error()) {
			k.fail(check.Failed(CodeHTTP, "%s: POST %s: %v", t.what, t.route, r.Err).Compared("an answer", "none"))
		}
	case t.Ends == "error":
		if !r.Refused() {
			k.fail(check.Failed(CodeAccepted, "%s, which the engine refuses: status %d, finish_reason %q, %d tokens", t.what, r.Status, r.Finish, len(r.Tokens)).
				Within(-1, "choices[0].finish_reason").Compared("an error", r.Finish))
		}
	case r.Status != http.StatusOK || r.Failure != "":
		if k.stillServes(t.what, r.Failure) {
			k.fail(check.Failed(CodeHTTP, "%s: POST %s: status %d: %s", t.what, t.route, r.Status, r.Failure).Compared(http.StatusOK, r.Status))
		}
	default:
		g.judgeAnswer(k, t, found[0])
	}
}

// judgeAnswer compares an answer with what the engine said.
func (g *generator) judgeAnswer(k *frontendCase, t *talk, h *heard) {
	r, said := t.reply, t.script.Tokens
	k.framed(t.what, r)
	k.ended(t.what, r, t.finish)
	if t.stop != anyStop && r.Stop != t.stop && (t.stop != "" || r.Stop != "null") {
		k.fail(check.Failed(CodeHTTPFinish, "%s: stop_reason is %q, expected %q", t.what, r.Stop, t.stop).Within(-1, "choices[0].stop_reason").Compared(t.stop, r.Stop))
	}
	key := fmt.Sprint(t.form, said)
	want, known := g.decoded[key]
	if t.body["stop"] != nil {
		before, _, _ := strings.Cut(sampler, stopWord)
		if want, known = before, true; strings.TrimPrefix(r.Text, " ") == want {
			want = r.Text // some tokenizers begin every word with its blank, the first one too
		}
		k.aborted(t.what+", which a stop string ended", t.mark, h)
	} else {
		k.sameTokens(t.what, r, said)
		k.counted(t.what, r, len(t.prompt), len(said)*max(t.N, 1))
		if t.probe.Body["logprobs"] != nil && r.Logprobs != len(said) {
			k.fail(check.Failed(CodeHTTPTokens, "%s: %d entries of logprobs for %d tokens", t.what, r.Logprobs, len(said)).
				Within(-1, "choices[0].logprobs").Compared(len(said), r.Logprobs))
		}
	}
	if !known {
		g.decoded[key] = r.Text
	} else if r.Text != want {
		k.fail(check.Failed(CodeHTTPText, "%s: the text is %q, expected %q, as of an earlier request that was answered with the same tokens", t.what, excerpt(r.Text), excerpt(want)).
			Within(-1, "choices[0].text").Compared(want, r.Text))
	}
}
