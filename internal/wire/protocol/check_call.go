package protocol

import (
	"fmt"
	"slices"

	"github.com/vllm-vcr/conformance/internal/base/plural"
	"github.com/vllm-vcr/conformance/internal/wire/pack"
)

// callShape is the payload of a UTILITY message: [client_index, call_id, method,
// args] (vllm/v1/engine/core_client.py call_utility_async).
type callShape struct{}

func (callShape) String() string         { return "[client_index, call_id, method, args]" }
func (callShape) takes(k pack.Kind) bool { return k == pack.Array }

func (s callShape) check(x *examination) {
	ahead := x.cur
	if n, _ := ahead.ArrayLen(); n != 4 {
		x.mismatch(s.String())
		x.skip()
		return
	}
	x.cur = ahead
	x.at(place{name: "client_index"}, plainTypes["int"])
	x.at(place{name: "call_id"}, plainTypes["int"])
	method := x.method()
	parameters, known := x.rules.methods[method]
	if !known || x.cur.Kind() != pack.Array {
		x.at(place{name: "args"}, listShape{text: "list of arguments", element: anyShape{}})
		return
	}
	x.arguments(method, parameters)
}

// method reads the name of a method that the line's engine has, else "".
func (x *examination) method() string {
	x.path = append(x.path, place{name: "method"})
	defer func() { x.path = x.path[:len(x.path)-1] }()
	at := x.cur.Offset()
	name, ok := x.str("str, the name of a method")
	if _, known := x.rules.methods[name]; !ok || known {
		return name
	}
	m := x.report("a method of the engine of line "+x.rules.profile.Line, fmt.Sprintf("%q", keyStep(name)))
	m.Offset = at
	if lines := x.linesWith(func(r *rules) bool { return r.methods[name] != nil }); len(lines) > 0 {
		m.hint("a method of " + LineRanges(lines))
	}
	return ""
}

// arguments checks the values that a method is called with. They are positional.
func (x *examination) arguments(method string, parameters []parameter) {
	signature := x.rules.profile.Utilities[method].Signature
	n, _ := x.cur.ArrayLen()
	required := len(parameters)
	if i := slices.IndexFunc(parameters, func(p parameter) bool { return !p.required }); i >= 0 {
		required = i
	}
	x.path = append(x.path, place{name: method})
	if n < required || n > len(parameters) {
		x.report("the arguments of "+method+signature, plural.Count(n, "argument"))
	}
	for i := range n {
		if i < len(parameters) {
			x.at(place{name: parameters[i].name}, parameters[i].typ)
		} else {
			x.skip()
		}
	}
	x.path = x.path[:len(x.path)-1]
}
