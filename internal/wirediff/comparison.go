package wirediff

import (
	"maps"
	"slices"

	"github.com/vllm-vcr/conformance/internal/protocol"
)

// The groups of a list of changes, in their order.
const (
	groupMessages = iota
	groupStructs
	groupEnums
	groupConstants
	groupUtilities
)

// comparison is a Compare under way.
type comparison struct {
	a, b    *protocol.Profile
	routes  routes
	needs   needs
	changes []Change
}

func newComparison(a, b *protocol.Profile) *comparison {
	return &comparison{a: a, b: b, routes: findRoutes(a, b), needs: newNeeds(a, b)}
}

// add takes a change in. Who breaks decides its level, unless it is only told.
func (c *comparison) add(ch Change) {
	slices.Sort(ch.Breaks)
	ch.Breaks = slices.Compact(ch.Breaks)
	switch {
	case len(ch.Breaks) > 0:
		ch.Level = Breaking
	case ch.Level == "":
		ch.Level = Compatible
	}
	if ch.Breaks == nil {
		ch.Breaks = []Party{}
	}
	c.changes = append(c.changes, ch)
}

// finish adds what follows from a change as it is.
func (c *comparison) finish(ch *Change) {
	ch.Caution = c.caution(ch)
	ch.Needs = c.needs.of(ch)
	ch.apply = nil
}

// where is a place in B, or in A of what is gone.
func (c *comparison) where(gone bool, place protocol.Place) Where {
	p := c.b
	if gone {
		p = c.a
	}
	return Where{Release: p.Version, Place: place, URL: upstreamURL(p, place)}
}

// eachName calls what is there for the names of either map, in order.
func eachName[T any](a, b map[string]T, added, removed func(string, T), both func(string, T, T)) {
	names := slices.Sorted(maps.Keys(a))
	for name := range b {
		if _, known := a[name]; !known {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for _, name := range names {
		x, inA := a[name]
		y, inB := b[name]
		switch {
		case !inA:
			added(name, y)
		case !inB:
			removed(name, x)
		default:
			both(name, x, y)
		}
	}
}

func at(i int) *int { return &i }
