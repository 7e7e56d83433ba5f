package wirediff

import (
	"fmt"
	"maps"
	"slices"

	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// firstRequest is the message that makes the coordinator of a frontend start a wave.
const firstRequest = "coordinator first request"

func (c *comparison) messages() {
	eachName(c.a.Messages, c.b.Messages, c.messageAdded, c.messageRemoved, c.compareMessage)
}

func (c *comparison) messageAdded(name string, m protocol.Message) {
	s := c.sides(name)
	c.add(Change{
		Kind: MessageAdded, Subject: name, Struct: name, After: m.Encoding, Breaks: s.parties(true, false),
		Reason: s.readers + " do not know the message", Where: c.where(c.b, m.Place, 0),
	})
}

func (c *comparison) messageRemoved(name string, m protocol.Message) {
	s := c.sides(name)
	ch := Change{
		Kind: MessageRemoved, Subject: name, Struct: name, Before: m.Encoding, Breaks: s.parties(true, false),
		Reason: fmt.Sprintf("it is not sent any more, and %s wait for it", s.readers), Where: c.where(c.a, m.Place, 0),
	}
	if name == firstRequest {
		ch.Breaks = []Party{Engines}
		ch.Reason = fmt.Sprintf("frontends of %s do not start a wave: with data parallelism, an idle engine of %s waits for it without end",
			c.to, c.from)
	}
	c.add(ch)
}

// messagePair is a message that both profiles have.
type messagePair struct {
	*comparison
	sides
	name    string
	a, b    protocol.Message
	noun    string // for one of its parts
	inOrder bool   // frames or an array, of a fixed number
}

func (c *comparison) compareMessage(name string, a, b protocol.Message) {
	p := &messagePair{comparison: c, sides: c.sides(name), name: name, a: a, b: b, noun: "key", inOrder: b.Encoding != "map"}
	switch b.Encoding {
	case "frames":
		p.noun = "frame"
	case "array":
		p.noun = "value"
	}
	if a.Encoding != b.Encoding {
		c.add(Change{
			Kind: MessageEncoding, Subject: name, Struct: name, Before: a.Encoding, After: b.Encoding, Breaks: p.parties(true, true),
			Reason: fmt.Sprintf("%s cannot read it, and %s cannot read what %s write", p.readers, p.newReader, p.writers),
			Where:  c.where(c.b, b.Place, 0),
		})
	}
	pairs := p.pairs()
	paired := slices.Collect(maps.Values(pairs))
	for i, key := range a.Keys {
		isInB := func(k protocol.Key) bool { return k.Name == key.Name }
		if !slices.Contains(paired, i) && (p.inOrder || !slices.ContainsFunc(b.Keys, isInB)) {
			p.keyRemoved(i)
		}
	}
	for i, key := range b.Keys {
		if from, both := pairs[i]; !both {
			p.keyAdded(i)
		} else if a.Keys[from].Optional != key.Optional {
			p.keyOptional(i)
		}
	}
}

// pairs returns, by index in B, the index in A of the same key. The order of frames and values counts, and a name may
// be there several times; the order of a map's keys means nothing.
func (p *messagePair) pairs() map[int]int {
	namesA, namesB := keyNames(p.a), keyNames(p.b)
	if p.inOrder {
		return pairInOrder(namesA, namesB)
	}
	pairs := map[int]int{}
	for i, name := range namesB {
		if from := slices.Index(namesA, name); from >= 0 {
			pairs[i] = from
		}
	}
	return pairs
}

func keyNames(m protocol.Message) []string {
	names := make([]string, len(m.Keys))
	for i, k := range m.Keys {
		names[i] = k.Name
	}
	return names
}

// keyChange returns a change of the i-th key of a message in one of the profiles.
func (p *messagePair) keyChange(kind Kind, of *protocol.Profile, m protocol.Message, i int) Change {
	ch := Change{
		Kind: kind, Subject: p.name + "." + m.Keys[i].Name, Struct: p.name, order: i, Where: p.where(of, m.Place, m.Keys[i].At),
	}
	if p.inOrder {
		ch.Position = &i
		ch.Breaks = p.parties(true, true)
		ch.Reason = fmt.Sprintf("it has a fixed number of %ss: %s misread it, and %s misreads what %s write",
			p.noun, p.readers, p.newReader, p.writers)
	}
	return ch
}

func (p *messagePair) keyText(k protocol.Key) string {
	if k.Optional {
		return p.noun + ", not always written"
	}
	return p.noun + ", always"
}

func (p *messagePair) keyAdded(i int) {
	key := p.b.Keys[i]
	ch := p.keyChange(KeyAdded, p.comparison.b, p.b, i)
	ch.After = p.keyText(key)
	switch {
	case p.inOrder:
	case key.Optional:
		ch.Reason = fmt.Sprintf("it is not always written, and %s skip unknown keys", p.readers)
	default:
		ch.Breaks = p.parties(false, true)
		ch.Reason = fmt.Sprintf("it is always written: %s may rely on it, and %s do not write it", p.newReader, p.writers)
	}
	p.add(ch)
}

func (p *messagePair) keyRemoved(i int) {
	key := p.a.Keys[i]
	ch := p.keyChange(KeyRemoved, p.comparison.a, p.a, i)
	ch.Before = p.keyText(key)
	switch {
	case p.inOrder:
	case key.Optional:
		ch.Reason = fmt.Sprintf("it was not always written, so %s work without it", p.readers)
	default:
		ch.Breaks = p.parties(true, false)
		ch.Reason = fmt.Sprintf("it was always written, and %s may rely on it", p.readers)
	}
	p.add(ch)
}

func (p *messagePair) keyOptional(i int) {
	ch := p.keyChange(KeyOptional, p.comparison.b, p.b, i)
	if p.b.Keys[i].Optional {
		ch.Before, ch.After = "always", "not always"
		ch.Breaks = p.parties(true, false)
		ch.Reason = fmt.Sprintf("%s may rely on it, and it is not always written", p.readers)
	} else {
		ch.Before, ch.After, ch.Breaks = "not always", "always", nil
		ch.Reason = fmt.Sprintf("%s work without it, and so does %s, as far as the declaration says", p.readers, p.newReader)
	}
	p.add(ch)
}

// maxPaired bounds the lists that are paired. A longer one is new from end to end.
const maxPaired = 256

// pairInOrder pairs the items of two short lists, in which a name may be several times, in their order: the result is,
// by index in b, the index in a.
func pairInOrder(a, b []string) map[int]int {
	pairs := map[int]int{}
	if len(a) > maxPaired || len(b) > maxPaired {
		return pairs
	}
	// longest[i][j] is that of a[i:] and b[j:].
	longest := make([][]int, len(a)+1)
	for i := range longest {
		longest[i] = make([]int, len(b)+1)
	}
	for i := len(a) - 1; i >= 0; i-- {
		for j := len(b) - 1; j >= 0; j-- {
			longest[i][j] = max(longest[i+1][j], longest[i][j+1])
			if a[i] == b[j] {
				longest[i][j] = longest[i+1][j+1] + 1
			}
		}
	}
	for i, j := 0, 0; i < len(a) && j < len(b); {
		switch {
		case a[i] == b[j]:
			pairs[j] = i
			i, j = i+1, j+1
		case longest[i+1][j] >= longest[i][j+1]:
			i++
		default:
			j++
		}
	}
	return pairs
}
