package invariant

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/vllm-vcr/conformance/internal/check/message"
	"github.com/vllm-vcr/conformance/internal/wire/pack"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/trace"
)

// leaf is a value in a message that has no others in it.
type leaf struct {
	path       string // indexes as []
	begin, end int
}

// leaves lists the values of a message, by the names of the line.
func leaves(codec *protocol.Codec, frame []byte) (all []leaf) {
	cur := pack.NewCursor(frame)
	var walk func(path string)
	walk = func(path string) {
		begin := cur.Offset()
		switch cur.Kind() {
		case pack.Array:
			n, _ := cur.ArrayLen()
			for i := range n {
				part := "[]"
				if name := codec.FieldName(path, i); name != "" {
					part = "." + name
				}
				walk(path + part)
			}
		case pack.Map:
			n, _ := cur.MapLen()
			for range n {
				key, _ := cur.StrString()
				walk(path + "." + key)
			}
		default:
			_ = cur.Skip()
			all = append(all, leaf{path, begin, cur.Offset()})
		}
	}
	walk("EngineCoreOutputs")
	return all
}

// wrongs are other values of the same kind, by what is wrong with them.
func wrongs(raw []byte) map[string][]byte {
	cur := pack.NewCursor(raw)
	wrong := map[string][]byte{}
	switch cur.Kind() {
	case pack.Int:
		v, _ := cur.Int()
		for name, other := range map[string]int64{"one more": v + 1, "one less": v - 1, "negative": -7, "zero": 0, "huge": 1 << 40} {
			if other != v {
				wrong[name] = pack.AppendInt(nil, other)
			}
		}
	case pack.Float:
		v, _ := cur.Float()
		for name, other := range map[string]float64{"drift": v*1.001 + 1e-7, "negative": -1.5, "zero": 0, "huge": 1e30} {
			if other != v {
				wrong[name] = pack.AppendFloat64(nil, other)
			}
		}
	case pack.String:
		wrong["another"] = pack.AppendString(nil, "another")
	case pack.Bool:
		v, _ := cur.Bool()
		wrong["other"] = pack.AppendBool(nil, !v)
	case pack.Ext:
		code, data, _ := cur.Ext()
		for name, change := range map[string]func([]byte){
			"first element 0":        func(b []byte) { clear(b[:4]) },
			"first element negative": func(b []byte) { binary.LittleEndian.PutUint32(b, uint32(0xffff_fffe)) },
			"first element 1.5":      func(b []byte) { binary.LittleEndian.PutUint32(b, math.Float32bits(1.5)) },
			"last bits drift":        func(b []byte) { b[len(b)-4] ^= 0x40 },
			"ends swapped":           func(b []byte) { swap(b[:4], b[len(b)-4:]) },
		} {
			other := slices.Clone(data)
			if len(other) >= 4 {
				change(other)
			}
			if !slices.Equal(other, data) {
				wrong[name] = pack.AppendExt(nil, code, other)
			}
		}
	}
	return wrong
}

func swap(a, b []byte) {
	for i := range a {
		a[i], b[i] = b[i], a[i]
	}
}

// streams is what a frontend would make of a session, which the replay suite compares with the recording.
func streams(s session) string {
	var text strings.Builder
	tokens := map[string][]string{}
	var o protocol.Outputs
	for _, m := range s.messages {
		if m.Note != "" || m.Channel != "output" || m.Direction != trace.EngineToFrontend {
			continue
		}
		if err := s.codec.DecodeOutputs(m.Frames[0], &o); err != nil {
			return err.Error()
		}
		for _, out := range o.Outputs {
			tokens[string(out.ID)] = append(tokens[string(out.ID)], fmt.Sprint(out.Tokens, out.Finish))
		}
	}
	fmt.Fprint(&text, tokens)
	return text.String()
}

func TestExplore(t *testing.T) {
	caught, all := 0, 0
	for _, s := range sessions(t) {
		if !strings.Contains(s.name, "v0.33.0") && !strings.Contains(s.name, "ngram") {
			continue
		}
		first := map[string][2]int{}
		found := map[string]leaf{}
		interesting := map[string]bool{}
		for i, m := range s.messages {
			if m.Note != "" || m.Channel != "output" {
				continue
			}
			for _, l := range leaves(s.codec, m.Frames[0]) {
				raw := m.Frames[0][l.begin:l.end]
				cur := pack.NewCursor(raw)
				if cur.Kind() == pack.Nil {
					continue
				}
				v, err := cur.Float()
				nonzero := err != nil || v != 0
				if _, ok := first[l.path]; !ok || nonzero && !interesting[l.path] {
					first[l.path], found[l.path], interesting[l.path] = [2]int{i}, l, nonzero
				}
			}
		}
		want := streams(s)
		for path, at := range first {
			l := found[path]
			m := s.messages[at[0]]
			for name, value := range wrongs(m.Frames[0][l.begin:l.end]) {
				other := session{s.name, s.codec, slices.Clone(s.messages)}
				frames := slices.Clone(m.Frames)
				frames[0] = slices.Concat(m.Frames[0][:l.begin], value, m.Frames[0][l.end:])
				other.messages[at[0]].Frames = frames
				all++
				by := ""
				if f := judge(other); len(f) > 0 {
					by = string(f[0].Code) + " " + f[0].Message
				} else if streams(other) != want {
					by = "streams"
				} else if l := message.OutputsLayout(s.codec, frames); len(l) > 0 {
					by = "layout"
				}
				if by != "" {
					caught++
				} else {
					t.Logf("MISSED %s: %s (message %d): %s", path, name, at[0], message.Describe(m.Frames[0][l.begin:l.end]))
				}
			}
		}
	}
	t.Logf("%d of %d", caught, all)
}
