package jinja

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// A kind is that of a token.
type kind uint8

const (
	textToken  kind = iota
	beginPrint      // {{
	endPrint        // }}
	beginBlock      // {%
	endBlock        // %}
	nameToken
	stringToken
	numberToken
	opToken
	endOfFile
)

type token struct {
	kind kind
	text string
	line int
}

// operators are those of expressions, longer ones first.
var operators = []string{"**", "//", "==", "!=", "<=", ">=", "+", "-", "*", "/", "%", "~", "<", ">", "=", "(", ")", "[", "]", "{", "}", ",", ":", ".", "|"}

// lex cuts a template into tokens. As transformers sets it, the first line end after a block is dropped (trim_blocks), and so is the
// space before a block at the begin of a line (lstrip_blocks).
func lex(source string) (tokens []token) {
	source = strings.ReplaceAll(source, "\r\n", "\n")
	source = strings.TrimSuffix(source, "\n") // keep_trailing_newline is off
	line := 1
	strip, trim := false, false // what the tag before does with the text after it
	for at := 0; at < len(source); {
		open := at
		for open < len(source) && (source[open] != '{' || open+1 == len(source) || !strings.ContainsRune("{%#", rune(source[open+1]))) {
			open++
		}
		text := source[at:open]
		lines := strings.Count(text, "\n")
		if trim {
			text = strings.TrimPrefix(text, "\n")
		}
		if strip {
			text = strings.TrimLeftFunc(text, unicode.IsSpace)
		}
		strip, trim = false, false
		mark, control := "", byte(0)
		if open < len(source) {
			mark = source[open : open+2]
			if open+2 < len(source) && (source[open+2] == '-' || source[open+2] == '+') {
				control = source[open+2]
			}
			switch {
			case control == '-':
				text = strings.TrimRightFunc(text, unicode.IsSpace)
			case mark != "{{" && control != '+':
				own := strings.LastIndexByte(source[at:open], '\n')
				if blank := strings.TrimLeft(source[at+own+1:open], " \t") == ""; blank && (own >= 0 || at == 0 || source[at-1] == '\n') {
					text = strings.TrimRight(text, " \t")
				}
			}
		}
		if text != "" {
			tokens = append(tokens, token{textToken, text, line})
		}
		line += lines
		if mark == "" {
			break
		}
		body := open + 2
		if control != 0 {
			body++
		}
		if mark == "{#" {
			end := strings.Index(source[body:], "#}")
			if end < 0 {
				fail("line %d: a comment has no end", line)
			}
			line += strings.Count(source[body:body+end], "\n")
			strip = end > 0 && source[body+end-1] == '-'
			at, trim = body+end+2, true
			continue
		}
		closing, first, last := "%}", beginBlock, endBlock
		if mark == "{{" {
			closing, first, last = "}}", beginPrint, endPrint
		}
		tokens = append(tokens, token{first, mark, line})
		inner, next := lexTag(source, body, closing, &line)
		tokens = append(append(tokens, inner...), token{last, closing, line})
		end := next - 2
		strip = source[end-1] == '-'
		trim = mark == "{%" && source[end-1] != '+'
		at = next
	}
	return append(tokens, token{endOfFile, "", line})
}

// lexTag returns the tokens of a tag, and where the text goes on behind it.
func lexTag(source string, at int, closing string, line *int) (tokens []token, next int) {
	depth := 0
	for at < len(source) {
		rest := source[at:]
		c := source[at]
		switch {
		case c == '\n':
			*line++
			at++
			continue
		case c == ' ' || c == '\t':
			at++
			continue
		case depth == 0 && strings.HasPrefix(rest, closing):
			return tokens, at + 2
		case depth == 0 && (c == '-' || c == '+') && strings.HasPrefix(rest[1:], closing):
			return tokens, at + 3
		case c == '"' || c == '\'':
			text, n := quoted(rest, *line)
			*line += strings.Count(rest[:n], "\n")
			tokens = append(tokens, token{stringToken, text, *line})
			at += n
			continue
		case c >= '0' && c <= '9':
			n := 1
			for n < len(rest) && (rest[n] >= '0' && rest[n] <= '9' || rest[n] == '_' || rest[n] == '.' && n+1 < len(rest) && rest[n+1] >= '0' && rest[n+1] <= '9') {
				n++
			}
			tokens = append(tokens, token{numberToken, strings.ReplaceAll(rest[:n], "_", ""), *line})
			at += n
			continue
		}
		if n := nameLength(rest); n > 0 {
			tokens = append(tokens, token{nameToken, rest[:n], *line})
			at += n
			continue
		}
		found := ""
		for _, op := range operators {
			if strings.HasPrefix(rest, op) {
				found = op
				break
			}
		}
		switch found {
		case "":
			fail("line %d: unexpected %q", *line, c)
		case "(", "[", "{":
			depth++
		case ")", "]", "}":
			depth--
		}
		tokens = append(tokens, token{opToken, found, *line})
		at += len(found)
	}
	fail("line %d: a tag has no %s", *line, closing)
	return nil, 0
}

func nameLength(text string) (n int) {
	for n < len(text) {
		r, size := utf8.DecodeRuneInString(text[n:])
		if r != '_' && !unicode.IsLetter(r) && (n == 0 || !unicode.IsDigit(r)) {
			break
		}
		n += size
	}
	return n
}

// quoted reads a string literal, which begins in this line.
func quoted(text string, line int) (value string, n int) {
	var b strings.Builder
	for i := 1; i < len(text); i++ {
		switch c := text[i]; {
		case c == text[0]:
			return b.String(), i + 1
		case c == '\\' && i+1 < len(text):
			i++
			switch text[i] {
			case 'n':
				b.WriteByte('\n')
			case 't':
				b.WriteByte('\t')
			case 'r':
				b.WriteByte('\r')
			case 'u', 'x':
				size := 4
				if text[i] == 'x' {
					size = 2
				}
				var r rune
				if i+size >= len(text) {
					fail("line %d: a string has no end", line)
				}
				if _, err := fmt.Sscanf(text[i+1:i+1+size], "%x", &r); err != nil {
					fail("line %d: escape %q in a string", line, text[i-1:i+1+size])
				}
				b.WriteRune(r)
				i += size
			case '\\', '\'', '"':
				b.WriteByte(text[i])
			case '\n':
			default:
				b.WriteByte('\\')
				b.WriteByte(text[i])
			}
		default:
			b.WriteByte(c)
		}
	}
	fail("line %d: a string has no end", line)
	return "", 0
}
