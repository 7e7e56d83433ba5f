package wirediff

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/internal/base/jsonout"
	"github.com/vllm-vcr/conformance/internal/base/safetext"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// A Source is a release, and what of it could not be read.
type Source struct {
	Profile *protocol.Profile
	Gaps    []Gap
}

// History is several releases, the oldest first, and what changed from each to the next.
type History struct {
	Releases  []HistoryRelease `json:"releases"`
	Steps     []Step           `json:"steps"`     // one less than releases
	Sizes     []Size           `json:"sizes"`     // by encoding and name
	Handshake []Key            `json:"handshake"` // by message and position
	Utilities []Utility        `json:"utilities"` // by name
}

// A HistoryRelease is a column of every table.
type HistoryRelease struct {
	Name string `json:"name"` // its line, or its version if there are two of the line
	Release
	Codec string `json:"codec,omitempty"` // why this build cannot speak it, empty if it can
	Gaps  []Gap  `json:"gaps"`            // never nil
}

// A Step is what a release changed.
type Step struct {
	From    string   `json:"from"` // names of releases
	To      string   `json:"to"`
	Verdict Verdict  `json:"verdict"`
	Changes []Change `json:"changes"` // the heaviest first

	diff *Diff
}

// A Size is how many fields a struct has in each release.
type Size struct {
	Struct   string `json:"struct"`
	Encoding string `json:"encoding"` // in the newest release that has it
	Fields   []int  `json:"fields"`   // -1 where a release has no such struct
}

// A Key is one of a message that has no struct, or of what an engine registers with.
type Key struct {
	Message string   `json:"message"`
	Name    string   `json:"name"`
	Is      []string `json:"is"` // required, optional, or "" where a release has no such key
}

// A Utility is a method of the engine.
type Utility struct {
	Name string   `json:"name"`
	Is   []Answer `json:"is"`
}

// An Answer is what a method is in one release.
type Answer struct {
	Result protocol.ResultKind `json:"result,omitempty"` // of its answer; empty where a release has no such method
	Called bool                `json:"called,omitempty"` // by the Python frontend
}

// registration are the structs that belong to the handshake.
var registration = []string{"EngineCoreReadyResponse", "EngineHandshakeMetadata", "EngineZmqAddresses"}

// WithLines adds the lines of this build to releases that were named. A named release takes the place of the same release of the
// build.
func WithLines(named []Source) ([]Source, error) {
	sources := slices.Clone(named)
	for _, line := range protocol.Lines() {
		p, err := protocol.LoadProfile(line)
		if err != nil {
			return nil, err
		}
		if !slices.ContainsFunc(named, func(s Source) bool { return s.Profile.Version == p.Version }) {
			sources = append(sources, Source{Profile: p})
		}
	}
	return sources, nil
}

// NewHistory compares releases with their neighbours, the oldest first, whatever their order.
func NewHistory(sources []Source) (*History, error) {
	if len(sources) < 2 {
		return nil, errors.New("a history needs two releases at least")
	}
	sources, err := inOrder(sources)
	if err != nil {
		return nil, err
	}
	h := &History{Releases: columns(sources), Steps: []Step{}}
	profiles := make([]*protocol.Profile, len(sources))
	for i, s := range sources {
		profiles[i] = s.Profile
		if _, err := protocol.NewCodec(s.Profile); err != nil {
			h.Releases[i].Codec = err.Error()
		}
	}
	for i, p := range profiles[1:] {
		diff := Compare(profiles[i], p)
		diff.Gaps = slices.Concat(h.Releases[i].Gaps, h.Releases[i+1].Gaps)
		h.Steps = append(h.Steps, Step{
			From: h.Releases[i].Name, To: h.Releases[i+1].Name, Verdict: diff.Verdict(), Changes: diff.Changes, diff: diff,
		})
	}
	h.Sizes, h.Handshake, h.Utilities = sizes(profiles), keys(profiles), utilities(profiles)
	return h, nil
}

