package compat

import (
	"cmp"
	"fmt"
	"slices"
)

// defaultMaxStable is how many stable lines the usual policy keeps.
const defaultMaxStable = 9

// checkWindow checks the entries against each other.
func (p Policy) checkWindow(entries []entry) {
	checkUnique(entries)
	checkDefault(entries)
	checkOrder(entries)
	checkStaleRC(entries)
	stable := newestFirst(entries)
	checkNewest(stable)
	checkGaps(stable)
	if limit := cmp.Or(p.MaxStable, defaultMaxStable); len(stable) > limit {
		oldest := stable[len(stable)-1]
		oldest.warn(codeTooMany, "line",
			fmt.Sprintf("the window has %d stable lines, the policy keeps %d; %s is the oldest", len(stable), limit, oldest.Name),
			"remove it, or raise the limit")
	}
}

// newestFirst returns the stable lines that can be ordered, each once, the newest
// first.
func newestFirst(entries []entry) []entry {
	stable := slices.DeleteFunc(slices.Clone(entries), func(e entry) bool { return !e.isValid })
	slices.SortStableFunc(stable, func(a, b entry) int { return b.version.Compare(a.version) })
	return slices.CompactFunc(stable, func(a, b entry) bool { return a.Name == b.Name })
}

func checkUnique(entries []entry) {
	lines, tags := make(map[string]int), make(map[string]int)
	for _, e := range entries {
		if first, ok := lines[e.Name]; ok && e.Name != "" {
			e.fail(codeSameLine, "line", fmt.Sprintf("line %s is listed twice, first at line %d of this file", e.Name, first), "keep one of the two")
		} else {
			lines[e.Name] = e.table.LineOf("line")
		}
		if first, ok := tags[e.Tag]; ok && e.Tag != "" {
			e.fail(codeSameTag, "tag", fmt.Sprintf("tag %s is listed twice, first at line %d of this file", e.Tag, first), "a tag must name one line")
		} else {
			tags[e.Tag] = e.table.LineOf("tag")
		}
	}
}

func checkDefault(entries []entry) {
	if len(entries) == 0 {
		return
	}
	var first *entry
	for i, e := range entries {
		switch {
		case !e.Default:
		case first == nil:
			first = &entries[i]
		default:
			e.fail(codeDefault, "default", fmt.Sprintf("exactly one line must be the default; %s already is, at line %d of this file",
				first.Name, first.table.LineOf("default")), "remove one of the two")
		}
	}
	if first == nil {
		candidates := append(newestFirst(entries), entries[0])
		candidates[0].fail(codeDefault, "line", "exactly one line must be the default, none is", "add default = true to the newest stable line")
	}
}

// checkNewest checks the default line against the newest one. A default that is a
// tracker, or whose tag is not valid, is reported elsewhere.
func checkNewest(stable []entry) {
	i := slices.IndexFunc(stable, func(e entry) bool { return e.Default })
	if i > 0 {
		stable[i].fail(codeNewest, "default", fmt.Sprintf("the default is %s, but the newest stable line is %s", stable[i].Name, stable[0].Name),
			"move default = true there")
	}
}

func checkOrder(entries []entry) {
	var last *entry // the last stable line before the current entry
	for i, e := range entries {
		switch {
		case e.IsTracker() && last != nil:
			e.warn(codeOrder, "line", fmt.Sprintf("tracker %s comes after the stable line %s", e.Name, last.Name), "put trackers first")
		case e.isValid:
			if last != nil && last.Name != e.Name && e.version.Compare(last.version) > 0 {
				e.warn(codeOrder, "line", fmt.Sprintf("line %s comes after the older %s", e.Name, last.Name), "put the newest line first")
			}
			last = &entries[i]
		}
	}
}

// checkStaleRC warns of a candidate whose release, or a later one, is out.
func checkStaleRC(entries []entry) {
	i := slices.IndexFunc(entries, func(e entry) bool { return e.isValid && e.Default })
	if i < 0 {
		return
	}
	for _, e := range entries {
		if e.version.IsCandidate() && e.version.Compare(entries[i].version) < 0 {
			e.warn(codeRCTag, "tag", fmt.Sprintf("stale rc: %s is older than the default, %s", e.Tag, entries[i].Tag),
				"move it to a newer candidate, or remove it")
		}
	}
}

func checkGaps(stable []entry) {
	for i := 1; i < len(stable); i++ {
		newer, older := stable[i-1].version, stable[i].version
		// What preceded the first line of a major version cannot be known.
		if newer.Major != older.Major || newer.Minor-older.Minor <= 1 {
			continue
		}
		stable[i].warn(codeGap, "line", fmt.Sprintf("the window has %s and %s, but nothing between them", newer.Line(), older.Line()),
			"add the missing lines, or drop the old one")
	}
}
