package builtin

import (
	"encoding/json"
	"errors"
	"strings"
	"unicode/utf8"
)

// pythonError says as the Python frontend does where a body is no JSON. What else is wrong with it, it says as jsonError.
func pythonError(text []byte, err error) *apiError {
	if !errors.As(err, new(*json.SyntaxError)) {
		return jsonError(text, err)
	}
	what, at := pythonSyntax(string(text))
	if what == "" || len(text) == 0 { // Python takes it, or does not look at it
		return jsonError(text, err)
	}
	quote := "'"
	if strings.Contains(what, "'") {
		quote = `"`
	}
	loc := "body." + string(appendInt(nil, utf8.RuneCount(text[:at])))
	e := badJSON("1 validation error:\n  {'type': 'json_invalid', 'loc': '%s', 'msg': 'JSON decode error', 'input': '<dict of 0 items>', 'ctx': {'error': %s%s%[2]s}}",
		loc, quote, strings.ReplaceAll(what, `\`, `\\`))
	e.param = loc
	return e
}

// pythonSyntax returns what json.loads of Python 3.12 and before says of a text, and of which byte; "" if it takes the text.
func pythonSyntax(text string) (what string, at int) {
	i := 0
	is := func(c byte) bool { return i < len(text) && text[i] == c }
	space := func() {
		for i < len(text) && strings.IndexByte(" \t\n\r", text[i]) >= 0 {
			i++
		}
	}
	var open []byte // brackets
	const value, key, after = 0, 1, 2
	for state := value; ; {
		switch space(); state {
		case value:
			switch state = after; {
			case is('"'):
				if i, what, at = pythonString(text, i); what != "" {
					return what, at
				}
			case is('{'), is('['):
				opened := text[i]
				i++
				if space(); is(opened + 2) { // its closing bracket
					i++
					continue
				}
				if open = append(open, opened); opened == '{' {
					state = key
				} else {
					state = value
				}
			default:
				length := pythonWord(text[i:])
				if length == 0 {
					return "Expecting value", i
				}
				i += length
			}
		case key:
			if !is('"') {
				return "Expecting property name enclosed in double quotes", i
			}
			if i, what, at = pythonString(text, i); what != "" {
				return what, at
			}
			if space(); !is(':') {
				return "Expecting ':' delimiter", i
			}
			i++
			state = value
		case after:
			if len(open) == 0 {
				if i < len(text) {
					return "Extra data", i
				}
				return "", 0
			}
			inside := open[len(open)-1]
			switch {
			case is(inside + 2):
				open = open[:len(open)-1]
			case !is(','):
				return "Expecting ',' delimiter", i
			case inside == '{':
				state = key
			default:
				state = value
			}
			i++
		}
	}
}

// pythonString returns where a string ends.
func pythonString(text string, begin int) (end int, what string, at int) {
	for i := begin + 1; i < len(text); i++ {
		switch c := text[i]; {
		case c == '"':
			return i + 1, "", 0
		case c < ' ':
			return 0, "Invalid control character at", i
		case c != '\\':
		case i+1 == len(text):
			return 0, "Unterminated string starting at", begin
		case text[i+1] == 'u':
			digits := text[i+2 : min(i+6, len(text))]
			if len(digits) < 4 || strings.Trim(digits, "0123456789abcdefABCDEF") != "" {
				return 0, `Invalid \uXXXX escape`, i + 1
			}
			i += 5
		case strings.IndexByte(`"\/bfnrt`, text[i+1]) < 0:
			return 0, `Invalid \escape`, i
		default:
			i++
		}
	}
	return 0, "Unterminated string starting at", begin
}

// pythonWord returns how long a number or a word at the beginning of a text is; 0 if there is none.
func pythonWord(text string) int {
	for _, word := range []string{"null", "true", "false", "NaN", "Infinity", "-Infinity"} {
		if strings.HasPrefix(text, word) {
			return len(word)
		}
	}
	digits := func(from int) int {
		for from < len(text) && text[from] >= '0' && text[from] <= '9' {
			from++
		}
		return from
	}
	begin := 0
	if strings.HasPrefix(text, "-") {
		begin = 1
	}
	end := digits(begin)
	switch {
	case end == begin:
		return 0
	case text[begin] == '0':
		end = begin + 1
	}
	if end < len(text) && text[end] == '.' && digits(end+1) > end+1 {
		end = digits(end + 1)
	}
	if end < len(text) && text[end]|0x20 == 'e' {
		from := end + 1
		if from < len(text) && (text[from] == '+' || text[from] == '-') {
			from++
		}
		if last := digits(from); last > from {
			end = last
		}
	}
	return end
}
