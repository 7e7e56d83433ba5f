package upstream

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/vllm-vcr/conformance/internal/protocol"
	"github.com/vllm-vcr/conformance/internal/pyast"
)

// engineClasses answer utility calls: that of every engine, and that of one that runs in waves.
var engineClasses = []string{"EngineCoreProc", "DPEngineCoreProc"}

// A callSite is where the Python frontend calls a utility method.
type callSite struct {
	call      *pyast.Node
	function  *pyast.Node // that it is in
	arguments []*pyast.Node
}

// utilities reads which methods the Python frontend calls, and what the engine makes of them.
func (x *extractor) utilities() error {
	client, err := x.need(clientModule, "utility methods")
	if err != nil || client == nil {
		return err
	}
	sites, err := x.callSites(client)
	if err != nil {
		return err
	}
	if len(sites) == 0 {
		x.gap(client, 0, "utility methods", "nothing calls call_utility")
		return nil
	}
	core, err := x.need(coreModule, "utility methods")
	if err != nil || core == nil {
		return err
	}
	engines, err := x.engines(core)
	if err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(sites)) {
		if err := x.utility(client, core, engines, name, sites[name]); err != nil {
			return err
		}
	}
	return nil
}

// callSites finds the calls of call_utility and its variants, by the method that they name.
func (x *extractor) callSites(client *module) (map[string][]callSite, error) {
	t := client.tree
	sites := map[string][]callSite{}
	for n := range t.Root.All() {
		if n.Kind != "call" {
			continue
		}
		function := t.Text(n.ByField("function"))
		last := function[strings.LastIndexByte(function, '.')+1:]
		if !strings.HasPrefix(strings.TrimPrefix(last, "_"), "call_utility") {
			continue
		}
		site := callSite{call: n, function: enclosingFunction(n)}
		for argument := range n.ByField("arguments").NamedChildren() {
			if argument.Kind != "keyword_argument" {
				site.arguments = append(site.arguments, argument)
			}
		}
		name, known, err := x.utilityName(client, site)
		if err != nil {
			return nil, err
		}
		if known {
			site.arguments = site.arguments[1:]
			sites[name] = append(sites[name], site)
		}
	}
	return sites, nil
}

// utilityName is the method that a call names: by a literal or a constant. Functions that pass on what they are told to
// call are no call sites.
func (x *extractor) utilityName(m *module, s callSite) (name string, known bool, err error) {
	if len(s.arguments) == 0 {
		x.gapAt(m, s.call, "utility methods", "a call that names no method: "+pyast.Canonical(m.tree, s.call))
		return "", false, nil
	}
	first := s.arguments[0]
	if first.Kind == "identifier" && isLocal(m.tree, s.function, m.tree.Text(first)) && passesOn(m.tree, s.function) {
		return "", false, nil
	}
	value, _, err := x.evaluate(m, first)
	if err != nil {
		return "", false, err
	}
	name, known = value.(string)
	if !known {
		call := pyast.Canonical(m.tree, s.call)
		x.gapAt(m, s.call, "utility methods", "the name of a method is known only when it runs: "+call)
	}
	return name, known, nil
}

// passesOn tells the functions that are themselves a way to call any method.
func passesOn(t *pyast.Tree, function *pyast.Node) bool {
	for ; function != nil; function = enclosingFunction(function) {
		if strings.HasPrefix(strings.TrimPrefix(t.Text(function.ByField("name")), "_"), "call_utility") {
			return true
		}
	}
	return false
}

// engines are the classes that answer, as far as they are there.
func (x *extractor) engines(core *module) ([]*class, error) {
	var engines []*class
	for _, name := range engineClasses {
		ref, err := x.resolve(core, name)
		if err != nil {
			return nil, err
		}
		if ref.def == nil || ref.def.kind != aClass {
			x.gap(core, 0, "class "+name, "it answers utility calls, and is not to be found: "+cause(ref))
			continue
		}
		c, err := x.class(ref)
		if err != nil {
			return nil, err
		}
		engines = append(engines, c)
	}
	return engines, nil
}

// method finds a method of a class or of what it is derived from.
func method(c *class, name string) (of *class, function *pyast.Node) {
	for n := range c.def.node.ByField("body").NamedChildren() {
		if n.Kind == "decorated_definition" {
			n = n.ByField("definition")
		}
		if n != nil && n.Kind == "function_definition" && c.module.tree.Text(n.ByField("name")) == name {
			of, function = c, n // the last one counts
		}
	}
	if function != nil {
		return of, function
	}
	for _, b := range c.bases {
		if of, function := method(b, name); function != nil {
			return of, function
		}
	}
	return nil, nil
}

func (x *extractor) utility(client, core *module, engines []*class, name string, sites []callSite) error {
	u := protocol.Utility{Calls: x.calls(client, sites)}
	for _, c := range engines {
		of, function := method(c, name)
		if function == nil {
			continue
		}
		u.Place = protocol.Place{Module: of.module.path, At: function.Line}
		signature, result, err := x.signature(of.module, function, name)
		if err != nil {
			return err
		}
		u.Signature, u.Result = signature, resultKind(result)
		x.profile.Utilities[name] = u
		return x.reachCalls(client, name, sites)
	}
	return x.intercepted(client, core, name, u, sites)
}

