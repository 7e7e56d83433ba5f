package wirediff

import (
	"fmt"
	"slices"

	"github.com/vllm-vcr/conformance/internal/protocol"
)

// firstRequest is the message that makes the coordinator of a frontend start a wave.
const firstRequest = "coordinator first request"

// messagePair is a message that both profiles have.
type messagePair struct {
	*comparison
	name    string
	a, b    protocol.Message
	route   route
	readers string
	writers string
	newOne  string
	inOrder bool // frames or an array, of a fixed number
}

func (c *comparison) messages() {
	eachName(c.a.Messages, c.b.Messages, c.messageAdded, c.messageRemoved, c.messageBoth)
}

func (c *comparison) messageAdded(name string, m protocol.Message) {
	way := c.routes.of(name)
	c.add(Change{
		Kind: MessageAdded, Subject: name, Struct: name, After: m.Encoding, Breaks: way.parties(true, false),
		Reason: fmt.Sprintf("%s of %s do not know the message", way.readers(), c.from()),
		Where:  c.where(false, m.Place), group: groupMessages,
	})
}

func (c *comparison) messageRemoved(name string, m protocol.Message) {
	way := c.routes.of(name)
	ch := Change{
		Kind: MessageRemoved, Subject: name, Struct: name, Before: m.Encoding, Breaks: way.parties(true, false),
		Reason: fmt.Sprintf("it is not sent any more, and %s of %s wait for it", way.readers(), c.from()),
		Where:  c.where(true, m.Place), group: groupMessages,
	}
	if name == firstRequest {
		ch.Breaks = []Party{Engines}
		ch.Reason = fmt.Sprintf("frontends of %s start no wave: in data parallel, an engine of %s that is idle waits for one in vain",
			c.to(), c.from())
	}
	c.add(ch)
}

func (c *comparison) messageBoth(name string, a, b protocol.Message) {
	way := c.routes.of(name)
	p := &messagePair{
		comparison: c, name: name, a: a, b: b, route: way, inOrder: b.Encoding != "map",
		readers: way.readers() + " of " + c.from(), writers: way.writers() + " of " + c.from(),
		newOne: way.newReader() + " of " + c.to(),
	}
	if a.Encoding != b.Encoding {
		p.report(Change{
			Kind: MessageEncoding, Subject: name, Before: a.Encoding, After: b.Encoding, Breaks: way.parties(true, true),
			Reason: fmt.Sprintf("%s cannot read it, nor %s what %s write", p.readers, p.newOne, p.writers),
		}, false, b.Place)
	}
	if p.inOrder {
		p.sequence()
	} else {
		p.keys()
	}
}

// keys compares the keys of a map, whose order means nothing.
func (p *messagePair) keys() {
	for i, key := range p.a.Keys {
		if indexOf(p.b, key.Name) < 0 {
			p.keyRemoved(i)
		}
	}
	for i, key := range p.b.Keys {
		switch from := indexOf(p.a, key.Name); {
		case from < 0:
			p.keyAdded(i)
		case p.a.Keys[from].Optional != key.Optional:
			p.keyOptional(i)
		}
	}
}

func indexOf(m protocol.Message, name string) int {
	return slices.IndexFunc(m.Keys, func(k protocol.Key) bool { return k.Name == name })
}

// sequence compares frames, or the values of an array.
func (p *messagePair) sequence() {
	pairs := common(keyNames(p.a), keyNames(p.b))
	kept := map[int]bool{}
	for _, from := range pairs {
		kept[from] = true
	}
	for i := range p.a.Keys {
		if !kept[i] {
			p.keyRemoved(i)
		}
	}
	for i, key := range p.b.Keys {
		switch from, both := pairs[i]; {
		case !both:
			p.keyAdded(i)
		case p.a.Keys[from].Optional != key.Optional:
			p.keyOptional(i)
		}
	}
}

func keyNames(m protocol.Message) []string {
	names := make([]string, len(m.Keys))
	for i, k := range m.Keys {
		names[i] = k.Name
	}
	return names
}

func (p *messagePair) report(ch Change, gone bool, place protocol.Place) {
	ch.Struct, ch.group, ch.Where = p.name, groupMessages, p.where(gone, place)
	p.add(ch)
}

// keyChange is a change of the i-th key, which is gone if it is one of A.
func (p *messagePair) keyChange(kind Kind, m protocol.Message, i int) (Change, protocol.Place) {
	ch := Change{Kind: kind, Subject: p.name + "." + m.Keys[i].Name, order: i}
	if p.inOrder {
		ch.Position = at(i)
	}
	place := m.Place
	if m.Keys[i].At != 0 {
		place.At = m.Keys[i].At
	}
	return ch, place
}

func (p *messagePair) keyAdded(i int) {
	ch, place := p.keyChange(KeyAdded, p.b, i)
	ch.After = p.keyText(p.b.Keys[i])
	switch optional := p.b.Keys[i].Optional; {
	case p.inOrder:
		ch.Breaks, ch.Reason = p.route.parties(true, true), p.otherNumber()
	case optional:
		ch.Reason = fmt.Sprintf("it is written under a condition, and %s skip keys they do not know", p.readers)
	default:
		ch.Breaks = p.route.parties(false, true)
		ch.Reason = fmt.Sprintf("it is always written: %s may rely on it, and %s do not write it", p.newOne, p.writers)
	}
	p.report(ch, false, place)
}

func (p *messagePair) otherNumber() string {
	return fmt.Sprintf("it has a fixed number of %ss: %s misread it, and %s what %s write",
		p.noun(), p.readers, p.newOne, p.writers)
}

// noun is what the message consists of.
func (p *messagePair) noun() string {
	switch p.b.Encoding {
	case "frames":
		return "frame"
	case "array":
		return "value"
	}
	return "key"
}

func (p *messagePair) keyRemoved(i int) {
	ch, place := p.keyChange(KeyRemoved, p.a, i)
	ch.Before = p.keyText(p.a.Keys[i])
	switch optional := p.a.Keys[i].Optional; {
	case p.inOrder:
		ch.Breaks, ch.Reason = p.route.parties(true, true), p.otherNumber()
	case optional:
		ch.Reason = fmt.Sprintf("it was written under a condition only, so that %s do without it", p.readers)
	default:
		ch.Breaks = p.route.parties(true, false)
		ch.Reason = fmt.Sprintf("it was always written, and %s may rely on it", p.readers)
	}
	p.report(ch, true, place)
}

func (p *messagePair) keyOptional(i int) {
	ch, place := p.keyChange(KeyOptional, p.b, i)
	if optional := p.b.Keys[i].Optional; optional {
		ch.Before, ch.After = "always", "under a condition"
		ch.Breaks = p.route.parties(true, false)
		ch.Reason = fmt.Sprintf("%s may rely on it, and it is not always written", p.readers)
	} else {
		ch.Before, ch.After = "under a condition", "always"
		ch.Reason = fmt.Sprintf("%s do without it, and so does %s, as far as it is declared", p.readers, p.newOne)
	}
	p.report(ch, false, place)
}

func (p *messagePair) keyText(k protocol.Key) string {
	if k.Optional {
		return p.noun() + ", under a condition"
	}
	return p.noun() + ", always"
}
