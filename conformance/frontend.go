package conformance

import (
	"context"
	"fmt"
	"slices"

	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/manifest"
)

// What is wrong with a frontend under test.
const (
	CodeNoRegistration Code = "H001" // the frontend does not serve after the engine of the line registered
	CodeInit           Code = "H002" // its answer to HELLO is not that of the line
	CodeMessage        Code = "H003" // a message to the engine is not exactly of the line
	CodeCarried        Code = "H004" // a request does not carry what HTTP asked for
	CodeNoRequest      Code = "H005" // what HTTP asked for did not reach the engine, or not once
	CodeHTTP           Code = "H006" // an HTTP request that should succeed does not
	CodeHTTPTokens     Code = "H007" // the token ids through HTTP are not those that the engine said
	CodeHTTPText       Code = "H008" // the text through HTTP is not that of the tokens
	CodeHTTPFinish     Code = "H009" // the finish reason or stop reason through HTTP is not the engine's
	CodeEvents         Code = "H010" // a stream is not framed as server-sent events, or does not end once
	CodeStreamed       Code = "H011" // an answer differs between streamed and whole
	CodeHTTPUsage      Code = "H012" // the usage is missing, or counts other tokens
	CodeNoAbort        Code = "H013" // a request that nobody waits for any more is not aborted
	CodeNoCall         Code = "H014" // an HTTP route does not make the utility call that it stands for
	CodeHangs          Code = "H015" // no answer comes
	CodeAccepted       Code = "H016" // a bad request is not refused
	CodeHealth         Code = "H017" // what the frontend says of its health or its models is not so
)

// Assertions of the frontend suite.
const (
	FrontendHandshake   Assertion = "handshake"
	FrontendRequests    Assertion = "requests"
	FrontendCompletions Assertion = "completions"
	FrontendChat        Assertion = "chat"
	FrontendStreaming   Assertion = "streaming"
	FrontendUsage       Assertion = "usage"
	FrontendFinish      Assertion = "finish"
	FrontendAborts      Assertion = "aborts"
	FrontendUtilities   Assertion = "utilities"
	FrontendLoRA        Assertion = "lora"
	FrontendConcurrency Assertion = "concurrency"
	FrontendErrors      Assertion = "errors"
	FrontendHealth      Assertion = "health"
)

// FrontendAssertions are those of the frontend suite, in their order. The last one
// takes the engine away.
func FrontendAssertions() []Assertion {
	return []Assertion{
		FrontendHandshake, FrontendRequests, FrontendCompletions, FrontendChat, FrontendStreaming, FrontendUsage,
		FrontendFinish, FrontendAborts, FrontendUtilities, FrontendLoRA, FrontendConcurrency, FrontendErrors, FrontendHealth,
	}
}

// frontendSuiteCases are the cases of a line under the frontend suite. The player
// says there what a golden of the line holds, as far as one has tokens.
func frontendSuiteCases(line compat.Line, registry *manifest.Manifest, assertions []Assertion, gating bool) []Case {
	c := Case{Line: line, Suite: SuiteFrontend, Gating: gating}
	if g, ok := spokenGolden(registry.ForLine(line.Name)); ok {
		c.Golden, c.Entry = g, fmt.Sprintf("%s:%d", registry.File, g.Pos)
	}
	var cases []Case
	for _, a := range FrontendAssertions() {
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

// assertFrontend makes one assertion about the frontend under test. The cases of a
// line share one frontend and one player behind it.
func (r *Runner) assertFrontend(ctx context.Context, g *check.Golden, c Case) (f check.Outcome, err error) {
	s, err := r.frontendSession(ctx, g, c)
	if err != nil {
		return f, err
	}
	if at := s.lostAt; at != "" {
		f.Note = "not judged: the frontend does not serve, see " + at
		return f, nil
	}
	check, known := map[Assertion]func(*frontendCase){
		FrontendHandshake: (*frontendCase).handshake, FrontendRequests: (*frontendCase).requests,
		FrontendCompletions: (*frontendCase).completions, FrontendChat: (*frontendCase).chat,
		FrontendStreaming: (*frontendCase).streaming, FrontendUsage: (*frontendCase).usage,
		FrontendFinish: (*frontendCase).finishReasons, FrontendAborts: (*frontendCase).aborts,
		FrontendUtilities: (*frontendCase).utilities, FrontendLoRA: (*frontendCase).lora,
		FrontendConcurrency: (*frontendCase).concurrency, FrontendErrors: (*frontendCase).errors,
		FrontendHealth: (*frontendCase).health,
	}[c.Assertion]
	if !known {
		return f, fmt.Errorf("unknown assertion %q of the frontend suite", c.Assertion)
	}
	k := &frontendCase{frontendSession: s, Outcome: &f, limit: r.Timeouts.Idle, name: string(c.Assertion), whole: ctx}
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
