package history

import (
	"strconv"

	"github.com/vllm-vcr/conformance/internal/page"
	"github.com/vllm-vcr/conformance/internal/protocol"
)

// absent is what stands in a table for what a release does not have.
const absent = "–"

// state is what a row is in one release. Marks stand behind the words.
type state struct {
	words, mark, says string
}

// stateCells are a row's cells, of which those are marked that are not as in the release before.
func stateCells(states []state) page.Contents {
	var cells page.Contents
	for i, s := range states {
		style := ""
		if s.words == absent {
			style = "no"
		}
		differs := i > 0 && s != states[i-1]
		if differs {
			style = "new"
		}
		cells = append(cells, page.El("td", page.AttrWhen(style != "", page.Class(style)), shown(s.words+s.mark),
			page.When(differs || s.says != "", page.El("span", page.Class("sr"), shown(s.says+when(differs, " changed"))))))
	}
	return cells
}

func when(shown bool, words string) string {
	if !shown {
		return ""
	}
	return words
}

// sizes are the table of how long arrays are and how many keys maps have.
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
		rows = append(rows, page.El("tr", rowHead(s.Struct), stateCells(states)), page.NL)
	}
	return page.Lines(
		page.El("h2", attr("id", "sizes"), shown("How long")),
		table("lengths", "Fields of each struct. What differs from the release before is marked.", "", h.Releases, rows))
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
				states[at] = state{words: "●", says: is}
			default:
				states[at] = state{words: "○", says: is}
			}
		}
		rows = append(rows, page.El("tr", rowHead(k.Name), stateCells(states)), page.NL)
	}
	return page.Lines(
		page.El("h2", attr("id", "handshake"), shown("Handshake and frames")),
		table("keys", "Keys of messages: ● is always there, ○ may be absent.", "", h.Releases, rows))
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
			states[i] = stateOf(a)
		}
		rows = append(rows, page.El("tr", rowHead(u.Name), stateCells(states)), page.NL)
	}
	return page.Lines(
		page.El("h2", attr("id", "utilities"), shown("Utility methods")),
		table("methods", "What the engine's methods answer; ● the Python frontend calls it.", "", h.Releases, rows))
}

func stateOf(a Answer) state {
	s := state{words: string(a.Result)}
	switch a.Result {
	case "":
		s.words = absent
	case protocol.ResultNone:
		s.words = "nothing"
	}
	if a.Called {
		s.mark, s.says = " ●", " called"
	}
	return s
}