// calls are the arguments that the frontend passes, each way once.
func (x *extractor) calls(m *module, sites []callSite) []string {
	var calls []string
	for _, s := range sites {
		var arguments []string
		for _, n := range s.arguments {
			arguments = append(arguments, pyast.Canonical(m.tree, n))
		}
		calls = append(calls, strings.Join(arguments, ", "))
	}
	slices.Sort(calls)
	return slices.Compact(calls)
}

// intercepted reads a method that the engine has not, but compares the name of a call with: it is answered before it
// gets to the engine. Its signature is what the frontend's own function passes on.
func (x *extractor) intercepted(client, core *module, name string, u protocol.Utility, sites []callSite) error {
	for n := range core.tree.Root.All() {
		if n.Kind != "comparison_operator" {
			continue
		}
		for side := range n.NamedChildren() {
			value, _, err := x.evaluate(core, side)
			if err != nil {
				return err
			}
			if value != name {
				continue
			}
			u.Place = protocol.Place{Module: core.path, At: n.Line}
			if u.Signature, err = x.clientSignature(client, name, sites[0]); err != nil {
				return err
			}
			_, result, _ := strings.Cut(u.Signature, " -> ")
			u.Result = resultKind(result)
			x.profile.Utilities[name] = u
			return x.reachCalls(client, name, sites)
		}
	}
	why := fmt.Sprintf("the frontend calls it, and no engine class of %s has it", core.path)
	x.gapAt(client, sites[0].call, "utility "+name, why)
	return nil
}

// clientSignature is the signature that a method must have for a call: of those parameters of the calling function that
// it passes on.
func (x *extractor) clientSignature(m *module, name string, s callSite) (string, error) {
	parts := []string{"self"}
	for _, argument := range s.arguments {
		text := m.tree.Text(argument)
		for n := range s.function.ByField("parameters").NamedChildren() {
			if parameterName(m.tree, n) == text && n.ByField("type") != nil {
				annotated, err := x.annotation(m, n.ByField("type"), "utility "+name)
				if err != nil {
					return "", err
				}
				text += ": " + annotated
			}
		}
		parts = append(parts, text)
	}
	signature := "(" + strings.Join(parts, ", ") + ")"
	if result := s.function.ByField("return_type"); result != nil {
		text, err := x.annotation(m, result, "utility "+name)
		return signature + " -> " + text, err
	}
	return signature, nil
}

// reachCalls reaches the types that the frontend's own functions give to what they pass on and get back: an engine that
// answers without a method has no others.
func (x *extractor) reachCalls(m *module, name string, sites []callSite) error {
	for _, s := range sites {
		if s.function == nil {
			continue
		}
		if _, err := x.clientSignature(m, name, s); err != nil {
			return err
		}
	}
	return nil
}

// signature is that of an engine's method: (self, level: int=1) -> None. The result is "" without an annotation.
func (x *extractor) signature(m *module, function *pyast.Node, name string) (signature, result string, err error) {
	var parts []string
	for n := range function.ByField("parameters").NamedChildren() {
		part, err := x.parameter(m, n, name)
		if err != nil {
			return "", "", err
		}
		parts = append(parts, part)
	}
	signature = "(" + strings.Join(parts, ", ") + ")"
	if n := function.ByField("return_type"); n != nil {
		if result, err = x.annotation(m, n, "utility "+name); err != nil {
			return "", "", err
		}
		signature += " -> " + result
	}
	return signature, result, nil
}

func (x *extractor) parameter(m *module, n *pyast.Node, method string) (string, error) {
	typed, value := n.ByField("type"), n.ByField("value")
	text := parameterName(m.tree, n)
	if typed == nil && value == nil {
		return pyast.Canonical(m.tree, n), nil
	}
	if typed != nil {
		annotated, err := x.annotation(m, typed, "utility "+method)
		if err != nil {
			return "", err
		}
		text += ": " + annotated
	}
	if value != nil {
		text += "=" + pyast.Canonical(m.tree, value)
	}
	return text, nil
}

// resultKind reduces the return annotation of an engine's method to what a frontend checks of the answer.
func resultKind(annotation string) protocol.ResultKind {
	switch {
	case annotation == "", annotation == "None", strings.Contains(annotation, "Future"):
		return protocol.ResultNone
	case annotation == "bool":
		return protocol.ResultBool
	case annotation == "str":
		return protocol.ResultStr
	case strings.HasPrefix(annotation, "set[int]"):
		return protocol.ResultInts
	case strings.HasPrefix(annotation, "tuple[SupportedTask"):
		return protocol.ResultStrings
	case strings.HasPrefix(annotation, "list["):
		return protocol.ResultList
	}
	return protocol.ResultAny
}
