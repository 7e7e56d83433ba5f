package wirediff

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

func (c *comparison) utilities() {
	eachName(c.a.Utilities, c.b.Utilities, func(name string, u protocol.Utility) {
		c.add(Change{
			Kind: UtilityAdded, Subject: name, After: shownUtility(u), Breaks: []Party{Engines}, Where: c.where(c.b, u.Place, 0),
			Reason: fmt.Sprintf("frontends of %s call it, and engines of %s do not have it: only features that need this call fail",
				c.to, c.from),
		})
	}, func(name string, u protocol.Utility) {
		c.add(Change{
			Kind: UtilityRemoved, Subject: name, Before: shownUtility(u), Level: Informational, Where: c.where(c.a, u.Place, 0),
			Reason: fmt.Sprintf("no frontend of %s calls it", c.to),
		})
	}, func(name string, a, b protocol.Utility) {
		c.compareArguments(name, a, b)
		c.compareResult(name, a, b)
	})
}

// shownUtility is a method's signature, or what its callers pass if it has none.
func shownUtility(u protocol.Utility) string {
	return cmp.Or(u.Signature, shownCalls(u))
}

func shownCalls(u protocol.Utility) string {
	texts := make([]string, len(u.Calls))
	for i, call := range u.Calls {
		texts[i] = "(" + call + ")"
	}
	return strings.Join(texts, ", ")
}

// compareArguments judges by what the frontends of each side really pass.
func (c *comparison) compareArguments(name string, a, b protocol.Utility) {
	ch := Change{Kind: UtilityArguments, Subject: name, Where: c.where(c.b, b.Place, 0)}
	ch.Before, _ = protocol.CutResult(a.Signature)
	ch.After, _ = protocol.CutResult(b.Signature)
	if ch.Before == ch.After {
		ch.Kind, ch.Before, ch.After = UtilityCalls, shownCalls(a), shownCalls(b)
	}
	if ch.Before == ch.After || len(a.Calls) > 0 != (len(b.Calls) > 0) {
		return
	}
	var how []string
	if a.Signature != "" && !takes(a, b) {
		ch.Breaks = append(ch.Breaks, Engines)
		how = append(how, fmt.Sprintf("frontends of %s pass arguments that the method of engines of %s does not accept", c.to, c.from))
	}
	if b.Signature != "" && !takes(b, a) {
		ch.Breaks = append(ch.Breaks, Frontends)
		how = append(how, fmt.Sprintf("frontends of %s pass arguments that the method of an engine of %s does not accept", c.from, c.to))
	}
	ch.Reason = "the methods of both accept the arguments that frontends pass"
	if len(how) > 0 {
		ch.Reason = strings.Join(how, "; ") + ": only this call fails"
	} else if ch.Kind == UtilityCalls {
		ch.Level = Informational
	}
	c.add(ch)
}

// takes reports whether a method takes what the callers of another release pass to theirs.
func takes(method, other protocol.Utility) bool {
	own, theirs := protocol.ParseSignature(method.Signature), protocol.ParseSignature(other.Signature)
	least := 0
	for _, p := range own.Params {
		if !p.Optional {
			least++
		}
	}
	var counts []int
	for _, call := range other.Calls {
		args := protocol.SplitPy(call, ',')
		if slices.ContainsFunc(args, func(arg string) bool { return strings.HasPrefix(arg, "*") }) {
			return true // how many is not declared
		}
		counts = append(counts, len(args))
	}
	if len(other.Calls) == 0 {
		counts = []int{len(theirs.Params)}
	}
	for _, n := range counts {
		if n < least || n > len(own.Params) && !own.Variadic || !sameParameters(own, theirs, n) {
			return false
		}
	}
	return true
}

// sameParameters reports whether the first parameters of one signature, as far as both have them, take those of
// another.
func sameParameters(reader, writer protocol.Signature, count int) bool {
	for i := range min(count, len(reader.Params), len(writer.Params)) {
		if !accepts(wireType(reader.Params[i].Type), wireType(writer.Params[i].Type)) {
			return false
		}
	}
	return true
}

func (c *comparison) compareResult(name string, a, b protocol.Utility) {
	ch := Change{Kind: UtilityResult, Subject: name, Where: c.where(c.b, b.Place, 0)}
	var reads, writes bool // frontends of A what B answers, and those of B what A answers
	switch {
	case a.Result != b.Result:
		ch.Before, ch.After = string(a.Result), string(b.Result)
		reads, writes = a.Result == protocol.ResultAny, b.Result == protocol.ResultAny
		ch.Reason = fmt.Sprintf("frontends of %s expect %s, and engines of %s answer %s, and vice versa: only this call fails",
			c.to, b.Result, c.from, a.Result)
	case a.Result != protocol.ResultAny && a.Result != protocol.ResultList:
		return // the same kind, in whatever words
	default:
		_, ch.Before = protocol.CutResult(a.Signature)
		_, ch.After = protocol.CutResult(b.Signature)
		was, is := readType(ch.Before), readType(ch.After)
		if was.String() == is.String() {
			return
		}
		reads, writes = accepts(was, is), accepts(is, was)
		ch.Reason = fmt.Sprintf("the answer of an engine of %s differs from that of %s", c.to, c.from)
	}
	if !reads {
		ch.Breaks = append(ch.Breaks, Frontends)
	}
	if !writes {
		ch.Breaks = append(ch.Breaks, Engines)
	}
	c.add(ch)
}
