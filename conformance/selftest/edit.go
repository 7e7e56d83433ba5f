package selftest

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/vllm-vcr/conformance/internal/wire/pack"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// edit is a fault of one field: what is wrong with each message of a kind, or each HTTP answer of a route.
type edit struct {
	// of names the message: HELLO, READY, REGISTRATION, OUTPUTS and EVENTS of an engine, INIT (the answer to HELLO), ADD, ABORT and
	// UTILITY of a frontend, or the route of an HTTP answer, "POST /v1/completions".
	of string
	// field leads to the value: "outputs.finish_reason". Lists are passed through, a number selects one of their elements, from the
	// end if it is negative. A key that a map does not have is added. Empty is the message itself.
	// In an HTTP answer it is the path in the JSON, "status" for the status, "type" for the Content-Type, or "[DONE]" for the last
	// event of a stream.
	field string
	// value is put there, or one of the values below. Text, numbers, lists, maps, true, false and nil are as in JSON.
	value any
	// where limits the fault to this value, given to values that are not None, nth to the nth such value, from 1, whole to HTTP answers
	// in one piece, and streamed to the others.
	where           any
	nth             int
	whole, streamed bool
}

// Values of an edit besides plain ones.
type special int

const (
	omitted  special = iota + 1 // the key, or the element, is taken out
	lost                        // the message is not sent, or the answer does not come
	again                       // the element, or the message, comes twice
	counting                    // another number each time
	given                       // for where: any value but None

	// Of an HTTP route: from the first request for it on, the frontend accepts no connection, answers nothing, or answers 503, or is
	// healthy whatever happens.
	gone
	silent
	refusing
	healthy
	// An answer is not sent, its connection ends in place of it, or it comes only when it is complete.
	unsent
	severed
	corrected // numbers in words become numbers in requests
	late
)

// zeros is the value of so many bytes of zeros that a list of numbers has on the wire.
type zeros int

// plus is a number that is so much greater.
type plus float64

// element is a tensor of which one element, counted from the end if it is negative, is another number, or greater by plus.
type element struct {
	at int
	to any
}

// likeElement is a tensor of which one element is like another.
type likeElement struct{ at, like int }

// frameOf are the frame of each message that has its fields, and what is declared of them; the zero kind is any map.
var frameOf = map[string]struct {
	frame int
	kind  protocol.MessageKind
}{
	"HELLO": {}, "READY": {}, "REGISTRATION": {0, protocol.KindReady}, "OUTPUTS": {0, protocol.KindOutputs}, "INIT": {0, protocol.KindInit},
	"ADD": {1, protocol.KindRequest}, "ABORT": {1, protocol.KindAbort}, "UTILITY": {1, protocol.KindUtility}, "EVENTS": {2, protocol.KindKVEvents},
}

// kindOf names a message as edits do.
func kindOf(m message) string {
	switch m.to {
	case handshake:
		if status, err := protocol.DecodeStatus(m.frames[0]); err == nil {
			return status.Status
		}
	case input:
		return "REGISTRATION"
	case output:
		return "OUTPUTS"
	case initial:
		return "INIT"
	case published:
		return "EVENTS"
	case requests:
		if len(m.frames) > 1 && len(m.frames[0]) == 1 {
			return map[byte]string{protocol.TypeAdd: "ADD", protocol.TypeAbort: "ABORT", protocol.TypeUtility: "UTILITY"}[m.frames[0][0]]
		}
	}
	return ""
}

