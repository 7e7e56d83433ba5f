package live

import (
	_ "embed"
	"errors"
	"fmt"
	"unicode/utf8"

	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/wire/pack"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// Codes of what the check reports.
const (
	CodeUtilityAnswer  check.Code = "E015" // a utility call was answered with a failure or another kind of value
	CodeUtilityUnknown check.Code = "E016" // an unknown utility method was not answered with a failure
)

//go:embed utilities.md
var utilitiesCodes string

var utilities = check.Check{Name: Utilities, Codes: utilitiesCodes, Levels: []check.Level{check.LevelUtilities}, Run: judged((*live).checkUtilities)}

// safeCall is a call of a utility method, with the arguments that frontends give.
type safeCall struct {
	method string
	args   [][]byte
	// mayFail is for what an engine has only when started with it.
	mayFail bool
}

// resetPrefixCache forgets what is cached and not in use.
var resetPrefixCache = safeCall{method: "reset_prefix_cache", args: [][]byte{pack.AppendBool(nil, false), pack.AppendBool(nil, false)}}

// safeCalls change nothing that another case sees.
var safeCalls = []safeCall{
	{method: "get_supported_tasks"},
	{method: check.LastCall},
	{method: "is_scheduler_paused"},
	resetPrefixCache,
	{method: "reset_mm_cache"},
	{method: "reset_encoder_cache"},
	{method: "get_weight_version"},
	{method: "list_loras", mayFail: true},
}

// checkUtilities makes every safe call of the line, and one that no line has.
func (l *live) checkUtilities() error {
	unanswered := 0
	for _, call := range safeCalls {
		declared, known := l.codec.Profile().Utilities[call.method]
		if !known {
			continue
		}
		answer, err := l.call(call.method, call.args...)
		if errors.Is(err, errUnanswered) && l.mute && unanswered == 0 {
			unanswered++ // another one may be
			continue
		}
		if err != nil {
			return err
		}
		l.checkAnswer(call, declared, answer)
	}
	return l.checkUnknownCall()
}

// checkAnswer compares the answer to a call with what the line declares.
func (l *live) checkAnswer(call safeCall, declared protocol.Utility, answer *protocol.UtilityOutput) {
	l.f.Asserted++
	path := "EngineCoreOutputs.utility_output"
	switch {
	case answer.Failed && call.mayFail:
		l.f.AddNote(fmt.Sprintf("%s is not available", call.method))
	case answer.Failed:
		l.fail(call.method, check.Failed(CodeUtilityAnswer, "%s: the engine answered with a failure: %q", call.method, answer.Failure).
			Within(l.messages, path+".failure_message").Compared(declared.Result, "a failure"))
	case !IsResult(declared.Result, answer.Result):
		l.fail(call.method, check.Failed(CodeUtilityAnswer, "%s: the engine answered with %s, but a frontend expects a result of type %s", call.method, check.Describe(answer.Result), declared.Result).
			Within(l.messages, path+".result").Compared(declared.Result, check.Describe(answer.Result)))
	}
}

// checkUnknownCall: the failure is answered, and the engine goes on.
func (l *live) checkUnknownCall() error {
	const unknown = "no_such_method"
	answer, err := l.call(unknown)
	if err != nil {
		return err
	}
	l.f.Asserted++
	if !answer.Failed || answer.Failure == "" {
		l.fail("", check.Failed(CodeUtilityUnknown, "%s: the engine answered with %s, but no line has this method: it has to answer with a failure message", unknown, check.Describe(answer.Result)).
			Within(l.messages, "EngineCoreOutputs.utility_output.failure_message").Compared("a message", check.Describe(answer.Result)))
	}
	if _, err := l.askAndAwait(l.prompt(5), greedy(3)); err != nil {
		return err
	}
	return l.barrier()
}

// IsResult reports whether a value is of the kind that a line's method returns. An
// engine may leave out what is nil.
func IsResult(kind protocol.ResultKind, raw []byte) bool {
	if raw == nil {
		raw = pack.AppendNil(nil)
	}
	cur := pack.NewCursor(raw)
	switch kind {
	case protocol.ResultNone:
		return cur.Nil()
	case protocol.ResultBool:
		return cur.Kind() == pack.Bool
	case protocol.ResultStr:
		s, err := cur.Str()
		return err == nil && utf8.Valid(s)
	case protocol.ResultInts:
		return isListOf(&cur, pack.Int)
	case protocol.ResultStrings:
		return isListOf(&cur, pack.String)
	case protocol.ResultList:
		return cur.Kind() == pack.Array
	}
	return true
}

func isListOf(cur *pack.Cursor, kind pack.Kind) bool {
	n, err := cur.ArrayLen()
	for ; err == nil && n > 0; n-- {
		if cur.Kind() != kind {
			return false
		}
		err = cur.Skip()
	}
	return err == nil
}
