package message

import (
	"encoding/hex"
	"fmt"
	"sort"
	"strings"

	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/wire/pack"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/manifest"
)

// CapturedShape reads what the captured engine registered with. The shape is nil
// when the golden does not tell.
func CapturedShape(f *check.Outcome, g *check.Golden) map[string]pack.Kind {
	text := g.Trace.Meta.ReadyResponseHex
	if text == nil {
		if g.Registered.Role == manifest.Schema {
			f.Fail(check.Failed(check.CodeNoReady, "%s: line 1: meta.ready_response_hex is missing: a golden of role schema has nothing else to compare with", g.Location))
			return nil
		}
		f.Note = "the golden has no ready_response_hex"
		return nil
	}
	raw, err := hex.DecodeString(*text)
	if err != nil {
		f.Fail(check.Failed(check.CodeBadReady, "%s: line 1: meta.ready_response_hex: %v", g.Location, err))
		return nil
	}
	shape, err := ShapeOf(raw)
	if err != nil {
		f.Fail(check.Failed(check.CodeBadReady, "%s: line 1: meta.ready_response_hex is not a msgpack map with text keys: %v", g.Location, err))
		return nil
	}
	return shape
}

func CompareShapes(f *check.Outcome, g *check.Golden, want, got map[string]pack.Kind) {
	declared := g.Codec.Profile().Structs["EngineCoreReadyResponse"]
	for _, path := range sortedPaths(want) {
		f.Asserted++
		kind, ok := got[path]
		switch {
		case !ok && underNil(got, path): // the kind of what it is nested in decides
		case !ok:
			f.Fail(check.Failed(check.CodeReadyMissing, "%s: ready response: %s is missing, the captured engine sent %v", g.Location, path, want[path]).
				Within(-1, ReadyPath(path)).Compared(want[path], "missing"))
		case !sameKind(declared, path, want[path], kind):
			f.Fail(check.Failed(check.CodeReadyKind, "%s: ready response: %s is %v, the captured engine sent %v", g.Location, path, kind, want[path]).
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
				f.Fail(check.Failed(check.CodeReadyRequired, "%s: ready response: %s is missing, and the line's frontend requires it (%s)", g.Location, field.Name, declared.Module).
					Within(-1, ReadyPath(field.Name)).Compared(field.Type, "missing"))
			}
		}
	}
	var extra []string
	for _, path := range sortedPaths(got) {
		if _, ok := want[path]; !ok {
			extra = append(extra, path)
		}
	}
	if len(extra) > 0 {
		f.Note = "not sent by the captured engine: " + strings.Join(extra, ", ")
	}
}

func ReadyPath(key string) string { return "EngineCoreReadyResponse." + key }

// sameKind tells whether a value of one kind can stand for one of another: ints
// for floats, and nil on either side where the field is declared optional.
func sameKind(declared protocol.Struct, path string, want, got pack.Kind) bool {
	if want == got || want == pack.Float && got == pack.Int {
		return true
	}
	name, _, nested := strings.Cut(path, ".")
	i := declared.Index(name)
	optional := i >= 0 && !nested && strings.Contains(declared.Fields[i].Type, "None")
	return optional && (want == pack.Nil || got == pack.Nil)
}

// underNil tells whether what a path is nested in is nil.
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
	cur := pack.NewCursor(message)
	if err := addShape(shape, "", &cur); err != nil {
		return nil, err
	}
	return shape, nil
}

func addShape(shape map[string]pack.Kind, prefix string, cur *pack.Cursor) error {
	n, err := cur.MapLen()
	if err != nil {
		return err
	}
	for range n {
		key, err := cur.StrString()
		if err != nil {
			return fmt.Errorf("key of %q: %w", prefix, err)
		}
		path := prefix + key
		shape[path] = cur.Kind()
		if cur.Kind() == pack.Map {
			err = addShape(shape, path+".", cur)
		} else {
			err = cur.Skip()
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func sortedPaths(shape map[string]pack.Kind) []string {
	paths := make([]string, 0, len(shape))
	for path := range shape {
		paths = append(paths, path)
	}
	sort.Strings(paths)
	return paths
}
