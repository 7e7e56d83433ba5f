package live

import (
	_ "embed"
	"fmt"

	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/wire/pack"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// Codes of what the check reports.
const (
	CodeEngineHello    check.Code = "E001" // HELLO or READY lacks a key or a value that a frontend requires of an engine that somebody else started
	CodeEngineIdentity check.Code = "E002" // the engine has another identity, index or rank than it was started with
	CodeEngineOrder    check.Code = "E003" // the handshake came in another order, or with other messages, than the protocol has
)

//go:embed handshake.md
var handshakeCodes string

var handshake = check.Check{Name: Handshake, Codes: handshakeCodes, Levels: []check.Level{check.LevelCore}, Run: judged((*live).checkHandshake)}

// checkHandshake judges how the engine registered. That HELLO, a registration and
// READY came, each once, is known by now (an engine that was given addresses sends the registration only); what is left is what a Python frontend
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
	for i := range e.Statuses {
		name := []string{"HELLO", "READY"}[i]
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
