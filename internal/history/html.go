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

	"github.com/vllm-vcr/conformance/internal/page"
	"github.com/vllm-vcr/conformance/internal/wirediff"
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
					page.El("h1", shown("The wire between vLLM's frontend and engine core, "+first+" to "+last)),
					h.lead(), h.gaps(), bar(), h.changes(), h.steps(), h.sizes(), h.handshake(), h.utilities(),
					page.El("footer", page.El("p", shown("Read from the Python sources in the published wheels, by ")),
						page.El("p", page.El("code", shown("vllm-vcr drift history")))))),
				page.El("script", pageScript)))))))
}

// shown is a text in one line: no line of the page begins with what a release says.
func shown(text string) page.Text { return page.Text(oneLine(text)) }

func attr(name page.Markup, value string) page.Attribute { return page.Attr(name, oneLine(value)) }

// lead is what the history comes to.
func (h *History) lead() page.Content {
	changes, breaks := 0, 0
	for _, s := range h.Steps {
		changes += len(s.Changes)
		for _, c := range s.Changes {
			if c.Level == wirediff.Breaking {
				breaks++
			}
		}
	}
	return page.El("p", page.Class("lead"), shown(fmt.Sprintf(
		"%s in %s, of which %d break somebody who was written for the release before: an engine, a frontend, "+
			"or a tap that reads what passes.", plural(changes, "change"), plural(len(h.Steps), "step"), breaks)))
}

// gaps are what could not be read, which is no absence of change.
func (h *History) gaps() page.Contents {
	var items page.Contents
	for _, r := range h.Releases {
		for _, g := range r.Gaps {
			place := g.Module
			if g.At > 0 {
				place += ":" + strconv.Itoa(g.At)
			}
			items = append(items, page.El("li", shown(strings.TrimSpace(r.Version+" "+place)+": "+g.What+": "+g.Why)))
		}
	}
	return page.When(len(items) > 0, page.El("div", page.Class("gaps"),
		page.El("p", shown("Not all could be read. What is missing here may have changed.")), page.El("ul", items)))
}

// bar is where a reader says whose trouble is shown. It needs no script.
func bar() page.Content {
	choices := []struct{ id, words string }{{"of-all", "everybody"}}
	for _, p := range parties {
		choices = append(choices, struct{ id, words string }{"of-" + string(p), string(p)})
	}
	var labels page.Contents
	for i, c := range choices {
		labels = append(labels, page.El("label",
			page.Void("input", attr("type", "radio"), attr("name", "of"), attr("id", c.id),
				page.AttrWhen(i == 0, page.Bare("checked"))),
			shown(c.words)))
	}
	var key page.Contents
	for _, l := range []struct {
		level wirediff.Level
		words string
	}{
		{wirediff.Breaking, "somebody fails"},
		{wirediff.Compatible, "other bytes, nobody fails"},
		{wirediff.Informational, "the same bytes, or part of another change"},
	} {
		key = append(key, page.El("li", page.El("b", page.Class(string(l.level)), shown(signs[l.level])), shown(l.words)))
	}
	return page.El("div", page.Class("bar"),
		page.El("fieldset", page.El("legend", shown("What breaks")), labels), page.El("ul", page.Class("key"), key))
}

// table is one that can be scrolled, by keys too. Its columns are releases.
func table(id, caption, corner string, columns []Release, body page.Content) page.Content {
	return page.El("div", page.Class("wide"), attr("id", id), attr("tabindex", "0"), attr("role", "region"),
		attr("aria-label", caption), page.NL,
		page.El("table", page.Class("matrix"), page.NL, page.Lines(
			page.El("caption", shown(caption)),
			page.El("thead", page.El("tr", page.El("th", attr("scope", "col"), shown(corner)),
				page.Each(columns, func(r Release) page.Element {
					return page.El("th", attr("scope", "col"), attr("title", r.Version), shown(r.Name))
				}))),
			page.El("tbody", page.NL, body))))
}

