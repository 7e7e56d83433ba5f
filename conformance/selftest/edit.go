package selftest

import (
	"bytes"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/vllm-vcr/conformance/internal/wire/pack"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// edit is a fault of one field: what is wrong with each message of a kind, or each HTTP answer of a route.
type edit struct {
	// of names the message: HELLO, READY, REGISTRATION and OUTPUTS of an engine, INIT (the answer to HELLO), ADD, ABORT and
	// UTILITY of a frontend, or the route of an HTTP answer, "POST /v1/completions".
	of string
	// field leads to the value: "outputs.finish_reason". Lists are passed through, a number selects one of their elements.
	// In an HTTP answer it is the path in the JSON, "status" for the status, "type" for the Content-Type, or "[DONE]" for the last
	// event of a stream.
	field string
	// value is put there, or one of the values below. Text, numbers, lists, true, false and nil are as in JSON.
	value any
	// where limits the fault to this value, whole to HTTP answers in one piece, and streamed to the others.
	where           any
	whole, streamed bool
}

// Values of an edit besides plain ones.
type special int

const (
	omitted  special = iota + 1 // the key is taken out
	lost                        // the message is not sent
	counting                    // another number each time
	// Of an HTTP route: from the first request for it on, the frontend accepts no connection, answers nothing, or answers 503.
	gone
	silent
	refusing
	// An answer is not sent, or only when it is complete.
	unsent
	late
)

// zeros is the value of so many bytes of zeros that a list of numbers has on the wire.
type zeros int

// structsOf are the structs that are arrays on the wire, by the message or the field that they are in.
var structsOf = map[string]string{
	"OUTPUTS": "EngineCoreOutputs", "outputs": "EngineCoreOutput", "utility_output": "UtilityOutput", "ADD": "EngineCoreRequest",
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
	case requests:
		if len(m.frames) > 1 && len(m.frames[0]) == 1 {
			return map[byte]string{protocol.TypeAdd: "ADD", protocol.TypeAbort: "ABORT", protocol.TypeUtility: "UTILITY"}[m.frames[0][0]]
		}
	}
	return ""
}

// tamper makes the edit in the messages of an engine and of a frontend.
func (e edit) tamper(profile *protocol.Profile) tamper {
	count := uint64(0)
	return func(m message) ([]message, error) {
		if e.of == "" || kindOf(m) != e.of {
			return faithful(m)
		}
		if e.value == lost {
			return nil, nil
		}
		at := 0
		if m.to == requests {
			at = 1 // after the kind
		}
		root, err := parse(m.frames[at])
		if err != nil {
			return nil, err
		}
		e.edit(profile, root, structsOf[e.of], strings.Split(e.field, "."), &count)
		m.frames = append([][]byte(nil), m.frames...)
		m.frames[at] = root.bytes()
		return faithful(m)
	}
}

// edit changes the value that a path leads to below a node of a struct.
func (e edit) edit(profile *protocol.Profile, n *node, structure string, path []string, count *uint64) {
	if len(path) == 0 {
		if e.where == nil || bytes.Equal(plain(e.where).bytes(), n.bytes()) {
			if *count++; e.value == counting {
				n.become(number(100 + *count))
			} else {
				n.become(plain(e.value))
			}
		}
		return
	}
	name := path[0]
	index, err := strconv.Atoi(name)
	switch {
	case n.kind == pack.Map && len(path) == 1 && e.value == omitted:
		for i := 0; i+1 < len(n.items); i += 2 {
			if n.items[i].isText(name) {
				n.items = append(n.items[:i], n.items[i+2:]...)
				return
			}
		}
	case n.kind == pack.Map:
		if v := n.value(name); v != nil {
			e.edit(profile, v, structsOf[name], path[1:], count)
		}
	case n.kind == pack.Array && err == nil:
		if index < len(n.items) {
			e.edit(profile, n.items[index], "", path[1:], count)
		}
	case n.kind == pack.Array && structure != "":
		if i := profile.Structs[structure].Index(name); 0 <= i && i < len(n.items) {
			v := n.items[i]
			if name != "outputs" {
				e.edit(profile, v, structsOf[name], path[1:], count)
				return
			}
			for _, out := range v.items {
				e.edit(profile, out, structsOf[name], path[1:], count)
			}
		}
	}
}

// plain is a value of an edit as a node.
func plain(v any) *node {
	switch v := v.(type) {
	case string:
		return text(v)
	case int:
		return number(uint64(v))
	case float64:
		return &node{kind: pack.Float, leaf: pack.AppendFloat64(nil, v)}
	case bool:
		return &node{kind: pack.Bool, leaf: pack.AppendBool(nil, v)}
	case []any:
		list := array()
		for _, item := range v {
			list.items = append(list.items, plain(item))
		}
		return list
	case zeros:
		return &node{kind: pack.Ext, leaf: pack.AppendExt(nil, protocol.ExtRawView, make([]byte, v))}
	case nil:
		return null()
	}
	panic(fmt.Sprintf("an edit with a %T", v))
}

// inJSON makes the edit in a JSON value that encoding/json has read, and returns the value.
func (e edit) inJSON(v any, path []string) any {
	if len(path) == 0 {
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
		}
	case []any:
		if i, err := strconv.Atoi(path[0]); err == nil && 0 <= i && i < len(v) {
			v[i] = e.inJSON(v[i], path[1:])
		}
	}
	return v
}

// status is the HTTP status that takes the place of another.
func (e edit) status(was int) int {
	if value, ok := e.value.(int); ok && e.field == "status" && (e.where == nil || e.where == was) && value <= math.MaxInt16 {
		return value
	}
	return was
}
