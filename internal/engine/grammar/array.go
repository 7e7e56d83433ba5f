package grammar

import (
	"fmt"
	"slices"
)

// arrayNode is how arrays of one kind are written.
type arrayNode struct {
	first    []*node // items at the beginning
	wanted   []*node // items that must be there, after them
	rest     *node
	min, max int
	// plain is how many of first are written in any case, if there is room: a schema
	// does not demand them, but the engines of older releases do. What may be recursive
	// is left out.
	plain  int
	unique bool
}

// item is the node of the item at a place.
func (a *arrayNode) item(i int) *node {
	if i < len(a.first) {
		return a.first[i]
	}
	if i -= len(a.first); i < len(a.wanted) {
		return a.wanted[i]
	}
	return a.rest
}

// fewest is the least number of items.
func (a *arrayNode) fewest() int {
	if len(a.wanted) == 0 {
		return max(a.min, min(a.plain, a.max))
	}
	return max(a.min, len(a.first)+len(a.wanted))
}

// plain reports whether texts of a node have nothing within them.
func plain(n *node) bool {
	switch n.op {
	case opLiteral, opLeaf, opQuoted:
		return true
	case opAlt:
		return len(n.kids) > 0 && !slices.ContainsFunc(n.kids, func(kid *node) bool { return !plain(kid) })
	}
	return false
}

func (a *arrayNode) shortest() int {
	count := a.fewest()
	if count > a.max {
		return never
	}
	sum := 2 + max(count-1, 0)
	listed := len(a.first) + len(a.wanted)
	for i := range min(count, listed) {
		sum = plus(sum, a.item(i).least)
	}
	return plus(sum, times(max(count-listed, 0), a.rest.least))
}

// maxWanted bounds minContains.
const maxWanted = 1000

// arrayOf returns the arrays that conform.
func (s *schemas) arrayOf(all []*object) *node {
	a := &arrayNode{min: s.atLeast(all, "minItems"), max: s.atMost(all, "maxItems")}
	longestList := 0
	for _, o := range all {
		longestList = max(longestList, len(tuple(o)))
		a.unique = a.unique || o.values["uniqueItems"] == true
	}
	for i := range longestList {
		s.work.spend(len(all))
		a.first = append(a.first, s.of(s.items(all, i)))
	}
	for a.plain < len(a.first) && plain(a.first[a.plain]) {
		a.plain++
	}
	rest := s.items(all, longestList)
	a.rest = s.of(rest)
	for _, o := range all {
		if wanted, ok := o.get("contains"); ok {
			one := s.of(append([]any{wanted}, rest...))
			count := min(s.count(o, "minContains", 1), maxWanted)
			s.work.spend(count)
			for range count {
				a.wanted = append(a.wanted, one)
			}
		}
	}
	n := &node{op: opArray, array: a, kids: append([]*node{a.rest}, a.first...)}
	n.kids = append(n.kids, a.wanted...)
	return n
}

// tuple are the schemas of the first items.
func tuple(o *object) []any {
	if list := items(o.values["prefixItems"]); list != nil {
		return list
	}
	return items(o.values["items"])
}

// items are the schemas of the item at a place.
func (s *schemas) items(all []*object, i int) []any {
	var found []any
	for _, o := range all {
		list := tuple(o)
		if i < len(list) {
			found = append(found, list[i])
			continue
		}
		key := "items"
		if items(o.values["items"]) != nil {
			key = "additionalItems"
		}
		if v, ok := o.get(key); ok {
			found = append(found, v)
		}
	}
	return found
}

// array writes an array.
func (d *draw) array(n *node) {
	a := n.array
	count := a.fewest()
	for range min(a.max-count, mostItems) {
		item := a.item(count)
		if item.least == never || d.extra(1, item.least+1) == 0 {
			break
		}
		count++
	}
	d.work.spend(1)
	used := map[string]bool{}
	d.out = append(d.out, '[')
	for i := 0; i < count && !d.done(); i++ {
		start := len(d.out)
		if i > 0 {
			d.out = append(d.out, ',')
		}
		if d.item(a, i, used) {
			continue
		}
		if d.out = d.out[:start]; i < a.fewest() {
			d.err = fmt.Errorf("no %d different items were found for an array", i+1)
		}
		break
	}
	d.out = append(d.out, ']')
}

// item writes an item, and another one than all before if it must. It reports
// whether there was one.
func (d *draw) item(a *arrayNode, i int, used map[string]bool) bool {
	if !a.unique {
		d.write(a.item(i))
		return true
	}
	start, budget := len(d.out), d.budget
	for try := range differentTries {
		d.out, d.budget = d.out[:start], budget+min(try, tries)
		d.write(a.item(i))
		if text := string(d.out[start:]); d.done() || !used[text] {
			used[text] = true
			d.budget = min(d.budget, budget)
			return true
		}
	}
	d.budget = budget
	return false
}

// differentTries bound the search for an item that is not there yet.
const differentTries = 10 * tries
