package check

import (
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/vllm-vcr/conformance/internal/base/lazyregexp"
	"github.com/vllm-vcr/conformance/internal/wire/pack"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/manifest"
)

// CapturedShape reads what the captured engine registered with. The shape is nil
// when the golden does not tell.
func CapturedShape(f *Outcome, g *Golden) map[string]pack.Kind {
	text := g.Trace.Meta.ReadyResponseHex
	if text == nil {
		if g.Registered.Role == manifest.Schema {
			f.Fail(Failed(CodeNoReady, "%s: line 1: meta.ready_response_hex is missing: a golden of role schema has nothing else to compare with", g.Location))
			return nil
		}
		f.Note = "the golden has no ready_response_hex"
		return nil
	}
	raw, err := hex.DecodeString(*text)
	if err != nil {
		f.Fail(Failed(CodeBadReady, "%s: line 1: meta.ready_response_hex: %v", g.Location, err))
		return nil
	}
	shape, err := ShapeOf(raw)
	if err != nil {
		f.Fail(Failed(CodeBadReady, "%s: line 1: meta.ready_response_hex is not a msgpack map with text keys: %v", g.Location, err))
		return nil
	}
	return shape
}

func CompareShapes(f *Outcome, g *Golden, want, got map[string]pack.Kind) {
	declared := g.Codec.Profile().Structs["EngineCoreReadyResponse"]
	for _, path := range slices.Sorted(maps.Keys(want)) {
		f.Asserted++
		kind, ok := got[path]
		switch {
		case !ok && underNil(got, path): // the kind of what it is nested in decides
		case !ok:
			f.Fail(Failed(CodeReadyMissing, "%s: ready response: %s is missing, but the captured engine sent it (%v)", g.Location, path, want[path]).
				Within(-1, ReadyPath(path)).Compared(want[path], "missing"))
		case !sameKind(declared, path, want[path], kind):
			f.Fail(Failed(CodeReadyKind, "%s: ready response: %s is %v, but the captured engine sent %v", g.Location, path, kind, want[path]).
				Within(-1, ReadyPath(path)).Compared(want[path], kind))
		}
	}
	for _, field := range declared.Fields {
		if !field.Required {
			continue
		}
		f.Asserted++
		if _, ok := got[field.Name]; !ok {
			if _, captured := want[field.Name]; !captured {
				f.Fail(Failed(CodeReadyRequired, "%s: ready response: %s is missing, and the line's frontend requires it (%s)", g.Location, field.Name, declared.Module).
					Within(-1, ReadyPath(field.Name)).Compared(field.Type, "missing"))
			}
		}
	}
	var extra []string
	for _, path := range slices.Sorted(maps.Keys(got)) {
		if _, ok := want[path]; !ok {
			extra = append(extra, path)
		}
	}
	if len(extra) > 0 {
		f.Note = "not sent by the captured engine: " + strings.Join(extra, ", ")
	}
}

func ReadyPath(key string) string { return "EngineCoreReadyResponse." + key }

// sameKind reports whether a value of one kind can stand for one of another: ints
// for floats, and nil on either side where the field is declared optional.
func sameKind(declared protocol.Struct, path string, want, got pack.Kind) bool {
	if want == got || want == pack.Float && got == pack.Int {
		return true
	}
	name, _, nested := strings.Cut(path, ".")
	i := declared.Index(name)
	optional := i >= 0 && !nested && slices.ContainsFunc(protocol.ParsePyType(declared.Fields[i].Type).Options(), protocol.PyType.IsNone)
	return optional && (want == pack.Nil || got == pack.Nil)
}

// underNil reports whether what a path is nested in is nil.
func underNil(shape map[string]pack.Kind, path string) bool {
	for at := strings.LastIndexByte(path, '.'); at >= 0; at = strings.LastIndexByte(path, '.') {
		path = path[:at]
		if kind, ok := shape[path]; ok {
			return kind == pack.Nil
		}
	}
	return false
}

// ShapeOf maps the path of every key of a msgpack map, nested maps included, to
// the kind of its value.
func ShapeOf(message []byte) (map[string]pack.Kind, error) {
	if err := pack.Validate(message); err != nil {
		return nil, err
	}
	shape := map[string]pack.Kind{}
	if err := addShape(shape, "", protocol.ViewOf(message)); err != nil {
		return nil, err
	}
	return shape, nil
}

func addShape(shape map[string]pack.Kind, prefix string, v protocol.Value) error {
	if v.Kind() != pack.Map {
		return fmt.Errorf("expected map, found %v", v.Kind())
	}
	for part := range v.Parts() {
		key := part.Key()
		if key.Kind() != pack.String {
			return fmt.Errorf("key of %q: expected str, found %v", prefix, key.Kind())
		}
		path := prefix + key.Text()
		shape[path] = part.Kind()
		if part.Kind() == pack.Map {
			if err := addShape(shape, path+".", part); err != nil {
				return err
			}
		}
	}
	return nil
}

// Describe shows a raw msgpack value in a message; one that is absent is nil.
func Describe(raw []byte) string {
	if raw == nil {
		return "nil"
	}
	return strings.TrimSpace(pack.Format(raw))
}

// Same reports whether two raw msgpack values are equal, or both are absent.
func Same(a, b []byte) bool {
	if a == nil || b == nil {
		return a == nil && b == nil
	}
	equal, err := pack.Equal(a, b)
	return err == nil && equal
}

// Window is how many ids either side of a difference a message shows.
const Window = 8

func FirstDifference[T comparable](a, b []T) int {
	n := min(len(a), len(b))
	for i := range n {
		if a[i] != b[i] {
			return i
		}
	}
	return n
}

// Around shows the values near a position, with dots where more follow.
func Around[T any](values []T, at int) string {
	from, to := max(at-Window, 0), min(at+Window+1, len(values))
	if from > to {
		from = to
	}
	s := fmt.Sprint(values[from:to])
	if from > 0 {
		s = "[…" + s[1:]
	}
	if to < len(values) {
		s = s[:len(s)-1] + "…]"
	}
	return s
}

// OutputsLayout lists where a message from an output socket is not exactly what the
// line's profile declares: fields, types, and frames that nothing refers to. The order
// of keys in a map is the engine's own: no frontend minds it.
func OutputsLayout(codec *protocol.Codec, frames [][]byte) []protocol.Mismatch {
	payload, aux := frames[0], frames[1:]
	found := codec.CheckOutputs(payload, aux...)
	if len(found) > 0 {
		return found
	}
	// Tensors refer to frames by number: the last one is of use if the message is
	// wrong without it.
	for n := len(aux); n > 0 && len(codec.CheckOutputs(payload, aux[:n-1]...)) == 0; n-- {
		found = append(found, protocol.Mismatch{
			Path: fmt.Sprintf("frames[%d]", n), Expected: "a frame that the message refers to",
			Actual: fmt.Sprintf("one of %d bytes that nothing refers to", len(aux[n-1])),
		})
	}
	return found
}

// LayoutPlace is the same for what is wrong in the same way.
func LayoutPlace(m protocol.Mismatch) string {
	return Place(m.Path) + " " + m.Expected
}

// Place is a path with [] for any element.
func Place(path string) string { return Indexes().ReplaceAllString(path, "[]") }

func LayoutProblem(what string, m protocol.Mismatch) Failure {
	return Failed(CodeLayout, "%s: %v", what, m).Compared(m.Expected, m.Actual)
}

// Indexes are those of a path.
var Indexes = lazyregexp.New(`\[\d+\]`)
