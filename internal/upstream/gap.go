package upstream

import (
	"cmp"
	"fmt"
	"slices"
)

// A Gap is something of the wire that could not be read. A profile with gaps is not the whole wire of its release, so
// that no comparison with it can end in "nothing changed".
type Gap struct {
	Module string // "vllm/v1/engine/__init__.py"; empty if no module is concerned
	Line   int    // of the module, from 1; 0 if no line is
	What   string // "struct EngineCoreRequest"
	Why    string // "it is declared under a condition"
}

// String returns "vllm/v1/engine/__init__.py:12: struct X: why".
func (g Gap) String() string {
	place := ""
	switch {
	case g.Module != "" && g.Line > 0:
		place = fmt.Sprintf("%s:%d: ", g.Module, g.Line)
	case g.Module != "":
		place = g.Module + ": "
	}
	return place + g.What + ": " + g.Why
}

// sortedGaps returns gaps by place, each once.
func sortedGaps(gaps []Gap) []Gap {
	slices.SortFunc(gaps, func(a, b Gap) int {
		return cmp.Or(
			cmp.Compare(a.Module, b.Module), cmp.Compare(a.Line, b.Line),
			cmp.Compare(a.What, b.What), cmp.Compare(a.Why, b.Why),
		)
	})
	return slices.Compact(gaps)
}
