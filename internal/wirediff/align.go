package wirediff

import (
	"slices"
	"sort"
)

// kept returns the most names that two lists have in the same order: those that
// both have and are not among them moved. No list has a name twice.
func kept(a, b []string) map[string]bool {
	inB := positions(b)
	// ends[n] is the index in a of the last name of the best run of n+1 names, and
	// previous the index of the name before it.
	var ends []int
	previous := make([]int, len(a))
	for i, name := range a {
		at, both := inB[name]
		if !both {
			continue
		}
		n := sort.Search(len(ends), func(n int) bool { return inB[a[ends[n]]] >= at })
		if previous[i] = -1; n > 0 {
			previous[i] = ends[n-1]
		}
		ends = append(ends[:n], append([]int{i}, ends[min(n+1, len(ends)):]...)...)
	}
	same := map[string]bool{}
	if len(ends) > 0 {
		for i := ends[len(ends)-1]; i >= 0; i = previous[i] {
			same[a[i]] = true
		}
	}
	return same
}

// positions are the indexes of names.
func positions(names []string) map[string]int {
	at := make(map[string]int, len(names))
	for i, name := range names {
		at[name] = i
	}
	return at
}

// alignment are two lists of names beside each other.
type alignment struct {
	a, b     []string
	inA, inB map[string]int
	kept     map[string]bool
	// beforeA and beforeB are, by index, the nearest name before that is kept, or "".
	beforeA, beforeB []string
	// endA and endB are the indexes after the last name that both have.
	endA, endB int
}

func align(a, b []string) *alignment {
	x := &alignment{a: a, b: b, inA: positions(a), inB: positions(b), kept: kept(a, b)}
	x.beforeA, x.endA = x.walk(a, x.inB)
	x.beforeB, x.endB = x.walk(b, x.inA)
	return x
}

func (x *alignment) walk(names []string, others map[string]int) (before []string, end int) {
	last := ""
	for i, name := range names {
		before = append(before, last)
		if x.kept[name] {
			last = name
		}
		if _, both := others[name]; both {
			end = i + 1
		}
	}
	return before, end
}

// added and removed are names that one of the lists has alone.
func (x *alignment) added() []string   { return missing(x.b, x.inA) }
func (x *alignment) removed() []string { return missing(x.a, x.inB) }

func missing(names []string, others map[string]int) []string {
	return slices.DeleteFunc(slices.Clone(names), func(name string) bool {
		_, both := others[name]
		return both
	})
}

// moved are names that both have, in another order.
func (x *alignment) moved() []string {
	return slices.DeleteFunc(slices.Clone(x.b), func(name string) bool {
		_, both := x.inA[name]
		return !both || x.kept[name]
	})
}

// renames pairs each name that went with the one that came to its place, if same
// says that they are alike.
func (x *alignment) renames(same func(old, new string) bool) map[string]string {
	gone, came := x.gaps(x.removed(), x.inA, x.beforeA), x.gaps(x.added(), x.inB, x.beforeB)
	pairs := map[string]string{}
	for gap, old := range gone {
		if len(old) != len(came[gap]) {
			continue
		}
		for i, name := range old {
			if same(name, came[gap][i]) {
				pairs[name] = came[gap][i]
			}
		}
	}
	return pairs
}

// gaps groups names by the kept name before them.
func (x *alignment) gaps(names []string, at map[string]int, before []string) map[string][]string {
	groups := map[string][]string{}
	for _, name := range names {
		gap := before[at[name]]
		groups[gap] = append(groups[gap], name)
	}
	return groups
}

// common pairs the items of two short lists, in which a name may stand several
// times, in their order: the result is by index in b the index in a.
func common(a, b []string) map[int]int {
	pairs := map[int]int{}
	if len(a) > mostKeys || len(b) > mostKeys {
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

// mostKeys bounds the lists that are paired. A longer one is new from end to end.
const mostKeys = 256
