package check

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/vllm-vcr/conformance/internal/base/lazyregexp"
)

// splitWords splits a command as a POSIX shell would that expands nothing: words
// end at blanks, single quotes keep everything, double quotes all but a backslash
// before one of "\$` or a line end, and a backslash outside keeps what follows it.
func splitWords(command string) ([]string, error) {
	s := wordSplitter{rest: command}
	for s.rest != "" {
		if err := s.next(); err != nil {
			return nil, err
		}
	}
	s.end()
	return s.words, nil
}

type wordSplitter struct {
	rest  string
	words []string
	word  strings.Builder
	open  bool // a word has begun, perhaps an empty one in quotes
}

// next takes one character outside quotes, or everything between two quotes.
func (s *wordSplitter) next() error {
	c := s.rest[0]
	s.rest = s.rest[1:]
	switch c {
	case ' ', '\t', '\n', '\r':
		s.end()
	case '\'':
		return s.single()
	case '"':
		return s.double()
	case '\\':
		return s.escaped()
	default:
		s.keep(c)
	}
	return nil
}

func (s *wordSplitter) keep(c byte) {
	s.word.WriteByte(c)
	s.open = true
}

func (s *wordSplitter) end() {
	if s.open {
		s.words = append(s.words, s.word.String())
	}
	s.word.Reset()
	s.open = false
}

func (s *wordSplitter) single() error {
	inside, rest, closed := strings.Cut(s.rest, "'")
	if !closed {
		return fmt.Errorf("a single quote is not closed: '%s", s.rest)
	}
	s.word.WriteString(inside)
	s.open, s.rest = true, rest
	return nil
}

func (s *wordSplitter) double() error {
	start := s.rest
	s.open = true
	for s.rest != "" {
		c := s.rest[0]
		s.rest = s.rest[1:]
		switch {
		case c == '"':
			return nil
		case c != '\\' || s.rest == "" || !strings.Contains("\"\\$`\n", s.rest[:1]):
			s.keep(c)
		default:
			if err := s.escaped(); err != nil {
				return err
			}
		}
	}
	return fmt.Errorf("a double quote is not closed: \"%s", start)
}

// escaped takes what follows a backslash; a line end after one is not a character.
func (s *wordSplitter) escaped() error {
	if s.rest == "" {
		return errors.New("it ends with a backslash")
	}
	if s.rest[0] != '\n' {
		s.keep(s.rest[0])
	}
	s.rest = s.rest[1:]
	return nil
}

// enginePlaceholders are what the command of an engine can ask for.
var enginePlaceholders = []string{"handshake", "handshake_host", "handshake_port", "trace", "match", "line", "tag", "index"}

// placeholder is a name in braces. What else stands in braces, JSON for one, is
// left alone.
var placeholder = lazyregexp.New(`\{[A-Za-z_]+\}`)

// checkPlaceholders refuses words that ask for something else than the known names.
func checkPlaceholders(words, known []string) error {
	for _, word := range words {
		for _, found := range placeholder().FindAllString(word, -1) {
			if !slices.Contains(known, found[1:len(found)-1]) {
				return fmt.Errorf("unknown placeholder %s: want one of {%s}", found, strings.Join(known, "}, {"))
			}
		}
	}
	return nil
}

func (c CommandEngine) names(name string) bool { return strings.Contains(c.Template, "{"+name+"}") }

// fillPlaceholders replaces each placeholder once: what a value holds is no
// placeholder.
func fillPlaceholders(word string, values map[string]string) string {
	return placeholder().ReplaceAllStringFunc(word, func(found string) string {
		return values[found[1:len(found)-1]]
	})
}
