package live

import (
	"context"
	"fmt"
	"unicode/utf8"

	"github.com/vllm-vcr/conformance/internal/base/process"
	"github.com/vllm-vcr/conformance/internal/base/safetext"
	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/wire/pack"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/internal/wire/pytype"
)

// checkHandshake judges how the engine registered. That HELLO, a registration and
// READY came, each once, is known by now; what is left is what a Python frontend
// demands besides (vllm/v1/engine/utils.py wait_for_engine_startup): all three keys,
// and an engine on another machine, as it looks from there, is headless.
func (l *live) checkHandshake() error {
	if err := l.checkStatuses(); err != nil {
		return err
	}
	l.checkIdentity()
	return l.barrier()
}

func (l *live) checkStatuses() error {
	e := l.s.Engine
	for i, name := range []string{"HELLO", "READY"} {
		l.f.Asserted++
		shape, err := check.ShapeOf(e.Statuses[i])
		if err != nil {
			return err
		}
		for _, key := range []string{"status", "local", "headless"} {
			if _, ok := shape[key]; !ok {
				l.f.Fail(check.Failed(CodeEngineHello, "%s has no key %q: a Python frontend ends at it", name, key).Within(-1, name+"."+key).Compared("a value", "missing"))
			}
		}
		status, err := protocol.DecodeStatus(e.Statuses[i])
		if err != nil {
			return err
		}
		if status.Local || shape["headless"] == pack.Bool && !status.Headless {
			l.f.Fail(check.Failed(CodeEngineHello, "%s says local = %v, headless = %v: an engine that a frontend did not start is headless, and not local", name, status.Local, status.Headless).
				Within(-1, name).Compared("local = false, headless = true", fmt.Sprintf("local = %v, headless = %v", status.Local, status.Headless)))
		}
	}
	return nil
}

// checkIdentity: the engine is number 0 of one.
func (l *live) checkIdentity() {
	e := l.s.Engine
	l.f.Asserted++
	if e.Index != 0 {
		l.f.Fail(check.Failed(CodeEngineIdentity, "the identity %x names engine %d, there is only engine 0", e.Identity, e.Index).Compared(0, e.Index))
	}
	if e.Ready.DataParallelRank != e.Index {
		l.f.Fail(check.Failed(CodeEngineIdentity, "it registers as data_parallel_rank %d, its identity names engine %d", e.Ready.DataParallelRank, e.Index).
			Within(-1, check.ReadyPath("data_parallel_rank")).Compared(e.Index, e.Ready.DataParallelRank))
	}
	if said := e.Ready.VLLMVersion; protocol.LineOf(said) != l.codec.Line() {
		l.f.AddNote(fmt.Sprintf("it says that it is vLLM %q", said))
	}
}

// checkSchema compares what the engine registered with with what the line declares
// and, where the line has a golden, with what the captured engine did.
func (l *live) checkSchema() error {
	g := l.golden
	got, err := check.ShapeOf(l.s.Engine.RawReady)
	if err != nil {
		l.f.Asserted++
		l.f.Fail(check.Failed(check.CodeReadyUnreadable, "the registration is no msgpack map with text keys: %v", err))
		return nil
	}
	var want map[string]pack.Kind
	if g.Trace != nil {
		want = check.CapturedShape(l.f, g)
	}
	if g.Location == "" {
		g.Location = "line " + l.line.Name
	}
	if check.CompareShapes(l.f, g, want, got); want == nil {
		l.f.Note = "" // of what no captured engine sent
	}
	for _, field := range l.codec.Profile().Structs["EngineCoreReadyResponse"].Fields {
		kind, there := got[field.Name]
		allowed := declaredKinds(field.Type)
		if !there || len(allowed) == 0 {
			continue
		}
		l.f.Asserted++
		if !allowed[kind] {
			l.f.Fail(check.Failed(CodeEngineReadyKind, "registration: %s is %v, line %s declares %s", field.Name, kind, l.codec.Line(), field.Type).
				Within(-1, check.ReadyPath(field.Name)).Compared(field.Type, kind))
		}
	}
	l.f.Asserted++
	l.impossible = append(l.impossible, l.ready...)
	return nil
}

