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
	// Utility calls, enumeration members and kinds of message.
	Utilities Share `json:"utilities"`
	Members   Share `json:"members"` // of enumerations
	Messages  Share `json:"messages"`
	// Frontends are whose requests the messages hold, Runners which model runners made their
	// log-probabilities.
	Frontends []string `json:"frontends,omitempty"`
	Runners   []string `json:"runners,omitempty"`
	// Details are in reports that were asked for them.
	Details *Details `json:"details,omitempty"`
}

// Counts are how many fields there are, and how far they are covered.
type Counts struct {
	Declared    int `json:"declared"`
	Unreachable int `json:"unreachable"` // no golden can show them, for a reason that is known
	Seen        int `json:"seen"`        // with another value than the default
	Varied      int `json:"varied"`      // with several values
	// Those that checks compare, and those that a fault of the self-test changes, are
	// counted where details are asked for.
	Compared int `json:"compared,omitempty"`
	Proven   int `json:"proven,omitempty"`
	// Those that an engine under test set, and those of which another value would have been
	// found, and was not only read.
	Said   int `json:"said,omitempty"`
	Judged int `json:"judged,omitempty"`
	// Those that a frontend under test set, and those that it was sent with another value than the default.
	Sent  int `json:"sent,omitempty"`
	Faced int `json:"faced,omitempty"`
}

// Way is a direction.
type Way struct {
	Direction protocol.Direction `json:"direction"`
	Counts
}

// Share is how many there are, and were seen.
type Share struct {
	Declared    int `json:"declared"`
	Unreachable int `json:"unreachable"`
	Seen        int `json:"seen"`
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
	Compared  bool               `json:"compared,omitempty"`
	Proven    bool               `json:"proven,omitempty"`
	Said      bool               `json:"said,omitempty"` // by the engine under test
	Judged    bool               `json:"judged,omitempty"`
	Sent      bool               `json:"sent,omitempty"`  // by the frontend under test
	Faced     bool               `json:"faced,omitempty"` // sent to it
	// Unreachable is why no golden can show it; empty if one can.
	Unreachable string `json:"unreachable,omitempty"`
}

// ItemState is whether something was seen.
type ItemState struct {
	Name    string `json:"name"`
	Feature string `json:"feature"`
	Seen    bool   `json:"seen,omitempty"`
	// Unreachable is why no golden can show it; empty if one can.
	Unreachable string `json:"unreachable,omitempty"`
}

// Gap is what was not seen of a feature, although a golden could show it.
type Gap struct {
	Feature   string
	Reachable int
	Unseen    []string
}

// Summarise counts, and names everything if details are wanted.
func (l *Line) Summarise(details bool) Summary {
	s := Summary{Line: l.Line, Frontends: l.Frontends, Runners: l.Runners}
	var fields []FieldState
	for _, f := range l.Fields {
		fields = append(fields, FieldState{f.FullName(), f.Direction, f.Feature, f.Seen, f.Varied(), f.Compared, false, false, false, false, false, unreachable()[f.FullName()]})
	}
	s.count(fields)
	s.Utilities, s.Members, s.Messages = shareOf(l.Utilities), shareOf(l.Members), shareOf(l.Messages)
	if details {
		s.Details = &Details{fields, statesOf(l.Utilities), statesOf(l.Members), statesOf(l.Messages)}
	}
	return s
}

// Prove notes, in a summary with details, the fields that a fault of the self-test changes.
func (s *Summary) Prove(names []string) {
	for i := range s.Details.Fields {
		f := &s.Details.Fields[i]
		f.Proven = slices.Contains(names, f.Name)
	}
	s.count(s.Details.Fields)
}

// Judge notes, in a summary with details, what an engine under test said, and what of that was judged.
func (s *Summary) Judge(subject *Line) {
	for i, f := range subject.Fields { // in the same order
		s.Details.Fields[i].Said, s.Details.Fields[i].Judged = f.Seen, f.Compared
	}
	s.count(s.Details.Fields)
}

// Face notes, in a summary with details, what passed between a frontend under test and its engine.
func (s *Summary) Face(exchange *Line) {
	for i, f := range exchange.Fields { // in the same order
		s.Details.Fields[i].Judged = s.Details.Fields[i].Judged || f.Compared && f.Direction == protocol.ToEngine
		s.Details.Fields[i].Sent, s.Details.Fields[i].Faced = f.Seen && f.Direction != protocol.ToFrontend, f.Seen && f.Direction == protocol.ToFrontend
	}
	s.count(s.Details.Fields)
}

// NotFaced are the fields that an engine's messages have in goldens, and that the frontend under test was not sent.
func (d *Details) NotFaced() []string {
	return d.names(func(f FieldState) bool { return f.Direction == protocol.ToFrontend && f.Seen && !f.Faced })
}

// NotSent are the fields that frontends set in goldens, and that the frontend under test did not.
func (d *Details) NotSent() []string {
	return d.names(func(f FieldState) bool { return f.Direction == protocol.ToEngine && f.Seen && !f.Sent })
}

// OnlyParsed are the fields that the engine under test set and no check judged.
func (d *Details) OnlyParsed() []string {
	return d.names(func(f FieldState) bool { return f.Said && !f.Judged })
}

func (d *Details) names(of func(FieldState) bool) (names []string) {
	for _, f := range d.Fields {
		if of(f) {
			names = append(names, f.Name)
		}
	}
	return names
}

func (s *Summary) count(fields []FieldState) {
	s.Fields, s.Directions = Counts{}, nil
	for _, d := range protocol.Directions() {
		w := Way{Direction: d}
		for _, f := range fields {
			if f.Direction == d {
				w.add(f)
				s.Fields.add(f)
			}
		}
		s.Directions = append(s.Directions, w)
	}
}

func (c *Counts) add(f FieldState) {
	c.Declared++
	for _, part := range []struct {
		count *int
		is    bool
	}{{&c.Seen, f.Seen}, {&c.Varied, f.Varied}, {&c.Compared, f.Compared}, {&c.Proven, f.Proven}, {&c.Unreachable, f.Unreachable != ""}, {&c.Said, f.Said}, {&c.Judged, f.Judged}, {&c.Sent, f.Sent}, {&c.Faced, f.Faced}} {
		if part.is {
			*part.count++
		}
	}
}

func shareOf(items []*Item) (s Share) {
	for _, i := range items {
		if s.Declared++; i.Seen {
			s.Seen++
		}
		if unreachable()[i.Name] != "" {
			s.Unreachable++
		}
	}
	return s
}

func statesOf(items []*Item) []ItemState {
	states := []ItemState{} // a list in JSON, too
	for _, i := range items {
		states = append(states, ItemState{i.Name, featureOf(i.Name), i.Seen, unreachable()[i.Name]})
	}
	return states
}

// Gaps are what was not seen, by feature, in the order of the features.
func (d *Details) Gaps() []Gap {
	var gaps []Gap
	for _, feature := range features {
		g := Gap{Feature: feature.name}
		for _, f := range d.Fields {
			g.count(f.Feature, f.Name, f.Seen, f.Unreachable)
		}
		for _, items := range [][]ItemState{d.Utilities, d.Members, d.Messages} {
			for _, i := range items {
				g.count(i.Feature, i.Name, i.Seen, i.Unreachable)
			}
		}
		if len(g.Unseen) > 0 {
			gaps = append(gaps, g)
		}
	}
	return gaps
}

func (g *Gap) count(feature, name string, seen bool, unreachable string) {
	if feature != g.Feature || unreachable != "" {
		return
	}
	if g.Reachable++; !seen {
		g.Unseen = append(g.Unseen, name)
	}
}
