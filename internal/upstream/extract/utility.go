package extract

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/vllm-vcr/conformance/internal/upstream/pyast"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/internal/wire/pytype"
)

// engineClasses answer utility calls: that of every engine, and that of one that runs in waves.
var engineClasses = []string{"EngineCoreProc", "DPEngineCoreProc"}

// A callSite is where the Python frontend calls a utility method.
type callSite struct {
	call      *pyast.Node
	function  *pyast.Node   // that it is in
	arguments []*pyast.Node // behind the name of the method
}

// utilities reads which methods the Python frontend calls, and what the engine makes of them.
func (x *extractor) utilities() {
	const what = "utility methods"
	client := x.need(clientModule, what)
	if client == nil {
		return
	}
	sites := x.callSites(client)
	if len(sites) == 0 {
		x.gap(client, 0, what, "nothing calls call_utility")
		return
	}
	core := x.need(coreModule, what)
	if core == nil {
		return
	}
	var engines []*class
	for _, name := range engineClasses {
		if ref := x.resolve(core, name); ref.def != nil && ref.def.kind == aClass {
			engines = append(engines, x.class(ref))
		} else {
			x.gap(core, 0, "class "+name, "it answers utility calls, and is not to be found: "+ref.why())
		}
	}
	for _, name := range slices.Sorted(maps.Keys(sites)) {
		x.utility(client, core, engines, name, sites[name])
	}
}

// callSites finds the calls of call_utility and its variants, by the method that they name, which is a literal or a constant.
func (x *extractor) callSites(client *module) map[string][]callSite {
	const what = "utility methods"
	isCaller := func(name string) bool { return strings.HasPrefix(strings.TrimPrefix(name, "_"), "call_utility") }
	sites := map[string][]callSite{}
	for n := range client.tree.Root.All() {
		if n.Kind != "call" || !isCaller(lastName(n.ByField("function"))) {
			continue
		}
		site := callSite{call: n, function: enclosingFunction(n)}
		for argument := range n.ByField("arguments").NamedChildren() {
			if argument.Kind != "keyword_argument" {
				site.arguments = append(site.arguments, argument)
			}
		}
		if len(site.arguments) == 0 {
			x.gapAt(client, n, what, "a call that names no method: "+pyast.Canonical(n))
			continue
		}
		method := site.arguments[0]
		if method.Kind == "identifier" && isLocal(site.function, method.Text()) {
			// A function that is itself a way to call any method passes on a name: it is no call site.
			passesOn := false
			for f := site.function; f != nil; f = enclosingFunction(f) {
				passesOn = passesOn || isCaller(f.ByField("name").Text())
			}
			if passesOn {
				continue
			}
		}
		value, _ := x.evaluate(client, method)
		name, known := value.(string)
		if !known {
			x.gapAt(client, n, what, "the name of a method is known only when it runs: "+pyast.Canonical(n))
			continue
		}
		site.arguments = site.arguments[1:]
		sites[name] = append(sites[name], site)
	}
	return sites
}

// utility takes a method with the signature that an engine declares. What the frontend's own functions give to what they
// pass on and get back is reached too: an engine that answers without a method has no other types.
func (x *extractor) utility(client, core *module, engines []*class, name string, sites []callSite) {
	what := "utility " + name
	u := protocol.Utility{Calls: callTexts(sites)}
	found := false
	for _, c := range engines {
		of, function := c.method(name)
		if function == nil {
			continue
		}
		found = true
		u.Place = protocol.Place{Module: of.module.path, At: function.Line}
		var parts []string
		for n := range function.ByField("parameters").NamedChildren() {
			parts = append(parts, x.parameter(of.module, n, what))
		}
		u.Signature = x.signature(of.module, parts, function, what)
		break
	}
	if !found {
		// The call may be answered before it gets to the engine, where its name is compared with a literal.
		at := x.comparedWith(core, name)
		if at == nil {
			x.gapAt(client, sites[0].call, what, fmt.Sprintf("the frontend calls it, and no engine class of %s has it", core.path))
			return
		}
		u.Place = protocol.Place{Module: core.path, At: at.Line}
		u.Signature = x.clientSignature(client, sites[0], what)
	}
	u.Result = resultKind(u.Signature)
	x.profile.Utilities[name] = u
	for _, s := range sites {
		if s.function != nil {
			x.clientSignature(client, s, what)
		}
	}
}

// callTexts are the arguments that the frontend passes, each way once.
func callTexts(sites []callSite) []string {
	var calls []string
	for _, s := range sites {
		var arguments []string
		for _, n := range s.arguments {
			arguments = append(arguments, pyast.Canonical(n))
		}
		calls = append(calls, strings.Join(arguments, ", "))
	}
	slices.Sort(calls)
	return slices.Compact(calls)
}

// comparedWith returns the first comparison of a module with a text, or nil.
func (x *extractor) comparedWith(m *module, text string) *pyast.Node {
	for n := range m.tree.Root.All() {
		if n.Kind != "comparison_operator" {
			continue
		}
		for side := range n.NamedChildren() {
			if value, _ := x.evaluate(m, side); value == text {
				return n
			}
		}
	}
	return nil
}

// signature returns that of a function with these parameters: (self, level: int=1) -> None.
func (x *extractor) signature(m *module, parameters []string, function *pyast.Node, what string) string {
	signature := "(" + strings.Join(parameters, ", ") + ")"
	if result := function.ByField("return_type"); result != nil {
		signature += " -> " + x.annotation(m, result, what)
	}
	return signature
}

func (x *extractor) parameter(m *module, n *pyast.Node, what string) string {
	annotation, value := n.ByField("type"), n.ByField("value")
	if annotation == nil && value == nil {
		return pyast.Canonical(n)
	}
	text := parameterName(n)
	if annotation != nil {
		text += ": " + x.annotation(m, annotation, what)
	}
	if value != nil {
		text += "=" + pyast.Canonical(value)
	}
	return text
}

// clientSignature returns the signature that a method must have for a call: of those parameters of the calling function
// that it passes on.
func (x *extractor) clientSignature(m *module, s callSite, what string) string {
	parts := []string{"self"}
	for _, argument := range s.arguments {
		name := argument.Text()
		part := name
		for n := range s.function.ByField("parameters").NamedChildren() {
			if annotation := n.ByField("type"); parameterName(n) == name && annotation != nil {
				part += ": " + x.annotation(m, annotation, what)
			}
		}
		parts = append(parts, part)
	}
	return x.signature(m, parts, s.function, what)
}

// resultKind reduces what a method returns to what a frontend checks of the answer.
func resultKind(signature string) protocol.ResultKind {
	_, result := pytype.CutResult(signature)
	t := pytype.Parse(result).Options()[0]
	argument := ""
	if len(t.Args) > 0 {
		argument = t.Args[0].String()
	}
	switch {
	case result == "", result == "None", strings.Contains(result, "Future"):
		return protocol.ResultNone
	case result == "bool":
		return protocol.ResultBool
	case result == "str":
		return protocol.ResultStr
	case t.Name == "set" && argument == "int":
		return protocol.ResultInts
	case t.Name == "tuple" && argument == "SupportedTask":
		return protocol.ResultStrings
	case t.Name == "list" && argument != "":
		return protocol.ResultList
	}
	return protocol.ResultAny
}