// tamper makes the edit in the messages of an engine and of a frontend.
func (e edit) tamper(codec *protocol.Codec) tamper {
	met := 0
	return func(m message) ([]message, error) {
		of := frameOf[e.of]
		if e.of == "" || kindOf(m) != e.of || of.frame >= len(m.frames) {
			return faithful(m)
		}
		if e.field == "" {
			switch met++; {
			case e.nth > 0 && met != e.nth:
			case e.value == lost:
				return nil, nil
			case e.value == again:
				return []message{m, m}, nil
			}
			return faithful(m)
		}
		root := protocol.ViewOf(m.frames[of.frame])
		if of.kind.Name != "" {
			root = codec.Read(new(protocol.View), of.kind, m.frames[of.frame], m.frames[of.frame+1:]...)
		}
		m.frames = slices.Clone(m.frames)
		m.frames[of.frame] = e.change(root, &met)
		return faithful(m)
	}
}

// tampers makes edits one after the other.
func tampers(codec *protocol.Codec, edits []edit) tamper {
	var all []tamper
	for _, e := range edits {
		all = append(all, e.tamper(codec))
	}
	return func(m message) ([]message, error) {
		messages := []message{m}
		for _, t := range all {
			var next []message
			for _, m := range messages {
				tampered, err := t(m)
				if err != nil {
					return nil, err
				}
				next = append(next, tampered...)
			}
			messages = next
		}
		return messages, nil
	}
}

// change is the message with the edit; met counts the values that fit.
func (e edit) change(root protocol.Value, met *int) []byte {
	var out []byte
	payload, from := root.Bytes(), 0
	e.find(root, strings.Split(e.field, "."), met, func(at protocol.Value, raw []byte) {
		out = append(append(out, payload[from:at.Offset()]...), raw...)
		from = at.Offset() + len(at.Bytes())
	})
	return append(out, payload[from:]...)
}

// find gives to become each value that a path leads to, in their order, with the bytes in its place.
func (e edit) find(v protocol.Value, path []string, met *int, become func(at protocol.Value, raw []byte)) {
	fits := func() bool {
		*met++
		return e.nth == 0 || *met == e.nth
	}
	if len(path) == 0 {
		if (e.where == nil || e.where == given && v.Given() || e.where != given && bytes.Equal(plain(v, e.where, 0), v.Bytes())) && fits() {
			become(v, plain(v, e.value, *met))
		}
		return
	}
	next := v.Field(path[0])
	if i, err := strconv.Atoi(path[0]); err == nil && next.IsAbsent() && v.Len() > 0 {
		if i < 0 {
			i += v.Len()
		}
		next = v.At(max(i, 0))
	}
	last := len(path) == 1
	switch {
	case last && !next.IsAbsent() && (e.value == omitted || e.value == again):
		if fits() {
			become(v, without(v, next, e.value == again))
		}
	case !next.IsAbsent():
		e.find(next, path[1:], met, become)
	case last && v.Kind() == pack.Map && e.value != omitted && e.where == nil:
		if fits() {
			raw := pack.AppendMapHeader(nil, v.Len()+1)
			for part := range v.Parts() {
				raw = append(append(raw, part.Key().Bytes()...), part.Bytes()...)
			}
			become(v, append(pack.AppendString(raw, path[0]), plain(next, e.value, *met)...))
		}
	case v.Kind() == pack.Array:
		for part := range v.Parts() {
			e.find(part, path, met, become)
		}
	}
}

// without is an array or a map without one of its parts, or with it twice.
func without(v, part protocol.Value, twice bool) []byte {
	var parts [][]byte
	for p := range v.Parts() {
		raw := append(slices.Clone(p.Key().Bytes()), p.Bytes()...)
		if p.Offset() != part.Offset() || twice {
			parts = append(parts, raw)
		}
		if p.Offset() == part.Offset() && twice {
			parts = append(parts, raw)
		}
	}
	head := pack.AppendArrayHeader(nil, len(parts))
	if v.Kind() == pack.Map {
		head = pack.AppendMapHeader(nil, len(parts))
	}
	return append(head, bytes.Join(parts, nil)...)
}