// declaredKinds are the kinds of value that a Python annotation allows, none when it
// is not one of those that registrations have.
func declaredKinds(annotation string) map[pack.Kind]bool {
	kinds := map[pack.Kind]bool{}
	for _, option := range pytype.Parse(annotation).Options() {
		switch option.String() {
		case "int":
			kinds[pack.Int] = true
		case "float":
			kinds[pack.Float], kinds[pack.Int] = true, true
		case "str":
			kinds[pack.String] = true
		case "bool":
			kinds[pack.Bool] = true
		case "None":
			kinds[pack.Nil] = true
		case "KVEventsConfig":
			kinds[pack.Map] = true
		default:
			return nil
		}
	}
	return kinds
}

// checkStatistics runs four requests and compares the gauges afterwards. Then it aborts
// a request that runs alone: a real engine makes one more step, which reports that
// nothing runs (vllm/v1/core/sched/scheduler.py has_finished_requests). Without it an
// idle engine looks busy to routers and autoscalers until the next request.
func (l *live) checkStatistics() error {
	before := l.statsSeen
	if err := l.askMany(4, func(i int) (prompt, tokens int) { return 8 + i, 8 }); err != nil {
		return err
	}
	if l.statsSeen == before {
		l.f.Asserted = 0
		l.f.AddNote("the engine sends no scheduler_stats")
		return nil
	}
	if l.checkGauges("all requests have ended"); l.gauges != (gauges{}) {
		return nil
	}
	hit, err := l.tryAborts(l.abortLone)
	if err != nil {
		return err
	}
	if !hit {
		l.f.AddNote("every request had ended before the engine read its abort, so the gauges after an abort were not judged")
		return nil
	}
	// The step in which the abort came may take a while, and the next one follows it.
	for l.gauges != (gauges{}) {
		if err := l.receive(); check.CodeOf(err) == check.CodeSilence && l.ctx.Err() == nil {
			break
		} else if err != nil {
			return err
		}
	}
	l.checkGauges("the only request was aborted")
	return nil
}

// abortLone aborts the only request, and reports whether it was open when the engine read its abort.
func (l *live) abortLone() (hit bool, err error) {
	victim, err := l.askLong()
	if err != nil {
		return false, err
	}
	err = l.abort(victim)
	return victim.finish == protocol.Unfinished, err
}

// checkGauges compares the gauges that came last with those of an idle engine.
func (l *live) checkGauges(why string) {
	l.f.Asserted++
	if l.gauges != (gauges{}) {
		l.f.Fail(check.Failed(CodeGauges, "%s, and scheduler_stats say %d running, %d waiting, KV cache usage %v",
			why, l.gauges.running, l.gauges.waiting, l.gauges.usage).
			Within(l.messages, "EngineCoreOutputs.scheduler_stats").Compared("0 running, 0 waiting, 0 used", fmt.Sprint(l.gauges)))
	}
}

// checkShutdown ends the engine while a request is open, by SIGTERM if it is a
// process, and waits for its end.
func (l *live) checkShutdown() error {
	owner := l.s.Owner()
	switch {
	case owner.Remote:
		l.f.AddNote("somebody else runs the engine")
		return nil
	case l.env.KeepAlive != nil:
		l.f.AddNote("the engine is kept alive")
		return nil
	}
	if _, err := l.askLong(); err != nil {
		return err
	}
	owner.Lost = errShutDown
	owner.Cancel(context.Canceled)
	<-owner.Done
	l.f.Asserted++
	l.checkExit()
	return nil
}

var errShutDown = check.WithCode(check.CodeEngineEnded, fmt.Errorf("the shutdown case has ended it"))

func (l *live) checkExit() {
	ended, ok := l.s.Subject.(interface {
		End() (*process.ExitError, bool)
	})
	if !ok {
		return
	}
	exit, killed := ended.End()
	switch {
	case exit == nil:
		l.f.Fail(check.Failed(CodeShutdown, "the engine has not ended, not even by SIGKILL"))
	case killed:
		l.f.Fail(check.Failed(CodeShutdown, "the engine did not end within the grace after SIGTERM and was killed: %s\n%s", check.FirstLine(exit), safetext.Block(exit.Tail)).
			Compared("an end within the grace", exit.Status))
	default:
		l.f.AddNote("ended by SIGTERM: " + exit.Status)
	}
}

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
	for _, call := range safeCalls {
		declared, known := l.codec.Profile().Utilities[call.method]
		if !known {
			continue
		}
		answer, err := l.call(call.method, call.args...)
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
