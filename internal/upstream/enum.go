package upstream

import (
	"slices"
	"strings"

	"github.com/vllm-vcr/conformance/internal/protocol"
	"github.com/vllm-vcr/conformance/internal/pyast"
)

// An enumeration is the members of an enum, in the order of their declaration.
type enumeration struct {
	members []protocol.Member
	values  map[string]any // by name
	words   bool           // StrEnum: auto() is the name in lower case
	last    int64          // auto() is the next
}

// enumMembers reads the members of an enum.
func (x *extractor) enumMembers(c *class) error {
	e := &enumeration{values: map[string]any{}, words: x.derivesFrom(c, "enum.StrEnum")}
	c.members = e
	t := c.module.tree
	for n := range c.def.node.ByField("body").NamedChildren() {
		if n.Kind != "expression_statement" {
			x.compound(c, n, "members")
			continue
		}
		for a := range n.NamedChildren() {
			left := a.ByField("left")
			if a.Kind != "assignment" || a.ByField("right") == nil || isSunder(t.Text(left)) {
				continue
			}
			if left.Kind != "identifier" {
				x.classGap(c, a, "its member %s has no plain name", pyast.Canonical(t, left))
				continue
			}
			if err := x.enumMember(c, e, t.Text(left), a); err != nil {
				return err
			}
		}
	}
	return nil
}

// isSunder tells the names that an enum keeps to itself.
func isSunder(name string) bool {
	return len(name) > 2 && strings.HasPrefix(name, "_") && strings.HasSuffix(name, "_")
}

func (x *extractor) derivesFrom(c *class, base string) bool {
	for n := range c.def.node.ByField("superclasses").NamedChildren() {
		if ref, err := x.resolve(c.module, c.module.tree.Text(n)); err == nil && ref.external == base {
			return true
		}
	}
	return slices.ContainsFunc(c.bases, func(b *class) bool { return x.derivesFrom(b, base) })
}

// countsOtherwise tells whether auto() is not the next integer or the name in lower case.
func (x *extractor) countsOtherwise(c *class) bool {
	_, own := method(c, "_generate_next_value_")
	return own != nil || x.derivesFrom(c, "enum.Flag") || x.derivesFrom(c, "enum.IntFlag")
}

func (x *extractor) enumMember(c *class, e *enumeration, name string, a *pyast.Node) error {
	value, err := x.enumValue(c, e, name, a.ByField("right"))
	if err != nil {
		return err
	}
	text, ok := jsonOf(value)
	if !ok {
		x.classGap(c, a, "the value of its member %s is known only when it runs", name)
		return nil
	}
	if i, isInt := value.(int64); isInt {
		e.last = max(e.last, i)
	}
	e.values[name] = value
	e.members = append(e.members, protocol.Member{Name: name, Value: text, At: a.Line})
	return nil
}

// notKnown is a value that no literal has.
type notKnown struct{}

func (x *extractor) enumValue(c *class, e *enumeration, name string, n *pyast.Node) (any, error) {
	t := c.module.tree
	if n.Kind == "call" {
		ref, err := x.resolve(c.module, t.Text(n.ByField("function")))
		if err != nil || ref.external != "enum.auto" || x.countsOtherwise(c) {
			return notKnown{}, err
		}
		if e.words {
			return strings.ToLower(name), nil
		}
		return e.last + 1, nil
	}
	if value, known := e.values[t.Text(n)]; known {
		return value, nil
	}
	value, known, err := x.evaluate(c.module, n)
	if !known {
		value = notKnown{}
	}
	return value, err
}
