package selftest

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/wire/pack"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/manifest"
	"github.com/vllm-vcr/conformance/trace"
)

// Proven lists, for each line of the configuration, the fields in which a fault changes a value so that a check must turn
// red: "EngineCoreOutput.finish_reason". It is found out by what the faults do to the messages of the line's golden of role
// wire; nothing is played, which is for [Run]. A line without goldens to play faults in has none.
func Proven(ctx context.Context, cfg Config) (map[string][]string, error) {
	cfg.Store = &kept{Store: cfg.Store, known: map[string]stored{}}
	st := &stage{cfg: &cfg, known: map[string]*scene{}}
	proven := map[string][]string{}
	for _, name := range cfg.Lines {
		line, known := cfg.Matrix.ByName(name)
		if !known || len(cfg.goldens(line)) == 0 || len(cfg.ofRole(line, manifest.Wire)) == 0 {
			continue
		}
		tasks, err := st.tasks(ctx, line, cfg.otherLine(line))
		if err != nil {
			return nil, fmt.Errorf("self-test of line %s: %w", name, err)
		}
		codec, err := check.CodecFor(line)
		if err != nil {
			return nil, err
		}
		framed := tasks[0].scene.framed.stored
		_, messages, err := check.ReadFrames(framed.data, framed.location)
		if err != nil {
			return nil, err
		}
		changed := map[string]bool{}
		look := fieldFinder{codec: codec, names: fieldNames(codec)}
		for _, t := range tasks {
			if t.lacks == "" && len(t.fault.red) > 0 && t.fault.wire != nil {
				look.changes(t.fault.wire(t.scene.during(true)), messages, changed)
			}
		}
		proven[name] = slices.Sorted(maps.Keys(changed))
	}
	return proven, nil
}

// fieldNames are the names of all fields of a line.
func fieldNames(codec *protocol.Codec) map[*protocol.Field]string {
	names := map[*protocol.Field]string{}
	for _, d := range codec.Declared() {
		names[d.Field] = d.Struct + "." + d.Name
	}
	return names
}

// fieldFinder finds the fields in which two messages differ.
type fieldFinder struct {
	codec   *protocol.Codec
	names   map[*protocol.Field]string
	message protocol.View
}

// mostOfAFault is how many fields a fault may change to prove something of each: two change places. One that moves a whole row
// proves that of none of them.
const mostOfAFault = 2

// changes notes the fields that a tamper changes in the messages of an engine, up to the first of them.
func (l *fieldFinder) changes(t tamper, messages []trace.Message, changed map[string]bool) {
	for i := range messages {
		m := &messages[i]
		to, known := map[string]socket{"handshake": handshake, "input": input, "output": output}[m.Channel]
		if m.Note != "" || !known || m.Direction != trace.EngineToFrontend {
			continue
		}
		out, err := t(message{to, slices.Clone(m.Frames)})
		if err != nil || len(out) != 1 || len(out[0].frames) == 0 {
			return // the engine ends, or says more or less: no field
		}
		if slices.EqualFunc(out[0].frames, m.Frames, bytes.Equal) {
			continue
		}
		if to != handshake {
			kind := protocol.KindOutputs
			if to == input {
				kind = protocol.KindReady
			}
			found := map[string]bool{}
			if l.differing(kind, m.Frames[0], out[0].frames[0], found); len(found) <= mostOfAFault {
				maps.Copy(changed, found)
			}
		}
		return
	}
}

// differing notes the fields that have other values in a message than in the one it was made of.
func (l *fieldFinder) differing(kind protocol.MessageKind, was, is []byte, changed map[string]bool) {
	differences, err := pack.Diff(kind.Name, was, is, pack.DiffOptions{})
	if err != nil {
		return // it is no message any more
	}
	root := l.codec.Read(&l.message, kind, was)
	for _, d := range differences {
		var inside protocol.Value // the innermost field that the place is in
		root.Walk(func(v protocol.Value) bool {
			if d.WantOffset < v.Offset() || d.WantOffset >= v.Offset()+len(v.Bytes()) {
				return false
			}
			if v.Declared() != nil {
				inside = v
			}
			return true
		})
		// A struct in a list that is longer or shorter is no other value of a field.
		if f := inside.Declared(); f != nil && (inside.Offset() == d.WantOffset || !isContainer(was[d.WantOffset:])) {
			changed[l.names[f]] = true
		}
	}
}

// isContainer reports whether an array or a map begins.
func isContainer(b []byte) bool {
	cur := pack.NewCursor(b)
	return cur.Kind() == pack.Array || cur.Kind() == pack.Map
}
