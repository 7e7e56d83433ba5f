package grammar

import (
	"cmp"
	"fmt"
	"slices"
)

// style is how the members of the outermost object are written: the zero value is
// JSON, others are the forms of models that call tools in XML, which write strings
// without quotes and have no nested members.
type style struct{ before, between, after string }

func (s style) xml() bool { return s.before != "" }

// styles are by the names of xgrammar's structural tags.
var styles = map[string]style{
	"": {}, "json": {},
	"qwen_xml":    {"<parameter=", ">", "</parameter>"},
	"minimax_xml": {`<parameter name="`, `">`, "</parameter>"},
	"glm_xml":     {"<arg_key>", "</arg_key><arg_value>", "</arg_value>"},
}

// objectNode is how objects of one kind are written: members in the order of the
// schema, then others.
type objectNode struct {
	members  []memberNode
	extras   []extraNode
	min, max int
	// needs are members that must come with one that is there.
	needs map[string][]string
	// partners are the same, by the indexes of the members.
	partners [][]int
	style    style
}

type memberNode struct {
	name     string
	value    *node
	required bool
}

// extraNode writes members whose names the schema leaves open.
type extraNode struct{ key, value *node }

// overhead is the bytes of a member without its name and value.
func (o *objectNode) overhead() int {
	if o.style.xml() {
		return len(o.style.before) + len(o.style.between) + len(o.style.after)
	}
	return len(`"":,`)
}

func (o *objectNode) price(m memberNode) int {
	return plus(len(m.name)+o.overhead(), m.value.least)
}

func (e extraNode) price() int { return plus(plus(e.key.least, len(":,")), e.value.least) }

// shortest is the length of the required members, and of the cheapest others until
// there are enough.
func (o *objectNode) shortest() int {
	sum, count := 0, 0
	var others []int
	for _, m := range o.members {
		if m.required {
			sum, count = plus(sum, o.price(m)), count+1
		} else {
			others = append(others, o.price(m))
		}
	}
	slices.Sort(others)
	for ; count < o.min && len(others) > 0 && others[0] != never; count++ {
		sum, others = plus(sum, others[0]), others[1:]
	}
	if count > o.max {
		return never
	}
	if count < o.min {
		extra := never
		for _, e := range o.extras {
			extra = min(extra, e.price())
		}
		sum = plus(sum, times(o.min-count, extra))
	}
	return plus(sum, 1) // "{}" and no last comma
}

// objectOf returns the objects that conform.
func (s *schemas) objectOf(all []*object) *node {
	o := &objectNode{min: s.atLeast(all, "minProperties"), max: s.atMost(all, "maxProperties"), needs: map[string][]string{}}
	n := &node{op: opObject, object: o}
	required := s.required(all, o)
	needed := map[string]bool{}
	for _, name := range required {
		needed[name] = true
	}
	for _, name := range s.names(all, required) {
		m := memberNode{name: name, required: needed[name]}
		m.value = s.of(s.at(all, name))
		o.members = append(o.members, m)
		n.kids = append(n.kids, m.value)
	}
	s.pair(o)
	o.extras = s.extras(all)
	for _, e := range o.extras {
		n.kids = append(n.kids, e.key, e.value)
	}
	return n
}

// pair finds the members that must come with others.
func (s *schemas) pair(o *objectNode) {
	if len(o.needs) == 0 {
		return
	}
	at := make(map[string]int, len(o.members))
	for i, m := range o.members {
		at[m.name] = i
	}
	o.partners = make([][]int, len(o.members))
	for i, m := range o.members {
		s.work.spend(1 + len(o.needs[m.name]))
		for _, name := range o.needs[m.name] {
			if other, ok := at[name]; ok {
				o.partners[i] = append(o.partners[i], other)
			}
		}
	}
}

func (s *schemas) required(all []*object, o *objectNode) []string {
	var names []string
	for _, schema := range all {
		names = append(names, s.strings(schema, "required")...)
		for _, key := range []string{"dependentRequired", "dependencies"} {
			if needs, ok := schema.values[key].(*object); ok {
				s.work.spend(len(needs.keys))
				for _, name := range needs.keys {
					if _, isList := needs.values[name].([]any); isList {
						o.needs[name] = append(o.needs[name], s.strings(needs, name)...)
					}
				}
			}
		}
	}
	return names
}

