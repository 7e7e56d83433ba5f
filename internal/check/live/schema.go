package live

import (
	_ "embed"

	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/wire/pack"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

const CodeEngineReadyKind check.Code = "E023" // a key of the registration has a value of another kind than the line declares

//go:embed schema.md
var schemaCodes string

var schema = check.Check{Name: check.Schema, Codes: schemaCodes, Levels: []check.Level{check.LevelCore}, Run: judged((*live).checkSchema)}

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
	for _, option := range protocol.ParsePyType(annotation).Options() {
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
