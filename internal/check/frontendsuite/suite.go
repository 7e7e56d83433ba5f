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
	RealEngine  check.Assertion = "real-engine"
	Transfer    check.Assertion = "transfer"
	Health      check.Assertion = "health"
)

// Checks are those of the frontend suite, in their order. The last one takes the engine away, and the one before it
// has statistics sent that end a frontend which was started for engines without a connector.
var Checks = []check.Check{
	handshake,
	requests,
	completions,
	chat,
	streaming,
	usage,
	finish,
	aborts,
	utilities,
	lora,
	concurrency,
	badRequests,
	realEngine,
	transfer,
	health,
}

// Cases are the cases of a line under the frontend suite. The player
// says there what a golden of the line holds, as far as one has tokens.
func Cases(line compat.Line, mf *manifest.Manifest, assertions []check.Assertion, gating bool) []check.Case {
	c := check.Case{Line: line, Suite: check.SuiteFrontend, Gating: gating}
	if g, ok := spokenGolden(mf.ForLine(line.Name)); ok {
		c.Golden, c.Entry = g, fmt.Sprintf("%s:%d", mf.File, g.Pos)
	}
	var cases []check.Case
	for _, k := range Checks {
		a := k.Name
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

// judged makes the function of a check. The cases of a line share one frontend and one player behind it.
func judged(judge func(*frontendCase)) func(context.Context, *check.Env, *check.Golden, check.Case) (check.Outcome, error) {
	return func(ctx context.Context, e *check.Env, g *check.Golden, c check.Case) (f check.Outcome, err error) {
		s, err := openedFrontend(ctx, e, g, c)
		if err != nil {
			return f, err
		}
		if at := s.lostAt; at != "" {
			f.Note = "not judged: the frontend does not serve, see " + at
			return f, nil
		}
		k := &frontendCase{frontendSession: s, Outcome: &f, golden: g, limit: e.Timeouts.Idle, name: string(c.Assertion), whole: ctx}
		var stop context.CancelCauseFunc
		k.ctx, stop = context.WithCancelCause(ctx)
		defer stop(nil)
		defer context.AfterFunc(s.ctx, func() { stop(context.Cause(s.ctx)) })()
		if s.refused != nil {
			k.refusal() // the first case says why
		} else {
			judge(k)
		}
		k.judgeMessages()
		if s.over && s.lostAt == "" {
			s.lostAt = k.name
		}
		return f, context.Cause(ctx) // the case's deadline, or the end of the run
	}
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
	if k.frontend.Handshake == "" {
		did = fmt.Sprintf("does not serve with an engine of line %s at %s and %s", k.line.Name, k.frontend.Addresses[0], k.frontend.Addresses[1])
	}
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
