package wirediff

import (
	"fmt"
	"slices"
	"strings"

	"github.com/vllm-vcr/conformance/internal/protocol"
)

// inside are members that never leave a process (vllm/v1/engine/core.py).
var inside = []string{"EngineCoreRequestType.EXECUTOR_FAILED", "EngineCoreRequestType.WAKEUP"}

func (c *comparison) enums() {
	eachName(c.a.Enums, c.b.Enums, func(name string, e protocol.Enum) {
		c.add(Change{
			Kind: EnumAdded, Subject: name, Struct: name, After: plural(len(e.Members), "member"), Level: Informational,
			Reason: "it travels in what refers to it, which is a change of its own",
			Where:  c.where(false, e.Place), group: groupEnums,
		})
	}, func(name string, e protocol.Enum) {
		c.add(Change{
			Kind: EnumRemoved, Subject: name, Struct: name, Before: plural(len(e.Members), "member"), Level: Informational,
			Reason: "nothing refers to it any more, or what does is a change of its own",
			Where:  c.where(true, e.Place), group: groupEnums,
		})
	}, c.enumBoth)
}

func (c *comparison) enumBoth(name string, a, b protocol.Enum) {
	for i, m := range b.Members {
		if was, both := memberNamed(a, m.Name); both {
			c.memberBoth(name, b, i, was)
		} else {
			c.memberAdded(name, a, b, i)
		}
	}
	for i, m := range a.Members {
		_, both := memberNamed(b, m.Name)
		if _, renamed := memberOf(b, m.Value); !both && !renamed {
			c.memberRemoved(name, a, i)
		}
	}
}

func memberNamed(e protocol.Enum, name string) (protocol.Member, bool) {
	return firstMember(e, func(m protocol.Member) bool { return m.Name == name })
}

func memberOf(e protocol.Enum, value []byte) (protocol.Member, bool) {
	return firstMember(e, func(m protocol.Member) bool { return sameJSON(m.Value, value) })
}

func firstMember(e protocol.Enum, is func(protocol.Member) bool) (protocol.Member, bool) {
	if i := slices.IndexFunc(e.Members, is); i >= 0 {
		return e.Members[i], true
	}
	return protocol.Member{}, false
}

// memberChange is a change of the i-th member of e.
func (c *comparison) memberChange(kind Kind, name string, e protocol.Enum, i int) Change {
	place := e.Place
	if e.Members[i].At != 0 {
		place.At = e.Members[i].At
	}
	return Change{
		Kind: kind, Subject: name + "." + e.Members[i].Name, Struct: name, order: i,
		Where: c.where(kind == MemberRemoved, place), group: groupEnums,
	}
}

// addMember takes in a change of a member, which is none on the wire if the member
// never gets there.
func (c *comparison) addMember(ch Change) {
	if slices.Contains(inside, ch.Subject) {
		ch.Breaks, ch.Level, ch.Reason = nil, Informational, "it never leaves the engine"
	}
	c.add(ch)
}

func (c *comparison) memberAdded(name string, a, b protocol.Enum, i int) {
	way, m := c.routes.of(name), b.Members[i]
	if was, renamed := memberOf(a, m.Value); renamed {
		ch := c.memberChange(MemberRenamed, name, b, i)
		ch.Before, ch.After, ch.Level = was.Name, m.Name, Informational
		ch.Reason = "another name for " + value(m.Value) + ", which is what is written"
		c.addMember(ch)
		return
	}
	ch := c.memberChange(MemberAdded, name, b, i)
	ch.After, ch.Breaks = value(m.Value), way.parties(true, false)
	ch.Reason = fmt.Sprintf("%s of %s do not know the value", way.readers(), c.from())
	c.addMember(ch)
}

func (c *comparison) memberRemoved(name string, a protocol.Enum, i int) {
	way := c.routes.of(name)
	ch := c.memberChange(MemberRemoved, name, a, i)
	ch.Before, ch.Breaks = value(a.Members[i].Value), way.parties(false, true)
	ch.Reason = fmt.Sprintf("%s of %s refuses it, should %s of %s still write it",
		way.newReader(), c.to(), way.writers(), c.from())
	c.addMember(ch)
}

func (c *comparison) memberBoth(name string, b protocol.Enum, i int, was protocol.Member) {
	if sameJSON(was.Value, b.Members[i].Value) {
		return
	}
	way := c.routes.of(name)
	ch := c.memberChange(MemberValue, name, b, i)
	ch.Before, ch.After, ch.Breaks = value(was.Value), value(b.Members[i].Value), way.parties(true, true)
	ch.Reason = fmt.Sprintf("another value stands for it: %s of %s take it for something else, and %s of %s what %s of %s write",
		way.readers(), c.from(), way.newReader(), c.to(), way.writers(), c.from())
	c.addMember(ch)
}

// How constants are used, by how their names begin or end.
const (
	callID     = "_CALL_ID"     // of a UtilityOutput that answers no call
	customType = "CUSTOM_TYPE_" // ext codes
	medium     = "MEDIUM_"      // BlockStored.medium
)

// unsent are constants that both sides know and nobody writes.
var unsent = []string{"HANDSHAKE_TIMEOUT_MINS", "FINISH_REASON_STRINGS", "FT_UTILITY_METHOD"}

func (c *comparison) constants() {
	eachName(c.a.Constants, c.b.Constants, c.constantAdded, func(name string, v protocol.Constant) {
		c.add(Change{
			Kind: ConstantRemoved, Subject: name, Before: value(v.Value), Level: Informational,
			Reason: "nothing upstream uses it any more", Where: c.where(true, v.Place), group: groupConstants,
		})
	}, c.constantBoth)
}

func (c *comparison) constantAdded(name string, v protocol.Constant) {
	ch := Change{
		Kind: ConstantAdded, Subject: name, After: value(v.Value), Level: Informational,
		Reason: "it comes with what uses it", Where: c.where(false, v.Place), group: groupConstants,
	}
	if strings.HasSuffix(name, callID) {
		ch.Level, ch.Breaks = "", []Party{Frontends}
		ch.Reason = fmt.Sprintf("an engine of %s may send a UtilityOutput of this call id, which frontends of %s never asked for",
			c.to(), c.from())
	}
	c.add(ch)
}

func (c *comparison) constantBoth(name string, a, b protocol.Constant) {
	if sameJSON(a.Value, b.Value) {
		return
	}
	ch := Change{
		Kind: ConstantValue, Subject: name, Before: value(a.Value), After: value(b.Value),
		Where: c.where(false, b.Place), group: groupConstants,
	}
	ch.Breaks, ch.Reason = c.constantBreaks(name, ch.Before, ch.After)
	if len(ch.Breaks) == 0 {
		ch.Level = Informational
	}
	c.add(ch)
}

func (c *comparison) constantBreaks(name, before, after string) ([]Party, string) {
	way := toEngine | toFrontend
	switch {
	case slices.Contains(unsent, name):
		return nil, "it is not sent"
	case strings.HasSuffix(name, callID):
		return toFrontend.parties(true, true), "the two sides take another id for what answers no call"
	case strings.HasPrefix(name, medium):
		way = events
	case strings.HasPrefix(strings.Trim(before, `"`), "Literal["):
		was, is := parseType(strings.Trim(before, `"`)), parseType(strings.Trim(after, `"`))
		parties := toEngine.parties(!was.accepts(is), !is.accepts(was))
		return parties, "the words that may be said are others"
	case strings.HasPrefix(name, customType):
		return way.parties(true, true), "the two sides take another ext code for it"
	}
	return way.parties(true, true), "the two sides take another value for it"
}
