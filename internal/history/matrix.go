package history

import (
	"cmp"
	"maps"
	"slices"

	"github.com/vllm-vcr/conformance/internal/wirediff"
)

// A matrix has a row for each thing that ever changed, and a column for each step.
type matrix struct {
	rows []row
	// unchanged are the structs that are in every release and never changed.
	unchanged []string
}

type row struct {
	group, name string
	cells       [][]wirediff.Change // one a step, the heaviest change first
}

func (h *History) matrix() matrix {
	rows := map[[2]string]*row{}
	for i, step := range h.Steps {
		for _, c := range step.Changes {
			group, name := topic(c)
			key := [2]string{group, name}
			if rows[key] == nil {
				rows[key] = &row{group: group, name: name, cells: make([][]wirediff.Change, len(h.Steps))}
			}
			rows[key].cells[i] = append(rows[key].cells[i], c)
		}
	}
	var m matrix
	for _, r := range slices.Collect(maps.Values(rows)) {
		m.rows = append(m.rows, *r)
	}
	slices.SortFunc(m.rows, func(a, b row) int {
		return cmp.Or(cmp.Compare(slices.Index(groups, a.group), slices.Index(groups, b.group)), cmp.Compare(a.name, b.name))
	})
	for _, s := range h.Sizes {
		if rows[[2]string{"Structs", s.Struct}] == nil {
			m.unchanged = append(m.unchanged, s.Struct)
		}
	}
	slices.Sort(m.unchanged)
	return m
}

// parties are those of which the page can show what breaks them alone.
var parties = []wirediff.Party{wirediff.Engines, wirediff.Frontends, wirediff.Taps}

// breaking counts changes that break a party.
func breaking(changes []wirediff.Change, p wirediff.Party) int {
	n := 0
	for _, c := range changes {
		if slices.Contains(c.Breaks, p) {
			n++
		}
	}
	return n
}

// signs stand for levels where colours do not tell.
var signs = map[wirediff.Level]string{wirediff.Breaking: "✕", wirediff.Compatible: "+", wirediff.Informational: "·"}
