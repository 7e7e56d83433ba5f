package wirediff

import (
	"embed"
	"fmt"
	"html/template"
	"io"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/vllm-vcr/conformance/internal/base/safetext"
	"github.com/vllm-vcr/conformance/internal/report"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

//go:embed page
var pages embed.FS

var historyPage = report.NewPageTemplate(pages, template.FuncMap{
	"add":      func(a, b int) int { return a + b },
	"count":    safetext.Count,
	"parties":  func() []Party { return Parties },
	"sentence": sentence,
	"sign":     func(level Level) string { return signs[level] },
	"words":    wordsOf,
}, "page/*.html")

// HTML writes one page that needs nothing else. Its anchors are RELEASE and RELEASE-STRUCT, such as
// 0.28-EngineCoreOutput, and RELEASE-utilities, RELEASE-constants.
func (h *History) HTML(w io.Writer) error {
	data := historyData{
		First: h.Releases[0].Name, Last: h.Releases[len(h.Releases)-1].Name,
		Sizes: h.sizeTable(), Handshake: h.handshakeTable(), Utilities: h.utilityTable(),
	}
	for _, r := range h.Releases {
		for _, g := range r.Gaps {
			data.Gaps = append(data.Gaps, strings.TrimSpace(r.Version+" "+placeText(g.Place))+": "+g.What+": "+g.Why)
		}
	}
	m := h.matrix()
	data.Matrix, data.Unchanged = h.matrixTable(m), strings.Join(m.unchanged, ", ")
	for i, step := range slices.Backward(h.Steps) {
		data.Changes += len(step.Changes)
		data.Breaking += countLevel(step.Changes, Breaking)
		data.Steps = append(data.Steps, newStepData(step, h.Releases[i+1], m, i))
	}
	return historyPage.Write(w, data)
}

// historyData is what the page shows.
type historyData struct {
	First, Last                         string
	Changes, Breaking                   int
	Gaps                                []string
	Matrix, Sizes, Handshake, Utilities *tableData
	Unchanged                           string
	Steps                               []stepData // the newest first
}

// tableData is a table whose columns are releases.
type tableData struct {
	ID, Caption string
	Filtered    bool // by the party that changes break
	Columns     []HistoryRelease
	Rows        []rowData
}

type rowData struct {
	Group  string // the heading before the row; "" if it is that of the row before
	Name   string
	Breaks string // parties
	Cells  []cellData
}

// cellData has a link to changes, or words, which a label follows for screen readers.
type cellData struct {
	Class, Words, Label string
	Link                *linkData
}

type linkData struct {
	Level                 Level // the heaviest
	Count                 int
	Anchor, Breaks, Label string
	Parties               []partyCount
}

type partyCount struct {
	Party Party
	Count int
}

type stepData struct {
	Step
	Version, Tree, Codec, Nothing string
	Topics                        []topicData
}

// topicData has the changes of one thing in a release.
type topicData struct {
	Name, Anchor, Breaks string
	Level                Level // the heaviest
	Counts               []levelCount
	Changes              []changeData
}

type levelCount struct {
	Level Level
	Count int
}

type changeData struct{ Change }

func countLevel(changes []Change, level Level) int {
	n := 0
	for _, c := range changes {
		if c.Level == level {
			n++
		}
	}
	return n
}

// placeText is FILE:LINE, as far as it is known.
func placeText(place protocol.Place) string {
	if place.At > 0 {
		return place.Module + ":" + strconv.Itoa(place.At)
	}
	return place.Module
}

// wordsOf takes a name apart where a narrow page may break it: before a word in capitals, and after a dot or an
// underscore.
func wordsOf(name string) (parts []string) {
	begin := 0
	for i := 1; i < len(name); i++ {
		isCapital, wasSmall := name[i] >= 'A' && name[i] <= 'Z', name[i-1] >= 'a' && name[i-1] <= 'z'
		if isCapital && wasSmall || name[i-1] == '.' || name[i-1] == '_' {
			parts, begin = append(parts, name[begin:i]), i
		}
	}
	return append(parts, name[begin:])
}

// matrixTable is the table of what changed where.
func (h *History) matrixTable(m matrix) *tableData {
	t := &tableData{ID: "changes", Filtered: true, Columns: h.Releases[1:], Caption: "Number of changes from the release before, for each message, struct, enumeration and method."}
	for i, r := range m.rows {
		one := rowData{Name: r.name, Breaks: breaksOf(slices.Concat(r.cells...)...)}
		if i == 0 || r.group != m.rows[i-1].group {
			one.Group = r.group
		}
		for at, changes := range r.cells {
			one.Cells = append(one.Cells, cellData{Link: newLink(t.Columns[at].Name, r.name, changes)})
		}
		t.Rows = append(t.Rows, one)
	}
	return t
}

// newLink leads to the changes of a struct in a release; nil if there are none.
func newLink(release, name string, changes []Change) *linkData {
	if len(changes) == 0 {
		return nil
	}
	l := &linkData{Level: changes[0].Level, Count: len(changes), Anchor: release + "-" + name, Breaks: breaksOf(changes...)}
	l.Label = fmt.Sprintf("%s, %s: %s, %s", release, name, safetext.Count(len(changes), "change"), l.Level)
	for _, p := range Parties {
		if n := CountBreaking(changes, p); n > 0 {
			l.Parties = append(l.Parties, partyCount{p, n})
			l.Label += fmt.Sprintf(", %d for %s", n, p)
		}
	}
	return l
}

// breaksOf is what the filter of the page reads: the parties that changes break.
func breaksOf(changes ...Change) string {
	var parties []string
	for _, p := range Parties {
		if CountBreaking(changes, p) > 0 {
			parties = append(parties, string(p))
		}
	}
	return strings.Join(parties, " ")
}

func newStepData(step Step, to HistoryRelease, m matrix, at int) stepData {
	data := stepData{Step: step, Version: to.Version, Codec: to.Codec}
	if to.Commit != "" {
		data.Tree = "https://github.com/vllm-project/vllm/tree/" + url.PathEscape(to.Commit)
	}
	switch {
	case len(step.Changes) > 0:
	case step.Verdict == Unknown:
		data.Nothing = "No changes in the parts that could be read."
	default:
		data.Nothing = "No changes."
	}
	for _, r := range m.rows {
		changes := r.cells[at]
		if len(changes) == 0 {
			continue
		}
		topic := topicData{Name: r.name, Anchor: to.Name + "-" + r.name, Breaks: breaksOf(changes...), Level: changes[0].Level}
		for _, level := range levels {
			if n := countLevel(changes, level); n > 0 {
				topic.Counts = append(topic.Counts, levelCount{level, n})
			}
		}
		for _, c := range changes {
			topic.Changes = append(topic.Changes, changeData{c})
		}
		data.Topics = append(data.Topics, topic)
	}
	return data
}

// KindText is what happened, and at which position.
func (c changeData) KindText() string {
	text := strings.ReplaceAll(string(c.Kind), "-", " ")
	if c.Position != nil {
		text += fmt.Sprintf(", position %d", *c.Position)
	}
	return text
}

// BreaksText is for the filter.
func (c changeData) BreaksText() string { return breaksOf(c.Change) }

// BrokenText is for readers.
func (c changeData) BrokenText() string {
	if len(c.Breaks) == 0 {
		return "nothing"
	}
	return JoinParties(c.Breaks)
}

// NeedsText is what this project needs, as sentences.
func (c changeData) NeedsText() string {
	var needs []string
	for _, need := range c.Needs.Wanted() {
		needs = append(needs, sentence(need))
	}
	return strings.Join(needs, " ")
}

// PlaceText is where the change is declared.
func (c changeData) PlaceText() string { return placeText(c.Where.Place) }

// sentence begins with a capital letter and ends with a full stop.
func sentence(text string) string {
	first, size := utf8.DecodeRuneInString(text)
	return string(unicode.ToUpper(first)) + text[size:] + "."
}

// absent is shown for what a release does not have.
const absent = "–"

// add appends a row, in which the cells are marked that differ from the release before.
func (t *tableData) add(group, name string, states []cellData) {
	row := rowData{Group: group, Name: name}
	for i, s := range states {
		cell := s
		if s.Words == absent {
			cell.Class = "no"
		}
		if i > 0 && s != states[i-1] {
			cell.Class, cell.Label = "new", s.Label+" changed"
		}
		row.Cells = append(row.Cells, cell)
	}
	t.Rows = append(t.Rows, row)
}

// sizeTable is the table of how long arrays are and how many keys maps have.
func (h *History) sizeTable() *tableData {
	t := &tableData{ID: "lengths", Caption: "Number of fields of each struct. Changes from the release before are marked.", Columns: h.Releases}
	encoding := ""
	for _, s := range h.Sizes {
		group := ""
		if s.Encoding != encoding {
			encoding, group = s.Encoding, "Arrays: length"
			if encoding != "array" {
				group = "Maps: keys"
			}
		}
		states := make([]cellData, len(s.Fields))
		for i, n := range s.Fields {
			states[i].Words = strconv.Itoa(n)
			if n < 0 {
				states[i].Words = absent
			}
		}
		t.add(group, s.Struct, states)
	}
	return t
}

// handshakeTable is the table of messages that have no struct, and of what an engine registers with.
func (h *History) handshakeTable() *tableData {
	if len(h.Handshake) == 0 {
		return nil
	}
	t := &tableData{ID: "keys", Caption: "Keys of messages: ● always present, ○ may be absent.", Columns: h.Releases}
	for i, k := range h.Handshake {
		group := k.Message
		if i > 0 && h.Handshake[i-1].Message == k.Message {
			group = ""
		}
		states := make([]cellData, len(k.Is))
		for at, is := range k.Is {
			switch is {
			case "":
				states[at].Words = absent
			case "required":
				states[at] = cellData{Words: "●", Label: is}
			default:
				states[at] = cellData{Words: "○", Label: is}
			}
		}
		t.add(group, k.Name, states)
	}
	return t
}

// utilityTable is the table of the engine's methods.
func (h *History) utilityTable() *tableData {
	if len(h.Utilities) == 0 {
		return nil
	}
	t := &tableData{ID: "methods", Caption: "Result types of the engine's methods. ●: the Python frontend calls the method.", Columns: h.Releases}
	for _, u := range h.Utilities {
		states := make([]cellData, len(u.Is))
		for i, a := range u.Is {
			states[i].Words = string(a.Result)
			switch a.Result {
			case "":
				states[i].Words = absent
			case protocol.ResultNone:
				states[i].Words = "nothing"
			}
			if a.Called {
				states[i].Words, states[i].Label = states[i].Words+" ●", " called"
			}
		}
		t.add("", u.Name, states)
	}
	return t
}
