package frontendsuite

import (
	"context"
	"fmt"
	"slices"

	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/check/sut"
	"github.com/vllm-vcr/conformance/manifest"
)

// What is wrong with a frontend under test.
const (
	CodeNoRegistration check.Code = "H001" // the frontend does not serve after the engine of the line registered
	CodeInit           check.Code = "H002" // its answer to HELLO is not that of the line
	CodeMessage        check.Code = "H003" // a message to the engine is not exactly of the line
	CodeCarried        check.Code = "H004" // a request does not carry what HTTP asked for
	CodeNoRequest      check.Code = "H005" // what HTTP asked for did not reach the engine, or not once
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
	Health      check.Assertion = "health"
)

// Assertions are those of the frontend suite, in their order. The last one
// takes the engine away.
func Assertions() []check.Assertion {
	return []check.Assertion{
		Handshake, Requests, Completions, Chat, Streaming, Usage,
		Finish, Aborts, Utilities, LoRA, Concurrency, Errors, Health,
	}
}

// Cases are the cases of a line under the frontend suite. The player
// says there what a golden of the line holds, as far as one has tokens.
func Cases(line compat.Line, registry *manifest.Manifest, assertions []check.Assertion, gating bool) []check.Case {
	c := check.Case{Line: line, Suite: check.SuiteFrontend, Gating: gating}
	if g, ok := spokenGolden(registry.ForLine(line.Name)); ok {
		c.Golden, c.Entry = g, fmt.Sprintf("%s:%d", registry.File, g.Pos)
	}
	var cases []check.Case
	for _, a := range Assertions() {
		if len(assertions) == 0 || slices.Contains(assertions, a) {
			c.Assertion = a
			cases = append(cases, c)
		}
	}
	return cases
}

// spokenGolden is the golden whose streams the player says: that of the odd cases if
// there is one.
func spokenGolden(goldens []manifest.Golden) (manifest.Golden, bool) {
	fidelity := slices.DeleteFunc(slices.Clone(goldens), func(g manifest.Golden) bool { return g.Role != manifest.Fidelity })
	for _, g := range fidelity {
		if g.ID == "edge-s1" {
			return g, true
		}
	}
	if len(fidelity) == 0 {
		return manifest.Golden{}, false
	}
	return fidelity[0], true
}

// Check makes one assertion about the frontend under test. The cases of a
// line share one frontend and one player behind it.
func Check(ctx context.Context, e *sut.Env, g *check.Golden, c check.Case) (f check.Outcome, err error) {
	s, err := openedFrontend(ctx, e, g, c)
	if err != nil {
		return f, err
	}
	if at := s.lostAt; at != "" {
		f.Note = "not judged: the frontend does not serve, see " + at
		return f, nil
	}
	check, known := map[check.Assertion]func(*frontendCase){
		Handshake: (*frontendCase).handshake, Requests: (*frontendCase).requests,
		Completions: (*frontendCase).completions, Chat: (*frontendCase).chat,
		Streaming: (*frontendCase).streaming, Usage: (*frontendCase).usage,
		Finish: (*frontendCase).finishReasons, Aborts: (*frontendCase).aborts,
		Utilities: (*frontendCase).utilities, LoRA: (*frontendCase).lora,
		Concurrency: (*frontendCase).concurrency, Errors: (*frontendCase).errors,
		Health: (*frontendCase).health,
	}[c.Assertion]
	if !known {
		return f, fmt.Errorf("unknown assertion %q of the frontend suite", c.Assertion)
	}
	k := &frontendCase{frontendSession: s, Outcome: &f, limit: e.Timeouts.Idle, name: string(c.Assertion), whole: ctx}
	var stop context.CancelCauseFunc
	k.ctx, stop = context.WithCancelCause(ctx)
	defer stop(nil)
	defer context.AfterFunc(s.ctx, func() { stop(context.Cause(s.ctx)) })()
	if s.refused != nil {
		check = (*frontendCase).refusal // whichever case comes first tells why
	}
	check(k)
	k.judgeMessages()
	if s.over && s.lostAt == "" {
		s.lostAt = k.name
	}
	return f, context.Cause(ctx) // the case's deadline, or the end of the run
}
