package wirediff

import (
	"fmt"
	"slices"
	"strings"

	"github.com/vllm-vcr/conformance/internal/protocol"
)

func (c *comparison) utilities() {
	eachName(c.a.Utilities, c.b.Utilities, c.utilityAdded, c.utilityRemoved, c.utilityBoth)
}

func (c *comparison) utility(kind Kind, name string, u protocol.Utility) Change {
	return Change{Kind: kind, Subject: name, Where: c.where(kind == UtilityRemoved, u.Place), group: groupUtilities}
}

func (c *comparison) utilityAdded(name string, u protocol.Utility) {
	ch := c.utility(UtilityAdded, name, u)
	ch.After, ch.Breaks = heading(u), []Party{Engines}
	ch.Reason = fmt.Sprintf("frontends of %s call it, and engines of %s do not know it: what needs the call fails, and nothing else",
		c.to(), c.from())
	c.add(ch)
}

func (c *comparison) utilityRemoved(name string, u protocol.Utility) {
	ch := c.utility(UtilityRemoved, name, u)
	ch.Before, ch.Level = heading(u), Informational
	ch.Reason = fmt.Sprintf("no frontend of %s calls it", c.to())
	c.add(ch)
}

// heading is a method's signature, or what its callers pass if it has none.
func heading(u protocol.Utility) string {
	if u.Signature != "" {
		return u.Signature
	}
	return calls(u)
}

func calls(u protocol.Utility) string {
	texts := make([]string, len(u.Calls))
	for i, call := range u.Calls {
		texts[i] = "(" + call + ")"
	}
	return strings.Join(texts, ", ")
}

func (c *comparison) utilityBoth(name string, a, b protocol.Utility) {
	before, after := parseSignature(a.Signature), parseSignature(b.Signature)
	ch := c.utility(UtilityArguments, name, b)
	ch.Before, ch.After = arguments(a), arguments(b)
	if ch.Before == ch.After {
		ch.Kind, ch.Before, ch.After = UtilityCalls, calls(a), calls(b)
	}
	if ch.Before != ch.After && len(a.Calls) > 0 == (len(b.Calls) > 0) {
		c.compareArguments(ch, a, b, before, after)
	}
	c.compareResult(name, a, b, before, after)
}

// arguments is the signature without what it returns.
func arguments(u protocol.Utility) string {
	head, _, _ := cut(u.Signature, "->")
	return strings.TrimSpace(head)
}

// compareArguments judges by what the frontends of each side really pass.
func (c *comparison) compareArguments(ch Change, a, b protocol.Utility, before, after signature) {
	var how []string
	if a.Signature != "" && !fits(before, b, after) {
		ch.Breaks = append(ch.Breaks, Engines)
		how = append(how, fmt.Sprintf("frontends of %s pass what the method of engines of %s does not take",
			c.to(), c.from()))
	}
	if b.Signature != "" && !fits(after, a, before) {
		ch.Breaks = append(ch.Breaks, Frontends)
		how = append(how, fmt.Sprintf("frontends of %s pass what the method of an engine of %s does not take",
			c.from(), c.to()))
	}
	ch.Reason = "what frontends pass, the methods of both take"
	if len(how) > 0 {
		ch.Reason = strings.Join(how, "; ") + ": that call fails, and nothing else"
	} else if ch.Kind == UtilityCalls {
		ch.Level = Informational
	}
	c.add(ch)
}

// fits tells whether a method takes what the callers of another release pass to
// theirs.
func fits(method signature, callers protocol.Utility, theirs signature) bool {
	counts := []int{len(theirs.params)}
	if len(callers.Calls) > 0 {
		counts = nil
	}
	for _, call := range callers.Calls {
		args := split(call, ',')
		if slices.ContainsFunc(args, func(arg string) bool { return strings.HasPrefix(arg, "*") }) {
			return true // how many is not declared
		}
		counts = append(counts, len(args))
	}
	for _, n := range counts {
		if n < method.least() || n > method.most() {
			return false
		}
		for i := range min(n, len(method.params), len(theirs.params)) {
			if !parameterType(method.params[i]).accepts(parameterType(theirs.params[i])) {
				return false
			}
		}
	}
	return true
}

func parameterType(p parameter) typ {
	if p.text == "" {
		return parseType("Any")
	}
	return parseType(p.text)
}

func (c *comparison) compareResult(name string, a, b protocol.Utility, before, after signature) {
	ch := c.utility(UtilityResult, name, b)
	switch {
	case a.Result != b.Result:
		ch.Before, ch.After = string(a.Result), string(b.Result)
		if b.Result != protocol.ResultAny {
			ch.Breaks = append(ch.Breaks, Engines)
		}
		if a.Result != protocol.ResultAny {
			ch.Breaks = append(ch.Breaks, Frontends)
		}
		ch.Reason = fmt.Sprintf("frontends of %s want %s where engines of %s answer %s, and the other way round: that call fails, and nothing else",
			c.to(), b.Result, c.from(), a.Result)
	case a.Result != protocol.ResultAny && a.Result != protocol.ResultList:
		return // the same kind, in whatever words
	default:
		was, is := parseType(before.result), parseType(after.result)
		if was.String() == is.String() {
			return
		}
		ch.Before, ch.After = before.result, after.result
		if !is.accepts(was) {
			ch.Breaks = append(ch.Breaks, Engines)
		}
		if !was.accepts(is) {
			ch.Breaks = append(ch.Breaks, Frontends)
		}
		ch.Reason = fmt.Sprintf("the answer of an engine of %s is another than that of %s", c.to(), c.from())
	}
	c.add(ch)
}