// inOrder sorts sources by their versions, of which each may be there once.
func inOrder(sources []Source) ([]Source, error) {
	type dated struct {
		Source
		build compat.Build
	}
	var all []dated
	for _, s := range sources {
		build, err := compat.ParseBuild(s.Profile.Version)
		if err != nil {
			return nil, fmt.Errorf("profile of line %s: %w", s.Profile.Line, err)
		}
		all = append(all, dated{s, build})
	}
	slices.SortStableFunc(all, func(a, b dated) int { return a.build.Compare(b.build) })
	sorted := make([]Source, len(all))
	for i, s := range all {
		sorted[i] = s.Source
		if i > 0 && s.build == all[i-1].build {
			return nil, fmt.Errorf("release %s is listed twice", s.build)
		}
	}
	return sorted, nil
}

func columns(sources []Source) []HistoryRelease {
	of := map[string]int{}
	for _, s := range sources {
		of[s.Profile.Line]++
	}
	releases := make([]HistoryRelease, len(sources))
	for i, s := range sources {
		p := s.Profile
		name := p.Line
		if of[p.Line] > 1 {
			name = p.Version
		}
		releases[i] = HistoryRelease{
			Name: name, Release: Release{Line: p.Line, Version: p.Version, Commit: p.Commit},
			Gaps: append([]Gap{}, s.Gaps...),
		}
	}
	return releases
}

// names are the keys of maps of all profiles, in order.
func names[T any](profiles []*protocol.Profile, of func(*protocol.Profile) map[string]T) []string {
	all := map[string]bool{}
	for _, p := range profiles {
		for name := range of(p) {
			all[name] = true
		}
	}
	return slices.Sorted(maps.Keys(all))
}

func sizes(profiles []*protocol.Profile) []Size {
	all := []Size{}
	for _, name := range names(profiles, func(p *protocol.Profile) map[string]protocol.Struct { return p.Structs }) {
		size := Size{Struct: name}
		for _, p := range profiles {
			s, known := p.Structs[name]
			n := -1
			if known {
				n, size.Encoding = len(s.Fields), s.Encoding
			}
			size.Fields = append(size.Fields, n)
		}
		all = append(all, size)
	}
	slices.SortStableFunc(all, func(a, b Size) int { return cmp.Compare(a.Encoding, b.Encoding) })
	return all
}

// keys are those of messages, and the fields of the structs that belong to the handshake.
func keys(profiles []*protocol.Profile) []Key {
	all := []Key{}
	for _, message := range names(profiles, messages) {
		at := map[string]int{} // where a key of the message is
		for i, p := range profiles {
			for _, key := range messages(p)[message].Keys {
				if _, known := at[key.Name]; !known {
					at[key.Name] = len(all)
					all = append(all, Key{Message: message, Name: key.Name, Is: make([]string, len(profiles))})
				}
				all[at[key.Name]].Is[i] = "required"
				if key.Optional {
					all[at[key.Name]].Is[i] = "optional"
				}
			}
		}
	}
	return all
}

// messages are those of a profile, and the structs of its handshake as such.
func messages(p *protocol.Profile) map[string]protocol.Message {
	all := maps.Clone(p.Messages)
	if all == nil {
		all = map[string]protocol.Message{}
	}
	for _, name := range registration {
		s, known := p.Structs[name]
		if !known {
			continue
		}
		m := protocol.Message{Encoding: s.Encoding, Place: s.Place}
		for _, f := range s.Fields {
			m.Keys = append(m.Keys, protocol.Key{Name: f.Name, Optional: !f.Required, At: f.At})
		}
		all[name] = m
	}
	return all
}

func utilities(profiles []*protocol.Profile) []Utility {
	all := []Utility{}
	for _, name := range names(profiles, func(p *protocol.Profile) map[string]protocol.Utility { return p.Utilities }) {
		u := Utility{Name: name}
		for _, p := range profiles {
			method := p.Utilities[name]
			u.Is = append(u.Is, Answer{Result: method.Result, Called: len(method.Calls) > 0})
		}
		all = append(all, u)
	}
	return all
}

