package live

import (
	"fmt"
	"strings"

	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/check/message"
	"github.com/vllm-vcr/conformance/internal/wire/pack"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// checkHandshake judges how the engine registered. That HELLO, a registration and
// READY came, each once, is known by now; what is left is what a Python frontend
// demands besides (vllm/v1/engine/utils.py wait_for_engine_startup): all three keys,
// and an engine on another machine, as it looks from there, is headless.
func (l *live) checkHandshake() error {
	e := l.s.Engine
	for i, name := range []string{"HELLO", "READY"} {
		l.f.Asserted++
		shape, err := message.ShapeOf(e.Statuses[i])
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
	l.checkIdentity()
	return l.barrier()
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
			Within(-1, message.ReadyPath("data_parallel_rank")).Compared(e.Index, e.Ready.DataParallelRank))
	}
	if said := e.Ready.VLLMVersion; protocol.LineOf(said) != l.codec.Line() {
		l.f.AddNote(fmt.Sprintf("it says that it is vLLM %q", said))
	}
}

// checkSchema compares what the engine registered with with what the line declares
// and, where the line has a golden, with what the captured engine did.
func (l *live) checkSchema(g *check.Golden) error {
	got, err := message.ShapeOf(l.s.Engine.RawReady)
	if err != nil {
		l.f.Asserted++
		l.f.Fail(check.Failed(check.CodeReadyUnreadable, "the registration is no msgpack map with text keys: %v", err))
		return nil
	}
	var want map[string]pack.Kind
	if g.Trace != nil {
		want = message.CapturedShape(l.f, g)
	}
	if g.Location == "" {
		g.Location = "line " + l.line.Name
	}
	if message.CompareShapes(l.f, g, want, got); want == nil {
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
				Within(-1, message.ReadyPath(field.Name)).Compared(field.Type, kind))
		}
	}
	return nil
}

// declaredKinds are the kinds of value that a Python annotation allows, none when it
// is not one of those that registrations have.
func declaredKinds(annotation string) map[pack.Kind]bool {
	kinds := map[pack.Kind]bool{}
	for part := range strings.SplitSeq(annotation, "|") {
		switch part = strings.TrimSpace(part); part {
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
