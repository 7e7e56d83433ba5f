package player

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// ReplaySummary counts how requests found their records.
type ReplaySummary struct {
	Requests int // all that were asked
	Whole    int // matched by their whole prompt, or by an id
	Partial  int // matched by the beginning of their prompt
	Again    int // of those matched, by a record that had answered before
	// Unmatched found no record; Exhausted found those used that may answer once.
	Unmatched, Exhausted int
	// Depths counts the partial matches by the tokens they share with their record.
	Depths map[int]int
	// Records can be asked for; Unused of them have answered nothing since the last
	// rewind.
	Records, Unused int
}

// count adds a match by depth of so many tokens of a prompt.
func (s *ReplaySummary) count(again bool, depth, prompt int) {
	if again {
		s.Again++
	}
	if depth == prompt {
		s.Whole++
		return
	}
	s.Partial++
	if s.Depths == nil {
		s.Depths = map[int]int{}
	}
	s.Depths[depth]++
}

// Summary returns what was matched so far.
func (s *Replay) Summary() ReplaySummary {
	s.mu.Lock()
	defer s.mu.Unlock()
	sum := s.summary
	sum.Depths = maps.Clone(sum.Depths)
	for i, rec := range s.records {
		if answers(rec) {
			sum.Records++
			if !s.used[i] {
				sum.Unused++
			}
		}
	}
	return sum
}

// mostDepths is how many depths a summary names.
const mostDepths = 8

// String is one line for a person.
func (s ReplaySummary) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d requests: %d matched a whole prompt or an id, %d a beginning", s.Requests, s.Whole, s.Partial)
	if len(s.Depths) > 0 {
		depths := slices.Sorted(maps.Keys(s.Depths))
		var parts []string
		for _, d := range depths[:min(len(depths), mostDepths)] {
			parts = append(parts, fmt.Sprintf("%d of %d tokens", s.Depths[d], d))
		}
		if len(depths) > mostDepths {
			parts = append(parts, fmt.Sprintf("the others of up to %d", depths[len(depths)-1]))
		}
		fmt.Fprintf(&b, " (%s)", strings.Join(parts, ", "))
	}
	fmt.Fprintf(&b, ", %d nothing, %d only used records; %d were answered again; %d of %d records unused",
		s.Unmatched, s.Exhausted, s.Again, s.Unused, s.Records)
	return b.String()
}
