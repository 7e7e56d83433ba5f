package wirediff

import (
	"fmt"
	"slices"
	"strings"

	"github.com/vllm-vcr/conformance/internal/base/safetext"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// internalMembers never leave a process (vllm/v1/engine/core.py).
var internalMembers = []string{"EngineCoreRequestType.EXECUTOR_FAILED", "EngineCoreRequestType.WAKEUP"}

func (c *comparison) enums() {
	eachName(c.a.Enums, c.b.Enums, func(name string, e protocol.Enum) {
		c.add(Change{
			Kind: EnumAdded, Subject: name, Struct: name, After: safetext.Count(len(e.Members), "member"), Level: Informational,
			Reason: comesWithUse, Where: c.where(c.b, e.Place, 0),
		})
	}, func(name string, e protocol.Enum) {
		c.add(Change{
			Kind: EnumRemoved, Subject: name, Struct: name, Before: safetext.Count(len(e.Members), "member"), Level: Informational,
			Reason: goesWithUse, Where: c.where(c.a, e.Place, 0),
		})
	}, c.compareEnum)
}

// Why a struct or an enum that is added or removed breaks nothing by itself.
const (
	comesWithUse = "it is sent only inside other messages; where they changed, they are listed as well"
	goesWithUse  = "no message contains it any more; messages that changed are listed as well"
)

func (c *comparison) compareEnum(name string, a, b protocol.Enum) {
	s := c.sides(name)
	for i, m := range b.Members {
		ch := Change{After: value(m.Value)}
		if was, both := member(a, func(x protocol.Member) bool { return x.Name == m.Name }); both {
			if sameJSON(was.Value, m.Value) {
				continue
			}
			ch.Kind, ch.Before, ch.Breaks = MemberValue, value(was.Value), s.parties(true, true)
			ch.Reason = fmt.Sprintf("its value changed: %s read it as something else, and so does %s with what %s write",
				s.readers, s.newReader, s.writers)
		} else if was, renamed := member(a, func(x protocol.Member) bool { return sameJSON(x.Value, m.Value) }); renamed {
			ch.Kind, ch.Before, ch.After, ch.Level = MemberRenamed, was.Name, m.Name, Informational
			ch.Reason = "only the name changed: the messages contain the value " + value(m.Value)
		} else {
			ch.Kind, ch.Breaks, ch.Reason = MemberAdded, s.parties(true, false), s.readers+" do not know the value"
		}
		ch.Where = c.where(c.b, b.Place, m.At)
		c.addMember(ch, name, m, i)
	}
	for i, m := range a.Members {
		_, kept := member(b, func(x protocol.Member) bool { return x.Name == m.Name || sameJSON(x.Value, m.Value) })
		if kept {
			continue
		}
		c.addMember(Change{
			Kind: MemberRemoved, Before: value(m.Value), Breaks: s.parties(false, true), Where: c.where(c.a, a.Place, m.At),
			Reason: fmt.Sprintf("%s refuses it if %s still write it", s.newReader, s.writers),
		}, name, m, i)
	}
}

func member(e protocol.Enum, is func(protocol.Member) bool) (protocol.Member, bool) {
	if i := slices.IndexFunc(e.Members, is); i >= 0 {
		return e.Members[i], true
	}
	return protocol.Member{}, false
}

// addMember takes in a change of the i-th member of an enum. It is none on the wire if the member never gets there.
func (c *comparison) addMember(ch Change, enum string, m protocol.Member, i int) {
	ch.Subject, ch.Struct, ch.order = enum+"."+m.Name, enum, i
	if slices.Contains(internalMembers, ch.Subject) {
		ch.Breaks, ch.Level, ch.Reason = nil, Informational, "the engine never sends it"
	}
	c.add(ch)
}

// How constants are used, by how their names begin or end.
const (
	callID     = "_CALL_ID"     // of a UtilityOutput that answers no call
	customType = "CUSTOM_TYPE_" // ext codes
	medium     = "MEDIUM_"      // BlockStored.medium
)

// unsentConstants are known to both sides, and are never written.
var unsentConstants = []string{"HANDSHAKE_TIMEOUT_MINS", "FINISH_REASON_STRINGS", "FT_UTILITY_METHOD"}

func (c *comparison) constants() {
	eachName(c.a.Constants, c.b.Constants, func(name string, v protocol.Constant) {
		ch := Change{
			Kind: ConstantAdded, Subject: name, After: value(v.Value), Level: Informational,
			Reason: "it is new together with the code that uses it", Where: c.where(c.b, v.Place, 0),
		}
		if strings.HasSuffix(name, callID) {
			ch.Breaks = []Party{Frontends}
			ch.Reason = fmt.Sprintf("an engine of %s may send a UtilityOutput of this call id, which frontends of %s never asked for",
				c.to, c.from)
		}
		c.add(ch)
	}, func(name string, v protocol.Constant) {
		c.add(Change{
			Kind: ConstantRemoved, Subject: name, Before: value(v.Value), Level: Informational,
			Reason: "nothing in vLLM uses it any more", Where: c.where(c.a, v.Place, 0),
		})
	}, func(name string, a, b protocol.Constant) {
		if sameJSON(a.Value, b.Value) {
			return
		}
		ch := Change{Kind: ConstantValue, Subject: name, Before: value(a.Value), After: value(b.Value), Where: c.where(c.b, b.Place, 0)}
		if ch.Breaks, ch.Reason = constantBreaks(name, ch.Before, ch.After); len(ch.Breaks) == 0 {
			ch.Level = Informational
		}
		c.add(ch)
	})
}

// constantBreaks returns the parties that fail when a constant gets another value, and why.
func constantBreaks(name, before, after string) ([]Party, string) {
	before, after = strings.Trim(before, `"`), strings.Trim(after, `"`)
	way := toEngine | toFrontend
	switch {
	case slices.Contains(unsentConstants, name):
		return nil, "it is not sent"
	case strings.HasSuffix(name, callID):
		return toFrontend.parties(true, true), "the two sides use different ids for a message that answers no call"
	case strings.HasPrefix(name, medium):
		way = events
	case strings.HasPrefix(before, "Literal["):
		was, is := readType(before), readType(after)
		return toEngine.parties(!accepts(was, is), !accepts(is, was)), "the permitted words changed"
	case strings.HasPrefix(name, customType):
		return way.parties(true, true), "the two sides use different ext codes for it"
	}
	return way.parties(true, true), "the two sides use different values for it"
}