// Gaps counts what could not be read of all releases.
func (h *History) Gaps() int {
	n := 0
	for _, r := range h.Releases {
		n += len(r.Gaps)
	}
	return n
}

// A matrix has a row for each thing that ever changed, and a column for each step.
type matrix struct {
	rows []row
	// unchanged are the structs that are in every release and never changed.
	unchanged []string
}

type row struct {
	group, name string
	cells       [][]Change // one a step, the heaviest change first
}

// Groups of rows.
const (
	messageRows = "Messages"
	structRows  = "Structs"
	enumRows    = "Enums"
	otherRows   = "Methods, constants and metrics"
)

func (h *History) matrix() matrix {
	rows := map[[2]string]*row{}
	for i, step := range h.Steps {
		for _, c := range step.Changes {
			group, name := structRows, c.Struct
			switch what, _, _ := strings.Cut(string(c.Kind), "-"); what {
			case "message", "key":
				group = messageRows
			case "enum", "member":
				group = enumRows
			case "constant":
				group, name = otherRows, "constants"
			case "metric":
				group, name = otherRows, "metrics"
			case "utility":
				group, name = otherRows, "utilities"
			}
			key := [2]string{group, name}
			if rows[key] == nil {
				rows[key] = &row{group: group, name: name, cells: make([][]Change, len(h.Steps))}
			}
			rows[key].cells[i] = append(rows[key].cells[i], c)
		}
	}
	var m matrix
	for _, r := range rows {
		m.rows = append(m.rows, *r)
	}
	groups := []string{messageRows, structRows, enumRows, otherRows}
	slices.SortFunc(m.rows, func(a, b row) int {
		return cmp.Or(cmp.Compare(slices.Index(groups, a.group), slices.Index(groups, b.group)), cmp.Compare(a.name, b.name))
	})
	for _, s := range h.Sizes {
		if rows[[2]string{structRows, s.Struct}] == nil {
			m.unchanged = append(m.unchanged, s.Struct)
		}
	}
	slices.Sort(m.unchanged)
	return m
}

// signs are the levels where there are no colours.
var signs = map[Level]string{Breaking: "✕", Compatible: "+", Informational: "·"}

// HistorySchema is the version of the document that [History.JSON] writes. A key may be added to it; any other change
// makes it another version.
const HistorySchema = "vllm-vcr/wire-history/1"

// JSON writes a history whole.
func (h *History) JSON(w io.Writer) error {
	return jsonout.Write(w, struct {
		Schema string `json:"schema"`
		*History
	}{HistorySchema, h})
}

// Markdown writes a history for places where HTML is not shown: the table of changes, then what each release changed,
// the newest first.
func (h *History) Markdown(w io.Writer) error {
	var b strings.Builder
	first, last := h.Releases[0].Name, h.Releases[len(h.Releases)-1].Name
	fmt.Fprintf(&b, "# The vLLM wire, %s to %s\n\n", safetext.Markdown(first), safetext.Markdown(last))
	fmt.Fprintf(&b, "%s breaks a program, %s changes bytes and breaks nothing, %s same bytes.\n\n",
		signs[Breaking], signs[Compatible], signs[Informational])
	h.markdownTable(&b)
	for i, step := range slices.Backward(h.Steps) {
		fmt.Fprintf(&b, "\n## %s\n\n", safetext.Markdown(h.Releases[i+1].Name))
		if err := Markdown(&b, step.diff, MarkdownLimit); err != nil {
			return err
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func (h *History) markdownTable(b *strings.Builder) {
	b.WriteString("| |")
	for _, r := range h.Releases[1:] {
		b.WriteString(" " + safetext.Markdown(r.Name) + " |")
	}
	b.WriteString("\n|---|" + strings.Repeat("---|", len(h.Steps)) + "\n")
	for _, r := range h.matrix().rows {
		b.WriteString("| " + safetext.Markdown(r.name) + " |")
		for _, changes := range r.cells {
			if len(changes) > 0 {
				fmt.Fprintf(b, " %s %d", signs[changes[0].Level], len(changes))
			}
			b.WriteString(" |")
		}
		b.WriteString("\n")
	}
}