// groupRow is the heading of the rows below it.
func groupRow(name string, columns int) page.Content {
	return page.El("tr", page.El("th", page.Class("group"), attr("scope", "rowgroup"),
		attr("colspan", strconv.Itoa(columns+1)), shown(name)), page.NL)
}

// rowHead is the cell that says what a row is about.
func rowHead(name string) page.Content {
	return page.El("th", attr("scope", "row"), page.El("code", shown(name)))
}

// changes are the table of what changed where.
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
		rows = append(rows, page.El("tr", breaksOf(slices.Concat(r.cells...)), row), page.NL)
	}
	return page.Lines(
		page.El("h2", attr("id", "matrix"), shown("What changed")),
		table("changes", "Changes from the release before, by what they are of.", "", columns, rows),
		page.When(len(m.unchanged) > 0, page.El("p", page.Class("quiet"),
			shown("Never changed: "+strings.Join(m.unchanged, ", ")+"."))))
}

// cell leads to the changes of a struct in a release.
func cell(release, name string, changes []wirediff.Change) page.Content {
	if len(changes) == 0 {
		return page.El("td")
	}
	level := changes[0].Level // the heaviest
	label := fmt.Sprintf("%s, %s: %s, %s", release, name, plural(len(changes), "change"), level)
	counts := page.Contents{page.El("span", page.Class("every"), shown(signs[level]+" "+strconv.Itoa(len(changes))))}
	for _, p := range parties {
		if n := breaking(changes, p); n > 0 {
			counts = append(counts, page.El("span", page.Class("one "+string(p)), shown(signs[wirediff.Breaking]+" "+strconv.Itoa(n))))
			label += fmt.Sprintf(", %d for %s", n, p)
		}
	}
	return page.El("td", page.El("a", page.Class(string(level)), page.ToAnchor(anchor(release, name)), breaksOf(changes),
		attr("aria-label", label), attr("title", label), counts))
}

// breaksOf tells the filter whom changes break.
func breaksOf(changes []wirediff.Change) page.Attribute {
	var whom []string
	for _, p := range parties {
		if breaking(changes, p) > 0 {
			whom = append(whom, string(p))
		}
	}
	return attr("data-breaks", strings.Join(whom, " "))
}

func anchor(release, name string) string { return oneLine(release + "-" + name) }

// steps are the changes themselves, the newest release first.
func (h *History) steps() page.Content {
	var all page.Contents
	m := h.matrix()
	for i, step := range slices.Backward(h.Steps) {
		all = append(all, h.step(m, i, step), page.NL)
	}
	return all
}

func (h *History) step(m matrix, i int, step Step) page.Content {
	to := h.Releases[i+1]
	var topics page.Contents
	for _, r := range m.rows {
		if len(r.cells[i]) > 0 {
			topics = append(topics, theTopic(to, r.name, r.cells[i]), page.NL)
		}
	}
	return page.Lines(
		page.El("h2", attr("id", to.Name), shown(to.Name+" "), page.El("small",
			shown("from "+step.From+" · "), commit(to)),
			page.El("a", page.Class("back"), page.ToAnchor("matrix"), shown("↑ table"))),
		page.When(to.Codec != "", page.El("p", page.Class("gaps"), shown("This build cannot speak it: "+to.Codec))),
		page.When(len(step.Changes) == 0, page.El("p", page.Class("quiet"), shown(nothing(step)))),
		topics)
}

// nothing says what no change means.
func nothing(s Step) string {
	if s.Verdict == wirediff.Unknown {
		return "Nothing that could be read has changed."
	}
	return "Nothing has changed."
}

// commit is the release, with a link to its sources.
func commit(r Release) page.Content {
	if r.Commit == "" {
		return shown(r.Version)
	}
	return page.El("a", page.To("https://github.com/vllm-project/vllm/tree/"+url.PathEscape(r.Commit)), shown(r.Version))
}