// strings is a member that is a list of strings. In draft 3 required is a bool.
func (s *schemas) strings(o *object, key string) []string {
	var texts []string
	s.work.spend(len(items(o.values[key])))
	for _, v := range items(o.values[key]) {
		text, ok := v.(string)
		if !ok {
			s.fail("JSON schema: %s has %s, which is not a name", key, shown(v))
		}
		texts = append(texts, text)
	}
	return texts
}

func items(v any) []any {
	list, _ := v.([]any)
	return list
}

// names are the members that schemas name, in their order.
func (s *schemas) names(all []*object, required []string) []string {
	var names []string
	for _, o := range all {
		if v, ok := o.get("properties"); ok {
			properties, isObject := v.(*object)
			if !isObject {
				s.fail("JSON schema: properties is not an object")
				continue
			}
			names = append(names, properties.keys...)
		}
	}
	known := map[string]bool{}
	s.work.spend(2 * (len(names) + len(required)))
	return slices.DeleteFunc(append(names, required...), func(name string) bool {
		again := known[name]
		known[name] = true
		return again
	})
}

// at are the schemas of a member.
func (s *schemas) at(all []*object, name string) []any {
	var found []any
	for _, o := range all {
		s.work.spend(2)
		known := false
		if properties, ok := o.values["properties"].(*object); ok {
			if v, ok := properties.get(name); ok {
				found, known = append(found, v), true
			}
		}
		if patterns, ok := o.values["patternProperties"].(*object); ok {
			for _, pattern := range patterns.keys {
				s.work.spend(1)
				if ok, err := s.work.matches(pattern, name); ok {
					found, known = append(found, patterns.values[pattern]), true
				} else if err != nil {
					s.fail("JSON schema: patternProperties: %w", err)
				}
			}
		}
		if v, ok := o.get("additionalProperties"); ok && !known {
			found = append(found, v)
		}
	}
	return found
}

// aString is the schema of strings.
var aString = &object{keys: []string{"type"}, values: map[string]any{"type": "string"}}

// extras are how members may be named that no schema names.
func (s *schemas) extras(all []*object) []extraNode {
	var extras []extraNode
	name := []any{aString}
	var value []any
	open := true
	for _, o := range all {
		if v, ok := o.get("propertyNames"); ok {
			name = append(name, v)
		}
		if v, ok := o.get("additionalProperties"); ok {
			value = append(value, v)
			open = open && v != false
		}
		open = open && o.values["unevaluatedProperties"] != false
		if patterns, ok := o.values["patternProperties"].(*object); ok {
			for _, pattern := range patterns.keys {
				s.work.spend(2)
				extras = append(extras, extraNode{s.patterned(pattern, 0, longest), s.of([]any{patterns.values[pattern]})})
			}
		}
	}
	if !open {
		return extras
	}
	key := s.of(name)
	if len(name) == 1 {
		key = quoted(leaf(4, func(d *draw) string { return word(d.rand) }))
	}
	return append(extras, extraNode{key, s.of(value)})
}

// object writes an object.
func (d *draw) object(n *node) {
	o := n.object
	d.work.spend(2 + len(o.members) + len(o.extras))
	used := map[string]bool{}
	chosen := d.members(o)
	if !o.style.xml() {
		d.out = append(d.out, '{')
	}
	for _, i := range chosen {
		m := o.members[i]
		used[string(appendQuoted(nil, m.name))] = true
		d.separate(o, len(used))
		d.key(o, m.name)
		d.write(m.value)
		d.out = append(d.out, o.style.after...)
	}
	for range d.extras(o, len(chosen)) {
		if d.done() {
			break
		}
		if d.member(o, used) {
			continue
		}
		if len(used) < o.min {
			d.err = fmt.Errorf("no %d names were found for the members of an object", len(used)+1)
		}
		break
	}
	if !o.style.xml() {
		d.out = append(d.out, '}')
	}
}

func (d *draw) separate(o *objectNode, count int) {
	if count > 1 && !o.style.xml() {
		d.out = append(d.out, ',')
	}
}

func (d *draw) key(o *objectNode, name string) {
	if o.style.xml() {
		d.out = append(d.out, o.style.before+name+o.style.between...)
		return
	}
	d.out = append(appendQuoted(d.out, name), ':')
}

