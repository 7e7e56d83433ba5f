package coverage

import (
	"slices"

	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// Summary is what is covered of a line. It is written into reports as it is.
type Summary struct {
	Line   string `json:"line"`
	Fields Counts `json:"fields"`
	// Directions are the same by the way that messages take.
	Directions []Way `json:"directions"`
	Utilities  Share `json:"utilities"`
	Members    Share `json:"members"` // of enumerations
	Messages   Share `json:"messages"`
	// Frontends are whose requests the messages hold, Runners which model runners made their
	// log-probabilities.
	Frontends []string `json:"frontends,omitempty"`
	Runners   []string `json:"runners,omitempty"`
	// Details are in reports that were asked for them.
	Details *Details `json:"details,omitempty"`
}

// Counts are how many fields there are, and how far they are covered.
type Counts struct {
	Declared int `json:"declared"`
	Seen     int `json:"seen"`   // with another value than the default
	Varied   int `json:"varied"` // with several values
}

// Way is a direction.
type Way struct {
	Direction protocol.Direction `json:"direction"`
	Counts
}

// Share is how many there are, and were seen.
type Share struct {
	Declared int `json:"declared"`
	Seen     int `json:"seen"`
}

// Details name everything.
type Details struct {
	Fields    []FieldState `json:"fields"`
	Utilities []ItemState  `json:"utilities"`
	Members   []ItemState  `json:"members"`
	Messages  []ItemState  `json:"messages"`
}

// FieldState is how far a field is covered.
type FieldState struct {
	Name      string             `json:"name"`
	Direction protocol.Direction `json:"direction"`
	Feature   string             `json:"feature"`
	Seen      bool               `json:"seen,omitempty"`
	Varied    bool               `json:"varied,omitempty"`
}

// ItemState is whether something was seen.
type ItemState struct {
	Name    string `json:"name"`
	Feature string `json:"feature"`
	Seen    bool   `json:"seen,omitempty"`
}

// Gap is what was not seen of a feature.
type Gap struct {
	Feature  string
	Declared int
	Unseen   []string
}

// Summarise counts, and names everything if details are wanted.
func (l *Line) Summarise(details bool) Summary {
	s := Summary{Line: l.Line, Frontends: l.Frontends, Runners: l.Runners}
	for _, d := range protocol.Directions() {
		w := Way{Direction: d}
		for _, f := range l.Fields {
			if f.Direction == d {
				w.add(f)
			}
		}
		s.Directions = append(s.Directions, w)
	}
	for _, f := range l.Fields {
		s.Fields.add(f)
	}
	s.Utilities, s.Members, s.Messages = shareOf(l.Utilities), shareOf(l.Members), shareOf(l.Messages)
	if details {
		s.Details = &Details{Utilities: statesOf(l.Utilities), Members: statesOf(l.Members), Messages: statesOf(l.Messages)}
		for _, f := range l.Fields {
			s.Details.Fields = append(s.Details.Fields, FieldState{f.FullName(), f.Direction, f.Feature, f.Seen, f.Varied()})
		}
	}
	return s
}

func (c *Counts) add(f *Field) {
	c.Declared++
	if f.Seen {
		c.Seen++
	}
	if f.Varied() {
		c.Varied++
	}
}

func shareOf(items []*Item) (s Share) {
	for _, i := range items {
		if s.Declared++; i.Seen {
			s.Seen++
		}
	}
	return s
}

func statesOf(items []*Item) []ItemState {
	states := []ItemState{} // a list in JSON, too
	for _, i := range items {
		states = append(states, ItemState{i.Name, featureOf(i.Name), i.Seen})
	}
	return states
}

// Gaps are what was not seen, by feature, in the order of the features.
func (d *Details) Gaps() []Gap {
	var gaps []Gap
	for _, feature := range Features() {
		g := Gap{Feature: feature}
		for _, f := range d.Fields {
			g.count(f.Feature, f.Name, f.Seen)
		}
		for _, items := range [][]ItemState{d.Utilities, d.Members, d.Messages} {
			for _, i := range items {
				g.count(i.Feature, i.Name, i.Seen)
			}
		}
		if g.Declared > 0 {
			gaps = append(gaps, g)
		}
	}
	return slices.DeleteFunc(gaps, func(g Gap) bool { return len(g.Unseen) == 0 })
}

func (g *Gap) count(feature, name string, seen bool) {
	if feature != g.Feature {
		return
	}
	if g.Declared++; !seen {
		g.Unseen = append(g.Unseen, name)
	}
}