func theTopic(to Release, name string, changes []wirediff.Change) page.Content {
	return page.El("details", page.Class("topic"), attr("id", anchor(to.Name, name)),
		attr("data-level", string(changes[0].Level)), breaksOf(changes), page.NL, page.Lines(
			page.El("summary", page.El("code", shown(name)), page.El("span", page.Class("end"), levelChips(changes))),
			page.El("div", page.Class("body"), page.El("ul", page.Class("changes"), page.NL, page.Each(changes, item)))))
}

// levelChips count changes by level.
func levelChips(changes []wirediff.Change) page.Contents {
	var chips page.Contents
	for _, level := range []wirediff.Level{wirediff.Breaking, wirediff.Compatible, wirediff.Informational} {
		n := 0
		for _, c := range changes {
			if c.Level == level {
				n++
			}
		}
		if n > 0 {
			chips = append(chips, page.El("span", page.Class("chip "+string(level)),
				shown(fmt.Sprintf("%s %d %s", signs[level], n, level))))
		}
	}
	return chips
}

func item(c wirediff.Change) page.Contents {
	where := strings.ReplaceAll(string(c.Kind), "-", " ")
	if c.Position != nil {
		where += fmt.Sprintf(", position %d", *c.Position)
	}
	whom := "nobody fails"
	if len(c.Breaks) > 0 {
		whom = "breaks " + joined(c.Breaks)
	}
	needs := ""
	for _, n := range []struct{ who, what string }{{"player", c.Needs.Player}, {"recorder", c.Needs.Recorder}} {
		if n.what != "" && n.what != wirediff.FromProfile {
			needs += "Our " + n.who + " needs: " + n.what + ". "
		}
	}
	return page.Contents{page.El("li", breaksOf([]wirediff.Change{c}), page.NL, page.Lines(
		page.El("p", page.Class("head"),
			page.El("span", page.Class("sign "+string(c.Level)), attr("title", string(c.Level)), shown(signs[c.Level])),
			page.El("code", shown(c.Subject)), page.El("span", page.Class("quiet"), shown(where)),
			page.El("span", page.Class("chip "+string(c.Level)), shown(whom))),
		page.El("p", shown(sentence(c.Reason))),
		page.When(c.Caution != "", page.El("p", page.Class("quiet"), shown("But "+c.Caution+"."))),
		values(c),
		page.When(needs != "", page.El("p", page.Class("needs"), shown(strings.TrimSpace(needs)))),
		upstream(c.Where))), page.NL}
}

// values are what it was and what it is.
func values(c wirediff.Change) page.Contents {
	var rows page.Contents
	for _, v := range []struct{ name, value string }{{"before", c.Before}, {"after", c.After}} {
		if v.value != "" {
			rows = append(rows, page.El("dt", shown(v.name)), page.El("dd", shown(v.value)))
		}
	}
	return page.When(len(rows) > 0, page.El("dl", page.Class("values"), rows))
}

// upstream leads to the declaration.
func upstream(w wirediff.Where) page.Contents {
	if w.Module == "" {
		return nil
	}
	place := w.Module
	if w.At > 0 {
		place += ":" + strconv.Itoa(w.At)
	}
	var to page.Content = shown(place)
	if w.URL != "" {
		to = page.El("a", page.To(w.URL), shown(place))
	}
	return page.Contents{page.El("p", page.Class("quiet"), to, shown(" in "+w.Release))}
}

// joined are parties in a sentence.
func joined(all []wirediff.Party) string {
	words := make([]string, len(all))
	for i, p := range all {
		words[i] = string(p)
	}
	return strings.Join(words, ", ")
}

// sentence begins with a capital letter and ends with a full stop.
func sentence(text string) string {
	first, size := utf8.DecodeRuneInString(text)
	return string(unicode.ToUpper(first)) + text[size:] + "."
}

func plural(n int, word string) string {
	if n != 1 {
		word += "s"
	}
	return fmt.Sprintf("%d %s", n, word)
}