// members chooses which of the named members to write.
func (d *draw) members(o *objectNode) []int {
	chosen := make([]bool, len(o.members))
	count := 0
	for i, m := range o.members {
		if chosen[i] = m.required; chosen[i] {
			count++
		}
	}
	for i, m := range o.members {
		price := o.price(m)
		if !chosen[i] && count < o.max && price <= d.budget && d.rand.IntN(4) > 0 {
			d.budget -= price
			chosen[i] = true
			count++
		}
	}
	o.fill(chosen, count)
	o.accompany(d.work, chosen)
	var order []int
	for i := range chosen {
		if chosen[i] {
			order = append(order, i)
		}
	}
	return order
}

// fill adds the cheapest members until there are enough.
func (o *objectNode) fill(chosen []bool, count int) {
	if count >= o.min {
		return
	}
	var left []int
	for i, m := range o.members {
		if !chosen[i] && o.price(m) != never {
			left = append(left, i)
		}
	}
	slices.SortStableFunc(left, func(i, j int) int { return cmp.Compare(o.price(o.members[i]), o.price(o.members[j])) })
	for _, i := range left[:min(len(left), o.min-count)] {
		chosen[i] = true
	}
}

// accompany adds the members that chosen ones need.
func (o *objectNode) accompany(w *Work, chosen []bool) {
	if o.partners == nil {
		return
	}
	var todo []int
	for i := range chosen {
		if chosen[i] {
			todo = append(todo, i)
		}
	}
	for len(todo) > 0 {
		partners := o.partners[todo[0]]
		todo = todo[1:]
		w.spend(1 + len(partners)/4)
		for _, i := range partners {
			if !chosen[i] {
				chosen[i] = true
				todo = append(todo, i)
			}
		}
	}
}

// extras is how many members of other names to write: those that are missing, and
// some where the schema names none at all.
func (d *draw) extras(o *objectNode, count int) int {
	missing := max(o.min-count, 0)
	if len(o.extras) == 0 || len(o.members) > 0 {
		return missing
	}
	price := never
	for _, e := range o.extras {
		price = min(price, e.price())
	}
	if price == never {
		return missing
	}
	return missing + d.extra(min(mostItems, o.max-missing), price)
}

// member writes one member with a name that is not used yet, if it finds one.
func (d *draw) member(o *objectNode, used map[string]bool) bool {
	d.work.spend(1 + len(o.extras)/4)
	open := slices.DeleteFunc(slices.Clone(o.extras), func(e extraNode) bool { return e.price() == never })
	if len(open) == 0 {
		return false
	}
	before, budget := len(d.out), d.budget
	d.separate(o, len(used)+1)
	start := len(d.out)
	for try := range differentTries {
		e := open[d.rand.IntN(len(open))]
		d.out, d.budget = d.out[:start], budget+min(try, tries)
		d.write(e.key)
		if name := string(d.out[start:]); !used[name] && !d.done() {
			used[name] = true
			d.budget = min(d.budget, budget)
			d.out = append(d.out, ':')
			d.write(e.value)
			return true
		}
	}
	d.out, d.budget = d.out[:before], budget
	return false
}

// parameters returns objects in the document's style.
func (s *schemas) parameters(document any) *node {
	var cases [][]*object
	s.expand([]any{document}, nil, &cases)
	all := choice()
	for _, c := range cases {
		n := s.objectOf(c)
		n.object.style = s.style
		n.object.extras = nil
		for i := range n.object.members {
			m := &n.object.members[i]
			m.value = bare(s.work, m.value)
			n.kids = append(n.kids, m.value)
		}
		all.kids = append(all.kids, n)
	}
	return all
}

// bare writes strings without quotes.
func bare(w *Work, n *node) *node {
	switch n.op {
	case opQuoted:
		return n.kids[0]
	case opAlt:
		alt := choice()
		for _, kid := range n.kids {
			w.spend(1)
			alt.kids = append(alt.kids, bare(w, kid))
		}
		return alt
	case opLiteral:
		if v, err := parseJSON(w, n.text); err == nil {
			if text, ok := v.(string); ok {
				return literal(text)
			}
		}
	}
	return n
}
