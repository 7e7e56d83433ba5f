package frontendsuite

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/manifest"
)

// What is wrong with a frontend under test.
const (
	CodeNoRegistration check.Code = "H001" // the frontend does not serve after the engine of the line registered
	CodeInit           check.Code = "H002" // its answer to HELLO is not that of the line
	CodeMessage        check.Code = "H003" // a message to the engine is not exactly of the line
	CodeCarried        check.Code = "H004" // a request does not carry what HTTP asked for
	CodeNoRequest      check.Code = "H005" // an HTTP request does not reach the engine exactly once
	CodeHTTP           check.Code = "H006" // an HTTP request that should succeed does not
	CodeHTTPTokens     check.Code = "H007" // the token ids through HTTP are not those that the engine said
	CodeHTTPText       check.Code = "H008" // the text through HTTP is not that of the tokens
	CodeHTTPFinish     check.Code = "H009" // the finish reason or stop reason through HTTP is not the engine's
	CodeEvents         check.Code = "H010" // a stream is not framed as server-sent events, or does not end once
	CodeStreamed       check.Code = "H011" // an answer differs between streamed and whole
	CodeHTTPUsage      check.Code = "H012" // the usage is missing, or counts other tokens
	CodeNoAbort        check.Code = "H013" // a request that nobody waits for any more is not aborted
	CodeNoCall         check.Code = "H014" // an HTTP route does not make the utility call that it stands for
	CodeHangs          check.Code = "H015" // no answer comes
	CodeAccepted       check.Code = "H016" // a bad request is not refused
	CodeHealth         check.Code = "H017" // what the frontend says of its health or its models is not so
	CodeEnded          check.Code = "H018" // the frontend ended, or accepts no connection any more
	CodeTransfer       check.Code = "H019" // kv_transfer_params through HTTP are not the engine's
)

// Assertions of the frontend suite.
const (
	Handshake   check.Assertion = "handshake"
	Requests    check.Assertion = "requests"
	Completions check.Assertion = "completions"
	Chat        check.Assertion = "chat"
	Streaming   check.Assertion = "streaming"
	Usage       check.Assertion = "usage"
	Finish      check.Assertion = "finish"
	Aborts      check.Assertion = "aborts"
	Utilities   check.Assertion = "utilities"
	LoRA        check.Assertion = "lora"
	Concurrency check.Assertion = "concurrency"
	Errors      check.Assertion = "errors"
	Transfer    check.Assertion = "transfer"
	RealEngine  check.Assertion = "real-engine"
	Health      check.Assertion = "health"
)

// judge asks a frontend for what an assertion is about.
type judge = func(*frontendCase)

// Checks are those of the frontend suite, in their order. The last one takes the engine away.
func Checks() []check.Check { return check.List(check.SuiteFrontend, assertions, run) }

var assertions = []check.Entry[judge]{
	{Name: Handshake, Titles: check.Titles{
		CodeNoRegistration: "the frontend does not serve after the engine registered",
		CodeInit:           "the answer to HELLO is not that of the line",
		CodeMessage:        "a message to the engine is not exactly of the line",
	}, Judge: (*frontendCase).handshake},
	{Name: Requests, Titles: check.Titles{
		CodeCarried:   "a request does not carry what HTTP asked for",
		CodeNoRequest: "an HTTP request does not reach the engine exactly once",
	}, Judge: (*frontendCase).requests},
	{Name: Completions, Titles: check.Titles{
		CodeHTTP:       "an HTTP request that should succeed does not",
		CodeHTTPTokens: "the token ids through HTTP are not those of the engine",
		CodeHTTPText:   "the text through HTTP is not that of the tokens",
	}, Judge: (*frontendCase).completions},
	{Name: Chat, Judge: (*frontendCase).chat},
	{Name: Streaming, Titles: check.Titles{
		CodeEvents:   "a stream is not framed as server-sent events",
		CodeStreamed: "an answer differs between streamed and whole",
	}, Judge: (*frontendCase).streaming},
	{Name: Usage, Titles: check.Titles{
		CodeHTTPUsage: "the usage is missing or counts other tokens",
	}, Judge: (*frontendCase).usage},
	{Name: Finish, Titles: check.Titles{
		CodeHTTPFinish: "the finish reason through HTTP is not the engine's",
	}, Judge: (*frontendCase).finishReasons},
	{Name: Aborts, Titles: check.Titles{
		CodeNoAbort: "an abandoned request is not aborted",
	}, Judge: (*frontendCase).aborts},
	{Name: Utilities, Titles: check.Titles{
		CodeNoCall: "an HTTP route does not make its utility call",
	}, Judge: (*frontendCase).utilities},
	{Name: LoRA, Judge: (*frontendCase).lora},
	{Name: Concurrency, Judge: (*frontendCase).concurrency},
	{Name: Errors, Titles: check.Titles{
		CodeHangs:    "no answer comes",
		CodeAccepted: "a bad request is not refused",
		CodeEnded:    "the frontend ended",
	}, Judge: (*frontendCase).errors},
	{Name: Transfer, Titles: check.Titles{
		CodeTransfer: "kv_transfer_params through HTTP are not the engine's",
	}, Judge: (*frontendCase).transfers},
	{Name: RealEngine, Judge: (*frontendCase).realEngine},
	{Name: Health, Titles: check.Titles{
		CodeHealth: "health or model routes contradict what is served",
	}, Judge: (*frontendCase).health},
}