// plain are the bytes of a value of an edit, in the place of another; met is for counting.
func plain(was protocol.Value, value any, met int) []byte {
	switch value := value.(type) {
	case string:
		return pack.AppendString(nil, value)
	case int:
		return pack.AppendInt(nil, int64(value))
	case float64:
		return pack.AppendFloat64(nil, value)
	case bool:
		return pack.AppendBool(nil, value)
	case []any:
		raw := pack.AppendArrayHeader(nil, len(value))
		for _, item := range value {
			raw = append(raw, plain(was, item, met)...)
		}
		return raw
	case map[string]any:
		raw := pack.AppendMapHeader(nil, len(value))
		for _, key := range slices.Sorted(maps.Keys(value)) {
			raw = append(pack.AppendString(raw, key), plain(was, value[key], met)...)
		}
		return raw
	case zeros:
		return pack.AppendExt(nil, protocol.ExtRawView, make([]byte, value))
	case plus:
		if n, is := was.Int(); is {
			return pack.AppendInt(nil, n+int64(value))
		}
		f, _ := was.Float()
		return pack.AppendFloat64(nil, f+float64(value))
	case element:
		return inTensor(was, value.at, func(old float64, _ []float64) float64 {
			if more, is := value.to.(plus); is {
				return old + float64(more)
			}
			to, _ := number64(value.to)
			return to
		})
	case likeElement:
		return inTensor(was, value.at, func(_ float64, all []float64) float64 { return all[fromEnd(value.like, len(all))] })
	case special:
		if value == counting {
			return pack.AppendInt(nil, int64(100+met))
		}
	case nil:
		return pack.AppendNil(nil)
	}
	panic(fmt.Sprintf("an edit with %v", value))
}

func number64(v any) (float64, bool) {
	switch v := v.(type) {
	case int:
		return float64(v), true
	case float64:
		return v, true
	}
	return 0, false
}

func fromEnd(i, n int) int {
	if i < 0 {
		return i + n
	}
	return i
}

// inTensor is a tensor, whose data are in the message, with another element.
func inTensor(tensor protocol.Value, at int, to func(old float64, all []float64) float64) []byte {
	read, err := tensor.Tensor()
	cur := pack.NewCursor(tensor.At(2).Bytes())
	code, data, extErr := cur.Ext()
	if err != nil || extErr != nil {
		return tensor.Bytes() // unchanged, which the self-test reports
	}
	all := read.Floats()
	if !read.IsFloat() {
		all = nil
		for _, n := range read.Integers() {
			all = append(all, float64(n))
		}
	}
	at = fromEnd(at, len(all))
	value, width := to(all[at], all), len(data)/len(all)
	bits := uint64(int64(value))
	switch {
	case read.IsFloat() && width == 4:
		bits = uint64(math.Float32bits(float32(value)))
	case read.IsFloat():
		bits = math.Float64bits(value)
	}
	data = slices.Clone(data)
	copy(data[at*width:(at+1)*width], binary.LittleEndian.AppendUint64(nil, bits))
	return pack.AppendArray(nil, tensor.At(0).Bytes(), tensor.At(1).Bytes(), pack.AppendExt(nil, code, data))
}

// inJSON makes the edit in a JSON value that encoding/json has read, and returns the value.
func (e edit) inJSON(v any, path []string) any {
	if len(path) == 0 || path[0] == "" {
		if where, isInt := e.where.(int); e.where != nil && v != e.where && (!isInt || v != float64(where)) {
			return v
		}
		return e.value
	}
	switch v := v.(type) {
	case map[string]any:
		old, has := v[path[0]]
		switch {
		case len(path) == 1 && e.value == omitted:
			delete(v, path[0])
		case has:
			v[path[0]] = e.inJSON(old, path[1:])
		case len(path) == 1 && e.where == nil:
			v[path[0]] = e.value
		}
	case []any:
		if i, err := strconv.Atoi(path[0]); err == nil && 0 <= i && i < len(v) {
			v[i] = e.inJSON(v[i], path[1:])
		}
	}
	return v
}
