package report

import (
	"strings"

	"github.com/vllm-vcr/conformance/conformance"
)

// window is the surroundings of the first difference between two lists, as a
// failure shows them, value by value.
type window struct {
	Cut    bool // values before the first are left out
	Values []pair
}

// pair is what was expected and what came at a position. After the last value of
// a list there is "…" when more of it was left out, else "end".
type pair struct {
	Position         int
	Expected, Actual string
	Differs          bool // the first that differs
}

// windowOf aligns the two lists of a failure. Both begin with the same position,
// of which the failure's is the first that differs. It returns nil when the
// failure does not show lists.
func windowOf(f conformance.Failure) *window {
	expected, ok1 := listOf(f.Expected)
	actual, ok2 := listOf(f.Actual)
	if !ok1 || !ok2 || f.Position < 0 || expected.cut != actual.cut {
		return nil
	}
	w := &window{Cut: expected.cut}
	differs := -1
	for i := range max(len(expected.values), len(actual.values)) {
		p := pair{Expected: expected.at(i), Actual: actual.at(i)}
		if differs < 0 && p.Expected != p.Actual {
			p.Differs, differs = true, i
		}
		w.Values = append(w.Values, p)
	}
	if differs < 0 || differs > f.Position || !w.Cut && differs != f.Position {
		return nil
	}
	for i := range w.Values {
		w.Values[i].Position = f.Position - differs + i
	}
	return w
}

// list is what is between brackets: "[…5 6 7…]".
type list struct {
	cut, more bool
	values    []string
}

// at is the value at a place, and what is to be shown behind the last.
func (l list) at(i int) string {
	switch {
	case i < len(l.values):
		return l.values[i]
	case i > len(l.values):
		return ""
	case l.more:
		return "…"
	}
	return "end"
}

func listOf(text string) (l list, ok bool) {
	text, open := strings.CutPrefix(text, "[")
	text, closed := strings.CutSuffix(text, "]")
	if !open || !closed {
		return l, false
	}
	text, l.cut = strings.CutPrefix(text, "…")
	text, l.more = strings.CutSuffix(text, "…")
	l.values = strings.Fields(text)
	return l, true
}