// Cases are the cases of a line under the frontend suite. The player
// says there what a golden of the line holds, as far as one has tokens.
func Cases(line compat.Line, mf *manifest.Manifest, assertions []check.Assertion, gating bool) []check.Case {
	c := check.Case{Line: line, Suite: check.SuiteFrontend, Gating: gating}
	if g, ok := spokenGolden(mf.ForLine(line.Name)); ok {
		c.Golden, c.Entry = g, fmt.Sprintf("%s:%d", mf.File, g.Pos)
	}
	var cases []check.Case
	for _, a := range check.Names(Checks()) {
		if len(assertions) > 0 && !slices.Contains(assertions, a) {
			continue
		}
		one := c
		one.Assertion = a
		if a == RealEngine {
			one.Golden, one.Entry = manifest.Golden{}, ""
			if g, ok := recordedGolden(mf.ForLine(line.Name)); ok {
				one.Golden, one.Entry = g, fmt.Sprintf("%s:%d", mf.File, g.Pos)
			} else {
				one.Skip = "the line has no golden with the raw messages of a real engine"
			}
		}
		cases = append(cases, one)
	}
	return cases
}

// spokenGolden is the golden whose streams the player says: that of the odd cases if
// there is one.
func spokenGolden(goldens []manifest.Golden) (manifest.Golden, bool) {
	fidelity := slices.DeleteFunc(slices.Clone(goldens), func(g manifest.Golden) bool { return g.Role != manifest.Fidelity })
	if len(fidelity) == 0 {
		return manifest.Golden{}, false
	}
	return fidelity[max(slices.IndexFunc(fidelity, func(g manifest.Golden) bool { return g.ID == "edge-s1" }), 0)], true
}

// run judges the frontend of the line. The cases of a line share one frontend and one player behind it.
func run(ctx context.Context, a check.Entry[judge], e *check.Env, g *check.Golden, c check.Case) (f check.Outcome, err error) {
	s, err := openedFrontend(ctx, e, g, c)
	if err != nil {
		return f, err
	}
	if at := s.lostAt; at != "" {
		f.Note = "not judged: the frontend does not serve, see " + at
		return f, nil
	}
	k := &frontendCase{frontendSession: s, Outcome: &f, golden: g, limit: e.Timeouts.Idle, name: string(a.Name), whole: ctx}
	var stop context.CancelCauseFunc
	k.ctx, stop = context.WithCancelCause(ctx)
	defer stop(nil)
	defer context.AfterFunc(s.ctx, func() { stop(context.Cause(s.ctx)) })()
	if s.refused != nil {
		k.refusal() // whichever case comes first tells why
	} else {
		a.Judge(k)
	}
	k.judgeMessages()
	if s.over && s.lostAt == "" {
		s.lostAt = k.name
	}
	return f, context.Cause(ctx) // the case's deadline, or the end of the run
}

