package pyast

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// stringValue returns the value of a string, or of several that stand side by side: a string or []byte.
func (t *Tree) stringValue(n *Node) (any, error) {
	var text strings.Builder
	kind := byte(0)
	for at := range stringsOf(n) {
		prefix := t.prefix(at)
		if strings.ContainsAny(prefix, "ft") {
			return nil, fmt.Errorf("line %d: %s is no literal: its value is made when it runs", at.Line, excerpt(t.Text(at)))
		}
		value, err := t.decode(at, prefix)
		if err != nil {
			return nil, fmt.Errorf("line %d: %s: %w", at.Line, excerpt(t.Text(at)), err)
		}
		of := byte('s')
		if strings.Contains(prefix, "b") {
			of = 'b'
		}
		if kind != 0 && kind != of {
			return nil, fmt.Errorf("line %d: strings and bytes side by side", at.Line)
		}
		kind = of
		text.WriteString(value)
	}
	switch kind {
	case 's':
		return text.String(), nil
	case 'b':
		return []byte(text.String()), nil
	}
	return nil, t.noLiteral(n)
}

// stringsOf iterates over the parts of a string.
func stringsOf(n *Node) func(yield func(*Node) bool) {
	if n.Kind == "concatenated_string" {
		return n.NamedChildren()
	}
	return func(yield func(*Node) bool) { yield(n) }
}

// prefix returns the letters before the quote, in lower case.
func (t *Tree) prefix(n *Node) string {
	if len(n.Children) == 0 || n.Children[0].Kind != "string_start" {
		return ""
	}
	return strings.ToLower(strings.TrimRight(t.Text(n.Children[0]), `"'`))
}

// decode returns what a string without placeholders holds; bytes as the bytes they are.
func (t *Tree) decode(n *Node, prefix string) (string, error) {
	last := len(n.Children) - 1
	if last < 1 || n.Children[0].Kind != "string_start" || n.Children[last].Kind != "string_end" {
		return "", errors.New("no whole string")
	}
	start := n.Children[0]
	marks := start.End - start.Start - len(prefix)
	// Not where the last child starts: that of r"\\" has the whole text in it.
	return unescape(t.newlines(start.End, n.End-marks), prefix)
}

// newlines returns a piece of the source with the line ends that Python sees.
func (t *Tree) newlines(start, end int) string {
	return newlines.Replace(string(t.Source[start:end]))
}

var newlines = strings.NewReplacer("\r\n", "\n", "\r", "\n")

// unescape replaces the escape sequences of a text. As in Python, a backslash before anything else stays.
func unescape(text, prefix string) (string, error) {
	isBytes := strings.Contains(prefix, "b")
	if i := strings.IndexFunc(text, func(r rune) bool { return r >= utf8.RuneSelf }); isBytes && i >= 0 {
		return "", errors.New("bytes may hold ASCII only")
	}
	if strings.Contains(prefix, "r") {
		return text, nil
	}
	var out strings.Builder
	for {
		before, rest, found := strings.Cut(text, `\`)
		out.WriteString(before)
		if !found {
			return out.String(), nil
		}
		size, err := escape(&out, rest, isBytes)
		if err != nil {
			return "", err
		}
		text = rest[size:]
	}
}

// simpleEscapes are those of one letter, in pairs: the letter and what it stands for.
const simpleEscapes = "\n\x00\\\\''\"\"a\ab\bf\fn\nr\rt\tv\v"

// escape writes what the sequence at the start of text stands for, which follows a backslash, and returns its length.
func escape(out *strings.Builder, text string, isBytes bool) (size int, err error) {
	if text == "" {
		return 0, errors.New("a backslash at the end")
	}
	c := text[0]
	for i := 0; i < len(simpleEscapes); i += 2 {
		if simpleEscapes[i] == c {
			if c != '\n' { // the line goes on
				out.WriteByte(simpleEscapes[i+1])
			}
			return 1, nil
		}
	}
	digits := 0
	switch {
	case c >= '0' && c <= '7':
		for digits < 3 && digits < len(text) && text[digits] >= '0' && text[digits] <= '7' {
			digits++
		}
		return digits, writeCode(out, text[:digits], 8, isBytes)
	case c == 'x':
		digits = 2
	case c == 'u' && !isBytes:
		digits = 4
	case c == 'U' && !isBytes:
		digits = 8
	case c == 'N' && !isBytes:
		return 0, errors.New(`a character by its name, \N{…}, cannot be told here`)
	default:
		out.WriteByte('\\')
		return 0, nil
	}
	if len(text) <= digits {
		return 0, fmt.Errorf(`\%c needs %d digits`, c, digits)
	}
	return 1 + digits, writeCode(out, text[1:1+digits], 16, isBytes)
}

func writeCode(out *strings.Builder, digits string, base int, isBytes bool) error {
	code, err := strconv.ParseUint(digits, base, 32)
	switch {
	case err != nil:
		return fmt.Errorf("%q are no digits of base %d", digits, base)
	case isBytes:
		out.WriteByte(byte(code)) // Python takes the low byte of an octal one above 255 too
	case code > utf8.MaxRune || code >= 0xd800 && code <= 0xdfff:
		return fmt.Errorf("U+%04X is no character", code)
	default:
		out.WriteRune(rune(code))
	}
	return nil
}
