package tomlfile

import (
	"strconv"
	"strings"
	"unicode/utf8"
)

// peek returns the next byte, 0 at the end. The text holds no NUL byte.
func (s *scanner) peek() byte {
	if s.pos >= len(s.src) {
		return 0
	}
	return s.src[s.pos]
}

func (s *scanner) accept(text string) bool {
	if !strings.HasPrefix(s.src[s.pos:], text) {
		return false
	}
	s.pos += len(text)
	return true
}

func (s *scanner) atEnd() error {
	if s.pos < len(s.src) {
		return errSyntax
	}
	return nil
}

// space skips blanks and tabs.
func (s *scanner) space() {
	for s.peek() == ' ' || s.peek() == '\t' {
		s.pos++
	}
}

// blank skips blanks, tabs and line ends.
func (s *scanner) blank() {
	for {
		switch s.peek() {
		case '\n':
			s.line++
		case ' ', '\t', '\r':
		default:
			return
		}
		s.pos++
	}
}

func (s *scanner) blankOrComment() {
	for s.blank(); s.peek() == '#'; s.blank() {
		s.comment()
	}
}

// comment reads from a # to the end of the line, which it leaves.
func (s *scanner) comment() string {
	rest, _, _ := strings.Cut(s.src[s.pos:], "\n")
	s.pos += len(rest)
	return rest
}

// endOfLine reads what may follow a header or a pair.
func (s *scanner) endOfLine() error {
	s.space()
	if s.peek() == '#' {
		s.comment()
	}
	if s.pos < len(s.src) && !s.accept("\n") && !s.accept("\r\n") {
		return errSyntax
	}
	s.line++
	return nil
}

// bare reads a number, boolean or date: everything up to what ends a value.
func (s *scanner) bare() error {
	n := strings.IndexAny(s.src[s.pos:], ",]}#\r\n")
	if n < 0 {
		n = len(s.src) - s.pos
	}
	if strings.TrimSpace(s.src[s.pos:s.pos+n]) == "" {
		return errSyntax
	}
	s.pos += n
	return nil
}

// skipString passes a string of any of the four kinds.
func (s *scanner) skipString() error {
	quote := s.src[s.pos : s.pos+1]
	if s.accept(strings.Repeat(quote, 3)) {
		return s.skipMultiline(quote[0])
	}
	_, err := s.quoted()
	return err
}

// quoted reads a string of one line and returns what is between its quotes.
func (s *scanner) quoted() (string, error) {
	quote := s.src[s.pos]
	for i := s.pos + 1; i < len(s.src); i++ {
		switch c := s.src[i]; {
		case c == '\n':
			return "", errSyntax
		case c == '\\' && quote == '"':
			i++
			if i < len(s.src) && s.src[i] == '\n' {
				return "", errSyntax
			}
		case c == quote:
			text := s.src[s.pos+1 : i]
			s.pos = i + 1
			return text, nil
		}
	}
	return "", errSyntax
}

// skipMultiline passes the rest of a string whose three opening quotes have been
// read. One or two quotes may stand directly before the three that close it.
func (s *scanner) skipMultiline(quote byte) error {
	for i := s.pos; i < len(s.src); i++ {
		switch c := s.src[i]; {
		case c == '\n':
			s.line++
		case c == '\\' && quote == '"':
			i++
			if i < len(s.src) && s.src[i] == '\n' {
				s.line++
			}
		case c == quote:
			run := quotes(s.src[i:], quote)
			if run >= 3 {
				s.pos = i + run
				return nil
			}
			i += run - 1
		}
	}
	return errSyntax
}

// quotes counts the quotes at the start of text, up to five: two of the string
// and three that close it.
func quotes(text string, quote byte) int {
	n := 0
	for n < len(text) && n < 5 && text[n] == quote {
		n++
	}
	return n
}

// keyPart reads one part of a dotted key.
func (s *scanner) keyPart() (string, error) {
	switch s.peek() {
	case '"':
		text, err := s.quoted()
		if err != nil {
			return "", err
		}
		return unescape(text)
	case '\'':
		return s.quoted()
	}
	start := s.pos
	for isBare(s.peek()) {
		s.pos++
	}
	if s.pos == start {
		return "", errSyntax
	}
	return s.src[start:s.pos], nil
}

func isBare(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '_' || c == '-'
}

// unescape resolves the escapes of a basic string.
func unescape(text string) (string, error) {
	var b strings.Builder
	for {
		before, after, found := strings.Cut(text, `\`)
		b.WriteString(before)
		if !found {
			return b.String(), nil
		}
		if after == "" {
			return "", errSyntax
		}
		r, size, ok := escape(after)
		if !ok {
			return "", errSyntax
		}
		b.WriteRune(r)
		text = after[size:]
	}
}

// escape reads what follows a backslash and returns the character it stands for
// and its length.
func escape(text string) (r rune, size int, ok bool) {
	if i := strings.IndexByte(`btnfre"\`, text[0]); i >= 0 {
		return rune("\b\t\n\f\r\x1b\"\\"[i]), 1, true
	}
	digits := map[byte]int{'x': 2, 'u': 4, 'U': 8}[text[0]]
	if digits == 0 || len(text) < 1+digits {
		return 0, 0, false
	}
	code, err := strconv.ParseUint(text[1:1+digits], 16, 32)
	if err != nil || code > utf8.MaxRune {
		return 0, 0, false
	}
	return rune(code), 1 + digits, true
}