// judgeMessages reports what is wrong with the messages that were not looked at
// yet, before all else, as the rest may follow from it. The same place is told once a
// session: every request repeats it.
func (k *frontendCase) judgeMessages() {
	var wrong []check.Failure
	for _, h := range k.ledger.since(k.judged, func(*heard) bool { return true }) {
		k.judged = h.number
		k.Asserted++
		for _, m := range h.mismatches {
			if key := m.Path + m.Expected; !k.told[key] {
				k.told[key] = true
				wrong = append(wrong, check.Failed(CodeMessage, "message %d, %s: %v", h.number, h.subject(), m).
					Within(h.number, m.Path).Compared(m.Expected, m.Actual))
			}
		}
	}
	if text := k.ledger.overflow(); text != "" && !k.told[text] {
		k.told[text] = true
		wrong = append(wrong, check.Failed(CodeMessage, "%s", text))
	}
	k.Failures = append(wrong, k.Failures...)
}

// subject says in words what the message is.
func (h *heard) subject() string {
	switch h.kind {
	case protocol.TypeAdd:
		return fmt.Sprintf("the request %q", h.request.ID)
	case protocol.TypeAbort:
		return fmt.Sprintf("the abort of %q", h.aborted)
	case protocol.TypeUtility:
		return fmt.Sprintf("the call of %q", h.call.Method)
	}
	return "of an unknown kind"
}

// refusal returns why the frontend has never served, whatever the case was to be.
func (k *frontendCase) refusal() {
	k.Asserted++
	k.lostAt = k.name
	did := "did not answer HELLO on " + k.frontend.Handshake
	if init := k.ledger.initial(); init != nil {
		k.checkInit(init)
		did = "does not serve after an engine of line " + k.line.Name + " has registered"
		if hint := requiredElsewhere(k.codec.Profile()); hint != "" {
			did += " (" + hint + ")"
		}
	}
	k.fail(check.Failed(CodeNoRegistration, "the frontend %s: %v", did, k.refused).
		Within(-1, "EngineCoreReadyResponse").Compared("GET /health: 200", check.FirstLine(k.refused)))
}

// requiredElsewhere names what other lines require of a registration that this line
// does not have: a frontend of theirs refuses its engines.
func requiredElsewhere(own *protocol.Profile) string {
	var order []string
	lines := map[string][]string{}
	for _, line := range protocol.Lines() {
		other, err := protocol.LoadProfile(line)
		if err != nil {
			continue
		}
		var missing []string
		for _, f := range other.Structs["EngineCoreReadyResponse"].Fields {
			if f.Required && own.Structs["EngineCoreReadyResponse"].Index(f.Name) < 0 {
				missing = append(missing, f.Name)
			}
		}
		if key := strings.Join(missing, ", "); key != "" {
			if lines[key] == nil {
				order = append(order, key)
			}
			lines[key] = append(lines[key], line)
		}
	}
	var hints []string
	for _, key := range order {
		hints = append(hints, fmt.Sprintf("it registers without %s, which frontends of %s require", key, protocol.LineRanges(lines[key])))
	}
	return strings.Join(hints, "; ")
}

// openedFrontend returns the session of a case's line, and opens it for the first
// one. Where the engine was taken away, a frontend that is started by a command is
// started again.
func openedFrontend(ctx context.Context, e *check.Env, g *check.Golden, c check.Case) (*frontendSession, error) {
	if s, ok := e.Kept.(*frontendSession); ok && s.line.Name == c.Line.Name && (!s.over || e.Frontend.Command == "") {
		return s, nil
	}
	e.Keep(nil)
	if e.Frontend == nil {
		return nil, check.WithCode(check.CodeFrontend, errors.New("no frontend under test: set Runner.Frontend"))
	}
	s, err := openFrontend(ctx, e, g, c.Line)
	if err != nil {
		e.Kept = &frontendSession{line: c.Line, lostAt: string(c.Assertion)}
		return nil, check.Infra(check.WithCode(check.CodeFrontend, fmt.Errorf("frontend: %w", err)))
	}
	e.Kept = s
	if s.version != "" {
		e.Versions[c.Line.Name] = s.version
	}
	return s, nil
}
