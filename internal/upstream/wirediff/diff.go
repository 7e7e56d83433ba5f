package wirediff

import (
	"cmp"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"

	"github.com/vllm-vcr/conformance/internal/wire/protocol"
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
	MetricAdded        Kind = "metric-added"
	MetricRemoved      Kind = "metric-removed"
	MetricRenamed      Kind = "metric-renamed"
	MetricKind         Kind = "metric-kind"
	MetricLabels       Kind = "metric-labels"
	MetricBuckets      Kind = "metric-buckets"
)

// Party is the side that fails: what was written for the older side of a comparison, where it meets the newer one.
type Party string

// Parties.
const (
	Engines   Party = "engines"
	Frontends Party = "frontends"
	Recorders Party = "recorders"
)

// Parties are all of them, in the order in which they are listed.
var Parties = []Party{Engines, Frontends, Recorders}

// JoinParties lists parties in a sentence: "engines, frontends and recorders".
func JoinParties(parties []Party) string {
	words := make([]string, len(parties))
	for i, p := range parties {
		words[i] = string(p)
	}
	if n := len(words); n > 1 {
		words = []string{strings.Join(words[:n-1], ", ") + " and " + words[n-1]}
	}
	return strings.Join(words, "")
}

// A Reader is a kind of program that reads messages.
type Reader string

// Readers. The first is measured, the others follow from the declarations.
const (
	ReaderRust     Reader = "vllm-rs"         // the released frontend
	ReaderMsgspec  Reader = "msgspec"         // vLLM's own Python, and others that ignore what comes after the fields that they know
	ReaderStrict   Reader = "strict decoders" // those that check the length of an array, as tuples of serde do
	ReaderRecorder Reader = "recorders"       // those that forward a message and read some of its fields
)

// Level is how much a change weighs.
type Level string

// Levels, the heaviest first.
const (
	Breaking      Level = "breaking"      // a program fails: see Breaks
	Compatible    Level = "compatible"    // other bytes, and no program fails
	Informational Level = "informational" // the bytes are the same, or come with another change
)

var levels = []Level{Breaking, Compatible, Informational}

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
	// Reason is a sentence: what fails how, or why nothing fails.
	Reason string `json:"reason"`
	// Caution is what a released frontend does, measured, where it is stricter than the declaration. Such a change is breaking.
	Caution string `json:"caution,omitempty"`
	// Readers are the kinds of programs of the older side that read it, and whether each fails.
	Readers map[Reader]bool `json:"fails"`
	Where   Where           `json:"where"`
	Needs   Needs           `json:"needs"`

	group  int
	order  int                     // in its struct
	strict []Party                 // that read it
	apply  func(*protocol.Profile) // makes this change alone
}

// Where is the place upstream: of the newer release, or of the older if the subject is gone.
type Where struct {
	Release string `json:"release"` // "0.33.0"
	protocol.Place
	URL string `json:"url,omitempty"`
}

// Needs says what this project's own programs need before they speak the newer release: [FromProfile], or the precise
// thing.
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
	// NIXL are the changes between prefill and decode, a boundary of its own that no verdict and no count includes.
	NIXL []Change `json:"nixl,omitempty"`
	// Codec is why this build cannot speak B by its profile, empty if it can.
	Codec string `json:"codec,omitempty"`
	// Gaps are what the caller could not read of either side.
	Gaps []Gap `json:"gaps"`
}

// Compare lists what changed from a to b, the heaviest first. Both profiles stay as they are.
func Compare(a, b *protocol.Profile) *Diff {
	d := &Diff{From: releaseOf(a), To: releaseOf(b), Changes: []Change{}, Gaps: []Gap{}}
	if _, err := protocol.NewCodec(b); err != nil {
		d.Codec = err.Error()
	}
	c := &comparison{a: a, b: b, from: a.Line, to: b.Line, routes: findRoutes(a, b)}
	if a.Line == b.Line {
		c.from, c.to = a.Version, b.Version
	}
	for group, compare := range []func(){c.messages, c.structs, c.enums, c.constants, c.utilities, c.metrics} {
		c.group = group
		compare()
	}
	_, err := protocol.NewCodec(c.a)
	canSpeakA := err == nil // so that a change of it alone can be tried
	for i := range c.changes {
		ch := &c.changes[i]
		ch.Readers, ch.strict = c.readersOf(ch), c.routes.of(ch.Struct).parties(true, ch.Kind == FieldRemoved)
		if ch.Caution = c.caution(ch); ch.Caution != "" {
			ch.Readers[ReaderRust] = true
			ch.Level, ch.Breaks = Breaking, []Party{Frontends}
		}
		ch.Needs = Needs{Player: c.playerNeeds(ch, canSpeakA), Recorder: c.recorderNeeds(ch)}
		ch.apply = nil
	}
	d.Changes = append(d.Changes, c.changes...)
	d.sort()
	if d.NIXL = compareNIXL(a, b, c.from, c.to); d.NIXL == nil && a.NixlText != nil && b.NixlText == nil {
		d.Gaps = append(d.Gaps, Gap{Release: b.Version, What: "boundary of NIXL", Why: "no module of NixlConnector was found where older releases have it"})
	}
	return d
}

