package conformance

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"sort"
	"strings"

	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/frontends/coreclient"
	"github.com/vllm-vcr/conformance/internal/wire/pack"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/manifest"
	"github.com/vllm-vcr/conformance/player"
)

// capturedShape reads what the captured engine registered with. The shape is nil
// when the golden does not tell.
func capturedShape(f *check.Outcome, g *check.Golden) map[string]pack.Kind {
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
	shape, err := shapeOf(raw)
	if err != nil {
		f.Fail(check.Failed(check.CodeBadReady, "%s: line 1: meta.ready_response_hex is not a msgpack map with text keys: %v", g.Location, err))
		return nil
	}
	return shape
}

func compareShapes(f *check.Outcome, g *check.Golden, want, got map[string]pack.Kind) {
	declared := g.Codec.Profile().Structs["EngineCoreReadyResponse"]
	for _, path := range sortedPaths(want) {
		f.Asserted++
		kind, ok := got[path]
		switch {
		case !ok && underNil(got, path): // the kind of what it is nested in decides
		case !ok:
			f.Fail(check.Failed(check.CodeReadyMissing, "%s: ready response: %s is missing, the captured engine sent %v", g.Location, path, want[path]).
				Within(-1, readyPath(path)).Compared(want[path], "missing"))
		case !sameKind(declared, path, want[path], kind):
			f.Fail(check.Failed(check.CodeReadyKind, "%s: ready response: %s is %v, the captured engine sent %v", g.Location, path, kind, want[path]).
				Within(-1, readyPath(path)).Compared(want[path], kind))
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
					Within(-1, readyPath(field.Name)).Compared(field.Type, "missing"))
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

func readyPath(key string) string { return "EngineCoreReadyResponse." + key }

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

// shapeOf maps the path of every key of a msgpack map, nested maps included, to
// the kind of its value.
func shapeOf(message []byte) (map[string]pack.Kind, error) {
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

// assertSchema boots a player on the golden and compares what it really registers
// with with what the captured engine did and what the line's frontend requires:
// every captured key must be there with a value of the same kind, nested keys
// included. Keys that the captured engine did not have are noted, not refused:
// frontends skip them.
func (r *Runner) assertSchema(ctx context.Context, g *check.Golden, c Case) (f check.Outcome, err error) {
	want := capturedShape(&f, g)
	if want == nil {
		return f, nil
	}
	// It registers, and plays nothing: a golden of role schema may have no tokens.
	s, err := r.boot(ctx, g.Codec, player.Options{VLLMVersion: check.PlayedVersion(c.Line), Trace: g.Trace, Source: player.Random{}})
	var refused *coreclient.RegistrationError
	if errors.As(err, &refused) && len(refused.Frames) == 1 {
		// Nobody could take it: it is for this check to say what is wrong with it.
		compareReady(&f, g, want, refused.Frames[0])
	}
	if len(f.Failures) > 0 {
		return f, nil
	}
	if err != nil {
		return f, err
	}
	defer s.close()
	compareReady(&f, g, want, s.engine.RawReady)
	s.checkRegistration(&f)
	return f, nil
}

// compareReady compares what the engine under test registered with, as it came.
func compareReady(f *check.Outcome, g *check.Golden, want map[string]pack.Kind, raw []byte) {
	got, err := shapeOf(raw)
	if err != nil {
		f.Fail(check.Failed(check.CodeReadyUnreadable, "%s: the ready response of the engine under test: %v", g.Location, err).
			Within(-1, "EngineCoreReadyResponse").Compared("a map with text keys", err))
		return
	}
	compareShapes(f, g, want, got)
}
