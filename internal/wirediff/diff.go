package wirediff

import (
	"cmp"
	"slices"

	"github.com/vllm-vcr/conformance/internal/protocol"
)

// Kind says what sort of thing changed, and how.
type Kind string

// Kinds. Each is a rule of the SARIF that [SARIF] writes.
const (
	StructAdded        Kind = "struct-added"
	StructRemoved      Kind = "struct-removed"
	StructMoved        Kind = "struct-module"
	StructEncoding     Kind = "struct-encoding"
	StructOmitDefaults Kind = "struct-omit-defaults"
	StructTag          Kind = "struct-tag"
	FieldAdded         Kind = "field-added"
	FieldRemoved       Kind = "field-removed"
	FieldMoved         Kind = "field-moved"
	FieldRenamed       Kind = "field-renamed"
	FieldType          Kind = "field-type"
	FieldDefault       Kind = "field-default"
	FieldRequired      Kind = "field-required"
	EnumAdded          Kind = "enum-added"
	EnumRemoved        Kind = "enum-removed"
	MemberAdded        Kind = "member-added"
	MemberRemoved      Kind = "member-removed"
	MemberRenamed      Kind = "member-renamed"
	MemberValue        Kind = "member-value"
	ConstantAdded      Kind = "constant-added"
	ConstantRemoved    Kind = "constant-removed"
	ConstantValue      Kind = "constant-value"
	UtilityAdded       Kind = "utility-added"
	UtilityRemoved     Kind = "utility-removed"
	UtilityArguments   Kind = "utility-arguments"
	UtilityResult      Kind = "utility-result"
	UtilityCalls       Kind = "utility-calls"
	MessageAdded       Kind = "message-added"
	MessageRemoved     Kind = "message-removed"
	MessageEncoding    Kind = "message-encoding"
	KeyAdded           Kind = "key-added"
	KeyRemoved         Kind = "key-removed"
	KeyOptional        Kind = "key-optional"
)

// Party is who fails: what was written for the older side of a comparison, where
// it meets the newer one.
type Party string

// Parties.
const (
	Engines   Party = "engines"
	Frontends Party = "frontends"
	Taps      Party = "taps"
)

// Level is how much a change weighs.
type Level string

// Levels, the heaviest first.
const (
	Breaking      Level = "breaking"      // somebody fails: see Breaks
	Compatible    Level = "compatible"    // other bytes, and nobody fails
	Informational Level = "informational" // the bytes are the same, or come with another change
)

// Change is one difference of two profiles.
type Change struct {
	Kind     Kind    `json:"kind"`
	Subject  string  `json:"subject"`            // "EngineCoreOutput.ec_transfer_params"
	Struct   string  `json:"struct,omitempty"`   // that the subject is in; also an enum, a message
	Position *int    `json:"position,omitempty"` // from 0, in the newer profile, or in the older if it is gone
	Before   string  `json:"before,omitempty"`
	After    string  `json:"after,omitempty"`
	Level    Level   `json:"level"`
	Breaks   []Party `json:"breaks"` // never nil
	// Reason says in a sentence who fails how, or why nobody does.
	Reason string `json:"reason"`
	// Caution names a real program that is stricter than the declaration. It
	// weighs nothing.
	Caution string `json:"caution,omitempty"`
	Where   Where  `json:"where"`
	Needs   Needs  `json:"needs"`

	group int
	order int                     // in its struct
	apply func(*protocol.Profile) // makes this change alone
}

// Where is the place upstream: of the newer release, or of the older if the
// subject is gone.
type Where struct {
	Release string `json:"release"` // "0.33.0"
	protocol.Place
	URL string `json:"url,omitempty"`
}

// Needs says what this project's own programs need before they speak the newer
// release: [FromProfile], or the precise thing.
type Needs struct {
	Player   string `json:"player"`
	Recorder string `json:"recorder"`
}

// FromProfile is the need of a program that takes all it must know from the profile.
const FromProfile = "nothing: read from the profile"

// Release is what one side of a comparison was read from.
type Release struct {
	Line    string `json:"line"`
	Version string `json:"version"`
	Commit  string `json:"commit,omitempty"`
}

// Gap is what could not be read of a release.
type Gap struct {
	Release string `json:"release"`
	protocol.Place
	What string `json:"what"` // "EngineCoreOutputs"
	Why  string `json:"why"`
}

// Verdict is what a comparison comes to.
type Verdict string

// Verdicts.
const (
	None    Verdict = "none"     // nothing changed
	Changed Verdict = "changed"  // nothing breaks
	Breaks  Verdict = "breaking" // something does
	Unknown Verdict = "unknown"  // nothing found breaks, but not all could be read
)

// Diff is what the wire of B does otherwise than that of A.
type Diff struct {
	From    Release  `json:"from"`
	To      Release  `json:"to"`
	Changes []Change `json:"changes"` // the heaviest first; never nil
	// Codec is why this build cannot speak B by its profile, empty if it can.
	Codec string `json:"codec,omitempty"`
	// Gaps are what the caller could not read of either side.
	Gaps []Gap `json:"gaps"`
}

// Compare lists what changed from a to b, the heaviest first. Both profiles stay
// as they are.
func Compare(a, b *protocol.Profile) *Diff {
	d := &Diff{From: release(a), To: release(b), Changes: []Change{}, Gaps: []Gap{}}
	if _, err := protocol.NewCodec(b); err != nil {
		d.Codec = err.Error()
	}
	c := newComparison(a, b)
	c.messages()
	c.structs()
	c.enums()
	c.constants()
	c.utilities()
	for i := range c.changes {
		c.finish(&c.changes[i])
	}
	d.Changes = append(d.Changes, c.changes...)
	slices.SortStableFunc(d.Changes, byWeight)
	return d
}

func release(p *protocol.Profile) Release {
	return Release{Line: p.Line, Version: p.Version, Commit: p.Commit}
}

// Verdict says what it comes to. What breaks weighs more than what could not be
// read, and that more than what does not break.
func (d *Diff) Verdict() Verdict {
	switch {
	case len(d.At(Breaking)) > 0:
		return Breaks
	case len(d.Gaps) > 0:
		return Unknown
	case len(d.Changes) > 0:
		return Changed
	}
	return None
}

// At returns the changes of a level.
func (d *Diff) At(level Level) []Change {
	var changes []Change
	for _, c := range d.Changes {
		if c.Level == level {
			changes = append(changes, c)
		}
	}
	return changes
}

// Breaking counts the changes that break a party.
func (d *Diff) Breaking(p Party) int {
	n := 0
	for _, c := range d.Changes {
		if slices.Contains(c.Breaks, p) {
			n++
		}
	}
	return n
}

var levels = []Level{Breaking, Compatible, Informational}

// byWeight orders by level, then by what is changed: messages, structs, enums,
// constants, methods, each by name and position.
func byWeight(x, y Change) int {
	return cmp.Or(
		cmp.Compare(slices.Index(levels, x.Level), slices.Index(levels, y.Level)),
		cmp.Compare(x.group, y.group),
		cmp.Compare(x.Struct, y.Struct),
		cmp.Compare(x.order, y.order),
		cmp.Compare(x.Subject, y.Subject),
		cmp.Compare(x.Kind, y.Kind),
	)
}