func (d *Diff) sort() {
	slices.SortStableFunc(d.Changes, func(x, y Change) int {
		return cmp.Or(
			cmp.Compare(slices.Index(levels, x.Level), slices.Index(levels, y.Level)),
			cmp.Compare(x.group, y.group),
			cmp.Compare(x.Struct, y.Struct),
			cmp.Compare(x.order, y.order),
			cmp.Compare(x.Subject, y.Subject),
			cmp.Compare(x.Kind, y.Kind),
		)
	})
}

func releaseOf(p *protocol.Profile) Release {
	return Release{Line: p.Line, Version: p.Version, Commit: p.Commit}
}

// Verdict returns what the comparison comes to. What breaks weighs more than what could not be read, and that more than
// what does not break.
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

// AsStrict makes every change breaking at which decoders fail that check the length of an array.
func (d *Diff) AsStrict() {
	for i := range d.Changes {
		if c := &d.Changes[i]; c.Level == Compatible && c.Readers[ReaderStrict] {
			c.Level, c.Breaks = Breaking, c.strict
			c.Reason += "; a decoder that checks the length of an array refuses it"
		}
	}
	d.sort()
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

// CountBreaking returns how many changes break a party.
func CountBreaking(changes []Change, p Party) int {
	n := 0
	for _, c := range changes {
		if slices.Contains(c.Breaks, p) {
			n++
		}
	}
	return n
}

// The groups of changes, in the order in which they are listed.
const (
	groupMessages = iota
	groupStructs
	groupEnums
	groupConstants
	groupUtilities
	groupMetrics
)

// A comparison is what [Compare] has found so far.
type comparison struct {
	a, b     *protocol.Profile
	from, to string // the two sides in a sentence: lines, or releases if both are of one line
	routes   routes
	group    int // that is being compared
	changes  []Change
}

// add takes a change in. Whom it breaks decides its level, unless it is marked as informational.
func (c *comparison) add(ch Change) {
	ch.group = c.group
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

// sides are the nouns for the sender and the reader of a message.
type sides struct {
	route
	readers, writers string // of A: "frontends of 0.32"
	newReader        string // of B: "an engine of 0.33"
}

// sides returns the parties that a name concerns.
func (c *comparison) sides(name string) sides {
	way := c.routes.of(name)
	reader := "a reader"
	switch way {
	case toEngine:
		reader = "an engine"
	case toFrontend, amongFrontends:
		reader = "a frontend"
	case events:
		reader = "a consumer of KV events"
	case toEngine | toFrontend:
		reader = "the other side"
	case toDecode, throughSidecar:
		reader = "a decode engine"
	case toPrefill:
		reader = "a prefill engine"
	}
	return sides{
		route: way, readers: JoinParties(way.parties(true, false)) + " of " + c.from,
		writers: JoinParties(way.parties(false, true)) + " of " + c.from, newReader: reader + " of " + c.to,
	}
}

// where returns the place of something in a profile; at is its own line, 0 if it has none.
func (c *comparison) where(p *protocol.Profile, place protocol.Place, at int) Where {
	if at != 0 {
		place.At = at
	}
	w := Where{Release: p.Version, Place: place}
	if ref := revision(p); place.Module != "" && ref != "" && !strings.Contains(place.Module, "..") {
		w.URL = "https://github.com/vllm-project/vllm/blob/" + url.PathEscape(ref) + "/" + (&url.URL{Path: place.Module}).EscapedPath()
		if place.At > 0 {
			w.URL += fmt.Sprintf("#L%d", place.At)
		}
	}
	return w
}

// revision is the commit that a wheel was built from, else the tag of its release.
func revision(p *protocol.Profile) string {
	isCommit := func(text string) bool {
		return len(text) >= 7 && len(text) <= 40 && strings.Trim(text, "0123456789abcdef") == ""
	}
	_, built, _ := strings.Cut(p.Version, "+g") // a build of the main branch: 0.34.0.dev12+g1a2b3c4d5.cu130
	built, _, _ = strings.Cut(built, ".")
	switch {
	case isCommit(p.Commit):
		return p.Commit
	case isCommit(built):
		return built
	case p.Version != "":
		return "v" + p.Version
	}
	return ""
}

// eachName calls, for the names of two maps in order, what fits the maps that have it.
func eachName[T any](a, b map[string]T, added, removed func(string, T), both func(string, T, T)) {
	all := maps.Clone(a)
	if all == nil {
		all = map[string]T{}
	}
	maps.Copy(all, b)
	for _, name := range slices.Sorted(maps.Keys(all)) {
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
