package history

import (
	_ "embed"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/vllm-vcr/conformance/internal/base/plural"
	"github.com/vllm-vcr/conformance/internal/base/safetext"
	"github.com/vllm-vcr/conformance/internal/report/page"
	"github.com/vllm-vcr/conformance/internal/upstream/wirediff"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

var (
	//go:embed page/style.css
	pageStyle page.Markup
	//go:embed page/script.js
	pageScript page.Markup
)

// HTML writes one page that needs nothing else. Its anchors are RELEASE and RELEASE-STRUCT, such as 0.28-EngineCoreOutput,
// and RELEASE-utilities, RELEASE-constants.
func HTML(w io.Writer, h *History) error {
	first, last := h.Releases[0].Name, h.Releases[len(h.Releases)-1].Name
	return page.Write(w, page.Lines(
		page.Doctype,
		page.El("html", attr("lang", "en"), page.NL, page.Lines(
			page.El("head", page.NL, page.Meta, page.Lines(
				page.El("title", shown("The vLLM wire, "+first+" to "+last)),
				page.El("style", page.Style, pageStyle))),
			page.El("body", page.NL, page.Lines(
				page.El("main", page.NL, page.Lines(
					page.El("h1", shown("Messages between vLLM's frontend and engine core, "+first+" to "+last)),
					h.lead(), h.gaps(), bar(), h.changes(), h.steps(), h.sizes(), h.handshake(), h.utilities(),
					page.El("footer", page.El("p", shown("Read from the Python sources in the published wheels, by ")),
						page.El("p", page.El("code", shown("vllm-vcr drift history")))))),
				page.El("script", pageScript)))))))
}

// shown is a text in one line: no line of the page begins with what a release says.
func shown(text string) page.Text { return page.Text(safetext.Line(text)) }

func attr(name page.Markup, value string) page.Attribute {
	return page.Attr(name, safetext.Line(value))
}

// lead sums the history up in a sentence.
func (h *History) lead() page.Content {
	changes, breaks := 0, 0
	for _, s := range h.Steps {
		changes += len(s.Changes)
		breaks += countLevel(s.Changes, wirediff.Breaking)
	}
	return page.El("p", page.Class("lead"), shown(fmt.Sprintf(
		"%s in %s. %d of them break an engine, a frontend, or a tap (a program that reads the messages between the two) "+
			"that was written for the release before.", plural.Count(changes, "change"), plural.Count(len(h.Steps), "step"), breaks)))
}

func countLevel(changes []wirediff.Change, level wirediff.Level) int {
	n := 0
	for _, c := range changes {
		if c.Level == level {
			n++
		}
	}
	return n
}

// gaps lists what could not be read, which is no absence of change.
func (h *History) gaps() page.Contents {
	var items page.Contents
	for _, r := range h.Releases {
		for _, g := range r.Gaps {
			items = append(items, page.El("li", shown(strings.TrimSpace(r.Version+" "+placeText(g.Place))+": "+g.What+": "+g.Why)))
		}
	}
	return page.When(len(items) > 0, page.El("div", page.Class("gaps"),
		page.El("p", shown("Some sources could not be read. What is missing here may have changed.")), page.El("ul", items)))
}

// placeText is FILE:LINE, as far as it is known.
func placeText(place protocol.Place) string {
	if place.At > 0 {
		return place.Module + ":" + strconv.Itoa(place.At)
	}
	return place.Module
}

// bar is where a reader chooses the party whose failures are shown. It needs no script.
func bar() page.Content {
	choice := func(id, words string, attributes ...page.Piece) page.Content {
		input := append([]page.Piece{attr("type", "radio"), attr("name", "of"), attr("id", id)}, attributes...)
		return page.El("label", page.Void("input", input...), shown(words))
	}
	choices := page.Contents{choice("of-all", "everybody", page.Bare("checked"))}
	for _, p := range wirediff.Parties {
		choices = append(choices, choice("of-"+string(p), string(p)))
	}
	key := func(level wirediff.Level, words string) page.Content {
		return page.El("li", page.El("b", page.Class(string(level)), shown(signs[level])), shown(words))
	}
	return page.El("div", page.Class("bar"),
		page.El("fieldset", page.El("legend", shown("What breaks")), choices), page.El("ul", page.Class("key"),
			key(wirediff.Breaking, "breaks a program"), key(wirediff.Compatible, "changes bytes, breaks nothing"),
			key(wirediff.Informational, "same bytes, or part of another change")))
}

// table returns one that can be scrolled, by keys too. Its columns are releases.
func table(id, caption string, columns []Release, body page.Content) page.Content {
	return page.El("div", page.Class("wide"), attr("id", id), attr("tabindex", "0"), attr("role", "region"),
		attr("aria-label", caption), page.NL,
		page.El("table", page.Class("matrix"), page.NL, page.Lines(
			page.El("caption", page.El("span", page.Class("stay"), shown(caption))),
			page.El("thead", page.El("tr", page.El("th", attr("scope", "col")),
				page.Each(columns, func(r Release) page.Element {
					return page.El("th", attr("scope", "col"), attr("title", r.Version), shown(r.Name))
				}))),
			page.El("tbody", page.NL, body))))
}

// groupRow is the heading of the rows below it.
func groupRow(name string, columns int) page.Content {
	return page.El("tr", page.El("th", page.Class("group"), attr("scope", "rowgroup"),
		attr("colspan", strconv.Itoa(columns+1)), page.El("span", page.Class("stay"), shown(name))), page.NL)
}

// rowHead is the cell that says what a row is about.
func rowHead(name string) page.Content {
	return page.El("th", attr("scope", "row"), page.El("code", page.Each(wordsOf(name), func(part string) page.Contents {
		return page.Contents{shown(part), page.Void("wbr")}
	})))
}

// wordsOf takes a name apart where a narrow page may break it: before a word in capitals, and after a dot or an underscore.
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

// changes is the table of what changed where.
func (h *History) changes() page.Content {
	m := h.matrix()
	columns := h.Releases[1:]
	var rows page.Contents
	for i, r := range m.rows {
		if i == 0 || r.group != m.rows[i-1].group {
			rows = append(rows, groupRow(r.group, len(columns)))
		}
		row := page.Contents{rowHead(r.name)}
		for at, changes := range r.cells {
			row = append(row, cell(columns[at].Name, r.name, changes))
		}
		rows = append(rows, page.El("tr", breaksOf(slices.Concat(r.cells...)...), row), page.NL)
	}
	return page.Lines(
		page.El("h2", attr("id", "matrix"), shown("What changed")),
		table("changes", "Number of changes from the release before, for each message, struct, enumeration and method.", columns, rows),
		page.When(len(m.unchanged) > 0, page.El("p", page.Class("quiet"),
			shown("Never changed: "+strings.Join(m.unchanged, ", ")+"."))))
}

// cell leads to the changes of a struct in a release.
func cell(release, name string, changes []wirediff.Change) page.Content {
	if len(changes) == 0 {
		return page.El("td")
	}
	level := changes[0].Level // the heaviest
	label := fmt.Sprintf("%s, %s: %s, %s", release, name, plural.Count(len(changes), "change"), level)
	counts := page.Contents{page.El("span", page.Class("every"), shown(signs[level]+" "+strconv.Itoa(len(changes))))}
	for _, p := range wirediff.Parties {
		if n := wirediff.CountBreaking(changes, p); n > 0 {
			counts = append(counts, page.El("span", page.Class("one "+string(p)), shown(signs[wirediff.Breaking]+" "+strconv.Itoa(n))))
			label += fmt.Sprintf(", %d for %s", n, p)
		}
	}
	return page.El("td", page.El("a", page.Class(string(level)), page.ToAnchor(anchor(release, name)), breaksOf(changes...),
		attr("aria-label", label), attr("title", label), counts))
}

// breaksOf is what the filter reads: the parties that changes break.
func breaksOf(changes ...wirediff.Change) page.Attribute {
	var parties []string
	for _, p := range wirediff.Parties {
		if wirediff.CountBreaking(changes, p) > 0 {
			parties = append(parties, string(p))
		}
	}
	return attr("data-breaks", strings.Join(parties, " "))
}

func anchor(release, name string) string { return safetext.Line(release + "-" + name) }

// steps lists the changes themselves, the newest release first.
func (h *History) steps() page.Content {
	var all page.Contents
	m := h.matrix()
	for i, step := range slices.Backward(h.Steps) {
		to := h.Releases[i+1]
		var topics page.Contents
		for _, r := range m.rows {
			if len(r.cells[i]) > 0 {
				topics = append(topics, topic(to, r.name, r.cells[i]), page.NL)
			}
		}
		var version page.Content = shown(to.Version)
		if to.Commit != "" {
			version = page.El("a", page.To("https://github.com/vllm-project/vllm/tree/"+url.PathEscape(to.Commit)), version)
		}
		nothing := "No changes."
		if step.Verdict == wirediff.Unknown {
			nothing = "No changes in the parts that could be read."
		}
		all = append(all, page.Lines(
			page.El("h2", attr("id", to.Name), shown(to.Name+" "), page.El("small", shown("from "+step.From+" · "), version),
				page.El("a", page.Class("back"), page.ToAnchor("matrix"), shown("↑ table"))),
			page.When(to.Codec != "", page.El("p", page.Class("gaps"), shown("This build does not support it: "+to.Codec))),
			page.When(len(step.Changes) == 0, page.El("p", page.Class("quiet"), shown(nothing))),
			topics), page.NL)
	}
	return all
}

// topic unfolds to the changes of one thing in a release.
func topic(to Release, name string, changes []wirediff.Change) page.Content {
	var chips page.Contents // counts by level
	for _, level := range []wirediff.Level{wirediff.Breaking, wirediff.Compatible, wirediff.Informational} {
		if n := countLevel(changes, level); n > 0 {
			chips = append(chips, page.El("span", page.Class("chip "+string(level)),
				shown(fmt.Sprintf("%s %d %s", signs[level], n, level))))
		}
	}
	return page.El("details", page.Class("topic"), attr("id", anchor(to.Name, name)),
		attr("data-level", string(changes[0].Level)), breaksOf(changes...), page.NL, page.Lines(
			page.El("summary", page.El("code", shown(name)), page.El("span", page.Class("end"), chips)),
			page.El("div", page.Class("body"), page.El("ul", page.Class("changes"), page.NL, page.Each(changes, item)))))
}

// item is one change with its reason, its values, and a link to the declaration.
func item(c wirediff.Change) page.Contents {
	where := strings.ReplaceAll(string(c.Kind), "-", " ")
	if c.Position != nil {
		where += fmt.Sprintf(", position %d", *c.Position)
	}
	breaks := "breaks nothing"
	if len(c.Breaks) > 0 {
		breaks = "breaks " + wirediff.JoinParties(c.Breaks)
	}
	var values page.Contents
	for _, v := range []struct{ name, value string }{{"before", c.Before}, {"after", c.After}} {
		if v.value != "" {
			values = append(values, page.El("dt", shown(v.name)), page.El("dd", shown(v.value)))
		}
	}
	var needs []string
	for _, need := range c.Needs.Wanted() {
		needs = append(needs, sentence(need))
	}
	var place page.Content = shown(placeText(c.Where.Place))
	if c.Where.URL != "" {
		place = page.El("a", page.To(c.Where.URL), place)
	}
	return page.Contents{page.El("li", breaksOf(c), page.NL, page.Lines(
		page.El("p", page.Class("head"),
			page.El("span", page.Class("sign "+string(c.Level)), attr("title", string(c.Level)), shown(signs[c.Level])),
			page.El("code", shown(c.Subject)), page.El("span", page.Class("quiet"), shown(where)),
			page.El("span", page.Class("chip "+string(c.Level)), shown(breaks))),
		page.El("p", shown(sentence(c.Reason))),
		page.When(c.Caution != "", page.El("p", page.Class("quiet"), shown(sentence("But "+c.Caution)))),
		page.When(len(values) > 0, page.El("dl", page.Class("values"), values)),
		page.When(len(needs) > 0, page.El("p", page.Class("needs"), shown(strings.Join(needs, " ")))),
		page.When(c.Where.Module != "", page.El("p", page.Class("quiet"), place, shown(" in "+c.Where.Release))))), page.NL}
}

// sentence begins with a capital letter and ends with a full stop.
func sentence(text string) string {
	first, size := utf8.DecodeRuneInString(text)
	return string(unicode.ToUpper(first)) + text[size:] + "."
}

// absent is what stands in a table for what a release does not have.
const absent = "–"

// state is what a row is in one release. The mark follows the words, and the label is for screen readers.
type state struct {
	words, mark, label string
}

// stateRow is a row, of which those cells are marked that are not as in the release before.
func stateRow(name string, states []state) page.Contents {
	var cells page.Contents
	for i, s := range states {
		style, label := "", s.label
		if s.words == absent {
			style = "no"
		}
		if i > 0 && s != states[i-1] {
			style, label = "new", s.label+" changed"
		}
		cells = append(cells, page.El("td", page.AttrWhen(style != "", page.Class(style)), shown(s.words+s.mark),
			page.When(label != "", page.El("span", page.Class("sr"), shown(label)))))
	}
	return page.Contents{page.El("tr", rowHead(name), cells), page.NL}
}

// sizes is the table of how long arrays are and how many keys maps have.
func (h *History) sizes() page.Content {
	var rows page.Contents
	encoding := ""
	for _, s := range h.Sizes {
		if s.Encoding != encoding {
			encoding = s.Encoding
			heading := "Arrays: length"
			if encoding != "array" {
				heading = "Maps: keys"
			}
			rows = append(rows, groupRow(heading, len(h.Releases)))
		}
		states := make([]state, len(s.Fields))
		for i, n := range s.Fields {
			states[i] = state{words: strconv.Itoa(n)}
			if n < 0 {
				states[i] = state{words: absent}
			}
		}
		rows = append(rows, stateRow(s.Struct, states))
	}
	return page.Lines(
		page.El("h2", attr("id", "sizes"), shown("How long")),
		table("lengths", "Number of fields of each struct. Changes from the release before are marked.", h.Releases, rows))
}

// handshake is the table of messages that have no struct, and of what an engine registers with.
func (h *History) handshake() page.Content {
	if len(h.Handshake) == 0 {
		return page.Contents{}
	}
	var rows page.Contents
	for i, k := range h.Handshake {
		if i == 0 || h.Handshake[i-1].Message != k.Message {
			rows = append(rows, groupRow(k.Message, len(h.Releases)))
		}
		states := make([]state, len(k.Is))
		for at, is := range k.Is {
			switch is {
			case "":
				states[at] = state{words: absent}
			case "required":
				states[at] = state{words: "●", label: is}
			default:
				states[at] = state{words: "○", label: is}
			}
		}
		rows = append(rows, stateRow(k.Name, states))
	}
	return page.Lines(
		page.El("h2", attr("id", "handshake"), shown("Handshake and frames")),
		table("keys", "Keys of messages: ● always present, ○ may be absent.", h.Releases, rows))
}

// utilities is the table of the engine's methods.
func (h *History) utilities() page.Content {
	if len(h.Utilities) == 0 {
		return page.Contents{}
	}
	var rows page.Contents
	for _, u := range h.Utilities {
		states := make([]state, len(u.Is))
		for i, a := range u.Is {
			states[i] = state{words: string(a.Result)}
			switch a.Result {
			case "":
				states[i].words = absent
			case protocol.ResultNone:
				states[i].words = "nothing"
			}
			if a.Called {
				states[i].mark, states[i].label = " ●", " called"
			}
		}
		rows = append(rows, stateRow(u.Name, states))
	}
	return page.Lines(
		page.El("h2", attr("id", "utilities"), shown("Utility methods")),
		table("methods", "Result types of the engine's methods. ●: the Python frontend calls the method.", h.Releases, rows))
}
