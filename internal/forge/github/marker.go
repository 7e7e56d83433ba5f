package github

import "strings"

// cut leaves out what is longer than GitHub takes.
func cut(body string) string {
	const limit = 60_000 // bytes; GitHub takes 65,536 characters
	body = strings.TrimSpace(strings.ReplaceAll(body, "\r\n", "\n"))
	if len(body) <= limit {
		return body
	}
	body = strings.ToValidUTF8(body[:limit], "")
	if at := strings.LastIndexByte(body, '\n'); at > 0 {
		body = body[:at]
	}
	return body + "\n\n(cut here: the rest is in the run's report)"
}

// marked is a body with its hidden last line. Foreign text in the body cannot pretend to be it.
func marked(body, key string) string { return cut(body) + "\n\n" + marker(key) }

func marker(key string) string { return "<!-- vllm-vcr: " + key + " -->" }

// hasMarker reports whether the last line of a body is the marker of key.
func hasMarker(body, key string) bool {
	_, last := splitLast(body)
	return last == marker(key)
}

// keyOf is the key of the marker that is the last line of a body, or "".
func keyOf(body string) string {
	_, last := splitLast(body)
	return within(last, "<!-- vllm-vcr: ", " -->")
}

// withState is a text with the state and the key behind it, in hidden lines.
func withState(text, state, key string) string {
	text = strings.TrimSpace(text) + "\n\n"
	if state != "" {
		text += stateBegin + state + " -->\n"
	}
	return text + marker(key)
}

const stateBegin = "<!-- vllm-vcr state: "

// stateOf is the state that a body of the key has, or "".
func stateOf(body, key string) string {
	_, state := parts(body, key)
	return state
}

// parts are the text of a body of the key and its state, without the hidden lines.
func parts(body, key string) (text, state string) {
	text, last := splitLast(body)
	if last != marker(key) {
		return strings.TrimSpace(body), ""
	}
	before, last := splitLast(text)
	if state = within(last, stateBegin, " -->"); state != "" {
		text = before
	}
	return strings.TrimSpace(text), state
}

// splitLast parts the last line of a text from those before it.
func splitLast(text string) (before, last string) {
	text = strings.TrimSpace(text)
	at := strings.LastIndexByte(text, '\n') + 1
	return text[:at], text[at:]
}

// within is what stands between two ends of a line, or "".
func within(line, begin, end string) string {
	line, begins := strings.CutPrefix(line, begin)
	line, ends := strings.CutSuffix(line, end)
	if !begins || !ends {
		return ""
	}
	return line
}

// sameBody compares without what an edit in the browser changes: the ends of lines.
func sameBody(a, b string) bool {
	return strings.TrimSpace(strings.ReplaceAll(a, "\r\n", "\n")) == strings.TrimSpace(strings.ReplaceAll(b, "\r\n", "\n"))
}
